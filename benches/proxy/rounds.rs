//! Rounds: in each, every target gets the same phase, one after the other, so that what else the machine does meets all.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::conversation::new_requests;
use crate::load::{Load, PHASE, closed};
use crate::stand::{Diarist, Kind, Stand, Target};
use crate::{Arguments, note};

/// What a row needs.
#[derive(Debug)]
pub struct Bench {
    pub arguments: Arguments,
    pub stand: Stand,
}

/// Requests before the first round, which nobody measures.
const WARM_UP: usize = 100;

/// What a yardstick adds counts as at least so many microseconds. Alone on loopback nginx adds 60 to 100, so less than
/// this is noise, and a ratio to it would say nothing.
const LEAST_ADDED: f64 = 50.0;

/// One round of one phase.
#[derive(Debug, Default)]
pub struct Round {
    loads: BTreeMap<Kind, Load>,
}

impl Round {
    /// What a target's phase gave.
    pub fn load(&self, kind: Kind) -> Option<&Load> {
        self.loads.get(&kind)
    }

    /// A value of a target less that of the direct call. Not a number if the target did not run.
    pub fn added(&self, kind: Kind, value: impl Fn(&Load) -> f64) -> f64 {
        match (self.load(kind), self.load(Kind::Direct)) {
            (Some(load), Some(direct)) => value(load) - value(direct),
            _ => f64::NAN,
        }
    }

    /// What Diarist adds to a value of the direct call, divided by what nginx adds; by what the pass-through adds where
    /// nginx is not installed.
    pub fn ratio(&self, value: impl Fn(&Load) -> f64 + Copy) -> f64 {
        let yardstick = self.yardstick();
        self.added(Kind::Diarist, value) / self.added(yardstick, value).max(LEAST_ADDED)
    }

    fn yardstick(&self) -> Kind {
        if self.loads.contains_key(&Kind::Nginx) {
            Kind::Nginx
        } else {
            Kind::Passthrough
        }
    }
}

impl Bench {
    /// Runs the phase for every target in every round. Processor time of a phase is counted until the target is quiet.
    pub async fn rounds(
        &self,
        diarist: &Diarist,
        phase: impl AsyncFn(&Target<'_>) -> anyhow::Result<Load>,
    ) -> anyhow::Result<Vec<Round>> {
        let targets = self.stand.targets(diarist);
        for target in &targets {
            let requests = new_requests(WARM_UP, 1_000);
            closed(target.address, 4, requests, PHASE).await?;
            target.quiet().await?;
        }
        let mut rounds = Vec::new();
        for number in 1..=self.arguments.rounds() {
            let mut round = Round::default();
            for target in &targets {
                let load = measured(target, &phase).await?;
                round.loads.insert(target.kind, load);
            }
            rounds.push(round);
            note(&format!("  round {number} of {}", self.arguments.rounds()));
        }
        Ok(rounds)
    }
}

/// One phase of one target with its processor time, background included.
pub async fn measured(
    target: &Target<'_>,
    phase: impl AsyncFn(&Target<'_>) -> anyhow::Result<Load>,
) -> anyhow::Result<Load> {
    let before = target.processor_micros()?;
    let mut load = phase(target).await?;
    target.quiet().await?;
    load.processor = target.processor_micros()? - before;
    Ok(load)
}

/// A phase of new conversations: made before the clock runs.
pub async fn new_conversations(
    target: &Target<'_>,
    connections: usize,
    count: usize,
    bytes: usize,
    limit: Duration,
) -> anyhow::Result<Load> {
    let requests = new_requests(count, bytes);
    closed(target.address, connections, requests, limit).await
}
