//! What is known about the chains that a request may belong to: paths, stored alignments, summaries.
//!
//! The store module gathers these values, from its tables or from its cache. This file compares thread
//! keys and says what the configured [`EvidenceLevel`] allows; [`super::find_alignment`] decides.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::peer_memory::MAX_CHANCE_PREFIX;
use crate::history::align::MessageOrigin;
use crate::history::{
    Fingerprint, HashPurpose, History, Link, MessageKey, PathMessage, Pepper, PositionMap,
    ScopedHash,
};

static ORIGIN: HashPurpose = HashPurpose::new("diarist 2026-11 origin");

/// Where a message was first said: a short hash of the message and of all messages before it. Zero
/// means unknown, as in rows of versions that did not store it; such a message proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(pub i64);

impl Origin {
    /// The origin of a message of which only the `link` is known.
    pub fn for_link(link: &Link) -> Self {
        Self::from_hash(link.as_bytes())
    }

    /// The origin of a new `message` behind one of this origin; `link` is the link of the new
    /// message.
    #[must_use]
    pub fn next(self, message: &Fingerprint, link: &Link) -> Self {
        if self == Self::default() {
            return Self::for_link(link);
        }
        let mut hasher = ORIGIN.hasher();
        hasher.update(&self.0.to_be_bytes());
        hasher.update(message.as_bytes());
        Self::from_hash(hasher.finalize().as_bytes())
    }

    fn from_hash(hash: &[u8; 32]) -> Self {
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        // The lowest bit is set, so that no hash is zero.
        Self(i64::from_be_bytes(first) | 1)
    }
}

/// A short hash of the text in front of a summary, in the same message. A client introduces each summary with the same
/// words; what differs was written by a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryStart(i64);

impl SummaryStart {
    /// The bits of the hash: the store keeps it beside three flags.
    const MASK: i64 = (1 << 59) - 1;

    /// The hash of `text`, which stands in a conversation with this `root`.
    pub fn from_text(pepper: &Pepper, root: &Link, text: &str) -> Self {
        let hash = ScopedHash::from_text(pepper, root, text);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        // The lowest bit is set, so that no hash is zero.
        Self((i64::from_be_bytes(first) & Self::MASK) | 1)
    }

    /// The stored form; never zero.
    pub fn to_stored(self) -> i64 {
        self.0
    }

    /// Reads the stored form. Zero: the message is no summary.
    pub fn from_stored(stored: i64) -> Option<Self> {
        (stored != 0).then_some(Self(stored))
    }
}

/// One message of a known path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathEntry {
    /// Its link and role.
    pub message: PathMessage,
    /// The link before it.
    pub parent: Link,
    /// The key by which it is compared; `None` if it was recorded by a version without such keys.
    pub message_key: Option<MessageKey>,
    /// The hash under which the store finds it.
    pub anchor: Option<ScopedHash>,
    /// Whether a range ends here that is observed, or that waits for observation with its text
    /// stored.
    pub range_end: bool,
    /// Whether Diarist saw the message when it was new. Of the first request of a conversation,
    /// only the newest message is.
    pub live: bool,
    /// Whether its text is stored, so it can be observed even if no client sends it again.
    pub text_kept: bool,
    /// The lineage that recorded it.
    pub lineage: i64,
    /// Where it was first said. Copies of a message on several chains of one conversation share
    /// this.
    pub origin: Origin,
    /// Whether the upstream gave it as an answer in this conversation, and whether another
    /// conversation holds it.
    pub message_origin: MessageOrigin,
    /// What stands in front of the summary, if the client put the message in the place of what it summarises.
    pub summary_start: Option<SummaryStart>,
    /// Whether it is an answer of the upstream that no recorded request has carried yet.
    pub pending: bool,
}

impl PathEntry {
    /// The hash by which other conversations are checked for it: its tool call ids, which are new
    /// with each answer, or else its content.
    pub fn witness(&self) -> Option<ScopedHash> {
        let item = self.message_key?;
        Some(item.ids.unwrap_or(item.content))
    }
}

/// Which evidence is enough to send memory of text that a request does not hold (`memory.evidence`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvidenceLevel {
    /// No evidence: a request gets memory only of text that it holds.
    Strict,
    /// The content of the request, if it also carries a thread key that no other conversation has.
    Names,
    /// The content of the request.
    #[default]
    Content,
}

impl EvidenceLevel {
    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Names => "names",
            Self::Content => "content",
        }
    }
}

/// The thread key that a lineage was recorded under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineageName {
    /// The key, if the client sent one.
    pub key: Option<String>,
    /// Whether no other lineage has this key.
    pub is_unique: bool,
}

