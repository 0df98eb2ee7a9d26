//! Looking a request up: in the memory of this process, and in the store if that is not enough.
//!
//! Finds the snapshots that a request may be sent with, what it was sent with before, and the recorded
//! chain it is aligned with. Selects no snapshot. `proxy` calls it once for each chat completion that memory may change.

use std::cell::LazyCell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic;

use super::known_chains::SentAlignment;
use super::outcome::{Lookup, LookupParams, LookupSource, PossibleSummaries, PrefixMatch};
use super::state::anchors;
use super::{HashKeySet, SnapshotCache};
use crate::history::{History, Link, Role, Scope, ScopedHash};
use crate::memory::alignment::{
    Alignment, KnownChains, Origin, PathEntry, find_alignment, messages_before_answer,
    summary_positions,
};
use crate::memory::peer_memory::MAX_CHANCE_PREFIX;
use crate::memory::{Snapshot, SnapshotId};
use crate::store::{Candidates, LARGE_REQUEST, LookupKeys, PrefixTrim};

impl SnapshotCache {
    /// Looks `client` up. Returns what is known of its chain, and its alignment with another chain, if it
    /// has one. Never waits longer than its timeout for a read of the store, and never fails.
    ///
    /// `answers` are hashes of texts among its first messages (see [`LookupKeys::answers`]). It is called
    /// only if the chain alone does not decide.
    pub async fn look_up(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        params: LookupParams<'_>,
        answers: impl FnOnce() -> PossibleSummaries + Send,
    ) -> (Lookup, Option<Alignment>) {
        let (lookup, mut alignment) = self.find(scope, client, params, answers).await;
        if let Some(alignment) = &mut alignment {
            alignment.origins.clone_from(&lookup.origins);
        }
        (lookup, alignment)
    }

    /// As [`Self::look_up`], but the alignment of a new request does not know the origins yet.
    async fn find(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        params: LookupParams<'_>,
        answers: impl FnOnce() -> PossibleSummaries + Send,
    ) -> (Lookup, Option<Alignment>) {
        let answers = LazyCell::new(answers);
        let (sent, (mut known, is_complete)) = {
            let (mut state, origin_index) = (self.state(), self.origin_index());
            let seen_origins = origin_index.origins_of(scope);
            let sent = state.sent_alignment(scope, client, &params, seen_origins);
            (
                sent,
                state.known_chains(scope, client, &params, seen_origins),
            )
        };
        known.require_summary(|hash| answers.is_in_front(hash));
        let sent = sent
            .require_summary(|hash| answers.is_in_front(hash))
            .unless_behind_summary(client, &known);
        let alignment = sent.clone().or_align(|| find_alignment(client, &known));
        // Another process may have recorded the proof in a second conversation.
        let may_be_contested =
            |alignment: &Alignment| !alignment.proof.is_empty() && self.store.has_other_writers();
        let complete = match &alignment {
            Some(alignment) => {
                !may_be_contested(alignment)
                    && self.state().has_complete_link(scope, &alignment.history)
            }
            None => is_complete && !may_be_compacted(client, &known, || &answers.marks),
        };
        if complete {
            let warm = self.warm_source();
            let mut lookup =
                self.lookup_in_memory(scope, client, params, &known, alignment.as_ref(), warm);
            lookup.withheld = known.is_withheld(alignment.as_ref());
            return (lookup, alignment);
        }
        let chain: Vec<Link> = client
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect();
        let answers: &PossibleSummaries = &answers;
        let mut keys = LookupKeys {
            anchors: anchors(client, 0).collect(),
            unique_anchors: false,
            answers: answers.marks.clone(),
            answer_contents: answer_contents(client, &answers.marks),
            thread_key: None,
            system: params.system,
            model: Some(params.model.to_owned()),
            account: Some(params.account),
        };
        self.wait_for_summaries(scope, client, &keys.answers).await;
        let is_large = chain.len() >= LARGE_REQUEST;
        let align = |candidates| {
            self.align_candidates(scope, client, &params, sent.clone(), answers, candidates)
        };
        // A request waits no longer for two queries than for one.
        let deadline = tokio::time::Instant::now() + self.reads.timeout;
        let candidates = self.store.find_candidates(scope, &chain, &keys);
        match self.reads.read(is_large, candidates).await {
            Ok(candidates) => {
                let mut found = align(candidates);
                if let Some(anchors) = found.anchors_elsewhere(&keys.anchors) {
                    (keys.anchors, keys.unique_anchors) = (anchors, true);
                    let candidates = self.store.find_candidates(scope, &chain, &keys);
                    let second = self.reads.read(is_large, candidates);
                    let second = tokio::time::timeout_at(deadline, second).await;
                    let second = second.ok().and_then(Result::ok).map(align);
                    let second = second.filter(|second| second.is_proven_beside(&found));
                    found = second.unwrap_or(found);
                }
                self.lookup_from_store(scope, client, params, answers, found)
            }
            Err(error) => {
                tracing::debug!(error = %error, "the store did not answer; using what this process knows");
                let failed = LookupSource::Failed;
                let mut lookup = self.lookup_in_memory(
                    scope,
                    client,
                    params,
                    &known,
                    alignment.as_ref(),
                    failed,
                );
                lookup.peer_intro = None;
                (lookup, alignment)
            }
        }
    }

