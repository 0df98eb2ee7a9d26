//! New conversations of 1 KB: what a gateway carries most.

use std::time::Duration;

use crate::load::{Load, PHASE};
use crate::report::{Finding, Goal, each, per_target};
use crate::rounds::{Bench, new_conversations};
use crate::stand::{Diarist, Kind};

const BYTES: usize = 1_000;

/// Connections of the row about processor time.
const CONNECTIONS: usize = 8;

/// Connections that the row about the rate tries; the best one counts.
const TRIED: [usize; 5] = [2, 4, 8, 16, 32];
/// A rate counts if this share of the answers is faster than [`LIMIT`].
const SHARE: f64 = 0.99;
/// 5 ms, in microseconds.
const LIMIT: f64 = 5_000.0;

/// One connection: added latency.
pub async fn latency(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let count = bench.arguments.count(600);
    let rounds = bench
        .rounds(&diarist, async |target| {
            new_conversations(target, 1, count, BYTES, PHASE).await
        })
        .await?;
    let median = |load: &Load| load.whole(0.5);
    let mut findings = vec![Finding::judged(
        "1 KB, new, c=1: added / nginx's",
        each(&rounds, |round| round.ratio(median)),
        Goal::at_most(1.5, 1.3),
    )];
    findings.extend(per_target(&rounds, "1 KB, new, c=1: p50 µs", median));
    let tail = |load: &Load| load.whole(SHARE);
    findings.extend(per_target(&rounds, "1 KB, new, c=1: p99 µs", tail));
    Ok(findings)
}

/// Eight connections: processor time of a request with what it causes in the background.
pub async fn processor(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let count = bench.arguments.count(6_000);
    let rounds = bench
        .rounds(&diarist, async |target| {
            new_conversations(target, CONNECTIONS, count, BYTES, PHASE).await
        })
        .await?;
    let cost = |load: &Load| load.processor / load.count() as f64;
    let mut findings = vec![Finding::judged(
        "1 KB, new, c=8: CPU µs per request",
        each(&rounds, |round| {
            round.load(Kind::Diarist).map_or(f64::NAN, cost)
        }),
        Goal::at_most(90.0, 60.0),
    )];
    findings.extend(per_target(&rounds, "1 KB, new, c=8: CPU µs", cost));
    let median = |load: &Load| load.whole(0.5);
    findings.extend(per_target(&rounds, "1 KB, new, c=8: p50 µs", median));
    findings.extend(exchanges("1 KB, new, c=8", &diarist).await?);
    Ok(findings)
}

/// The most answers a second at which 99 of 100 are faster than 5 ms.
pub async fn rate(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let count = bench.arguments.count(16_000);
    let rounds = bench
        .rounds(&diarist, async |target| {
            let mut best: Option<Load> = None;
            for connections in TRIED {
                let limit = Duration::from_secs(3);
                let load = new_conversations(target, connections, count, BYTES, limit).await?;
                target.quiet().await?;
                if best.as_ref().is_none_or(|best| fast(&load) > fast(best)) {
                    best = Some(load);
                }
            }
            Ok(best.unwrap_or_default())
        })
        .await?;
    let mut findings = vec![Finding::judged(
        "requests a second, p99 < 5 ms",
        each(&rounds, |round| {
            round.load(Kind::Diarist).map_or(f64::NAN, fast)
        }),
        Goal::at_least(15_000.0, 20_000.0),
    )];
    findings.extend(per_target(&rounds, "requests a second, p99 < 5 ms", fast));
    findings.extend(exchanges("requests a second", &diarist).await?);
    Ok(findings)
}

/// Answers a second, or nothing if too many were slow.
fn fast(load: &Load) -> f64 {
    if load.whole(SHARE) < LIMIT {
        load.rate()
    } else {
        0.0
    }
}

/// How many exchanges were written, and how many dropped because the recorder was behind.
async fn exchanges(name: &str, diarist: &Diarist) -> anyhow::Result<[Finding; 2]> {
    let recorded = diarist.counter("diarist_exchanges_recorded_total").await?;
    let dropped = diarist.counter("diarist_exchanges_dropped_total").await?;
    Ok([
        Finding::plain(format!("{name}: exchanges recorded in all"), vec![recorded]),
        Finding::plain(format!("{name}: exchanges dropped in all"), vec![dropped]),
    ])
}
