//! A request that does not fit its model is observed while its client waits: the one exception to
//! INV-FREE, chosen by the operator.
//!
//! Nothing is stored before the upstream has accepted what comes of it (INV-OWN): until then the new
//! chunks and their snapshot live here, under a number that no store gives. The recorder takes them
//! over with the exchange ([`Rescues::of`]). Called by [`super::Jobs::rescue`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::events::Awaited;
use super::minutes;
use super::others;
use super::payload::{self, Telling};
use super::prepare::{Draft, Occasion, load, sent_with, write};
use super::weigh::weigh;
use super::worker;
use super::{Exchange, Shop};
use crate::memory::advance::{Path, overflow, rescue::unobserved};
use crate::memory::{
    NewPart, Node, Part, PartId, PartKind, Rendering, Snapshot, SnapshotId, SnapshotMeta, Span,
    dates, render,
};
use crate::store::{Adoption, Event, Job, NewJob, StoreError};

/// Ranges of one request that are observed at the same time; how many calls there are in all, `ask`
/// knows.
const AT_ONCE: usize = 4;

/// Of the time a client waits a quarter, but no more than this, is for what follows the calls: what they
/// wrote is lost where a slow store leaves none for it.
const COMPOSING: Duration = Duration::from_secs(1);

/// Rescues that wait to be recorded at most; the oldest goes first, and is observed again later.
const HELD: usize = 256;

/// What was observed and is not stored yet.
#[derive(Debug)]
pub(super) struct Rescued {
    pub(super) adoption: Adoption,
    /// What was told of it.
    pub(super) events: Vec<Event>,
}

/// What is held, by the number its snapshot has until it is stored.
#[derive(Debug, Default)]
pub(crate) struct Rescues {
    held: Mutex<BTreeMap<i64, Arc<Rescued>>>,
    last: AtomicI64,
}

impl Rescues {
    fn hold(&self, rescued: Rescued) -> SnapshotId {
        // Stored snapshots count upwards from 1.
        let id = self.last.fetch_sub(1, Ordering::Relaxed) - 1;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(id, Arc::new(rescued));
        if held.len() > HELD {
            held.pop_last();
        }
        SnapshotId(id)
    }

    /// What has to be stored before a request can be recorded that was sent with `snapshot`.
    pub(super) fn of(&self, snapshot: Option<SnapshotId>) -> Option<Arc<Rescued>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&snapshot?.0).cloned()
    }
}

/// Observes `exchange`, which was refused when it was sent with the snapshot `sent`, up to its message
/// `to_count`, until the client waits no longer. What is written by then counts, if it makes the request
/// smaller.
pub(super) async fn rescue(
    shop: &Shop,
    exchange: &Exchange,
    sent: Option<SnapshotId>,
    to_count: usize,
    until: Instant,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    let calls_until = calls_until(Instant::now(), until);
    // Whatever takes long, a store in trouble too, takes it from the same time.
    let composed = Box::pin(compose(shop, exchange, sent, to_count, calls_until));
    timeout_at(until, composed).await.unwrap_or(Ok(None))
}

/// When the calls have to be done, of a client that waits from `now` on.
fn calls_until(now: Instant, until: Instant) -> Instant {
    let left = until.saturating_duration_since(now);
    until - COMPOSING.min(left / 4)
}