    /// What the store has found of `client`, added to what this process knows, and the alignment by both.
    fn align_candidates(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        params: &LookupParams<'_>,
        sent: SentAlignment,
        answers: &PossibleSummaries,
        mut candidates: Candidates,
    ) -> AlignedCandidates {
        let path = candidates.path.as_ref().and_then(|(_, path)| path.last());
        let path_tip = path.map(|entry| entry.message.link);
        let mut known = {
            let mut state = self.state();
            let origin_index = self.origin_index();
            let seen_origins = origin_index.origins_of(scope);
            state.add_candidates(scope, client, &mut candidates, params, seen_origins)
        };
        if known.require_summary(|hash| answers.is_in_front(hash)) {
            candidates.aligned_sent_with = None;
        }
        if let Some(summary) = &mut known.summary {
            summary.start = answers.start_of(summary.hash, summary.count);
        }
        let sent = sent.unless_behind_summary(client, &known);
        let is_own_chain = matches!(sent, SentAlignment::OwnChain);
        let alignment = sent.or_align(|| find_alignment(client, &known));
        AlignedCandidates {
            is_own_chain,
            candidates,
            path_tip,
            known,
            alignment,
        }
    }

    /// What is known of `client`, by this process and by what the store has `found`.
    fn lookup_from_store(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        params: LookupParams<'_>,
        answers: &PossibleSummaries,
        found: AlignedCandidates,
    ) -> (Lookup, Option<Alignment>) {
        let AlignedCandidates {
            is_own_chain: _,
            candidates,
            path_tip,
            known,
            alignment,
        } = found;
        if params.marks_quotations {
            self.mark_quotations(scope, &answers.marks, &known, alignment.as_ref());
        }
        let origins = self.track_origins(scope, client, &known, alignment.as_ref(), params.sender);
        let history = alignment
            .as_ref()
            .map_or(client, |alignment| &alignment.history);
        let mut lookup = self.cached_lookup(scope, history, params.model, LookupSource::Cold);
        lookup.origins = origins;
        lookup.withheld = known.is_withheld(alignment.as_ref());
        let prefix_match = PrefixMatch {
            aligned: alignment.is_some(),
            depth: candidates.depth,
            continued_elsewhere: candidates.continued_elsewhere,
        };
        merge_earlier_sends(&mut lookup, candidates, path_tip, alignment.as_ref());
        self.add_peer_intro(&mut lookup, scope, client, prefix_match);
        (lookup, alignment)
    }

