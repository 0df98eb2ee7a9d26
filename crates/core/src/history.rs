//! A conversation without its wire format.
//!
//! A wire format (see [`crate::wire`]) reads each message into a [`Message`]: its role, a [`Fingerprint`]
//! of what it means, and the tool calls that it makes or answers. This module chains the messages into
//! [`Link`]s and says where a history may be cut. It knows no JSON, no tokens and no memory. All modules
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
mod purpose;
mod role;

use std::sync::{Arc, OnceLock};

pub use chain::{Link, Scope};
pub use cuts::Cuts;
pub use fingerprint::{Batch, Encoder, Fingerprint};
pub use message::{MIN_DISTINCTIVE_BYTES, Message, PromptFields};
pub use message_key::{
    AnswerHash, LONG_ANSWER_BYTES, MessageKey, ScopedHash, anchor, distinctive_bytes, is_random_id,
    without_thinking,
};
pub use pepper::Pepper;
pub use plain_text::{AttachmentKind, Detail, Media, MessagePiece, PlainText};
pub use position_map::{PathMessage, PositionMap};
pub use purpose::HashPurpose;
pub use role::Role;

/// One message at its place in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedMessage {
    /// The message itself.
    pub message: Message,
    /// The chain up to and including this message.
    pub link: Link,
}

/// The client's history: all messages behind its leading system messages, chained.
#[derive(Clone, Debug)]
pub struct History {
    root: Link,
    messages: Vec<ChainedMessage>,
    cuts: Cuts,
    /// The key of each message, once somebody has asked for it; empty until somebody asks for one.
    keys: OnceLock<Box<[OnceLock<MessageKey>]>>,
}

/// The links of messages that were chained before: each takes a hash. Empty by default.
#[derive(Clone, Debug, Default)]
pub struct KnownChain {
    /// The links, and the link before the first of them.
    links: Option<(Link, Arc<[Link]>)>,
    /// How many of the links count.
    len: usize,
}

impl KnownChain {
    /// The links, if their chain begins at `root`: the same messages have others under another owner.
    fn links_behind(&self, root: &Link) -> &[Link] {
        match &self.links {
            Some((known, links)) if known == root => &links[..self.len.min(links.len())],
            _ => &[],
        }
    }

    /// The links of the first `len` messages. They are shared.
    #[must_use]
    pub fn first(&self, len: usize) -> Self {
        Self {
            links: self.links.clone(),
            len: len.min(self.len),
        }
    }

    /// The memory that it holds beside itself, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.links
            .as_ref()
            .map_or(0, |(_, links)| size_of_val(&**links))
    }
}

impl History {
    /// Chains `messages`, without leading system messages, under `scope`.
    pub fn chain<M>(scope: &Scope, messages: M) -> Self
    where
        M: IntoIterator<Item = Message>,
    {
        Self::chain_behind(&KnownChain::default(), scope, messages)
    }

    /// The same, if the first of `messages` were chained before.
    pub fn chain_behind<M>(known: &KnownChain, scope: &Scope, messages: M) -> Self
    where
        M: IntoIterator<Item = Message>,
    {
        let root = Link::root(scope);
        let known = known.links_behind(&root);
        let mut link = root;
        let messages: Vec<ChainedMessage> = messages
            .into_iter()
            .enumerate()
            .map(|(at, message)| {
                let known = known.get(at).copied();
                link = known.unwrap_or_else(|| link.next(&message.fingerprint));
                ChainedMessage { message, link }
            })
            .collect();
        Self {
            root,
            cuts: Cuts::new(messages.iter().map(|chained| &chained.message)),
            keys: OnceLock::new(),
            messages,
        }
    }

    /// The history of its first `len` messages.
    #[must_use]
    pub fn prefix(&self, len: usize) -> Self {
        let messages = self.messages[..len.min(self.messages.len())].to_vec();
        Self {
            root: self.root,
            cuts: Cuts::new(messages.iter().map(|chained| &chained.message)),
            keys: match self.keys.get() {
                Some(keys) => OnceLock::from(Box::from(&keys[..messages.len()])),
                None => OnceLock::new(),
            },
            messages,
        }
    }

    /// The chain of the first `len` messages, for [`History::chain_behind`].
    pub fn known_chain(&self, len: usize) -> KnownChain {
        let links = self.messages.iter().take(len).map(|chained| chained.link);
        KnownChain {
            links: Some((self.root, links.collect())),
            len,
        }
    }

    /// The link before the first message.
    pub fn root(&self) -> Link {
        self.root
    }

    /// The messages in order.
    pub fn messages(&self) -> &[ChainedMessage] {
        &self.messages
    }

    /// The key of the message at `index`, which must be one of this history. Each key is made once: making it takes two
    /// hashes.
    pub fn message_key(&self, index: usize) -> MessageKey {
        let message = &self.messages[index].message;
        let keys = self
            .keys
            .get_or_init(|| vec![OnceLock::new(); self.messages.len()].into());
        *keys[index].get_or_init(|| MessageKey::from_message(&self.root, message))
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether the client sent nothing but leading system messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The link of the last message, which names exactly this history.
    pub fn tip(&self) -> Option<Link> {
        self.messages.last().map(|chained| chained.link)
    }

    /// Where this history may be cut.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Index of the newest user message.
    pub fn newest_user(&self) -> Option<usize> {
        self.messages
            .iter()
            .rposition(|chained| chained.message.role == Role::User)
    }

    /// How many messages there are up to and including `link`; `None` if the chain does not have
    /// it.
    ///
    /// `expected_count` is the count where the link probably stands; it only saves time.
    pub fn count_through(&self, link: &Link, expected_count: usize) -> Option<usize> {
        match expected_count
            .checked_sub(1)
            .and_then(|index| self.messages.get(index))
        {
            Some(chained) if chained.link == *link => Some(expected_count),
            _ => self
                .messages
                .iter()
                .position(|chained| chained.link == *link)
                .map(|index| index + 1),
        }
    }
}
