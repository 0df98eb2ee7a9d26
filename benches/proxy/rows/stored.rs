//! What a request costs when many conversations are stored.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::conversation::{Answer, Conversation, KEY, Outgoing};
use crate::load::{Load, PHASE, closed};
use crate::note;
use crate::report::{Finding, Goal};
use crate::rounds::{Bench, measured};
use crate::stand::Diarist;

const FEW: usize = 1_000;
const BYTES: usize = 1_000;
/// Conversations that are written at a time; then the recorder is waited for, so that none is dropped.
const BATCH: usize = 250;
/// The longest time in which conversations are stored. What is there by then is measured.
const FILL: Duration = Duration::from_mins(30);
/// Stored conversations of which the client keeps the text, to go on with them.
const KEPT: usize = 4_000;

/// A database that fills.
pub struct Filling<'a> {
    diarist: &'a Diarist,
    kept: Vec<Conversation>,
    /// Conversations whose two requests were answered.
    pub stored: usize,
    /// Requests that were answered.
    sent: usize,
}

impl<'a> Filling<'a> {
    pub fn new(diarist: &'a Diarist) -> Self {
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
            let new = || Conversation::grown(KEY, false, BYTES);
            let mut batch: Vec<_> = (0..BATCH).map(|_| new()).collect();
            for _ in 0..2 {
                closed(self.diarist.address, 2, turns(&mut batch), PHASE).await?;
                self.sent += BATCH;
                self.recorded().await?;
            }
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

    /// `count` requests, eight at once, with their processor time; half of them begin a conversation, half go on with a
    /// stored one.
    pub async fn requests(&mut self, count: usize) -> anyhow::Result<Load> {
        let half = (count / 2).min(self.kept.len());
        // Those that were not met for the longest time.
        let mut old: Vec<_> = self.kept.drain(..half).collect();
        let mut new: Vec<_> = (0..half)
            .map(|_| Conversation::grown(KEY, false, BYTES))
            .collect();
        let pairs = turns(&mut old).into_iter().zip(turns(&mut new));
        let requests: Vec<Outgoing> = pairs.flat_map(|(old, new)| [old, new]).collect();
        self.kept.extend(old);
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

/// The same requests beside few and beside many stored conversations.
pub async fn stored(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let mut filling = Filling::new(&diarist);
    let mut levels = Vec::new();
    for count in [FEW, bench.arguments.conversations()] {
        filling.fill(count).await?;
        diarist.target().quiet().await?;
        let stored = filling.stored;
        let mut loads = Vec::new();
        for _ in 0..bench.arguments.rounds() {
            loads.push(filling.requests(800).await?);
        }
        levels.push((stored, loads));
    }
    let dropped = diarist.counter(DROPPED).await?;
    // Of all rounds together: one alone is a few ticks.
    let cost = |loads: &[Load]| {
        let time: f64 = loads.iter().map(|load| load.processor).sum();
        time / loads.iter().map(Load::count).sum::<usize>() as f64
    };
    let (few, many) = (&levels[0], &levels[1]);
    let mut findings = vec![Finding::judged(
        format!("cost per request at {} / {} stored", many.0, few.0),
        vec![cost(&many.1) / cost(&few.1)],
        Goal::at_most(1.2, 1.05),
    )];
    for (stored, loads) in &levels {
        let name = format!("{stored} stored");
        findings.push(Finding::plain(
            format!("{name}: CPU µs per request"),
            vec![cost(loads)],
        ));
        let medians = loads.iter().map(|load| load.whole(0.5)).collect();
        findings.push(Finding::plain(format!("{name}: p50 µs, c=8"), medians));
    }
    let name = "stored: exchanges dropped in all";
    findings.push(Finding::plain(name, vec![dropped]));
    Ok(findings)
}
