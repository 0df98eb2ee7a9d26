//! What is known that a request may stand on: paths, views, answers. Gathered by `store`, from its tables
//! or from what one process remembers of them; decides nothing but whose it is.

use std::collections::HashMap;

use crate::history::align::MessageOrigin;
use crate::history::{
    Fingerprint, History, Link, Message, MessageKey, PathMessage, PositionMap, ScopedHash,
};

/// Where a message was first said: a short hash of all that was said before it, and of itself. Zero where
/// that is not known, as in rows of a version that did not write it down; such a message proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(pub i64);

impl Origin {
    /// That of a message of which nothing but its `link` is known.
    pub fn for_link(link: &Link) -> Self {
        Self::from_hash(link.as_bytes())
    }

    /// That of a `message` that is said for the first time, behind one of this origin; `link` is its own.
    pub(super) fn next(self, message: &Fingerprint, link: &Link) -> Self {
        if self == Self::default() {
            return Self::for_link(link);
        }
        let mut hasher = blake3::Hasher::new_derive_key("diarist 2026-11 origin");
        hasher.update(&self.0.to_be_bytes());
        hasher.update(message.as_bytes());
        Self::from_hash(hasher.finalize().as_bytes())
    }

    fn from_hash(hash: &[u8; 32]) -> Self {
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        // Never zero.
        Self(i64::from_be_bytes(first) | 1)
    }
}

/// A message of a path that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathEntry {
    /// Its link and who speaks.
    pub message: PathMessage,
    /// The link before it.
    pub parent: Link,
    /// What it is known by; `None` where it was recorded before there was such a thing.
    pub message_key: Option<MessageKey>,
    /// What it is found by.
    pub anchor: Option<ScopedHash>,
    /// Whether a range that is observed, or waits for it with its words, ends here.
    pub range_end: bool,
    /// Whether it was said while somebody watched; what a first request brings along was not, but for
    /// its newest message.
    pub live: bool,
    /// Whether its words are kept: it can be observed though nobody sends it any more.
    pub text_kept: bool,
    /// The lineage that recorded it.
    pub lineage: i64,
    /// Where what it says was first said. Copies of one message on several chains of a conversation
    /// share it.
    pub origin: Origin,
    /// Whether the upstream gave it as its answer in this conversation, and whether no other one is
    /// known to hold it.
    pub message_origin: MessageOrigin,
    /// The upstream has given it, and no recorded request has brought it back yet.
    pub pending: bool,
}

impl PathEntry {
    /// Whether it says what `message` of the owner's chains that begin at `root` says.
    pub(super) fn has_content_of(&self, root: &Link, message: &Message) -> bool {
        let content = MessageKey::from_message(root, message).content;
        self.message_key.is_some_and(|item| item.content == content)
    }

    /// What tells whether other conversations hold it: the ids of its tool calls, which are drawn anew
    /// with each answer, or what it says.
    pub fn witness(&self) -> Option<ScopedHash> {
        let item = self.message_key?;
        Some(item.ids.unwrap_or(item.content))
    }
}

/// Which evidence lets a request be told what it does not hold (`memory.evidence`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvidenceLevel {
    /// None: a request is told only what it holds.
    Strict,
    /// That it carries the name of a conversation, and no other conversation has that name.
    Names,
    /// That, or what it says.
    #[default]
    Content,
}

impl EvidenceLevel {
    /// As it is configured.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Names => "names",
            Self::Content => "content",
        }
    }
}

/// The name that a lineage was recorded under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineageName {
    /// The name, where its client gave one.
    pub key: Option<String>,
    /// Whether it is the only lineage of that name.
    pub is_unique: bool,
}

/// How the name of a request stands to that of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameComparison {
    /// Both have one, and they differ: two conversations.
    Different,
    /// At least one has none, or it names several.
    Unknown,
    /// Both have the same, and it names one conversation.
    Same,
}

/// A request that was a view of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAlignment {
    /// How many messages the client sent.
    pub count: usize,
    /// The last link of the chain.
    pub base: Link,
    /// Which message stands where.
    pub positions: PositionMap,
    /// What proved that the request belongs to the chain; empty where it was told nothing that it does
    /// not hold.
    pub proof: Vec<Witness>,
    /// From where on nothing of the chain was told.
    pub withheld: Option<Withheld>,
}

/// A client dropped so little that it may have taken it back. Nothing from there on is told, until it drops
/// more, as a client does that saves room; or until it has gone on for so long that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The first place of the chain that is not told.
    pub from: usize,
    /// How many messages the client sent when it began.
    pub client_len: usize,
}

