//! The timers of idle conversations, and the laws about them.
//!
//! Written down by [`super::watched::Watched`] as it happens, beside the rest of the ledger.

use std::collections::{HashMap, HashSet};

use diarist::history::{Link, Scope};
use diarist::store::{Alarms, RequestRecord, Timer};

use super::ledger::Ledger;
use super::rules::Rule;

/// What is known of timers.
#[derive(Debug, Default)]
pub struct Clockwork {
    /// How long a conversation has to be idle, where it matters at all.
    pub idle_ms: Option<i64>,
    /// When the newest requests of conversations were answered, by their last links.
    answered: HashMap<(Scope, Link), i64>,
    /// Who acts on a timer, until when it is his, and its fence.
    held: HashMap<i64, (usize, i64, i64)>,
    /// Timers that were acted on and not set again.
    over: HashSet<i64>,
    /// Chains for which one rang.
    rang: HashSet<(Scope, Link)>,
}

impl Ledger {
    /// Whether a timer rang for the chain that ends at `tip`, or for a longer one: a process may not
    /// know all of it yet.
    pub fn rang_for(&self, scope: &Scope, tip: Link) -> bool {
        let rang = &self.clockwork.rang;
        rang.contains(&(scope.clone(), tip))
            || rang
                .iter()
                .any(|(owner, longer)| owner == scope && self.chain(*longer).contains(&tip))
    }

    /// A request was recorded for `lineage`: where it is the newest of its conversation, the timer is set
    /// anew.
    pub fn set_timer(&mut self, scope: &Scope, lineage: i64, record: &RequestRecord) {
        if record.timer.is_none() {
            return;
        }
        let key = (scope.clone(), record.tip);
        self.clockwork.answered.insert(key, record.at_ms);
        self.clockwork.held.remove(&lineage);
        self.clockwork.over.remove(&lineage);
    }

    /// `process` acts on `timer` and has it until `until_ms`.
    pub fn rings(&mut self, process: usize, timer: &Timer, now_ms: i64, until_ms: i64) {
        self.counts.timers += 1;
        let (lineage, scope) = (timer.lineage, &timer.scope);
        if self.clockwork.over.contains(&lineage) {
            self.breach(Rule::Rings, format!("timer {lineage} rings again"));
        }
        let holds = (process, until_ms, timer.fence);
        let held = self.clockwork.held.insert(lineage, holds);
        if let Some((other, until, _)) = held
            && until > now_ms
        {
            let how = format!("timer {lineage} is acted on by {other} and taken by {process}");
            self.breach(Rule::Rings, how);
        }
        let newest = self
            .clockwork
            .answered
            .iter()
            .filter(|((owner, tip), _)| owner == scope && self.chain(*tip).contains(&timer.tip))
            .map(|(_, at)| *at)
            .max();
        let idle = self.clockwork.idle_ms.unwrap_or(i64::MAX);
        if newest.is_none_or(|at| now_ms - at < idle) {
            let since = newest.map(|at| (now_ms - at) / 1_000);
            let how = format!("a timer rings for a conversation that was idle for {since:?} s");
            self.breach(Rule::Idle, how);
        }
        let key = (scope.clone(), timer.tip);
        self.clockwork.rang.insert(key);
    }

    /// Acting on `timer` has ended, and `left` of it is still to come.
    pub fn rang(&mut self, timer: &Timer, left: Option<(Alarms, i64)>) {
        let lineage = timer.lineage;
        let held = self.clockwork.held.get(&lineage);
        // A newer request may have set it meanwhile.
        if held.is_some_and(|(_, _, fence)| *fence == timer.fence) {
            self.clockwork.held.remove(&lineage);
            if left.is_none() {
                self.clockwork.over.insert(lineage);
            }
        }
    }
}
