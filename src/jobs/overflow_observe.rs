//! Observes a request that is too long while its client waits: the one exception to INV-FREE, which
//! an operator must turn on (`overflow = "observe"`).
//!
//! Nothing is stored before the upstream has accepted the result (INV-OWN). Until then the new
//! chunks and their snapshot live here, under a negative id that no store gives. The recorder
//! stores them with the exchange ([`PendingOverflows::get`]). Called by
//! [`super::Jobs::observe_overflow`].

mod pending;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

pub(super) use self::pending::{PendingOverflow, PendingOverflows};
use super::base::Base;
use super::events::OverflowEvents;
use super::exchange::Exchange;
use super::message_archive::MessageArchive;
use super::payload::{self, TimeStyle};
use super::peer_memory::PeerMemories;
use super::settings::Settings;
use super::snapshots::{SnapshotDraft, SnapshotTarget, Snapshots};
use super::track::Track;
use super::worker::Worker;
use crate::memory::advance::{ChainState, overflow, overflow_observe::unobserved_ranges};
use crate::memory::{
    NewPart, Node, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, Span, dates, render,
};
use crate::store::{Job, NewJob, NewOverflowObservation, NewSnapshot, StoreError};

/// The most ranges of one request that are observed at the same time. The model caller bounds the
/// calls of the whole process.
const MAX_CONCURRENT: usize = 4;

/// Of the time that a client waits, a quarter is reserved for the steps after the calls, but at
/// most this. Without it, a slow store would lose what the calls wrote.
const MAX_COMPOSE_TIME: Duration = Duration::from_secs(1);

/// Observes for clients that wait.
#[derive(Clone)]
pub(super) struct OverflowObserver {
    base: Base,
    worker: Arc<Worker>,
    snapshots: Snapshots,
    peer_memory: PeerMemories,
    archive: MessageArchive,
    pending: Arc<PendingOverflows>,
}

impl OverflowObserver {
    pub(super) fn new(base: &Base, worker: &Arc<Worker>, pending: &Arc<PendingOverflows>) -> Self {
        Self {
            base: base.clone(),
            worker: Arc::clone(worker),
            snapshots: Snapshots::new(base),
            peer_memory: PeerMemories::new(base),
            archive: MessageArchive::new(base),
            pending: Arc::clone(pending),
        }
    }

