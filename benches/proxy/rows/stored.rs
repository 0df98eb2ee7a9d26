//! What a request costs when many conversations are stored.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::conversation::{Answer, Conversation, KEY, Outgoing};
use crate::load::{Load, PHASE, closed};
use crate::note;
use crate::report::{Finding, Goal};
use crate::rounds::{Bench, measured};
use crate::stand::{Diarist, Stand};

const FEW: usize = 1_000;
const BYTES: usize = 1_000;
/// Conversations that are written at a time; then the recorder is waited for, so that none is dropped.
const BATCH: usize = 250;
/// The longest time in which conversations are stored. What is there by then is measured.
const FILL: Duration = Duration::from_mins(30);
/// Stored conversations of which the client keeps the text, to go on with them.
const KEPT: usize = 4_000;

/// A database that fills.
pub struct Filling {
    pub diarist: Diarist,
    kept: Vec<Conversation>,
    /// Conversations whose two requests were answered.
    pub stored: usize,
    /// Requests that were answered.
    sent: usize,
}

impl Filling {
    pub fn new(diarist: Diarist) -> Self {
        Self {
            diarist,
            kept: Vec::new(),
            stored: 0,
            sent: 0,
        }
    }

    /// Stores conversations until there are `count`: two requests each, since one alone proves nothing.
    pub async fn fill(&mut self, count: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        let keep_each = (count / KEPT).max(1);
        while self.stored < count && begin.elapsed() < FILL {
            let batch = self.store(BATCH).await?;
            let places = self.stored..;
            let kept = places
                .zip(batch)
                .filter(|(place, _)| place % keep_each == 0);
            self.kept.extend(kept.map(|(_, conversation)| conversation));
            self.stored += BATCH;
        }
        note(&format!(
            "  {} conversations of {count} after {} s",
            self.stored,
            begin.elapsed().as_secs()
        ));
        Ok(())
    }

    /// The same database with a new process, which has nothing of it in its caches.
    pub async fn restarted(self, stand: &Stand) -> anyhow::Result<Self> {
        self.diarist.target().quiet().await?;
        let diarist = stand.restarted(self.diarist).await?;
        Ok(Self {
            diarist,
            sent: 0,
            ..self
        })
    }

    /// Stores `count` new conversations. The process has them in its caches then.
    async fn store(&mut self, count: usize) -> anyhow::Result<Vec<Conversation>> {
        let mut stored = new_conversations(count);
        for _ in 0..2 {
            closed(self.diarist.address, 2, turns(&mut stored), PHASE).await?;
            self.sent += count;
            self.recorded().await?;
        }
        Ok(stored)
    }

    /// `count` requests. Half of them go on with stored conversations, those that were not met for the longest time.
    pub async fn requests(&mut self, count: usize) -> anyhow::Result<Load> {
        let half = (count / 2).min(self.kept.len());
        let mut old: Vec<_> = self.kept.drain(..half).collect();
        let load = self.requests_with(&mut old).await;
        self.kept.extend(old);
        load
    }

    /// Requests, eight at once, with their processor time. Half of them begin a conversation, half go on with `known` ones.
    pub async fn requests_with(&mut self, known: &mut [Conversation]) -> anyhow::Result<Load> {
        let mut new = new_conversations(known.len());
        let pairs = turns(known).into_iter().zip(turns(&mut new));
        let requests: Vec<Outgoing> = pairs.flat_map(|(known, new)| [known, new]).collect();
        self.sent += requests.len();
        measured(&self.diarist.target(), async |target| {
            closed(target.address, 8, requests.clone(), PHASE).await
        })
        .await
    }

