//! Memory of the process: at rest, under a mix of sizes, a minute after, and for one large body.

use std::time::Duration;

use tokio::time::sleep;

use crate::load::PHASE;
use crate::note;
use crate::report::{Finding, Goal};
use crate::rounds::{Bench, new_conversations};
use crate::stand::Diarist;

const LARGE: usize = 8_000_000;
/// The row takes a new process and more than a minute each time.
const MOST_TIMES: usize = 3;

/// 1 KB, then 8 MB, then 1 MB bodies, eight at once.
pub async fn mix(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let rest = Duration::from_secs(if bench.arguments.quick { 15 } else { 60 });
    let times = if bench.arguments.quick { 1 } else { MOST_TIMES };
    let (mut idle, mut peak, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for time in 1..=times.min(bench.arguments.rounds()) {
        let diarist = bench.stand.diarist().await?;
        idle.push(diarist.process.resident()?);
        for (bytes, count) in [(1_000, 8_000), (LARGE, 24), (1_000_000, 96)] {
            let count = bench.arguments.count(count);
            new_conversations(&diarist.target(), 8, count, bytes, PHASE).await?;
        }
        sleep(rest).await;
        peak.push(diarist.process.peak()?);
        after.push(diarist.process.resident()?);
        note(&format!("  time {time} of {times}"));
    }
    let name = format!("resident {} s after, MB", rest.as_secs());
    Ok(vec![
        Finding::judged("resident idle, MB", idle, Goal::at_most(60.0, 25.0)),
        Finding::judged(
            "resident peak of the mix, MB",
            peak,
            Goal::at_most(250.0, 200.0),
        ),
        Finding::judged(name, after, Goal::at_most(110.0, 90.0)),
    ])
}

/// What one body of 8 MB takes beside itself.
pub async fn body(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let (mut peaks, mut rests) = (Vec::new(), Vec::new());
    for _ in 0..bench.arguments.rounds() {
        let diarist = bench.stand.diarist().await?;
        let (peak, rest) = extra(&diarist).await?;
        peaks.push(peak * 1e6 / LARGE as f64);
        rests.push(rest * 1e6 / LARGE as f64);
    }
    let name = "one 8 MB body: extra resident / body";
    Ok(vec![
        Finding::judged(format!("{name}, peak"), peaks, Goal::at_most(2.0, 1.5)),
        Finding::plain(format!("{name}, when it is quiet again"), rests),
    ])
}

/// What one large body adds to what was resident, in MB: at the peak, its recording included, and when the process is
/// quiet again. Small requests before it fill what every process needs.
async fn extra(diarist: &Diarist) -> anyhow::Result<(f64, f64)> {
    let target = diarist.target();
    new_conversations(&target, 1, 50, 1_000, PHASE).await?;
    target.quiet().await?;
    let before = diarist.process.resident()?;
    diarist.process.forget_peak()?;
    new_conversations(&target, 1, 1, LARGE, PHASE).await?;
    target.quiet().await?;
    let process = &diarist.process;
    Ok((process.peak()? - before, process.resident()? - before))
}
