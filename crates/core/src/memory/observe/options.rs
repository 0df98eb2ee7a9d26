//! What the operator configures about the Observer besides its model: what it is shown and what it is
//! asked for.

use crate::memory::redact::Redactor;

/// The options of an Observer.
#[derive(Clone, Debug)]
pub struct ObserverOptions {
    /// Removes secrets from messages before the Observer reads them.
    pub redactor: Redactor,
    /// Tags of blocks that clients put into user messages. The Observer is not shown these blocks.
    pub omit_blocks: Vec<String>,
    /// The most tokens of history in one call; a longer range is observed in pieces.
    pub max_input_tokens: u32,
    /// Tokens of earlier observations that it is shown; `None` shows all.
    pub previous_tokens: Option<u32>,
    /// The hints that it is asked for.
    pub hints: RequestedHints,
    /// Whether it is asked for a title of the conversation.
    pub title: bool,
    /// Whether it is shown the application's system prompt.
    pub application: bool,
    /// The attachments that it is shown.
    pub attachments: AttachmentFilter,
}

impl Default for ObserverOptions {
    /// The published values, except that the system prompt is never shown.
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

/// The hints, which the Observer writes in two sections behind the observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedHints {
    /// The task that the conversation is busy with.
    pub current_task: bool,
    /// How the Observer would continue.
    pub suggested_response: bool,
}

impl RequestedHints {
    /// Both hints.
    pub const ALL: Self = Self {
        current_task: true,
        suggested_response: true,
    };

    /// No hint.
    pub const NONE: Self = Self {
        current_task: false,
        suggested_response: false,
    };

    /// The hints that are in one of the two.
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
    /// Images and PDF, which models with vision accept.
    Auto,
    /// All.
    All,
    /// Those of these media types, in lower case; `type/*` and `*` match several.
    Only(Vec<String>),
}

impl AttachmentFilter {
    /// Whether attachments of this media type are shown. `image/*` is an image of unknown type.
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