    /// Waits until every exchange of this process is written or dropped, or nothing is for [`STILL`] looks: an exchange
    /// that is not worth a row is never counted.
    async fn recorded(&self) -> anyhow::Result<()> {
        let (mut before, mut still) = (0.0, 0);
        while still < STILL {
            let now = self.diarist.counter(RECORDED).await? + self.diarist.counter(DROPPED).await?;
            if now >= self.sent as f64 {
                break;
            }
            still = if now > before { 0 } else { still + 1 };
            before = now;
            sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Between two looks at the recorder's counters.
const LOOK: Duration = Duration::from_millis(10);
/// Looks without a change after which the recorder has nothing left to do.
const STILL: usize = 15;

const RECORDED: &str = "diarist_exchanges_recorded_total";
const DROPPED: &str = "diarist_exchanges_dropped_total";

fn new_conversations(count: usize) -> Vec<Conversation> {
    let new = |_| Conversation::grown(KEY, false, BYTES);
    (0..count).map(new).collect()
}

/// The next request of each, and its answer appended.
fn turns(conversations: &mut [Conversation]) -> Vec<Outgoing> {
    let turn = |conversation: &mut Conversation| {
        let answer = Answer::at_once();
        let request = conversation.request(answer);
        conversation.next_turn(answer);
        request
    };
    conversations.iter_mut().map(turn).collect()
}

/// Requests beside few and beside many stored conversations: with conversations that are in the caches, and with those that are in
/// none.
pub async fn stored(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let mut filling = Filling::new(bench.stand.diarist().await?);
    let mut levels = Vec::new();
    for count in [FEW, bench.arguments.conversations()] {
        filling.fill(count).await?;
        let mut level = Level {
            stored: filling.stored,
            ..Level::default()
        };
        let mut newest = filling.store(IN_USE).await?;
        filling.diarist.target().quiet().await?;
        let [in_use, after_start] = &mut level.loads;
        for _ in 0..bench.arguments.rounds() {
            in_use.push(filling.requests_with(&mut newest).await?);
        }
        level.dropped = filling.diarist.counter(DROPPED).await?;
        for _ in 0..bench.arguments.rounds() {
            filling = filling.restarted(&bench.stand).await?;
            after_start.push(filling.requests(IN_USE).await?);
            level.dropped += filling.diarist.counter(DROPPED).await?;
        }
        levels.push(level);
    }
    let (few, many) = (&levels[0], &levels[1]);
    let mut findings = Vec::new();
    for (name, (few_loads, many_loads)) in SITUATIONS.iter().zip(few.loads.iter().zip(&many.loads))
    {
        findings.push(Finding::judged(
            format!(
                "{name}: cost per request at {} / {} stored",
                many.stored, few.stored
            ),
            vec![cost(many_loads) / cost(few_loads)],
            Goal::at_most(1.2, 1.05),
        ));
        for (level, loads) in [(few, few_loads), (many, many_loads)] {
            let name = format!("{name}, {} stored", level.stored);
            findings.push(Finding::plain(
                format!("{name}: CPU µs per request"),
                vec![cost(loads)],
            ));
            let medians = loads.iter().map(|load| load.whole(0.5)).collect();
            findings.push(Finding::plain(format!("{name}: p50 µs, c=8"), medians));
        }
    }
    let dropped = levels.iter().map(|level| level.dropped).sum();
    let name = "stored: exchanges dropped in all";
    findings.push(Finding::plain(name, vec![dropped]));
    Ok(findings)
}

/// Conversations that clients go on with in each round; after a start, half as many.
const IN_USE: usize = 400;

/// Which conversations the requests go on with: those in the caches, or those that a process before this one has stored.
const SITUATIONS: [&str; 2] = ["in use", "after a start"];

/// What was measured beside so many stored conversations.
#[derive(Default)]
struct Level {
    stored: usize,
    /// In the order of [`SITUATIONS`].
    loads: [Vec<Load>; 2],
    dropped: f64,
}

/// Processor time of one request, of all rounds together: one alone is a few ticks.
fn cost(loads: &[Load]) -> f64 {
    let time: f64 = loads.iter().map(|load| load.processor).sum();
    time / loads.iter().map(Load::count).sum::<usize>() as f64
}