async fn compose(
    shop: &Shop,
    exchange: &Exchange,
    sent: Option<SnapshotId>,
    to_count: usize,
    calls_until: Instant,
) -> Result<Option<Arc<Snapshot>>, StoreError> {
    let awaited = Awaited::new(shop);
    let (scope, history) = (&exchange.scope, &exchange.history);
    let mut track = load(shop, scope, history).await?;
    track.model.clone_from(&exchange.model);
    let known = track.nodes.len();
    let settled = track.settled_by(history.len());
    let new = weigh(shop, exchange, known, None).await?;
    track.nodes.extend(new);
    track.snapshots = sent_with(&track, sent);
    track.shared |= exchange.shared && !exchange.child;
    let settings = shop.settings.now().for_model(&exchange.model);
    let policy = &settings.policy;
    let ranges = unobserved(&track.path(), to_count, policy.message_tokens);
    let nodes: Arc<[Node]> = track.nodes.as_slice().into();
    let zone = exchange.zone.as_ref().unwrap_or(&settings.zone);
    let telling = Telling {
        zone: zone.clone(),
        pauses: settings.temporal_markers,
    };
    let calls = ranges.into_iter().map(|(span, message_tokens)| {
        let (nodes, telling) = (Arc::clone(&nodes), telling.clone());
        let awaited = &awaited;
        async move {
            let words = (nodes, telling, awaited);
            observed(shop, exchange, words, span, message_tokens).await
        }
    });
    let parts: Vec<NewPart> = in_time(calls, calls_until).await;
    if parts.is_empty() {
        return Ok(None);
    }
    track.parts.extend(
        (1..)
            .zip(&parts)
            .map(|(number, part)| part.meta(PartId(-number))),
    );
    let path = Path {
        work: &[],
        ..track.path()
    };
    // Not shortened at its limit: a stopgap names the parts it is made of, and these have no numbers yet.
    let Some(plan) = overflow(&path, policy) else {
        return Ok(None);
    };
    let rendering = Rendering {
        preamble: render::PREAMBLE_VERSION,
        as_of: dates::date(shop.clock.now_ms(), zone),
    };
    let named = plan.parts.iter().chain(&plan.later).copied();
    let stored: Vec<PartId> = named.filter(|id| id.0 > 0).collect();
    let stored = shop.store.parts(scope, &stored).await?;
    let Some(written) = in_order(&plan.parts, &stored, &parts) else {
        return Ok(None);
    };
    let later = plan.later.iter();
    let later = later.filter_map(|id| in_order(&[*id], &stored, &parts));
    let later: Vec<Part> = later.flatten().collect();
    let Some(tip) = history.tip() else {
        return Ok(None);
    };
    let occasion = Occasion {
        tip,
        tip_count: history.len(),
        at_once: true,
        zone,
        policy,
    };
    let told = others::of(shop, &track, exchange.thread_key.as_deref(), settled).await;
    let texts = (&*written, &*later);
    let new = write(shop, plan, texts, rendering, &occasion, &settings).await;
    let Draft {
        snapshot: own,
        bound,
    } = Draft::of(new, told);
    let snapshot = bound.as_ref().unwrap_or(&own);
    let meta = SnapshotMeta {
        id: SnapshotId(0),
        to: snapshot.to,
        to_count: snapshot.to_count,
        eligible_from: snapshot.tip_count,
        pin: snapshot.pin,
        parts: snapshot.parts.clone(),
        tokens: snapshot.tokens,
        cause: snapshot.cause,
        placement: snapshot.placement.clone(),
        others: snapshot.others.clone(),
    };
    let segments = snapshot.segments.clone();
    let events = awaited.ended(&parts);
    let adoption = Adoption {
        parts,
        rendering,
        snapshot: own,
        bound,
    };
    let id = shop.rescues.hold(Rescued { adoption, events });
    let meta = SnapshotMeta { id, ..meta };
    // A client in a hurry goes on before it is stored, from here.
    let held = Snapshot { meta, segments };
    Ok(Some(shop.recall.rescued(scope, tip, held)))
}

/// What comes of `calls`, in their order, up to the first that comes to nothing and no later than `until`:
/// what lies behind a range that failed would leave a gap. Calls that are under way then are given up, and
/// others may have their permits.
async fn in_time<T>(
    calls: impl Iterator<Item = impl Future<Output = Option<T>>>,
    until: Instant,
) -> Vec<T> {
    let mut calls = std::pin::pin!(futures_util::stream::iter(calls).buffered(AT_ONCE));
    let mut done = Vec::new();
    while let Ok(Some(Some(one))) = timeout_at(until, calls.next()).await {
        done.push(one);
    }
    done
}

