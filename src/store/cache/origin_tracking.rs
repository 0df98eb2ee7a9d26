//! What passes is heard: messages of requests, answers to them, and quotations. Called for each request that
//! can be read, whatever becomes of it.

use super::{LookupParams, SnapshotCache};
use crate::history::{History, Message, MessageKey, Scope, ScopedHash};
use crate::memory::alignment::{
    Alignment, AlignmentKind, Evidence, Origin, SharedMessages, origin_of_answer, origins,
    shared_messages,
};

impl SnapshotCache {
    /// Writes down that the messages of `client` were said here, and says where each was first said.
    pub(super) fn track_origins(
        &self,
        client: &History,
        evidence: &Evidence,
        alignment: Option<&Alignment>,
    ) -> Vec<Origin> {
        let origins = origins(client, evidence, alignment);
        let root = client.root();
        let new = client
            .turns()
            .iter()
            .zip(&origins)
            .skip(evidence.recorded_count);
        let mut evicted = false;
        let mut origin_index = self.origin_index();
        for (turn, origin) in new.filter(|(turn, _)| turn.message.can_be_evidence()) {
            let item = MessageKey::from_message(&root, &turn.message);
            evicted |= origin_index.add_message(item.ids.unwrap_or(item.content), *origin);
        }
        drop(origin_index);
        if evicted {
            // What was believed to be said in one conversation alone is asked for again.
            self.clear();
        }
        origins
    }

    /// A request without memory passes, or one that was refused: what it says was said here all the same.
    pub fn track_passthrough(&self, client: &History) -> Vec<Origin> {
        self.track_origins(client, &Evidence::default(), None)
    }

    /// A reply that stands in a request which does not go on from what that summarises is a quotation.
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

    /// The upstream answers `client`, whose messages were first said at `origins`, with `message`; `chain`
    /// is what memory knows the request by. Said before the last byte of the answer goes to the client.
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
        let evicted = origin_index.add_message(mark, origin);
        drop(origin_index);
        if evicted {
            self.clear();
        }
    }

    /// The upstream answers `chain` with a text that may come back as a summary.
    pub fn track_reply(&self, chain: &History, mark: ScopedHash) {
        self.origin_index().add_reply(mark, chain);
    }

    /// Whether the upstream gave the message that was first said at `origin`.
    pub fn is_from_upstream(&self, origin: Origin) -> bool {
        self.origin_index().is_from_upstream(origin)
    }

    /// Where a request that is a chain of its own says again what this process recorded on another, and
    /// whose conversation it is, if that is the same: a window that slides begins anew with every
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