    /// Waits until the exchanges are recorded whose answers stand in `client` in place of what they summarise. If the
    /// recorder takes too long, the conversation begins anew behind its summary, and nobody waits until the recorder
    /// records again.
    async fn wait_for_summaries(
        &self,
        scope: &Scope,
        client: &History,
        answers: &[(ScopedHash, usize)],
    ) {
        if answers.is_empty() {
            return;
        }
        let summaries: Vec<ScopedHash> = {
            let origin_index = self.origin_index();
            let seen_origins = origin_index.origins_of(scope);
            // An answer that stands where it was given is no summary.
            let is_in_its_turn = |behind: usize| {
                let Some(at) = behind.checked_sub(1) else {
                    return false;
                };
                let before = at
                    .checked_sub(1)
                    .map(|before| client.messages()[before].link);
                let key = client.message_key(at);
                let before = before.unwrap_or_else(|| client.root());
                seen_origins
                    .answer_origin(before, key.ids.unwrap_or(key.content))
                    .is_some()
            };
            let answers = answers
                .iter()
                .filter(|(_, behind)| !is_in_its_turn(*behind));
            answers.map(|(hash, _)| *hash).collect()
        };
        let in_progress = &self.unrecorded_answers;
        if in_progress.is_recorder_slow() {
            return;
        }
        let recorded = in_progress.wait_for(summaries.into_iter());
        let in_time = tokio::time::timeout(self.reads.timeout, recorded).await;
        if in_time.is_err() {
            in_progress.set_recorder_slow(true);
        }
    }

    fn warm_source(&self) -> LookupSource {
        if self.degraded.load(atomic::Ordering::Relaxed) {
            LookupSource::Degraded
        } else {
            LookupSource::Warm
        }
    }

    /// What this process knows of `client`, without the store.
    fn lookup_in_memory(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        params: LookupParams<'_>,
        known: &KnownChains,
        alignment: Option<&Alignment>,
        source: LookupSource,
    ) -> Lookup {
        let history = alignment.map_or(client, |alignment| &alignment.history);
        let mut lookup = self.cached_lookup(scope, history, params.model, source);
        lookup.origins = self.track_origins(scope, client, known, alignment, params.sender);
        let recorded_count = known.recorded_count;
        let prefix_match =
            self.state()
                .prefix_match(scope, client, alignment.is_some(), recorded_count);
        self.add_peer_intro(&mut lookup, scope, client, prefix_match);
        lookup
    }

    /// What this process knows of a chain.
    fn cached_lookup(
        &self,
        scope: &Scope,
        history: &Arc<History>,
        model: &str,
        source: LookupSource,
    ) -> Lookup {
        let state = self.state();
        let mut candidates = Vec::new();
        let mut trims = Vec::new();
        let mut paused = false;
        for chained in history.messages() {
            let key = (scope.tenant, chained.link);
            if let Some(snapshots) = state.snapshots_by_end.get(&key) {
                candidates.extend(snapshots.iter().cloned());
            }
            if let Some(unstored) = state.unstored_snapshots.get(&key) {
                candidates.extend(unstored.iter().cloned());
            }
            trims.extend(
                state
                    .sent_requests
                    .trims(&key)
                    .map(|(trim, model)| PrefixTrim {
                        trim,
                        model: model.to_owned(),
                    }),
            );
            paused |= state.paused.contains(&key);
        }
        let sent_prefix = state.sent_prefix(scope, history, model);
        let previous_send = history.tip().and_then(|tip| {
            state
                .sent_requests
                .get(&(scope.tenant, tip), model)
                .cloned()
        });
        let mut lookup = Lookup {
            candidates,
            previous_send,
            prefix_trims: Vec::new(),
            source,
            paused,
            peer_intro: None,
            sent_peer_intro: None,
            sent_prefix,
            prefix_match: PrefixMatch::default(),
            origins: Vec::new(),
            withheld: false,
        };
        for carried in trims {
            lookup.merge_trim(carried);
        }
        lookup
    }

    /// The text of a snapshot; `None` if neither this process nor the store can give it in time.
    pub async fn load_snapshot(&self, scope: &Scope, id: SnapshotId) -> Option<Arc<Snapshot>> {
        let cached = self.state().texts.get(&(scope.tenant, id)).cloned();
        if cached.is_some() {
            return cached;
        }
        match self.reads.read(false, self.store.snapshot(scope, id)).await {
            Ok(Some(snapshot)) => Some(self.insert_snapshot(scope, snapshot)),
            Ok(None) => None,
            Err(error) => {
                tracing::debug!(error = %error, "a snapshot could not be read; using what this process knows");
                None
            }
        }
    }
}