/// The result of comparing the thread key of a request with that of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameComparison {
    /// Both have a key and the keys differ: two conversations.
    Different,
    /// One of them has no key, or several lineages have it.
    Unknown,
    /// Both have the same key, and it names one conversation.
    Same,
}

/// The chain that a request is aligned to, with no more of each message than that takes. `lookup` keeps it: every request
/// that continues an aligned one needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseChain {
    messages: Vec<PathMessage>,
    /// Where each message was first said.
    origins: Vec<Origin>,
    /// The lineage that recorded the last message.
    lineage: Option<i64>,
    /// How many messages there are before the first [`PathEntry::pending`] one.
    recorded_count: usize,
}

impl BaseChain {
    /// Adds the next message.
    pub fn push(&mut self, entry: &PathEntry) {
        if !entry.pending && self.recorded_count == self.messages.len() {
            self.recorded_count += 1;
        }
        self.messages.push(entry.message);
        self.origins.push(entry.origin);
        self.lineage = Some(entry.lineage);
    }

    /// Its messages in order.
    pub fn messages(&self) -> &[PathMessage] {
        &self.messages
    }

    /// Those that are recorded: all but an answer at the end that no request has carried yet.
    pub(super) fn recorded_messages(&self) -> &[PathMessage] {
        &self.messages[..self.recorded_count]
    }

    /// The lineage that recorded the last message; `None` if there is no message.
    pub fn lineage(&self) -> Option<i64> {
        self.lineage
    }

    /// Where the message at `place` was first said; `None` if there is none.
    pub(super) fn origin(&self, place: usize) -> Option<Origin> {
        self.origins.get(place).copied()
    }
}

impl<'a> FromIterator<&'a PathEntry> for BaseChain {
    fn from_iter<I: IntoIterator<Item = &'a PathEntry>>(path: I) -> Self {
        let mut chain = Self::default();
        for entry in path {
            chain.push(entry);
        }
        chain
    }
}

/// How an earlier request was aligned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAlignment {
    /// How many messages the client sent.
    pub count: usize,
    /// The last link of the chain.
    pub base: Link,
    /// Which message of the request stood where on the chain.
    pub positions: PositionMap,
    /// The messages that proved that the request belongs to the chain. Empty if it got no memory of
    /// text that it did not hold.
    pub proof: Vec<Witness>,
    /// The part of the chain that was not sent.
    pub withheld: Option<Withheld>,
}

impl StoredAlignment {
    /// The summary that proves this alignment from the leading system messages. It is known by its shape: one witness, no
    /// runs, everything open from the first message on, and the witness is not among the open messages.
    pub(super) fn summary_outside_links(&self, base: &BaseChain) -> Option<ScopedHash> {
        let [summary] = &self.proof[..] else {
            return None;
        };
        let (client, path) = self.positions.open_start();
        let is_whole_request_open = self.positions.runs().is_empty() && client == 0;
        let mut shared = base.origins.iter().skip(path);
        let is_outside = is_whole_request_open && shared.all(|origin| *origin != summary.origin);
        is_outside.then_some(summary.hash)
    }
}

/// The part of a chain that is not sent because the client dropped so few messages of it that it may
/// have taken them back. It is released when the client drops more, as clients do to save room, or when
/// the client has gone on for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The first place of the chain that is withheld.
    pub from: usize,
    /// The number of messages of the request with which this began.
    pub client_len: usize,
}

/// A message that proves that a request belongs to a conversation. It proves nothing once another
/// conversation holds it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The hash that other conversations are checked for.
    pub hash: ScopedHash,
    /// Where the message was first said.
    pub origin: Origin,
}

/// What is known about the chains that a request may belong to. Every path begins with its first
/// message.
#[derive(Clone, Debug, Default)]
pub struct KnownChains {
    /// How many messages of the request are recorded on its own chain.
    pub recorded_count: usize,
    /// Where the last of these was first said.
    pub recorded_origin: Origin,
    /// The lineage that recorded the last of these.
    pub recorded_lineage: Option<i64>,
    /// The longest prefix of the request that was sent as an aligned request, and the chain it was
    /// aligned to.
    pub stored: Option<(StoredAlignment, Arc<BaseChain>)>,
    /// The path up to the latest message of the request that is known on any chain.
    pub path: Vec<PathEntry>,
    /// How many messages of the request there are up to the newest answer that this process has seen the upstream give in
    /// the conversation of `path`, recorded or not; 0 if there is none behind the path.
    pub seen_count: usize,
    /// An answer of the model that stands in the request, perhaps as a summary.
    pub summary: Option<SummaryCandidate>,
    /// The thread key of the request.
    pub key: Option<String>,
    /// The thread keys of the lineages at the ends of these paths.
    pub lineage_names: HashMap<i64, LineageName>,
    /// The evidence that the configuration accepts.
    pub level: EvidenceLevel,
    /// Whether the messages that proved the stored alignment are still unknown to other
    /// conversations.
    pub stored_holds: bool,
    /// The summary in the leading system messages of the request that proves the stored alignment.
    pub stored_summary_in_front: Option<ScopedHash>,
}

