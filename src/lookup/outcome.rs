//! The values of one look-up: by what a request is looked up, and what is known of its chain.

use crate::history::ScopedHash;
use crate::memory::alignment::{self, EvidenceLevel, SummaryStart};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::select::PreviousSend;
use crate::memory::{SnapshotMeta, Trim};
use crate::store::{PrefixTrim, SentPrefix, SentWith};

/// Where the result of a look-up came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupSource {
    /// From the cache, which is complete for this chain.
    Warm,
    /// From the complete cache, after the last write to the store failed.
    Degraded,
    /// From the store.
    Cold,
    /// From the cache, which may be incomplete: the store failed.
    Failed,
}

/// By what a request is looked up, besides its messages.
#[derive(Clone, Copy, Debug)]
pub struct LookupParams<'a> {
    /// The model.
    pub model: &'a str,
    /// The thread key, if its client gives one.
    pub thread_key: Option<&'a str>,
    /// The hash of its first leading system message.
    pub system: Option<ScopedHash>,
    /// Which evidence proves an alignment.
    pub level: EvidenceLevel,
    /// What is known of its sender.
    pub sender: Sender,
    /// Who pays for its tenant.
    pub account: [u8; 32],
    /// Whether an answer in it that is no summary of it counts as quoted, so that it proves nothing any more. Not in a
    /// request without memory, such as one for a title: it may carry the summary of its own conversation.
    pub marks_quotations: bool,
}

/// What is known of the sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Whether the upstream has not accepted a request of its tenant yet.
    pub is_stranger: bool,
    /// Whether hashes of the request may be stored. Not if memory is off for it, or only read.
    pub may_be_stored: bool,
}

/// What is known of one request's chain.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Snapshots that end on the chain.
    pub candidates: Vec<SnapshotMeta>,
    /// What exactly this request was sent with before, if anything.
    pub previous_send: Option<SentWith>,
    /// How far prefixes of it were trimmed, once for each model.
    pub prefix_trims: Vec<PrefixTrim>,
    /// Where this result came from.
    pub source: LookupSource,
    /// Whether observation of this chain is paused, because the Observer was shown too much of its family.
    pub paused: bool,
    /// The latest peer intro, if the conversation may be new. Not among the candidates: `proxy` decides
    /// whether this conversation may get it.
    pub peer_intro: Option<SnapshotMeta>,
    /// What the longest previously sent prefix was sent with.
    pub sent_prefix: Option<SentPrefix>,
    /// The snapshot of that prefix, if it is a peer intro. Not among the candidates either.
    pub sent_peer_intro: Option<SnapshotMeta>,
    /// How much of it is recorded; another conversation may share a short prefix by chance.
    pub prefix_match: PrefixMatch,
    /// The origin of each message of the client: where its content occurred first.
    pub origins: Vec<alignment::Origin>,
    /// Whether the request contains messages of another chain whose memory is withheld, because the proof is
    /// missing that both are one conversation.
    pub withheld: bool,
}

/// How much of a request is recorded, and whether it continues that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Whether it is aligned with a recorded chain, with proof.
    pub aligned: bool,
    /// How many messages of its own chain are recorded.
    pub depth: usize,
    /// Whether those are so few that two conversations may share them, and another message follows them in
    /// the store.
    pub continued_elsewhere: bool,
}

impl PrefixMatch {
    /// Whether it may be the beginning of a new conversation.
    pub(super) fn may_be_new(self) -> bool {
        !self.aligned && self.depth <= MAX_CHANCE_PREFIX
    }
}

impl Lookup {
    /// The longest previously sent prefix, if it belongs to the same conversation as a request with the
    /// thread key `key`. Two conversations may share a short prefix. Then the thread keys decide; without
    /// them, whether something else follows the prefix.
    pub fn own_sent_prefix(&self, key: Option<&str>) -> Option<&SentPrefix> {
        let is_own = |sent: &&SentPrefix| {
            !self.prefix_match.may_be_new()
                || match (key, sent.thread_key.as_deref()) {
                    (Some(key), Some(other)) => key == other,
                    _ => !self.prefix_match.continued_elsewhere,
                }
        };
        self.sent_prefix.as_ref().filter(is_own)
    }

    /// How far requests to `model` that this one continues were trimmed.
    pub fn trim_for(&self, model: &str) -> Option<Trim> {
        let mut trims = self.prefix_trims.iter();
        trims
            .find(|carried| carried.model == model)
            .map(|carried| carried.trim)
    }

    pub(super) fn merge_trim(&mut self, new: PrefixTrim) {
        let mut trims = self.prefix_trims.iter_mut();
        match trims.find(|existing| existing.model == new.model) {
            // A continuation of a trimmed request is trimmed at least as far.
            Some(existing) if existing.trim.to_count < new.trim.to_count => {
                existing.trim = new.trim;
            }
            Some(_) => {}
            None => self.prefix_trims.push(new),
        }
    }

    /// The previous send, as [`crate::memory::select::select`] takes it.
    pub fn to_previous_send(&self) -> PreviousSend {
        match &self.previous_send {
            None => PreviousSend::NotSent,
            Some(SentWith { snapshot: None, .. }) => PreviousSend::Raw,
            Some(SentWith {
                snapshot: Some(id), ..
            }) => PreviousSend::Snapshot(*id),
        }
    }
}

/// Texts among the first messages of a request that may be an earlier answer of the model, in the place of what it
/// summarises.
#[derive(Clone, Debug, Default)]
pub struct PossibleSummaries {
    /// See [`LookupKeys::answers`](crate::store::LookupKeys::answers).
    pub marks: Vec<(ScopedHash, usize)>,
    /// For each of `marks`, what stands in front of it in its message.
    pub starts: Vec<SummaryStart>,
}

impl PossibleSummaries {
    /// Whether the text with this hash stands in the leading system messages.
    pub(super) fn is_in_front(&self, hash: ScopedHash) -> bool {
        self.marks.contains(&(hash, 0))
    }

    /// What stands in front of the text with this hash, in the last of the first `count` messages.
    pub(super) fn start_of(&self, hash: ScopedHash, count: usize) -> Option<SummaryStart> {
        let mut marks = self.marks.iter();
        let at = marks.position(|mark| *mark == (hash, count))?;
        self.starts.get(at).copied()
    }
}
