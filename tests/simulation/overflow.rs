//! A request that does not fit its model, taken through whatever the product does about it. Between any
//! two of its steps the process may die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diarist::history::Link;
use diarist::memory::{PartKind, SnapshotId, Span};
use diarist::proxy::DryRun;
use diarist::wire::Placement;
use diarist::wire::usage::RefusalReason;
use diarist_provider::{AcceptedRequest, Refusal, judge};

use super::model::ClientWait;
use super::planted::spoil_sent;
use super::registered_routes::route;
use super::request::refusal_reason;
use super::run::World;
use super::shown;
use crate::properties::conversation::Request;
use crate::properties::exchange::{Exchange, Used};

/// What a request went out as last, and the provider's answer to it.
pub type Sent = (DryRun, Result<AcceptedRequest, Refusal>);

impl World {
    /// `first` was refused as too long: what goes out instead, step by step. `None` where the process
    /// died.
    pub fn shorten(
        &mut self,
        at: usize,
        request: &Request,
        (first, refused): (&DryRun, Refusal),
        exchange: &mut Exchange,
    ) -> Option<Sent> {
        self.ledger().counts.too_long += 1;
        exchange.too_long = true;
        let memory = Arc::clone(&self.processes[at].memory);
        let store = Arc::clone(&self.processes[at].store);
        let waited = self.waited(request, first);
        self.processes[at].model.wait(Some(waited));
        if !self.calm && self.dice.chance(8) {
            let passages = i64::try_from(self.dice.below(14)).unwrap();
            store.gate.die_after(passages);
        }
        let borrows = self.borrows_credentials();
        let taken = AtomicBool::new(false);
        let borrowed_route = || {
            taken.store(true, Ordering::SeqCst);
            borrows.then(|| route(&request.owner, false))
        };
        let mut steps = first.retry_shorter(&memory, &borrowed_route);
        let (mut last, mut answer) = (first.clone(), Err(refused));
        while let Err(refused) = &answer {
            let Some(reason) = refusal_reason(refused) else {
                break;
            };
            let step = async {
                match reason {
                    RefusalReason::TooLong(limit) => {
                        steps.next(limit.filter(|_| self.shares_memory)).await
                    }
                    RefusalReason::Declined(blame) => steps.other_placement(blame).await,
                }
            };
            let step = self.runtime.block_on(store.gate.or_death(step));
            if taken.swap(false, Ordering::SeqCst) {
                let route_hash = route(&request.owner, false).hash();
                self.note_registered(at, first.scope().tenant, route_hash);
            }
            // What was shown is known to those who were asked, whatever became of it.
            self.processes[at].collect_prompts(&Arc::clone(&self.ground.ledger));
            // Once more before it is sent: what was observed for it is nowhere but in this process.
            let Some(step) = step.filter(|_| self.calm || !self.dice.chance(4)) else {
                self.ledger().counts.died_shortening += 1;
                self.crash(at);
                return None;
            };
            let Some(again) = step else { break };
            let body = spoil_sent(self.ground.bug, again.body());
            let rung = again.fallback();
            self.ledger().counts.awaited += usize::from(rung == "awaited");
            self.ledger().counts.trimmed += usize::from(rung == "trimmed");
            exchange.sent.push((body.clone(), self.used(at, &again)));
            self.trace.update(&body);
            answer = judge(&body, &self.rules);
            last = again;
        }
        match &answer {
            Ok(_) => steps.record_accepted(),
            Err(_) => steps.give_up(),
        }
        self.processes[at].model.wait(None);
        Some((last, answer))
    }

    /// What the Observer may be shown of `request`.
    fn waited(&mut self, request: &Request, first: &DryRun) -> ClientWait {
        let (scope, history) = (first.scope(), first.history());
        let span = Span {
            from: Link::root(scope),
            from_count: 0,
            to: history.tip().unwrap(),
            to_count: history.len(),
        };
        let whole = self.ledger().range(scope, PartKind::Chunk, &span);
        let observed = self.ledger().observed(scope, span.to);
        let view = first.aligned_positions();
        let shown_messages = (0..history.len()).filter_map(|place| {
            let sent = view.as_ref().map_or(Some(place), |view| view[place])?;
            let turn = &request.turns[sent];
            // What came back as a placeholder is not shown.
            (turn.digest == whole.digest(place)).then(|| (place, shown::lines(turn)))
        });
        ClientWait {
            shown_messages: shown_messages.collect(),
            observed,
            view: view.is_some(),
            whole,
            salt: self.dice.next(),
            calm: self.calm,
        }
    }

    /// What a request of process `at` went out with, in the words of the laws.
    pub fn used(&self, at: usize, rehearsal: &DryRun) -> Used {
        let used = rehearsal.sent_with();
        let placement = Placement::from_name(&used.placement)?;
        let process = self.processes[at].number;
        let snapshot = used.snapshot.map(|id| match id {
            SnapshotId(stored @ 1..) => (0, SnapshotId(stored)),
            held => (process, held),
        });
        match (snapshot, used.trim) {
            (Some((0, stored)), None) => Some((stored, placement)),
            what => {
                let text = rehearsal.snapshot();
                let id = self.ledger().number(what, rehearsal.scope(), text);
                Some((id, placement))
            }
        }
    }
}
