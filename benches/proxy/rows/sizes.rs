//! Large bodies: conversations that are long when they are first met, and one that becomes long.

use crate::client::Connection;
use crate::conversation::{Answer, Conversation, KEY};
use crate::load::{Load, PHASE};
use crate::report::{Finding, Goal, each, per_target};
use crate::rounds::{Bench, new_conversations};
use crate::stand::{Kind, Target};

/// Bytes that a turn of the growing conversation adds, about.
const TURN_BYTES: usize = 4_000;
/// Bytes at which the growing conversation ends.
const GROWN_BYTES: usize = 1_000_000;

/// New conversations of 100 KB and 1 MB.
pub async fn large(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let sizes = [
        ("100 KB", 100_000, 40, Goal::at_most(0.6, 0.4)),
        ("1 MB", 1_000_000, 12, Goal::at_most(4.0, 2.5)),
    ];
    let mut findings = Vec::new();
    for (name, bytes, count, goal) in sizes {
        let diarist = bench.stand.diarist().await?;
        let count = bench.arguments.count(count);
        let rounds = bench
            .rounds(&diarist, async |target| {
                new_conversations(target, 1, count, bytes, PHASE).await
            })
            .await?;
        let median = |load: &Load| load.whole(0.5) / 1e3;
        let added = |round: &crate::rounds::Round| round.added(Kind::Diarist, median);
        findings.push(Finding::judged(
            format!("new {name} conversation: added, ms"),
            each(&rounds, added),
            goal,
        ));
        findings.extend(per_target(&rounds, &format!("new {name}: p50 ms"), median));
        let cost = |load: &Load| load.processor / 1e3 / load.count() as f64;
        findings.extend(per_target(&rounds, &format!("new {name}: CPU ms"), cost));
    }
    Ok(findings)
}

/// One conversation from 4 KB to 1 MB; each request has two messages more than the one before.
pub async fn growing(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let turn = TURN_BYTES * if bench.arguments.quick { 4 } else { 1 };
    let rounds = bench
        .rounds(&diarist, async |target| grow(target, turn).await)
        .await?;
    let median = |load: &Load| load.whole(0.5);
    let mut findings = vec![Finding::judged(
        "growing to 1 MB: added / nginx's",
        each(&rounds, |round| round.ratio(median)),
        Goal::at_most(3.0, 1.0),
    )];
    findings.extend(per_target(&rounds, "growing to 1 MB: p50 µs", median));
    let tail = |load: &Load| load.whole(0.99);
    findings.extend(per_target(&rounds, "growing to 1 MB: p99 µs", tail));
    Ok(findings)
}

async fn grow(target: &Target<'_>, turn: usize) -> anyhow::Result<Load> {
    let mut connection = Connection::open(target.address).await?;
    let mut conversation = Conversation::grown(KEY, false, TURN_BYTES);
    let begin = std::time::Instant::now();
    let mut timings = Vec::new();
    while conversation.bytes() < GROWN_BYTES && begin.elapsed() < PHASE {
        let mut answer = Answer::at_once();
        // Half of what is added is the answer, as long as the question.
        answer.bytes = u32::try_from(turn / 2)?;
        timings.push(connection.send(&conversation.request(answer)).await?);
        conversation.next_long_turn(answer, turn / 2);
    }
    Ok(Load::new(&timings, begin.elapsed().as_secs_f64()))
}
