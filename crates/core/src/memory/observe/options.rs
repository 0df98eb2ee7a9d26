//! What the operator decides about the Observer beside its model: what it is shown and asked for.

use crate::memory::redact::Redactor;

/// How the Observer is asked.
#[derive(Clone, Debug)]
pub struct ObserverOptions {
    /// What is taken out of messages before it reads them.
    pub redactor: Redactor,
    /// Tags of the blocks that clients put into user messages, which it is not shown.
    pub omit_blocks: Vec<String>,
    /// Most tokens of history in one call; a longer range is observed in pieces.
    pub max_input_tokens: u32,
    /// Tokens of earlier observations it is shown; `None` shows all of them.
    pub previous_tokens: Option<u32>,
    /// Which hints it is asked for.
    pub hints: RequestedHints,
    /// Whether it is asked for a title of the conversation.
    pub title: bool,
    /// Whether it is shown the application's system prompt.
    pub application: bool,
    /// Which attachments it is shown.
    pub attachments: AttachmentFilter,
}

impl Default for ObserverOptions {
    /// As published, but that the system prompt is never shown.
    fn default() -> Self {
        Self {
            redactor: Redactor::default(),
            omit_blocks: Vec::new(),
            max_input_tokens: 60_000,
            previous_tokens: Some(2_000),
            hints: RequestedHints::ALL,
            title: false,
            application: false,
            attachments: AttachmentFilter::Auto,
        }
    }
}

/// Where things stand at the end of a range, in two sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedHints {
    /// What the conversation is busy with.
    pub current_task: bool,
    /// How the Observer would go on.
    pub suggested_response: bool,
}

impl RequestedHints {
    /// Both.
    pub const ALL: Self = Self {
        current_task: true,
        suggested_response: true,
    };

    /// Neither.
    pub const NONE: Self = Self {
        current_task: false,
        suggested_response: false,
    };

    /// Those that one of the two asks for.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            current_task: self.current_task || other.current_task,
            suggested_response: self.suggested_response || other.suggested_response,
        }
    }
}

/// Which attachments are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentFilter {
    /// What models that see at all take: images and PDF.
    Auto,
    /// All.
    All,
    /// Those of these media types, in lower case; `type/*` and `*` stand for many.
    Only(Vec<String>),
}

impl AttachmentFilter {
    /// Whether one of this media type is shown. `image/*` is an image whose type nobody says.
    pub fn accepts(&self, media_type: &str) -> bool {
        let media_type = media_type.to_ascii_lowercase();
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => media_type.starts_with(start),
            None => media_type == pattern,
        };
        match self {
            Self::Auto => ["image/*", "application/pdf"].into_iter().any(matches),
            Self::All => true,
            Self::Only(types) => types.iter().any(|pattern| matches(pattern)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_matched_in_any_case_and_by_stars() {
        let only = |types: &[&str]| {
            AttachmentFilter::Only(types.iter().map(|t| (*t).to_owned()).collect())
        };
        for (show, shown, hidden) in [
            (
                AttachmentFilter::Auto,
                vec!["image/png", "IMAGE/*", "application/pdf"],
                vec!["audio/wav", "text/csv", ""],
            ),
            (
                AttachmentFilter::All,
                vec!["image/png", "audio/wav", ""],
                vec![],
            ),
            (only(&[]), vec![], vec!["image/png", "application/pdf", "*"]),
            (
                only(&["image/png"]),
                vec!["Image/PNG"],
                vec!["image/jpeg", "image/*"],
            ),
            (
                only(&["audio/*", "text/csv"]),
                vec!["audio/wav", "text/csv"],
                vec!["image/png", "text/plain"],
            ),
            (only(&["*"]), vec!["image/png", "x/y"], vec![]),
        ] {
            assert!(shown.iter().all(|t| show.accepts(t)), "{show:?}");
            assert!(hidden.iter().all(|t| !show.accepts(t)), "{show:?}");
        }
    }
}
