//! One look-up: what a request is looked up by, and what is known of its chain.

use super::PrefixMatch;
use crate::history::ScopedHash;
use crate::memory::alignment::{self, EvidenceLevel};
use crate::memory::select::PreviousSend;
use crate::memory::{SnapshotMeta, Trim};
use crate::store::{PrefixTrim, SentPrefix, SentWith};

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupSource {
    /// From this process alone, which knows all there is.
    Warm,
    /// The same, while the store is in trouble.
    Degraded,
    /// From the store.
    Cold,
    /// The store failed; what this process happens to know.
    Failed,
}

/// How a request asks: what it is looked up by beside what it says.
#[derive(Clone, Copy, Debug)]
pub struct LookupParams<'a> {
    /// The model.
    pub model: &'a str,
    /// The name of the conversation, where its client gives one.
    pub thread_key: Option<&'a str>,
    /// What its first leading system message is known by.
    pub system: Option<ScopedHash>,
    /// Which evidence counts.
    pub level: EvidenceLevel,
}

/// What is known of one request's chain.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Snapshots that end on the chain.
    pub candidates: Vec<SnapshotMeta>,
    /// What exactly this request was sent with before.
    pub previous_send: Option<SentWith>,
    /// How far beginnings of it were trimmed, once for each model.
    pub prefix_trims: Vec<PrefixTrim>,
    /// Where this comes from.
    pub source: LookupSource,
    /// The Observer has been shown too much of this owner already to be shown more of this chain.
    pub paused: bool,
    /// What other conversations of the owner know, where this one is only beginning. No candidate: whether
    /// it may be told that is not known here.
    pub peer_intro: Option<SnapshotMeta>,
    /// How the longest beginning of it went out that did.
    pub sent_prefix: Option<SentPrefix>,
    /// What that was sent with, if that covers nothing. No candidate either.
    pub sent_peer_intro: Option<SnapshotMeta>,
    /// How it stands to what is recorded: another conversation may share so little by chance.
    pub prefix_match: PrefixMatch,
    /// Where each message of the client was first said.
    pub origins: Vec<alignment::Origin>,
    /// Whether the request says what another chain holds, and is told nothing of that for want of proof.
    pub withheld: bool,
}

impl Lookup {
    /// How far requests for `model` that this one continues were trimmed.
    pub fn trim_for(&self, model: &str) -> Option<Trim> {
        let mut trims = self.prefix_trims.iter();
        trims
            .find(|carried| carried.model == model)
            .map(|carried| carried.trim)
    }

    pub(super) fn merge_trim(&mut self, new: PrefixTrim) {
        let mut trims = self.prefix_trims.iter_mut();
        match trims.find(|existing| existing.model == new.model) {
            // What continues a trimmed request was trimmed at least as far.
            Some(existing) if existing.trim.to_count < new.trim.to_count => {
                existing.trim = new.trim;
            }
            Some(_) => {}
            None => self.prefix_trims.push(new),
        }
    }

    /// As [`crate::memory::select::select`] wants it.
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