    /// Observes `exchange`, which was refused when it was sent with `sent_snapshot`, up to its
    /// message `to_count` and until `deadline`. Whatever is finished by then counts, if it makes
    /// the request smaller.
    pub(super) async fn observe(
        &self,
        exchange: &Exchange,
        sent_snapshot: Option<SnapshotId>,
        to_count: usize,
        deadline: Instant,
    ) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let calls_deadline = calls_deadline(Instant::now(), deadline);
        // One deadline for all steps, a slow store included.
        let composed = Box::pin(self.compose(exchange, sent_snapshot, to_count, calls_deadline));
        timeout_at(deadline, composed).await.unwrap_or(Ok(None))
    }

    async fn compose(
        &self,
        exchange: &Exchange,
        sent_snapshot: Option<SnapshotId>,
        to_count: usize,
        calls_deadline: Instant,
    ) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let overflow_events = OverflowEvents::new(&self.base.events);
        let (mut track, last_confirmed) = self.load_track(exchange, sent_snapshot).await?;
        let settings = self.base.settings().for_model(&exchange.model);
        let zone = exchange.zone.as_ref().unwrap_or(&settings.zone);
        let time_style = TimeStyle {
            zone: zone.clone(),
            show_pauses: settings.temporal_markers,
        };
        let ranges = unobserved_ranges(&track.path(), to_count, settings.policy.message_tokens);
        let nodes: Arc<[Node]> = track.nodes.as_slice().into();
        let calls = ranges.into_iter().map(|(span, message_tokens)| {
            let context = (Arc::clone(&nodes), time_style.clone(), &overflow_events);
            self.observe_range(exchange, context, span, message_tokens)
        });
        let parts: Vec<NewPart> = finish_before(calls, calls_deadline).await;
        if parts.is_empty() {
            return Ok(None);
        }
        let rendering = Rendering {
            preamble: render::PREAMBLE_VERSION,
            as_of: dates::date(self.base.now_ms(), zone),
        };
        let Some(new) = self
            .render(exchange, &mut track, &parts, rendering, &settings)
            .await?
        else {
            return Ok(None);
        };
        let peer_section = self
            .peer_memory
            .section_for(&track, exchange.thread_key.as_deref(), last_confirmed)
            .await;
        let SnapshotDraft {
            snapshot: base,
            peer_snapshot,
        } = SnapshotDraft::new(new, peer_section);
        let snapshot = peer_snapshot.as_ref().unwrap_or(&base).clone();
        let events = overflow_events.finish(&parts);
        let observation = NewOverflowObservation {
            parts,
            rendering,
            snapshot: base,
            peer_snapshot,
        };
        let id = self.pending.insert(PendingOverflow {
            observation,
            events,
        });
        // The client may send the next request before this is stored. The cache has it from here
        // on.
        let (tip, eligible_from) = (snapshot.tip, snapshot.tip_count);
        let pending = snapshot.into_snapshot(id, eligible_from);
        let cache = &self.base.cache;
        Ok(Some(cache.add_unstored_snapshot(
            &exchange.scope,
            tip,
            pending,
        )))
    }

    /// What is recorded of the conversation, with the messages that are new in `exchange`, and the last message that
    /// `exchange` confirms.
    async fn load_track(
        &self,
        exchange: &Exchange,
        sent_snapshot: Option<SnapshotId>,
    ) -> Result<(Track, Option<Node>), StoreError> {
        let (scope, history) = (&exchange.scope, &exchange.history);
        let mut track = Track::load(&*self.base.store, scope, history).await?;
        track.model.clone_from(&exchange.model);
        let last_confirmed = track.last_confirmed_after(history.len());
        let new = exchange
            .measure_new_messages(&self.base.counter, track.nodes.len(), None)
            .await?;
        track.nodes.extend(new);
        track.snapshots = track.sent_snapshots(sent_snapshot);
        track.allows_peer_memory |= exchange.allows_peer_memory && !exchange.sub_agent;
        Ok((track, last_confirmed))
    }

    /// A snapshot with the new `parts`, for `exchange` itself; `None` if it would not make the request smaller.
    async fn render(
        &self,
        exchange: &Exchange,
        track: &mut Track,
        parts: &[NewPart],
        rendering: Rendering,
        settings: &Settings,
    ) -> Result<Option<NewSnapshot>, StoreError> {
        let unstored = (1..).zip(parts);
        let unstored = unstored.map(|(number, part)| part.meta(PartId(-number)));
        track.parts.extend(unstored);
        let path = ChainState {
            jobs: &[],
            ..track.path()
        };
        // The log is not shortened by code at its limit: a code-written reflection names its parts
        // by their ids, and these parts have none yet.
        let Some(plan) = overflow(&path, &settings.policy) else {
            return Ok(None);
        };
        let ids = plan.parts.iter().chain(&plan.later_chunks).copied();
        let stored: Vec<PartId> = ids.filter(|id| id.0 > 0).collect();
        let stored = self.base.store.parts(&exchange.scope, &stored).await?;
        let Some(rendered_parts) = parts_in_order(&plan.parts, &stored, parts) else {
            return Ok(None);
        };
        let later = plan.later_chunks.iter();
        let later = later.filter_map(|id| parts_in_order(&[*id], &stored, parts));
        let later: Vec<Part> = later.flatten().collect();
        let Some(tip) = exchange.history.tip() else {
            return Ok(None);
        };
        let target = SnapshotTarget {
            tip,
            tip_count: exchange.history.len(),
            eligible_now: true,
            zone: exchange.zone.as_ref().unwrap_or(&settings.zone),
            policy: &settings.policy,
        };
        let part_groups = (&*rendered_parts, &*later);
        let new = self
            .snapshots
            .render(plan, part_groups, rendering, &target, settings)
            .await;
        Ok(Some(new))
    }

    /// The chunk of one range; `None` if there is none.
    async fn observe_range(
        &self,
        exchange: &Exchange,
        (nodes, time_style, overflow_events): (Arc<[Node]>, TimeStyle, &OverflowEvents),
        span: Span,
        message_tokens: u32,
    ) -> Option<NewPart> {
        let (parsed, counter) = (Arc::clone(&exchange.parsed), Arc::clone(&self.base.counter));
        let sources = self.archive.locate_texts(exchange, &nodes, &span).await?;
        let settings = self.base.settings().for_model(&exchange.model);
        let options = Arc::clone(&settings.observer);
        let payload = tokio::task::spawn_blocking(move || {
            payload::build(
                &parsed,
                &nodes,
                &span,
                &sources,
                &options,
                &time_style,
                &*counter,
            )
        });
        let payload = payload.await.ok()??.to_json();
        let job = Job {
            id: Job::NOT_QUEUED,
            scope: exchange.scope.clone(),
            spec: NewJob {
                kind: PartKind::Chunk,
                span,
                message_tokens,
                payload,
                parts: Vec::new(),
                model: exchange.model.clone(),
                tip: exchange.history.tip()?,
                tip_count: exchange.history.len(),
                route_hash: exchange.route,
                urgency: u32::MAX,
            },
            attempts: 1,
            // There is no time to ask again after an empty answer.
            empty_answers: 1,
            fence: 0,
            unsettled: 1,
            conversation: String::new(),
        };
        let first = || {
            exchange
                .history
                .messages()
                .first()
                .map(|chained| chained.link.label())
        };
        let thread = exchange.thread_key.clone().or_else(first);
        self.worker.set_thread(&job, thread);
        match self.worker.observe_unqueued(&job, overflow_events).await? {
            Ok(part) => Some(part),
            Err(failure) => {
                tracing::warn!(failure = ?failure, "a request that did not fit could not be observed");
                None
            }
        }
    }
}

