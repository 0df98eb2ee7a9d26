//! Many streams that begin almost at the same moment: the first token, and what each piece costs.

use std::time::Duration;

use crate::conversation::{Answer, Conversation, KEY, Outgoing};
use crate::load::{Load, staggered};
use crate::report::{Finding, Goal, each, per_target};
use crate::rounds::Bench;
use crate::stand::{Kind, Target};

/// Milliseconds between two pieces of a stream: 50 tokens a second.
const PACE_MS: u32 = 20;
/// Between the beginnings of two streams: 256 begin in 40 ms. The load generator and the upstream need some 80 µs of their
/// core for each, so a shorter gap would measure their queue.
const GAP: Duration = Duration::from_micros(156);
/// Pieces of a short and of a long stream. Their difference in processor time is that of the pieces alone.
const SHORT: u32 = 10;
const LONG: u32 = 110;
/// Streams of the row about pieces.
const STREAMS: usize = 64;

/// 256 and 64 streams at once.
pub async fn streams(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let mut findings = Vec::new();
    let mut short = Vec::new();
    for count in [256, STREAMS] {
        short = bench
            .rounds(&diarist, async |target| at_once(target, count, SHORT).await)
            .await?;
        let median = |load: &Load| load.first(0.5);
        findings.push(Finding::judged(
            format!("{count} streams: added time to first token / nginx's"),
            each(&short, |round| round.ratio(median)),
            Goal::at_most(4.0, 2.0),
        ));
        let name = format!("{count} streams: first token p50 µs");
        findings.extend(per_target(&short, &name, median));
        let name = format!("{count} streams: first token p99 µs");
        findings.extend(per_target(&short, &name, |load| load.first(0.99)));
    }
    let long = bench
        .rounds(&diarist, async |target| {
            at_once(target, STREAMS, LONG).await
        })
        .await?;
    let pieces = STREAMS as f64 * f64::from(LONG - SHORT);
    let per_piece = |kind| {
        let pairs = long.iter().zip(&short);
        let costs = pairs.map(|(long, short)| {
            Some((long.load(kind)?.processor - short.load(kind)?.processor) / pieces)
        });
        costs.collect::<Option<Vec<f64>>>()
    };
    let yardstick = per_piece(Kind::Nginx).or_else(|| per_piece(Kind::Passthrough));
    if let (Some(diarist), Some(yardstick)) = (per_piece(Kind::Diarist), yardstick) {
        let pairs = diarist.iter().zip(yardstick);
        // A tick of 10 ms is the smallest difference that can be counted.
        let least = 10_000.0 / pieces;
        findings.push(Finding::judged(
            "CPU per delta / nginx's",
            pairs.map(|(cost, other)| cost / other.max(least)).collect(),
            Goal::at_most(2.0, 1.5),
        ));
    }
    for kind in [Kind::Nginx, Kind::Passthrough, Kind::Diarist] {
        let name = format!("CPU µs per delta, {}", kind.name());
        findings.extend(per_piece(kind).map(|costs| Finding::plain(name, costs)));
    }
    Ok(findings)
}

/// Streams over connections to the upstream that are open. Diarist closes one that was unused for 4 seconds, and between
/// two of its phases lie more; nginx keeps them. So a first pass, which nobody measures, opens as many.
async fn at_once(target: &Target<'_>, count: usize, deltas: u32) -> anyhow::Result<Load> {
    staggered(target.address, requests(count, SHORT), GAP).await?;
    staggered(target.address, requests(count, deltas), GAP).await
}

fn requests(count: usize, deltas: u32) -> Vec<Outgoing> {
    let answer = || Answer {
        deltas,
        pace_ms: PACE_MS,
        ..Answer::at_once()
    };
    (0..count)
        .map(|_| Conversation::grown(KEY, true, 1_000).request(answer()))
        .collect()
}
