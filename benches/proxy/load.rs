//! Load on one address, and what came of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::try_join_all;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{interval_at, sleep_until, timeout};

use crate::client::{Connection, Timing};
use crate::conversation::{Answer, Conversation, Outgoing};
use crate::statistics::quantile;

/// No phase of a row lasts longer; a program that hangs fails its row.
pub const PHASE: Duration = Duration::from_mins(2);

/// Latencies of one phase.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Microseconds to the last byte, sorted.
    whole: Vec<f64>,
    /// Microseconds to the first byte of the body, sorted.
    first: Vec<f64>,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Processor time of the program under test, its background included, in microseconds. Set by who measures it.
    pub processor: f64,
}

impl Load {
    /// From all timings of a phase that took `seconds`.
    pub fn new(timings: &[Timing], seconds: f64) -> Self {
        let sorted = |value: fn(&Timing) -> f64| {
            let mut values: Vec<f64> = timings.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        Self {
            whole: sorted(|timing| timing.whole),
            first: sorted(|timing| timing.first),
            seconds,
            processor: 0.0,
        }
    }

    /// Answers.
    pub fn count(&self) -> usize {
        self.whole.len()
    }

    /// A quantile of the whole answer, in microseconds.
    pub fn whole(&self, share: f64) -> f64 {
        quantile(&self.whole, share)
    }

    /// A quantile of the first token, in microseconds.
    pub fn first(&self, share: f64) -> f64 {
        quantile(&self.first, share)
    }

    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.seconds
    }
}

/// Sends `requests` over `connections` connections, each with the next one as soon as its answer has ended. Stops when
/// none is left or `limit` has passed.
pub async fn closed(
    address: SocketAddr,
    connections: usize,
    requests: Vec<Outgoing>,
    limit: Duration,
) -> anyhow::Result<Load> {
    let requests = Arc::new(requests);
    let next = Arc::new(AtomicUsize::new(0));
    let mut open = Vec::new();
    for _ in 0..connections.min(requests.len()) {
        open.push(Connection::open(address).await?);
    }
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for mut connection in open {
        let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
        clients.spawn(async move {
            let mut timings = Vec::new();
            while begin.elapsed() < limit {
                let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                timings.push(connection.send(request).await?);
            }
            anyhow::Ok(timings)
        });
    }
    gather(clients, begin).await
}

/// Every request over a connection of its own, one begun each `gap`, however long the others take.
pub async fn staggered(
    address: SocketAddr,
    requests: Vec<Outgoing>,
    gap: Duration,
) -> anyhow::Result<Load> {
    let mut open = Vec::new();
    for request in requests {
        open.push((Connection::open(address).await?, request));
    }
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    let mut starts = Vec::new();
    for (mut connection, request) in open {
        let (start, started) = oneshot::channel();
        starts.push(start);
        clients.spawn(async move {
            started.await.context("nobody starts the streams")?;
            Ok(vec![connection.send(&request).await?])
        });
    }
    // A thread of its own, because the runtime's clock has steps of a millisecond: as many streams as are due in one
    // step would begin together, and each would wait for those before it.
    #[expect(
        clippy::disallowed_methods,
        reason = "this thread is not the runtime's"
    )]
    std::thread::spawn(move || {
        for (place, start) in (0..).zip(starts) {
            let due = begin + gap * place;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // A client that has failed needs no start.
            let _ = start.send(());
        }
    });
    gather(clients, begin).await
}

/// Every conversation takes a turn each `period`, evenly shifted, for `length`. If an answer comes later than the next
/// turn is due, that turn is timed from when it was due.
pub async fn paced(
    address: SocketAddr,
    conversations: &mut [Conversation],
    period: Duration,
    length: Duration,
) -> anyhow::Result<Load> {
    let count = u32::try_from(conversations.len())?;
    let mut open = Vec::new();
    for conversation in conversations {
        open.push((Connection::open(address).await?, conversation));
    }
    let begin = Instant::now();
    let clients = (0..)
        .zip(open)
        .map(|(place, (mut connection, conversation))| async move {
            let mut due = begin + period * place / count;
            let mut timings = Vec::new();
            while due < begin + length {
                let answer = Answer::at_once();
                let request = conversation.request(answer);
                let late = due.elapsed().as_secs_f64() * 1e6;
                sleep_until(due.into()).await;
                let timing = connection.send(&request).await?;
                timings.push(Timing {
                    whole: timing.whole + late,
                    first: timing.first + late,
                });
                conversation.next_turn(answer);
                due += period;
            }
            anyhow::Ok(timings)
        });
    let timings = timeout(PHASE, try_join_all(clients)).await;
    let timings = timings.context("a phase did not end in time")??.concat();
    Ok(Load::new(&timings, begin.elapsed().as_secs_f64()))
}

/// `requests` at a rate of `per_second`, over at most `connections` connections, evenly shifted. Never ends and never
/// fails: who measures something beside it drops it.
pub async fn flood(
    address: SocketAddr,
    connections: u32,
    requests: Vec<Outgoing>,
    per_second: u32,
) {
    let requests = Arc::new(requests);
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    let begin = Instant::now();
    let period = Duration::from_secs(1) * connections / per_second;
    for place in 0..connections {
        let Ok(mut connection) = Connection::open(address).await else {
            continue;
        };
        let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
        // Together they would be a burst at each tick, and nothing between two of them.
        let first = begin + period * place / connections;
        clients.spawn(async move {
            let mut ticks = interval_at(first.into(), period);
            while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                ticks.tick().await;
                if connection.send(request).await.is_err() {
                    break;
                }
            }
        });
    }
    while clients.join_next().await.is_some() {}
    std::future::pending::<()>().await;
}

async fn gather(
    mut clients: JoinSet<anyhow::Result<Vec<Timing>>>,
    begin: Instant,
) -> anyhow::Result<Load> {
    let mut timings = Vec::new();
    let all = async {
        while let Some(client) = clients.join_next().await {
            timings.extend(client??);
        }
        anyhow::Ok(())
    };
    timeout(PHASE, all)
        .await
        .context("a phase did not end in time")??;
    Ok(Load::new(&timings, begin.elapsed().as_secs_f64()))
}
