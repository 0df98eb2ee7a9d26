//! What Diarist may add to the body, beside a block, for the provider's prompt cache.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAddition {
    /// `prompt_cache_key`.
    Key,
    /// `prompt_cache_breakpoint`.
    Breakpoint,
}

impl CacheAddition {
    pub const ALL: [Self; 2] = [Self::Key, Self::Breakpoint];

    /// The field of the API.
    pub fn field(self) -> &'static str {
        match self {
            Self::Key => "prompt_cache_key",
            Self::Breakpoint => "prompt_cache_breakpoint",
        }
    }
}

/// Some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheAdditions([bool; CacheAddition::ALL.len()]);

impl CacheAdditions {
    pub(super) fn has(self, addition: CacheAddition) -> bool {
        self.0[addition as usize]
    }

    pub(super) fn insert(&mut self, addition: CacheAddition) {
        self.0[addition as usize] = true;
    }

    pub(super) fn union(mut self, other: Self) -> Self {
        for addition in CacheAddition::ALL {
            self.0[addition as usize] |= other.has(addition);
        }
        self
    }
}