/// A message that proved that a request belongs to a conversation. It does so no more once another
/// conversation holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// What it is known by.
    pub hash: ScopedHash,
    /// Where it was first said.
    pub origin: Origin,
}

/// What is known that a request may stand on. Paths begin with their first message.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// How many of the request's messages are recorded as they are.
    pub recorded_count: usize,
    /// Where the last of those was first said.
    pub recorded_origin: Origin,
    /// The lineage that recorded the last of those.
    pub recorded_lineage: Option<i64>,
    /// The longest beginning of the request that is a view, and the chain it is a view of.
    pub stored: Option<(StoredAlignment, Vec<PathEntry>)>,
    /// The path up to the latest message of the request that is known anywhere.
    pub path: Vec<PathEntry>,
    /// An answer of the model that stands in the request.
    pub summary: Option<SummaryCandidate>,
    /// The name that the request comes under.
    pub key: Option<String>,
    /// The names of the lineages that recorded the ends of these paths.
    pub lineage_names: HashMap<i64, LineageName>,
    /// Which evidence counts.
    pub level: EvidenceLevel,
    /// Whether what proved the view is known in no other conversation still.
    pub stored_holds: bool,
}

/// An answer that may stand in the place of what it summarises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryCandidate {
    /// How many messages of the request reach up to it, with it.
    pub count: usize,
    /// What it is known by.
    pub hash: ScopedHash,
    /// The chain that it answered.
    pub path: Vec<PathEntry>,
    /// Whether a request of that chain began with the same system message as this one.
    pub same_system: bool,
    /// Whether the upstream gave it in that conversation alone.
    pub is_unique: bool,
}

impl SummaryCandidate {
    /// Where it belongs: behind the message that asked for it.
    pub fn origin(&self) -> Origin {
        let request = self.path.last();
        request.map_or_else(Origin::default, |request| {
            Origin::for_link(&request.message.link)
        })
    }
}

impl Evidence {
    /// How the name of the request stands to the one that the end of `path` was recorded under.
    pub(super) fn compare_names(&self, path: &[PathEntry]) -> NameComparison {
        let lineage = path
            .last()
            .and_then(|end| self.lineage_names.get(&end.lineage));
        self.compare_lineage(lineage)
    }

    fn compare_lineage(&self, lineage: Option<&LineageName>) -> NameComparison {
        let lineage_name =
            lineage.and_then(|lineage| Some((lineage.key.as_ref()?, lineage.is_unique)));
        match (&self.key, lineage_name) {
            (Some(request_key), Some((lineage_key, _))) if request_key != lineage_key => {
                NameComparison::Different
            }
            (Some(_), Some((_, true))) => NameComparison::Same,
            _ => NameComparison::Unknown,
        }
    }

    /// Whether a request may be told what it does not hold, if it is proven to belong to a conversation
    /// that stands so to its name.
    pub(super) fn allows_restoring(&self, names: NameComparison) -> bool {
        match (self.level, names) {
            (EvidenceLevel::Strict, _) | (_, NameComparison::Different) => false,
            (EvidenceLevel::Names, names) => names == NameComparison::Same,
            (EvidenceLevel::Content, _) => true,
        }
    }

    /// The same, of a lineage of this name.
    pub fn allows_restoring_lineage(&self, lineage: Option<&LineageName>) -> bool {
        self.allows_restoring(self.compare_lineage(lineage))
    }

    /// Whether `client` goes on from what was recorded of another conversation than `path` is of. What
    /// that one was told in the same words, as a model greets and asks everybody, is no reason to
    /// leave it.
    pub(super) fn belongs_to_other_chain(&self, client: &History) -> bool {
        let Some(end) = self.path.last() else {
            return false;
        };
        let is_elsewhere = |lineage: i64, tip: Option<Link>| {
            lineage != end.lineage && self.path.iter().all(|step| Some(step.message.link) != tip)
        };
        let last_recorded = self.recorded_count.checked_sub(1);
        let own_turn = last_recorded.and_then(|last| client.turns().get(last));
        let stored_end = self.stored.as_ref().and_then(|(_, base)| base.last());
        let leaves_recorded = self
            .recorded_lineage
            .is_some_and(|lineage| is_elsewhere(lineage, own_turn.map(|turn| turn.link)));
        let leaves_stored =
            stored_end.is_some_and(|step| is_elsewhere(step.lineage, Some(step.message.link)));
        leaves_recorded || leaves_stored
    }
}
