//! The types of the key table: a section, a key, and the TOML literal that the reference shows for it.
//!
//! The table itself is in `settings`. `layers` and `reference` read it through these types, so that they
//! need not know which keys there are.

/// A section of the file and its keys, in the order of the reference.
#[derive(Debug)]
pub(super) struct SectionSpec {
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) keys: &'static [KeySpec],
}

#[derive(Debug)]
pub(super) struct KeySpec {
    /// The dotted path: `memory.observation.model`.
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) sample: SampleValue,
}

/// The TOML literal that the reference shows for a key.
#[derive(Debug)]
pub(super) enum SampleValue {
    /// The value in force unless another one is written.
    Default(&'static str),
    /// Only shows how a value looks: the key is unset by default.
    Example(&'static str),
}

impl KeySpec {
    /// Whether the value may never be printed.
    pub(super) fn is_secret(&self) -> bool {
        matches!(
            self.name,
            "api_key" | "secret" | "admin_token" | "pepper" | "export_headers"
        )
    }
}

/// The table: every section with its keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sections(pub(super) &'static [SectionSpec]);

impl Sections {
    pub(super) fn keys(self) -> impl Iterator<Item = &'static KeySpec> + Clone {
        self.0.iter().flat_map(|section| section.keys)
    }

    pub(super) fn has_key(self, path: &str) -> bool {
        self.keys().any(|key| key.path == path)
    }

    pub(super) fn has_section(self, name: &str) -> bool {
        self.names().any(|section| section == name)
    }

    pub(super) fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        self.0.iter().map(|section| section.name)
    }
}