/// When the calls of a client that waits from `now` on must be finished.
fn calls_deadline(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline - MAX_COMPOSE_TIME.min(left / 4)
}

/// The results of `calls` in order, up to the first that has none, and no later than `deadline`. A
/// range behind one that failed would leave a gap. Calls that still run are dropped, and their
/// permits are free.
async fn finish_before<T>(
    calls: impl Iterator<Item = impl Future<Output = Option<T>>>,
    deadline: Instant,
) -> Vec<T> {
    let mut calls = std::pin::pin!(futures_util::stream::iter(calls).buffered(MAX_CONCURRENT));
    let mut done = Vec::new();
    while let Ok(Some(Some(result))) = timeout_at(deadline, calls.next()).await {
        done.push(result);
    }
    done
}

/// The parts of a plan in the order of the log: `stored` ones by their ids, `new` ones counted
/// downwards from -1. `None` if one is missing.
fn parts_in_order(plan: &[PartId], stored: &[Part], new: &[NewPart]) -> Option<Vec<Part>> {
    let parts = plan.iter().map(|id| {
        if id.0 > 0 {
            return stored.iter().find(|part| part.id == *id).cloned();
        }
        let part = new.get(usize::try_from(-id.0 - 1).ok()?)?;
        Some(Part {
            id: *id,
            rendering: None,
            body: part.clone(),
        })
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Link, Scope};

    fn chunk(text: &str) -> NewPart {
        let root = Link::root(&Scope::new(b"tenant", None));
        NewPart {
            kind: PartKind::Chunk,
            span: Span {
                from: root,
                from_count: 0,
                to: root,
                to_count: 1,
            },
            text: text.to_owned(),
            tokens: 1,
            message_tokens: 1,
            current_task: None,
            suggested_response: None,
            sources: Vec::new(),
            model: "observer".to_owned(),
            requested: false,
            code_reflection: false,
            analysis: crate::memory::PartAnalysis::default(),
        }
    }

    /// A short wait goes to the calls for three quarters, a long one for all but a second.
    #[test]
    fn composing_gets_a_quarter_of_the_time_but_at_most_a_second() {
        let now = Instant::now();
        let rows = [
            (0, 0),
            (400, 300),
            (2_000, 1_500),
            (4_000, 3_000),
            (60_000, 59_000),
        ];
        for (waits, calls) in rows {
            let [deadline, expected] = [waits, calls].map(|ms| now + Duration::from_millis(ms));
            assert_eq!(calls_deadline(now, deadline), expected, "{waits} ms");
        }
        // If the time is over already, nobody gets any.
        assert_eq!(calls_deadline(now + MAX_COMPOSE_TIME, now), now);
    }

    /// A running call holds a permit that others wait for.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_no_longer_awaited_releases_its_permit() {
        let permits = tokio::sync::Semaphore::new(MAX_CONCURRENT);
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let call = |at: u32, ends: Option<Option<u32>>| {
            let permits = &permits;
            async move {
                let _permit = permits.acquire().await;
                tokio::time::sleep(second * at).await;
                match ends {
                    Some(end) => end,
                    None => std::future::pending().await,
                }
            }
        };
        let rows = [
            // The third call fails after two seconds, and the fourth is not awaited.
            (
                vec![Some(Some(0)), Some(Some(1)), Some(None), None],
                2,
                vec![0, 1],
            ),
            // The second call never ends, but the time does.
            (vec![Some(Some(0)), None, Some(Some(2))], 10, vec![0]),
        ];
        for (ends, takes, expected) in rows {
            let began_here = Instant::now();
            let calls = (0..).zip(ends).map(|(at, end)| call(at, end));
            let done = finish_before(calls, began_here + 10 * second).await;
            assert_eq!((done, began_here.elapsed()), (expected, second * takes));
            assert_eq!(permits.available_permits(), MAX_CONCURRENT);
        }
        assert_eq!(began.elapsed(), 12 * second);
    }

    /// A gap that an earlier range left is closed for a client that waits.
    #[test]
    fn new_parts_are_placed_in_the_order_of_the_plan() {
        let stored = [(7, "third"), (3, "first")].map(|(id, text)| Part {
            id: PartId(id),
            rendering: None,
            body: chunk(text),
        });
        let new = [chunk("second"), chunk("fourth")];
        let texts = |plan: &[i64]| {
            let plan: Vec<PartId> = plan.iter().copied().map(PartId).collect();
            let parts = parts_in_order(&plan, &stored, &new)?;
            assert_eq!(parts.iter().map(|it| it.id).collect::<Vec<_>>(), plan);
            Some(parts.into_iter().map(|it| it.body.text).collect::<Vec<_>>())
        };
        let whole = ["first", "second", "third", "fourth"].map(str::to_owned);
        assert_eq!(texts(&[3, -1, 7, -2]), Some(whole.to_vec()));
        assert_eq!(texts(&[3, -1, 4]), None, "one that is stored no longer");
        assert_eq!(texts(&[3, -3]), None, "one that was never written");
    }
}
