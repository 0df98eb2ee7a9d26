//! Adds every message that passes to the origin index: messages of requests, answers to them, and
//! quotations. Called for each request that can be read, whether it is accepted or not.

use super::origin_index::OriginIndex;
use super::{AnswersInProgress, LookupParams, Sender, SnapshotCache};
use crate::history::{AnswerHash, History, Message, MessageKey, Scope, ScopedHash};
use crate::memory::alignment::{
    Alignment, AlignmentKind, KnownChains, Origin, SharedMessages, StoredAlignment,
    SummaryCandidate, origin_of_answer, origins, shared_messages,
};
use crate::store::SeenMessages;

impl SnapshotCache {
    /// Adds the messages of `client` to the index and returns the origin of each.
    pub(super) fn track_origins(
        &self,
        scope: &Scope,
        client: &History,
        known: &KnownChains,
        alignment: Option<&Alignment>,
        sender: Sender,
    ) -> Vec<Origin> {
        // The request was sent before.
        let held = alignment.filter(|alignment| alignment.origins.len() == client.len());
        let origins = held.map_or_else(
            || origins(client, known, alignment),
            |held| held.origins.clone(),
        );
        // The alignment that this one continues: what stands on its chain is recorded.
        let continued = alignment.filter(|alignment| alignment.kind == AlignmentKind::Continued);
        let continued = continued.zip(known.stored.as_ref());
        let is_recorded = |at: usize| {
            let continues = |(alignment, (earlier, _)): (&Alignment, &(StoredAlignment, _))| {
                at < earlier.count && alignment.positions.chain_index(at).is_some()
            };
            at < known.recorded_count || continued.is_some_and(continues)
        };
        self.add_messages(scope, (client, &origins), is_recorded, sender);
        origins
    }

    /// Adds the messages of `client`, each with its origin, but those that are recorded already.
    fn add_messages(
        &self,
        scope: &Scope,
        (client, origins): (&History, &[Origin]),
        is_recorded: impl Fn(usize) -> bool,
        sender: Sender,
    ) {
        self.update_origins(|origin_index| {
            for (place, (chained, origin)) in client.messages().iter().zip(origins).enumerate() {
                if !is_recorded(place) && chained.message.can_be_evidence() {
                    let item = client.message_key(place);
                    let mark = item.ids.unwrap_or(item.content);
                    origin_index.add_message(scope, mark, *origin, sender);
                }
            }
        });
    }

    /// Adds the messages of a stranger whom the upstream has just accepted to those of its tenant, where no stranger pushes
    /// them out.
    ///
    /// Messages that are recorded on the request's own chain have no origin here (see [`origins`]), and need none: the store
    /// knows whose they are. Added without it, they would count as said in another conversation, and prove nothing any more.
    pub fn track_accepted(
        &self,
        scope: &Scope,
        client: &History,
        origins: &[Origin],
        sender: Sender,
    ) {
        let is_recorded = |at: usize| origins.get(at) == Some(&Origin::default());
        let accepted = Sender {
            is_stranger: false,
            ..sender
        };
        self.add_messages(scope, (client, origins), is_recorded, accepted);
    }

    /// Changes what was seen. The index no longer knows which messages of a tenant are unique if it has dropped some, so
    /// the next look-up of that tenant must query the store.
    fn update_origins(&self, update: impl FnOnce(&mut OriginIndex)) {
        let mut origin_index = self.origin_index();
        update(&mut origin_index);
        let evicted = origin_index.take_evicted();
        drop(origin_index);
        if !evicted.is_empty() {
            self.state().drop_chains_of(&evicted);
        }
    }

    /// Adds the messages of a request that has no memory or was refused.
    pub fn track_passthrough(
        &self,
        scope: &Scope,
        client: &History,
        sender: Sender,
    ) -> Vec<Origin> {
        self.track_origins(scope, client, &KnownChains::default(), None, sender)
    }

