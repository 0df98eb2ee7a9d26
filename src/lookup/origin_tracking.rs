//! Adds every message that passes to the origin index: messages of requests, answers to them, and
//! quotations. Called for each request that can be read, whether it is accepted or not.

use super::{AnswersInProgress, LookupParams, SnapshotCache};
use crate::history::{AnswerHash, History, Message, MessageKey, Scope, ScopedHash};
use crate::memory::alignment::{
    Alignment, AlignmentKind, Evidence, Origin, SharedMessages, origin_of_answer, origins,
    shared_messages,
};

impl SnapshotCache {
    /// Adds the messages of `client` to the index and returns the origin of each.
    pub(super) fn track_origins(
        &self,
        client: &History,
        evidence: &Evidence,
        alignment: Option<&Alignment>,
        is_stranger: bool,
    ) -> Vec<Origin> {
        let origins = origins(client, evidence, alignment);
        let turns = client.turns().iter().zip(&origins).enumerate();
        let new = turns.skip(evidence.recorded_count);
        let mut evicted = false;
        let mut origin_index = self.origin_index();
        for (place, (_, origin)) in new.filter(|(_, (turn, _))| turn.message.can_be_evidence()) {
            let item = client.message_key(place);
            evicted |=
                origin_index.add_message(item.ids.unwrap_or(item.content), *origin, is_stranger);
        }
        drop(origin_index);
        if evicted {
            // The index no longer knows which messages are unique, so the next look-up must ask the store.
            self.clear();
        }
        origins
    }

    /// Adds the messages of a request that has no memory or was refused.
    pub fn track_passthrough(&self, client: &History, is_stranger: bool) -> Vec<Origin> {
        self.track_origins(client, &Evidence::default(), None, is_stranger)
    }

    /// Marks answers in a request as quotations, unless the request continues the chain that they summarise.
    pub(super) fn mark_quotations(
        &self,
        marks: &[(ScopedHash, usize)],
        evidence: &Evidence,
        alignment: Option<&Alignment>,
    ) {
        if alignment.is_some_and(|alignment| alignment.kind == AlignmentKind::Compacted) {
            return;
        }
        let mut origin_index = self.origin_index();
        let answered_mark = evidence.summary.as_ref().map(|answered| answered.hash);
        let mark_values = marks.iter().map(|(mark, _)| *mark);
        let quoted_marks: Vec<ScopedHash> = mark_values
            .filter(|mark| origin_index.has_reply(mark))
            .collect();
        for mark in quoted_marks.into_iter().chain(answered_mark) {
            origin_index.mark_quoted(mark);
        }
    }

    /// Adds the upstream's answer to `client`. `origins` are those of its messages; `chain` is the recorded
    /// chain of the request. Called before the last byte of the answer goes to the client, because the next
    /// request may contain the answer.
    pub fn track_answer(
        &self,
        client: &History,
        origins: &[Origin],
        chain: &History,
        message: &Message,
    ) {
        let origin = origin_of_answer(client, origins, &message.fingerprint);
        let item = MessageKey::from_message(&client.root(), message);
        let mark = item.ids.unwrap_or(item.content);
        let mut origin_index = self.origin_index();
        origin_index.add_answer(chain.tip().unwrap_or_else(|| chain.root()), mark, origin);
        let evicted = origin_index.add_message(mark, origin, false);
        drop(origin_index);
        if evicted {
            self.clear();
        }
    }

    /// Holds the answers of a new exchange until it is recorded. A request that brings one of them back as a summary
    /// waits for that.
    pub fn answers_in_progress(&self) -> AnswersInProgress {
        AnswersInProgress::new(&self.unrecorded_answers)
    }

    /// Adds an answer to `chain` that may come back as a summary.
    pub fn track_reply(&self, chain: &History, answer: AnswerHash) {
        self.origin_index().add_reply(answer, chain);
    }

    /// Whether this process or the store may know an answer with this ending. `false` is certain.
    pub fn may_know_ending(&self, ending: &ScopedHash) -> bool {
        self.origin_index().has_reply_ending(ending) || self.store.may_know_ending(ending)
    }

    /// Whether this process has seen the upstream give the message of this origin.
    pub fn is_from_upstream(&self, origin: Origin) -> bool {
        self.origin_index().is_from_upstream(origin)
    }

    /// Which messages of a request on its own chain this process recorded on another chain; and the lineage of
    /// that chain, if both are one conversation. A client with a sliding window starts a new chain with every
    /// request until something of it is observed.
    pub fn find_overlap(
        &self,
        scope: &Scope,
        client: &History,
        params: &LookupParams<'_>,
    ) -> Option<(SharedMessages, Option<i64>)> {
        let (state, origin_index) = (self.state(), self.origin_index());
        let (evidence, _) = state.evidence(scope, client, params, &origin_index);
        let lineage = evidence.path.last()?.lineage;
        let (shared, same) = shared_messages(client, &evidence)?;
        Some((shared, same.then_some(lineage)))
    }
}
