//! What is judged after a request, and what happens at the end of a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use diarist::memory::SnapshotId;
use diarist::proxy::DryRun;
use diarist::store::Queue as _;

use super::ledger::UNSTORED;
use super::request::with_snapshot;
use super::rules::Rule;
use super::run::{PATIENCE, Report, World};
use crate::properties::aligned_chain::AlignedChain;
use crate::properties::client::{Act, Client, Upstream};
use crate::properties::conversation::{Request, Run};
use crate::properties::exchange::Exchange;
use crate::properties::laws::Law;
use crate::properties::reading::Reading;

/// What the requests of each chain were sent with, one after the other.
pub type Used = HashMap<(String, Run), Vec<Option<SnapshotId>>>;

impl World {
    pub fn check_exchange(&mut self, request: &Request, exchange: &mut Exchange, first: &DryRun) {
        exchange.shown = std::mem::take(&mut self.ledger().shown);
        // The rules about timers know better who was idle.
        self.laws.fell_idle();
        for (sent, _) in &exchange.sent {
            let read = Reading::with_own_chain(request, sent);
            self.ledger().counts.changed += usize::from(read.has_block());
            self.hints(&read);
        }
        let aligned_chain = self.aligned_chain(first);
        if let Some(aligned_chain) = &aligned_chain {
            self.ledger().counts.views += 1;
            self.check_cover(first, aligned_chain);
        }
        let ledger = Arc::clone(&self.ground.ledger);
        let viewed = aligned_chain.is_some();
        let with = aligned_chain.clone();
        self.laws.exchange(
            request,
            exchange,
            &|used| with_snapshot(&ledger.lock().unwrap(), request, used, with.as_ref()),
            aligned_chain,
        );
        // Which chain it is a view of may be told otherwise by a process that was not there.
        exchange.doubtful |= viewed;
    }

    /// What a client sends no more and stands on its chain all the same was shown to somebody, or waits
    /// to be, with its words, or these are kept.
    fn check_cover(&mut self, first: &DryRun, aligned_chain: &AlignedChain) {
        let Some(tip) = first.history().tip() else {
            return;
        };
        let mut ledger = self.ledger();
        let offered = ledger.offered_to(first.scope(), tip);
        let unsent = aligned_chain.sent.iter().enumerate().skip(offered);
        let lost = unsent
            .filter(|(_, sent)| sent.is_none())
            .find(|(place, _)| !ledger.is_archived(first.scope(), tip, *place));
        if let Some((place, _)) = lost {
            let how = format!("message {place} is sent no more, and nobody was shown it");
            ledger.breach(Rule::Sent(Law::Cover), how);
        }
    }

    /// No hint speaks of another place than the end of what is covered.
    fn hints(&self, read: &Reading<'_>) {
        let Ok(sent) = std::str::from_utf8(&read.sent) else {
            return;
        };
        let Some((_, rest)) = sent.split_once("[[T ") else {
            return;
        };
        let mut ledger = self.ledger();
        ledger.counts.hints += 1;
        let covered = read
            .marks
            .iter()
            .fold(Run::default(), |run, mark| run.then(mark.run));
        let expected = format!("{} {}]]", covered.count, covered.hash);
        if !rest.starts_with(&expected) || rest.contains("[[T ") {
            let excerpt = &rest[..rest.floor_char_boundary(40)];
            let how = format!(
                "hints of {excerpt:?} behind {} messages in {} parts of {}",
                covered.count,
                read.marks.len(),
                read.request.turns.len()
            );
            ledger.breach(Rule::Hints, how);
        }
    }

    /// The same request goes out as the same bytes: from the process that sent it, and from every
    /// process once it is recorded.
    pub fn same(&mut self, at: usize, request: &Request, sent: &[u8], doubtful: bool, when: &str) {
        let key = (request.owner.label(), request.body.clone());
        let process = &mut self.processes[at];
        let before = match process.sent.get(&key) {
            Some(before) => Some(before.clone()),
            None if doubtful => None,
            None => self
                .ground
                .ledger
                .lock()
                .unwrap()
                .canon(request)
                .map(<[u8]>::to_vec),
        };
        let now = Reading::with_own_chain(request, sent);
        let before = before.map(|before| Reading::with_own_chain(request, &before));
        if let Some(before) = before.filter(|before| before.sent != now.sent) {
            let how = format!(
                "a request of {} messages went out as other bytes {when}: covered {} in {} parts, now \
                 {} in {}",
                request.turns.len(),
                before.cut,
                before.marks.len(),
                now.cut,
                now.marks.len()
            );
            self.ledger().breach(Rule::Sent(Law::Same), how);
        } else if !doubtful {
            self.processes[at].sent.insert(key, sent.to_vec());
        }
    }