    /// Marks answers in a request as quotations, unless the request belongs to the conversation that got them.
    pub(super) fn mark_quotations(
        &self,
        scope: &Scope,
        marks: &[(ScopedHash, usize)],
        known: &KnownChains,
        alignment: Option<&Alignment>,
    ) {
        if alignment.is_some_and(|alignment| alignment.kind == AlignmentKind::Compacted) {
            return;
        }
        let summary = known.summary.as_ref();
        // A client that summarises may keep so many messages that these alone prove its conversation. The summary beside
        // them is no quotation: otherwise the same request, sent again, would be a stranger to its own conversation.
        let is_its_own = |summary: &&SummaryCandidate| {
            let lineage = alignment.and_then(|alignment| alignment.lineage);
            lineage.is_some() && summary.path.last().map(|end| end.lineage) == lineage
        };
        let own_mark = summary.filter(is_its_own).map(|summary| summary.hash);
        let answered_mark = summary.map(|answered| answered.hash);
        let mark_values = marks.iter().map(|(mark, _)| *mark);
        self.update_origins(|origin_index| {
            let seen_origins = origin_index.origins_of(scope);
            let quoted_marks: Vec<ScopedHash> = mark_values
                .filter(|mark| seen_origins.has_summary_answer(mark))
                .chain(answered_mark)
                .filter(|mark| Some(*mark) != own_mark)
                .collect();
            for mark in quoted_marks {
                origin_index.mark_quoted(scope, mark);
            }
        });
    }

    /// Adds the upstream's answer to `client`. `origins` are those of its messages; `chain` is the recorded
    /// chain of the request. Called before the last byte of the answer goes to the client, because the next
    /// request may contain the answer.
    pub fn track_answer(
        &self,
        scope: &Scope,
        (client, origins): (&History, &[Origin]),
        chain: &History,
        message: &Message,
        sender: Sender,
    ) {
        let origin = origin_of_answer(client, origins, &message.fingerprint);
        let item = MessageKey::from_message(&client.root(), message);
        let mark = item.ids.unwrap_or(item.content);
        let tip = chain.tip().unwrap_or_else(|| chain.root());
        let accepted = Sender {
            is_stranger: false,
            ..sender
        };
        self.update_origins(|origin_index| {
            origin_index.add_answer(scope, tip, mark, origin, accepted);
            origin_index.add_message(scope, mark, origin, accepted);
        });
    }

    /// What this process has seen and is not stored yet, for the next process. Nothing of requests for which memory is off or
    /// only read. Each call has it again, until [`SnapshotCache::mark_messages_saved`].
    pub fn seal_unsaved_messages(&self) -> Vec<SeenMessages> {
        self.origin_index().seal_unsaved()
    }

    /// Notes that what the last call of [`SnapshotCache::seal_unsaved_messages`] returned is stored.
    pub fn mark_messages_saved(&self) {
        self.origin_index().mark_saved();
    }

    /// From now on nothing proves a conversation, until [`SnapshotCache::restore_seen_messages`]: it is not known yet what several
    /// users got.
    pub fn await_seen_messages(&self) {
        self.origin_index().await_saved();
    }

    /// Adds what processes before this one have seen, the newest first.
    pub fn restore_seen_messages(&self, saved: &[SeenMessages]) {
        self.origin_index().restore(saved);
    }

    /// Holds the answers of a new exchange until it is recorded. A request that brings one of them back as a summary
    /// waits for that.
    pub fn answers_in_progress(&self) -> AnswersInProgress {
        AnswersInProgress::new(&self.unrecorded_answers)
    }

    /// Adds an answer to `chain` that may come back as a summary.
    pub fn track_summary_answer(
        &self,
        scope: &Scope,
        chain: &History,
        answer: AnswerHash,
        sender: Sender,
    ) {
        self.update_origins(|origin_index| {
            origin_index.add_summary_answer(scope, answer, chain, sender);
        });
    }

