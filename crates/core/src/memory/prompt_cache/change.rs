//! Where two prompts of one conversation differ first, and who changed that.

use super::sent_prompt::{PromptPart, SentPart, SentPrompt};

/// Who changed a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    Client,
    Memory,
}

impl Author {
    /// The name in the audit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Memory => "memory",
        }
    }
}

/// A prompt compared with the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Bytes of the parts at the beginning that are the same.
    pub common_bytes: u64,
    /// The first part that differs, and who changed it. `None` if the prompt only grew.
    pub first: Option<(PromptPart, Author)>,
    /// Whether the client went back to an earlier point of the conversation.
    pub(super) forked: bool,
    /// Whether the client inserted messages, and all that it sent before follows them unchanged.
    pub(super) inserted: bool,
}

impl Change {
    /// Compares `current` with `previous`.
    #[must_use]
    pub fn between(previous: &SentPrompt, current: &SentPrompt) -> Self {
        let (mut common_bytes, mut sent, mut sending) = (0, previous.parts(), current.parts());
        let first = loop {
            match (sent.next(), sending.next()) {
                (None, _) => break None,
                (Some(old), Some(new)) if is_same(&old, &new) => common_bytes += new.bytes,
                (old, new) => break first_difference(old, new),
            }
        };
        let (old, new) = (previous.client_messages(), current.client_messages());
        let kept = common_count(old, new);
        let first = first.map(|part| (part, author(part, previous, current, kept)));
        Self {
            common_bytes,
            first,
            forked: is_fork(old, new, kept),
            inserted: is_insertion(&old[kept..], &new[kept..]),
        }
    }
}

/// Whether two parts are the same. The number of a message does not count: clients drop messages that the block
/// has replaced.
fn is_same(old: &SentPart, new: &SentPart) -> bool {
    let same_kind = std::mem::discriminant(&old.part) == std::mem::discriminant(&new.part);
    same_kind && old.digest == new.digest
}

/// The name for the place where `old` was and `new` is. A part that was added or left out gives its own name.
fn first_difference(old: Option<SentPart>, new: Option<SentPart>) -> Option<PromptPart> {
    let (old, new) = (old.map(|part| part.part), new.map(|part| part.part));
    [
        PromptPart::Tools,
        PromptPart::System,
        PromptPart::Observations,
    ]
    .into_iter()
    .find(|part| old == Some(*part) || new == Some(*part))
    .or(new)
    .or(old)
}

/// `kept` is the number of messages at the beginning that the client left as they were.
fn author(part: PromptPart, previous: &SentPrompt, current: &SentPrompt, kept: usize) -> Author {
    let only_grew = kept == previous.client_messages().len();
    // Behind both cuts, the client changes no message that the block depends on.
    let behind_cuts = kept >= previous.layout.cut.max(current.layout.cut);
    match part {
        PromptPart::Observations if only_grew || behind_cuts => Author::Memory,
        PromptPart::Message(_) if only_grew => Author::Memory,
        _ => Author::Client,
    }
}

fn is_fork(old: &[u64], new: &[u64], kept: usize) -> bool {
    if kept == old.len() {
        return false;
    }
    let newest_is_kept = old
        .last()
        .is_some_and(|newest| new[kept..].contains(newest));
    new.len() <= old.len() && !newest_is_kept
}

/// Whether `old` is not empty, and stands in `new` as it was, behind something else.
fn is_insertion(old: &[u64], new: &[u64]) -> bool {
    let Some(behind_first) = new.get(1..).filter(|_| !old.is_empty()) else {
        return false;
    };
    behind_first.windows(old.len()).any(|run| run == old)
}

fn common_count(old: &[u64], new: &[u64]) -> usize {
    old.iter()
        .zip(new)
        .take_while(|(old, new)| old == new)
        .count()
}