/// An answer of the model that may stand in place of what it summarises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryCandidate {
    /// How many messages of the request there are up to and including it.
    pub count: usize,
    /// The hash of its text.
    pub hash: ScopedHash,
    /// What stands in front of it, in the same message.
    pub start: Option<SummaryStart>,
    /// The chain that it was the answer to.
    pub path: Vec<PathEntry>,
    /// Whether a request of that chain began with the same system message as this request.
    pub same_system: bool,
    /// Whether the upstream gave it in that conversation only.
    pub is_unique: bool,
}

impl SummaryCandidate {
    /// The origin of the message that requested it.
    pub fn origin(&self) -> Origin {
        let request = self.path.last();
        request.map_or_else(Origin::default, |request| {
            Origin::for_link(&request.message.link)
        })
    }
}

impl KnownChains {
    /// Takes the stored alignment out if it is another conversation's: if a summary proves it that this request does not
    /// have. Leading system messages are in no chain, so a conversation that begins with the same messages behind them has
    /// the same links. Every other proof is among the messages that the links stand for.
    ///
    /// `is_in_front` says whether a summary stands in the leading system messages of the request. Returns whether the stored
    /// alignment was taken out.
    pub fn require_summary(&mut self, is_in_front: impl FnOnce(ScopedHash) -> bool) -> bool {
        let stored = self.stored.as_ref();
        let Some(needed) = stored.and_then(|(stored, base)| stored.summary_outside_links(base))
        else {
            return false;
        };
        if is_in_front(needed) {
            self.stored_summary_in_front = Some(needed);
            return false;
        }
        (self.stored, self.stored_holds) = (None, false);
        true
    }

    /// Whether `client` was sent before, with an alignment that a summary in its leading system messages proves. An equal
    /// history that was sent on its own chain is then another conversation's.
    pub fn repeats_summary_in_front(&self, client: &History) -> bool {
        let stored = self.stored.as_ref();
        self.stored_summary_in_front.is_some()
            && stored.is_some_and(|(stored, _)| stored.count == client.len())
    }

    /// Whether what is recorded on the request's own chain may be the beginning of another conversation: the request has the
    /// summary in front that proves the stored alignment, and so few messages may be equal by chance.
    pub(super) fn own_chain_may_be_anothers(&self) -> bool {
        self.stored_summary_in_front.is_some() && self.recorded_count <= MAX_CHANCE_PREFIX
    }

    /// Compares the thread key of the request with that of `lineage`, which recorded the end of a path.
    pub(super) fn compare_names(&self, lineage: Option<i64>) -> NameComparison {
        self.compare_lineage(lineage.and_then(|lineage| self.lineage_names.get(&lineage)))
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

    /// Whether a request may get memory of text it does not hold, given that it is proven to belong
    /// to a conversation whose key compares like this.
    pub(super) fn allows_restoring(&self, names: NameComparison) -> bool {
        match (self.level, names) {
            (EvidenceLevel::Strict, _) | (_, NameComparison::Different) => false,
            (EvidenceLevel::Names, names) => names == NameComparison::Same,
            (EvidenceLevel::Content, _) => true,
        }
    }

    /// The same for a lineage with this key.
    pub fn allows_restoring_lineage(&self, lineage: Option<&LineageName>) -> bool {
        self.allows_restoring(self.compare_lineage(lineage))
    }

    /// Whether `client` continues the recorded chain of another conversation than that of `path`. A
    /// prefix that both have in common, such as a greeting that every conversation begins with,
    /// does not count.
    pub(super) fn belongs_to_other_chain(&self, client: &History) -> bool {
        let Some(end) = self.path.last() else {
            return false;
        };
        let is_elsewhere = |lineage: i64, tip: Option<Link>| {
            lineage != end.lineage && self.path.iter().all(|step| Some(step.message.link) != tip)
        };
        let last_recorded = self.recorded_count.checked_sub(1);
        let own_turn = last_recorded.and_then(|last| client.messages().get(last));
        let stored_end = self.stored.as_ref().and_then(|(_, base)| {
            let last = base.messages().last()?;
            Some((base.lineage()?, last.link))
        });
        let leaves_recorded = self
            .recorded_lineage
            .is_some_and(|lineage| is_elsewhere(lineage, own_turn.map(|chained| chained.link)));
        let leaves_stored =
            stored_end.is_some_and(|(lineage, link)| is_elsewhere(lineage, Some(link)));
        leaves_recorded || leaves_stored
    }
}