/// What the store has found of a request, and the alignment by that.
struct AlignedCandidates {
    /// Whether the request was sent before, on its own chain.
    is_own_chain: bool,
    candidates: Candidates,
    /// The end of the chain that an anchor found.
    path_tip: Option<Link>,
    known: KnownChains,
    alignment: Option<Alignment>,
}

impl AlignedCandidates {
    /// Whether the request is proven to belong to a recorded conversation.
    fn is_proven(&self) -> bool {
        self.alignment
            .as_ref()
            .is_some_and(|alignment| alignment.lineage.is_some())
    }

    /// Those of `anchors` that do not lead to the chain that was found, if the request is not proven to belong there; `None` if
    /// no other chain need be looked for. The latest question and answer may stand in many conversations, or twice in one.
    fn anchors_elsewhere(
        &self,
        anchors: &[(ScopedHash, usize)],
    ) -> Option<Vec<(ScopedHash, usize)>> {
        let path = &self.known.path;
        if self.is_proven() || self.is_own_chain || path.is_empty() {
            return None;
        }
        let found: HashKeySet<ScopedHash> = path.iter().filter_map(|entry| entry.anchor).collect();
        let others = anchors
            .iter()
            .filter(|(anchor, _)| !found.contains(anchor))
            .copied();
        let others: Vec<_> = others.collect();
        (!others.is_empty()).then_some(others)
    }

    /// Whether the request is proven to belong to its chain, although it was not for that of `first`. If the chain of `first`
    /// repeats messages of this one, both are of one conversation. That chain was recorded last. Its user may have taken back
    /// what it does not repeat, so this one does not count.
    fn is_proven_beside(&self, first: &Self) -> bool {
        let first: HashMap<Origin, Link> = first.known.path.iter().map(place).collect();
        let is_repeated = |entry: &PathEntry| {
            let (origin, link) = place(entry);
            first.get(&origin).is_some_and(|other| *other != link)
        };
        self.is_proven() && !self.known.path.iter().any(is_repeated)
    }
}

/// Where a message was first said, and where it stands.
fn place(entry: &PathEntry) -> (Origin, Link) {
    (entry.origin, entry.message.link)
}

/// Adds what the store found about earlier sends to what this process knows. `path_tip` is the end of the
/// chain that an anchor found.
fn merge_earlier_sends(
    lookup: &mut Lookup,
    candidates: Candidates,
    path_tip: Option<Link>,
    alignment: Option<&Alignment>,
) {
    let is_on_chain = |tip: &Link| {
        alignment.is_some_and(|alignment| {
            let mut messages = alignment.history.messages().iter();
            messages.any(|chained| chained.link == *tip)
        })
    };
    // What an aligned request was sent with does not count if the request is no longer aligned.
    let aligned_sent_with = candidates.aligned_sent_with.filter(|_| alignment.is_some());
    // An aligned request without new messages ends where another request did, and repeats that one.
    let path_sent_with = candidates
        .path_sent_with
        .filter(|_| path_tip.is_some() && alignment.is_some_and(|it| it.history.tip() == path_tip));
    // `sent_with` is of the request's own chain. If a summary in front aligned it, that chain is another conversation's.
    let sent_with = candidates
        .sent_with
        .filter(|_| alignment.is_none_or(|it| it.summary_in_front.is_none()));
    lookup.previous_send = lookup
        .previous_send
        .take()
        .or(sent_with)
        .or(aligned_sent_with)
        .or(path_sent_with);
    let path_trims = candidates.path_trims.into_iter();
    let path_trims = path_trims.filter(|(tip, _)| is_on_chain(tip));
    let path_trims = path_trims.map(|(_, carried)| carried);
    for carried in candidates.prefix_trims.into_iter().chain(path_trims) {
        lookup.merge_trim(carried);
    }
    let sent_prefixes = candidates.sent_prefixes.into_iter();
    let sent_prefixes = sent_prefixes.filter(|(tip, _)| tip.as_ref().is_none_or(&is_on_chain));
    // Of two equally long prefixes, the one that this process sent counts.
    lookup.sent_prefix = sent_prefixes
        .map(|(_, sent)| sent)
        .chain(lookup.sent_prefix.take())
        .max_by_key(|sent| sent.shared_messages);
}

