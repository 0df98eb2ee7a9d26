//! A conversation without its wire format.
//!
//! A wire format (see [`crate::wire`]) turns each message into a [`Turn`]: its role, a [`Fingerprint`]
//! of what it means, and the tool calls that it makes or answers. This room chains the messages into
//! [`Link`]s and says where a history may be cut. It knows no JSON, no tokens and no memory. All rooms
//! above it import it; it imports none.

pub mod align;
mod chain;
mod cuts;
mod fingerprint;
mod hex;
mod lanes;
mod message;
mod message_key;
mod pepper;
mod plain_text;
mod position_map;
mod role;

pub use chain::{Link, Scope};
pub use cuts::Cuts;
pub use fingerprint::{Batch, Encoder, Fingerprint};
pub use message::{MIN_DISTINCTIVE_BYTES, Message, PromptFields};
pub use message_key::{MessageKey, ScopedHash, anchor, distinctive_bytes};
pub use pepper::Pepper;
pub use plain_text::{AttachmentKind, Detail, Media, MessagePiece, PlainText};
pub use position_map::{PathMessage, PositionMap};
pub use role::Role;

/// One message at its place in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The message itself.
    pub message: Message,
    /// The chain up to and including this message.
    pub link: Link,
}

/// The client's history: all messages behind its leading system messages, chained.
#[derive(Clone, Debug)]
pub struct History {
    root: Link,
    turns: Vec<Turn>,
    cuts: Cuts,
}

impl History {
    /// Chains `messages`, without leading system messages, under `scope`.
    pub fn chain(scope: &Scope, messages: Vec<Message>) -> Self {
        let cuts = Cuts::new(&messages);
        let root = Link::root(scope);
        let mut link = root;
        let turns = messages
            .into_iter()
            .map(|message| {
                link = link.next(&message.fingerprint);
                Turn { message, link }
            })
            .collect();
        Self { root, turns, cuts }
    }

    /// The history of its first `len` messages.
    #[must_use]
    pub fn prefix(&self, len: usize) -> Self {
        let turns = self.turns[..len.min(self.turns.len())].to_vec();
        let messages: Vec<Message> = turns.iter().map(|turn| turn.message.clone()).collect();
        Self {
            root: self.root,
            cuts: Cuts::new(&messages),
            turns,
        }
    }

    /// The link before the first message.
    pub fn root(&self) -> Link {
        self.root
    }

    /// The messages in order.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Whether the client sent nothing but leading system messages.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The link of the last message, which names exactly this history.
    pub fn tip(&self) -> Option<Link> {
        self.turns.last().map(|turn| turn.link)
    }

    /// Where this history may be cut.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Index of the newest user message.
    pub fn newest_user(&self) -> Option<usize> {
        self.turns
            .iter()
            .rposition(|turn| turn.message.role == Role::User)
    }

    /// How many messages there are up to and including `link`; `None` if the chain does not have
    /// it.
    ///
    /// `expected_count` is the count where the link probably stands; it only saves time.
    pub fn count_through(&self, link: &Link, expected_count: usize) -> Option<usize> {
        match expected_count
            .checked_sub(1)
            .and_then(|index| self.turns.get(index))
        {
            Some(turn) if turn.link == *link => Some(expected_count),
            _ => self
                .turns
                .iter()
                .position(|turn| turn.link == *link)
                .map(|index| index + 1),
        }
    }
}