    /// A snapshot that a conversation has left is not come back to.
    pub fn changes_once(&mut self, request: &Request, exchange: &Exchange) {
        let Some((_, now)) = exchange.sent.last() else {
            return;
        };
        let now = now.map(|(id, _)| id);
        let owner = request.owner.label();
        let prefixes = request.prefixes();
        let tip = (owner.clone(), *prefixes.last().unwrap());
        if self.used.contains_key(&tip) {
            // A repetition: INV-SAME knows what it goes out as.
            return;
        }
        let before = prefixes
            .iter()
            .rev()
            .find_map(|run| self.used.get(&(owner.clone(), *run)));
        let mut path = before.cloned().unwrap_or_default();
        // What a refusal made of a request is no choice, and nothing follows from it. Neither does anything
        // from what memory sent without its store, nor from what was made for one request: that is lost
        // where the process dies before it is recorded. Their repetitions are repetitions all the same.
        let held = now.is_some_and(|id| id.0 >= UNSTORED);
        let forced = exchange.stepped_down || exchange.too_long || exchange.doubtful || held;
        if !forced && path.last() != Some(&now) {
            if path.contains(&now) {
                let how = format!("{now:?} came back after {:?}", path.last());
                self.ledger().breach(Rule::OnceActive, how);
            }
            path.push(now);
        }
        self.used.insert(tip, path);
    }

    /// Everybody is well again, and does what is left to do. Then the conversations go on for a
    /// while: memory must have caught up with them.
    pub fn settle_down(&mut self, clients: &mut [Client]) {
        self.calm = true;
        for at in 0..self.processes.len() {
            self.processes[at].store.gate.die_after(-1);
            self.processes[at].store.failing.store(0, Ordering::SeqCst);
            if self.processes[at].misled {
                self.crash(at);
            }
        }
        self.catch_up();
        for client in clients {
            for _ in 0..5 {
                let chat = Act::Chat {
                    ask: 60,
                    answer: 60,
                };
                client.perform(&chat, self);
                self.catch_up();
            }
        }
        self.laws.ended();
        self.fall_idle(700);
        self.all_rang();
    }

    /// No timer is left behind.
    fn all_rang(&mut self) {
        for _ in 0..PATIENCE {
            let now_ms = self.ground.clock.now_ms();
            let store = Arc::clone(&self.processes[0].store);
            let next = self.runtime.block_on(store.next_timer()).unwrap();
            if next.is_none_or(|at| at > now_ms) {
                return;
            }
            self.fall_idle(61);
            self.catch_up();
        }
        self.ledger().breach(Rule::Stuck, "a timer never rings");
    }

    /// Until nothing is left to do.
    fn catch_up(&mut self) {
        for _ in 0..PATIENCE {
            self.register_all_again();
            // Whatever a model still owed is answered by now.
            self.turn += 50;
            for at in 0..self.processes.len() {
                self.finish(at);
            }
            let store = Arc::clone(&self.processes[0].store);
            let open = self.runtime.block_on(store.open_jobs(i64::MAX)).unwrap();
            if open == 0 && self.processes.iter().all(super::process::Process::idle) {
                return;
            }
            self.advance_clock(61);
        }
        let store = Arc::clone(&self.processes[0].store);
        let open = self.runtime.block_on(store.open_jobs(i64::MAX)).unwrap();
        let how = format!("{open} jobs are left in the end");
        self.ledger().breach(Rule::Stuck, how);
    }

    /// Everything process `at` can do at once.
    fn finish(&mut self, at: usize) {
        for _ in 0..PATIENCE {
            let held = self.processes[at].working.len();
            let idle = self.processes[at].idle();
            self.step(at);
            if idle && held == self.processes[at].working.len() {
                return;
            }
        }
    }

    /// Every recorded request once more, in another order: from the process it came to, and from one
    /// that knows nothing.
    pub fn send_all_again(&mut self) {
        let mut recorded: Vec<Request> = self
            .ledger()
            .canon
            .values()
            .map(|(request, _)| request.clone())
            .collect();
        recorded.sort_by(|a, b| (a.owner.label(), &a.body).cmp(&(b.owner.label(), &b.body)));
        self.dice.shuffle(&mut recorded);
        for fresh in [false, true] {
            if fresh {
                for at in 0..self.processes.len() {
                    self.crash(at);
                }
            }
            for request in &recorded {
                let at = self.home(&request.owner.label());
                let parts = Self::parts(request);
                let begin = DryRun::start(&self.processes[at].memory, &parts, &request.body);
                let now = self.runtime.block_on(begin).unwrap();
                self.ledger().counts.again += 1;
                let when = if fresh {
                    "from a process that knows nothing"
                } else {
                    "at the end"
                };
                if !now.is_withheld() {
                    self.same(at, request, &now.body(), false, when);
                }
            }
        }
    }

    pub fn report(self) -> Report {
        let mut ledger = self.ledger();
        let mut breaches = std::mem::take(&mut ledger.breaches);
        breaches.extend(self.laws.broken.iter().cloned().map(Into::into));
        let counts = ledger.counts;
        drop(ledger);
        Report {
            breaches,
            counts,
            trace: self.trace.finalize(),
        }
    }
}

impl Upstream for World {
    fn ask(&mut self, request: &Request) -> bool {
        self.turn += 1;
        let seconds = self.dice.between(1, 30);
        self.advance_clock(seconds);
        self.random_steps();
        self.exchange(request)
    }

    fn ask_twice(&mut self, request: &Request) -> bool {
        let first = self.ask(request);
        let second = self.exchange(request);
        first && second
    }

    fn rest(&mut self) {
        for _ in 0..12 {
            self.turn += 1;
            self.advance_clock(30);
            self.random_steps();
        }
    }

    fn idle(&mut self) {
        self.fall_idle(400);
        for _ in 0..4 {
            self.turn += 1;
            self.random_steps();
        }
    }

    fn restart(&mut self) {
        for at in 0..self.processes.len() {
            self.crash(at);
        }
    }
}
