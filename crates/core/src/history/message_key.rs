//! What is kept of a message to know it again without its words, and without its place: marks.
//!
//! A [`Mark`] is seeded by the owner like a link, so the stores of two owners tell nothing of each
//! other (INV-OWN). Decides what counts as *telling*: a message that no other conversation says by
//! chance. What the person or the application says is often a template; what the model said, and
//! the ids of its tool calls, are not.

use super::{Link, Message, Role};

/// A short hash under one owner: of a message, of its tool calls' ids, of two neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopedHash([u8; ScopedHash::LEN]);

impl ScopedHash {
    /// Bytes of a mark. Within one owner's messages 128 bits do not collide.
    pub const LEN: usize = 16;

    fn new(context: &str, root: &Link, pieces: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(root.as_bytes());
        hasher.update(context.as_bytes());
        for piece in pieces {
            hasher.update(&(piece.len() as u64).to_be_bytes());
            hasher.update(piece);
        }
        let mut hash = [0; Self::LEN];
        hasher.finalize_xof().fill(&mut hash);
        Self(hash)
    }

    /// The mark of a whole text as a model answered it, as clients bring it back: trimmed, and without
    /// what it thought aloud at the beginning.
    pub fn from_text(root: &Link, text: &str) -> Self {
        let text = text.trim();
        let answer = text
            .strip_prefix("<think>")
            .and_then(|rest| rest.split_once("</think>"))
            .map_or(text, |(_, answer)| answer.trim());
        Self::new("text", root, &[answer.as_bytes()])
    }

    /// The same with its first bit saying `yes` or no.
    fn flagged(mut self, yes: bool) -> Self {
        self.0[0] = (self.0[0] & !1) | u8::from(yes);
        self
    }

    fn flag(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// As stored.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// From the store; `None` unless of the right length.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl std::fmt::Debug for ScopedHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mark({})", super::chain::hex(&self.0[..6]))
    }
}

/// A message as alignment sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageKey {
    /// Who speaks.
    pub role: Role,
    /// What it says.
    pub content: ScopedHash,
    /// The ids of the calls it makes, or of the one it answers.
    pub ids: Option<ScopedHash>,
    /// See [`Message::weight`].
    pub distinctive_bytes: u32,
}

/// Text shorter than this, in bytes, may be said in any conversation ("yes, please do that").
pub const MIN_DISTINCTIVE_BYTES: u32 = 24;

/// An answer of this many bytes, some thirty words, is not given twice by chance. Shorter ones are: how a
/// model says goodbye, and declines, has a dozen words, the same for everybody.
pub(super) const LONG_ANSWER_BYTES: u32 = 160;

impl MessageKey {
    /// `message` under the owner whose chains begin at `root`.
    pub fn from_message(root: &Link, message: &Message) -> Self {
        let ids: Vec<&[u8]> = match &message.answers {
            Some(id) => vec![id.as_bytes()],
            None => message.calls.iter().map(|id| id.as_bytes()).collect(),
        };
        let kind = if message.answers.is_some() {
            "answer"
        } else {
            "calls"
        };
        let random = ids.iter().all(|id| is_random_id(id));
        Self {
            role: message.role,
            content: ScopedHash::new("content", root, &[message.fingerprint.as_bytes()]),
            ids: (!ids.is_empty()).then(|| ScopedHash::new(kind, root, &ids).flagged(random)),
            distinctive_bytes: message.distinctive_bytes,
        }
    }

    /// Whether it bears ids that no other conversation has.
    pub(super) fn has_random_ids(&self) -> bool {
        self.ids.is_some_and(ScopedHash::flag)
    }

    /// Whether the model said it, or was told it in answer to a call of its own.
    pub(super) fn is_distinctive(&self) -> bool {
        self.has_random_ids()
            || (self.role == Role::Assistant && self.distinctive_bytes >= MIN_DISTINCTIVE_BYTES)
    }

    fn ids_or_content(&self) -> &ScopedHash {
        self.ids.as_ref().unwrap_or(&self.content)
    }
}

/// Whether an id of a call was drawn at random. Servers that number their calls (`call_0`,
/// `functions.read:3`) give every conversation the same ids; the shortest drawn ones have nine
/// characters.
fn is_random_id(id: &[u8]) -> bool {
    let last = id.rsplit(|byte| !byte.is_ascii_alphanumeric()).next();
    last.is_some_and(|last| last.len() >= 6)
}

/// What `item` behind `before` is looked up by; `None` where neither tells anything. A tool result
/// counts by its id, since clients replace what old ones say.
pub fn anchor(root: &Link, previous: &MessageKey, item: &MessageKey) -> Option<ScopedHash> {
    (previous.is_distinctive() || item.is_distinctive()).then(|| {
        ScopedHash::new(
            "anchor",
            root,
            &[
                previous.ids_or_content().as_bytes(),
                item.ids_or_content().as_bytes(),
            ],
        )
    })
}

/// Answers that programs write in the model's name behind what they insert, and that models give to
/// everything: what they begin with, in lower case.
const ACKNOWLEDGEMENTS: [&str; 8] = [
    "ok",
    "got it",
    "understood",
    "sure",
    "done",
    "continue",
    "thank",
    "i updated the files",
];

/// Acknowledgements are short; the longest that is known, aider's where no file is in the chat, has 113
/// bytes. A template that ends every restored conversation leads to the wrong one of them.
const MAX_ACKNOWLEDGEMENT_BYTES: usize = 120;

/// What `text` of an assistant weighs as evidence: a fixed acknowledgement nothing.
pub fn distinctive_bytes(role: Role, text: &str) -> u32 {
    let is_acknowledgement =
        role == Role::Assistant && text.len() <= MAX_ACKNOWLEDGEMENT_BYTES && {
            let lower = text.to_lowercase();
            ACKNOWLEDGEMENTS
                .iter()
                .any(|fixed| lower.starts_with(fixed))
        };
    if is_acknowledgement {
        return 0;
    }
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}