/// See [`LookupKeys::answer_contents`].
pub fn answer_contents(
    client: &History,
    answers: &[(ScopedHash, usize)],
) -> Vec<Option<ScopedHash>> {
    let content_of_answer = |(_, behind): &(ScopedHash, usize)| {
        let at = behind.checked_sub(1)?;
        let is_answer = client.messages()[at].message.role == Role::Assistant;
        is_answer.then(|| client.message_key(at).content)
    };
    answers.iter().map(content_of_answer).collect()
}

/// Whether a text among the first messages of `client`, behind the recorded ones, may be an answer that
/// summarises another conversation. Then the store must be queried, although the chain is known.
///
/// Two places are ordinary and no reason to query: the answer right behind the recorded messages, and the newest
/// message. But if the request holds no answer of the model at all, and more than its newest message is not recorded,
/// that message may hold a summary behind the user's text. `answers` is called only if there may be a summary.
fn may_be_compacted<'a>(
    client: &History,
    known: &KnownChains,
    answers: impl FnOnce() -> &'a Vec<(ScopedHash, usize)>,
) -> bool {
    // Another conversation may have begun alike, without the summary in front.
    let may_be_behind_summary = known.recorded_count <= MAX_CHANCE_PREFIX;
    if !may_be_behind_summary && summary_positions(client).all(|place| place < known.recorded_count)
    {
        return false;
    }
    let is_silent = messages_before_answer(client) == client.len();
    let is_ordinary = |place: usize| match place.cmp(&known.recorded_count) {
        Ordering::Less => true,
        Ordering::Equal => {
            place + 1 == client.len() || client.messages()[place].message.role == Role::Assistant
        }
        Ordering::Greater => place + 1 == client.len() && !is_silent,
    };
    let mut places = answers().iter().map(|(_, behind)| behind.checked_sub(1));
    places.any(|place| place.map_or(may_be_behind_summary, |place| !is_ordinary(place)))
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;
    use crate::history::Pepper;
    use crate::store::SqliteStore;
    use crate::wire;

    /// Only a summary is waited for: not an answer that stands where it was given, and nothing while the recorder hangs.
    #[tokio::test]
    async fn a_request_waits_only_for_the_exchange_of_its_summary() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let cache = SnapshotCache::new(Arc::new(store));
        let scope = Scope::new(b"tenant", None);
        let body = br#"{"model":"m","messages":[{"role":"user","content":"Sum up."},
            {"role":"assistant","content":"All of it."},{"role":"user","content":"Go on."}]}"#;
        let request = wire::Request::parse_chat(&body.to_vec().into()).expect("a request");
        let client = request.history(&scope);
        let text = ScopedHash::from_text(&Pepper::NONE, &client.root(), "All of it.");
        let answers = [(text, 2)];
        let in_progress = cache.answers_in_progress();
        in_progress.add(text);
        {
            let mut waits = std::pin::pin!(cache.wait_for_summaries(&scope, &client, &answers));
            assert!(poll!(waits.as_mut()).is_pending());
            cache.unrecorded_answers.set_recorder_slow(true);
            let mut second = std::pin::pin!(cache.wait_for_summaries(&scope, &client, &answers));
            assert!(poll!(second.as_mut()).is_ready());
            cache.unrecorded_answers.set_recorder_slow(false);
        }
        let answer = client.messages()[1].message.clone();
        let asking = client.prefix(1);
        let sender = crate::lookup::Sender {
            is_stranger: false,
            may_be_stored: false,
        };
        let origins = cache.track_passthrough(&scope, &asking, sender);
        cache.track_answer(&scope, (&asking, &origins), &asking, &answer, sender);
        let mut waits = std::pin::pin!(cache.wait_for_summaries(&scope, &client, &answers));
        assert!(poll!(waits.as_mut()).is_ready());
    }
}