/// The parts of a plan in the order of the log, whichever of them were there before: `stored` ones by their
/// numbers, `new` ones counted downwards from -1. `None` where one of them is gone.
fn in_order(plan: &[PartId], stored: &[Part], new: &[NewPart]) -> Option<Vec<Part>> {
    let written = plan.iter().map(|id| {
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
    written.collect()
}

/// The chunk of one range; `None` where no model wrote it.
async fn observed(
    shop: &Shop,
    exchange: &Exchange,
    (nodes, telling, awaited): (Arc<[Node]>, Telling, &Awaited),
    span: Span,
    message_tokens: u32,
) -> Option<NewPart> {
    let (parsed, counter) = (Arc::clone(&exchange.parsed), Arc::clone(&shop.counter));
    let sent = minutes::at_hand(shop, exchange, &nodes, &span).await?;
    let settings = shop.settings.now().for_model(&exchange.model);
    let options = Arc::clone(&settings.observer);
    let payload = tokio::task::spawn_blocking(move || {
        payload::of(&parsed, &nodes, &span, &sent, &options, &telling, &*counter)
    });
    let payload = payload.await.ok()??.to_json();
    let job = Job {
        id: Job::BESIDE,
        scope: exchange.scope.clone(),
        work: NewJob {
            kind: PartKind::Chunk,
            span,
            message_tokens,
            payload,
            parts: Vec::new(),
            model: exchange.model.clone(),
            tip: exchange.history.tip()?,
            tip_count: exchange.history.len(),
            way: exchange.way,
            urgency: u32::MAX,
        },
        attempts: 1,
        // Nobody has the time to ask again for an empty answer.
        empty_answers: 1,
        fence: 0,
    };
    match worker::observe_beside(shop, &job, awaited).await? {
        Ok(part) => Some(part),
        Err(failure) => {
            tracing::warn!(failure = ?failure, "a request that did not fit could not be observed");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Link, Scope};

    fn chunk(text: &str) -> NewPart {
        let root = Link::root(&Scope::of(b"tenant", None));
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
            asked: false,
            stopgap: false,
            evidence: crate::memory::Evidence::default(),
        }
    }

    /// A client that waits briefly has most of it for the calls, and one that waits long all but a second.
    #[test]
    fn a_quarter_of_the_time_is_for_composing_and_a_second_at_most() {
        let now = Instant::now();
        let rows = [
            (0, 0),
            (400, 300),
            (2_000, 1_500),
            (4_000, 3_000),
            (60_000, 59_000),
        ];
        for (waits, calls) in rows {
            let [until, wanted] = [waits, calls].map(|ms| now + Duration::from_millis(ms));
            assert_eq!(calls_until(now, until), wanted, "{waits} ms");
        }
        // Time that is over already is given to nobody.
        assert_eq!(calls_until(now + COMPOSING, now), now);
    }

    /// Whoever is still at work holds a permit, which others wait for.
    #[tokio::test(start_paused = true)]
    async fn what_is_no_longer_waited_for_gives_its_permit_back() {
        let permits = tokio::sync::Semaphore::new(AT_ONCE);
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
            // The third fails after two seconds, and nobody waits for the fourth.
            (
                vec![Some(Some(0)), Some(Some(1)), Some(None), None],
                2,
                vec![0, 1],
            ),
            // The second never ends, and the time does.
            (vec![Some(Some(0)), None, Some(Some(2))], 10, vec![0]),
        ];
        for (ends, takes, expected) in rows {
            let began_here = Instant::now();
            let calls = (0..).zip(ends).map(|(at, end)| call(at, end));
            let done = in_time(calls, began_here + 10 * second).await;
            assert_eq!((done, began_here.elapsed()), (expected, second * takes));
            assert_eq!(permits.available_permits(), AT_ONCE);
        }
        assert_eq!(began.elapsed(), 12 * second);
    }

    /// A gap that was left by a range of which no model would speak is closed for a client that waits.
    #[test]
    fn what_is_new_stands_where_the_plan_has_it() {
        let stored = [(7, "third"), (3, "first")].map(|(id, text)| Part {
            id: PartId(id),
            rendering: None,
            body: chunk(text),
        });
        let new = [chunk("second"), chunk("fourth")];
        let texts = |plan: &[i64]| {
            let plan: Vec<PartId> = plan.iter().copied().map(PartId).collect();
            let parts = in_order(&plan, &stored, &new)?;
            assert_eq!(parts.iter().map(|it| it.id).collect::<Vec<_>>(), plan);
            Some(parts.into_iter().map(|it| it.body.text).collect::<Vec<_>>())
        };
        let whole = ["first", "second", "third", "fourth"].map(str::to_owned);
        assert_eq!(texts(&[3, -1, 7, -2]), Some(whole.to_vec()));
        assert_eq!(texts(&[3, -1, 4]), None, "one that is stored no longer");
        assert_eq!(texts(&[3, -3]), None, "one that was never written");
    }
}