    /// Whether this process or the store may know an answer with this ending. `false` is certain.
    pub fn may_know_ending(&self, scope: &Scope, ending: &ScopedHash) -> bool {
        self.origin_index()
            .origins_of(scope)
            .has_answer_ending(ending)
            || self.store.may_know_ending(ending)
    }

    /// Whether this process has seen the upstream give the message of this origin.
    pub fn is_from_upstream(&self, scope: &Scope, origin: Origin) -> bool {
        self.origin_index()
            .origins_of(scope)
            .is_from_upstream(origin)
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
        let (mut state, origin_index) = (self.state(), self.origin_index());
        let (known, _) = state.known_chains(scope, client, params, origin_index.origins_of(scope));
        let lineage = known.path.last()?.lineage;
        let (shared, same) = shared_messages(client, &known)?;
        Some((shared, same.then_some(lineage)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::align::Run;
    use crate::history::{Link, PositionMap};
    use crate::lookup::state::tests::alignment;
    use crate::memory::alignment::Witness;
    use crate::store::SqliteStore;
    use crate::wire;

    fn six_messages(scope: &Scope) -> Arc<History> {
        let messages: Vec<String> = (0..6)
            .map(|at| {
                format!(r#"{{"role":"user","content":"Message {at}, with words of its own."}}"#)
            })
            .collect();
        let body = format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","));
        let request = wire::Request::parse_chat(&body.into_bytes().into()).expect("a request");
        Arc::new(request.history(scope))
    }

    fn sender(is_stranger: bool) -> Sender {
        Sender {
            is_stranger,
            may_be_stored: true,
        }
    }

    /// Which messages are noted: what is noted proves nothing to a conversation of another origin.
    fn noted(cache: &SnapshotCache, scope: &Scope, client: &History) -> Vec<bool> {
        let origin_index = cache.origin_index();
        let is_noted = |at: usize| {
            let witness = Witness {
                hash: client.message_key(at).content,
                origin: Origin(2),
            };
            origin_index.origins_of(scope).is_contested(&witness)
        };
        (0..client.len()).map(is_noted).collect()
    }

    /// Another conversation may say the same before the recorder has written this request, so what is new in it is noted
    /// at once. So is a message that is on no chain.
    #[tokio::test]
    async fn a_continued_aligned_request_notes_all_messages_that_are_not_recorded() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let scope = Scope::new(b"key", None);
        let client = six_messages(&scope);
        // The client dropped its beginning and put a message of its own in front. It sent four messages before.
        let run = Run {
            client: 1,
            path: 0,
            len: 3,
        };
        let positions = PositionMap::from_parts(vec![run], 4, 3).expect("positions");
        let earlier = StoredAlignment {
            count: 4,
            base: Link::root(&scope),
            positions: positions.clone(),
            proof: Vec::new(),
            withheld: None,
        };
        let known = KnownChains {
            stored: Some((earlier, Arc::default())),
            ..KnownChains::default()
        };
        let alignment = alignment(&client, positions);
        cache.track_origins(&scope, &client, &known, Some(&alignment), sender(false));
        let noted = noted(&cache, &scope, &client);
        assert_eq!(noted, [true, false, false, false, true, true]);
    }

    /// The tenant of the first request after a start is a stranger until the upstream accepts it. What is recorded on the
    /// request's own chain has no origin here, and must not count as said elsewhere.
    #[tokio::test]
    async fn an_accepted_stranger_notes_no_recorded_message() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let scope = Scope::new(b"key", None);
        let client = six_messages(&scope);
        let known = KnownChains {
            recorded_count: 4,
            recorded_origin: Origin(1),
            ..KnownChains::default()
        };
        let origins = cache.track_origins(&scope, &client, &known, None, sender(true));
        cache.track_accepted(&scope, &client, &origins, sender(true));
        let noted = noted(&cache, &scope, &client);
        assert_eq!(noted, [false, false, false, true, true, true]);
    }
}
