//! One request on its whole way: chosen, judged by the provider, mended where it was refused, judged by
//! the laws, handed over.

use bytes::Bytes;
use diarist::proxy::DryRun;
use diarist::wire::usage::{self, RefusalReason};
use diarist::wire::{self, Additions, Insert};
use diarist_provider::{Refusal, judge};
use serde_json::Value;

use super::ledger::{Ledger, UNSTORED};
use super::overflow::Sent;
use super::planted::{Bug, spoil_sent, spoil_view};
use super::process::PendingRecord;
use super::registered_routes::route;
use super::run::World;
use crate::properties::aligned_chain::AlignedChain;
use crate::properties::conversation::Request;
use crate::properties::exchange::{Exchange, Used, insert};

impl World {
    pub fn parts(request: &Request) -> http::request::Parts {
        let mut builder = http::Request::post("/v1/chat/completions")
            .header("authorization", format!("Bearer {}", request.owner.tenant));
        if let Some(resource) = request.owner.resource {
            builder = builder.header("x-diarist-resource", resource);
        }
        builder.body(()).unwrap().into_parts().0
    }

    /// The whole way of one request through its process; whether it was answered.
    pub fn exchange(&mut self, request: &Request) -> bool {
        let at = self.home(&request.owner.label());
        self.answer(request);
        self.processes[at].served.insert(request.owner.label());
        let parts = Self::parts(request);
        let process = &self.processes[at];
        let begin = DryRun::start(&process.memory, &parts, &request.body);
        let begun = self.runtime.block_on(process.store.gate.or_death(begin));
        let Some(first) = begun else {
            self.crash(at);
            return false;
        };
        let first = first.expect("every request of these clients may have memory");
        let view = first.aligned_positions();
        self.ledger()
            .add_request(first.scope(), first.history(), request, view.as_deref());
        self.ledger().counts.requests += 1;
        let tenant = first.scope().tenant;
        self.add_tenant(request, tenant);
        let mut exchange = Exchange {
            waiting: self.is_behind(request) || !self.calm || first.why() == "observer_paused",
            elsewhere: true,
            ..Exchange::default()
        };
        let used = self.used(at, &first);
        let body = self.expected_body(request, &first, used);
        exchange.sent.push((body, used));
        self.trace.update(&first.body());
        if !self.calm && self.dice.chance(3) {
            // The upstream is out of order: whatever the request was, it leaves no trace.
            if self.dice.chance(50) {
                self.rate_limited(at, tenant);
            }
            return false;
        }
        let answer = judge(&first.body(), &self.rules);
        let (last, answer) = match answer {
            Ok(accepted) => (first.clone(), Ok(accepted)),
            Err(refused) => {
                let Some(sent) = self.resend(at, request, (&first, refused), &mut exchange) else {
                    return false;
                };
                sent
            }
        };
        exchange.accepted = answer.ok();
        let (_, sent_with) = exchange.sent.last().unwrap();
        let id = sent_with.map(|(id, _)| id);
        exchange.held = id.is_some_and(|id| id.0 >= UNSTORED);
        exchange.lost = self.lost_runs(&request.owner.label());
        // A model that takes the block nowhere is sent everything, whatever is prepared.
        exchange.doubtful = self.processes[at].is_uncertain() || first.why() == "no_placement";
        // What is not proven is withheld: it costs tokens, and another conversation may have made it so.
        let withheld = first.is_withheld();
        exchange.doubtful |= withheld;
        exchange.withheld = withheld;
        exchange.waiting |= withheld;
        // It goes out with nothing taken out, this once.
        exchange.waiting |= exchange.stepped_down;
        self.check_exchange(request, &mut exchange, &first);
        let accepted = exchange.accepted.is_some();
        if accepted {
            last.accept();
            if !withheld {
                self.same(
                    at,
                    request,
                    &spoil_sent(self.ground.bug, last.body()),
                    exchange.doubtful,
                    "when it came again",
                );
            }
            self.changes_once(request, &exchange);
            let key = (request.owner.label(), request.body.clone());
            self.ledger().accepted.insert(key);
            if let Some(newest) = messages(request).last() {
                let key = (request.owner.label(), newest.to_string());
                self.answers.insert(key, last.clone());
            }
        }
        let other = !self.calm && self.dice.chance(10);
        let route_hash =
            accepted.then(|| self.register_route(at, tenant, route(&request.owner, other)));
        let route_hash = route_hash.flatten();
        let recorded = accepted || self.ground.bug == Some(Bug::RefusedRecorded);
        if recorded && (self.calm || !self.dice.chance(3)) {
            let at_ms = self.ground.clock.now_ms();
            self.processes[at].inbox.push_back(PendingRecord {
                exchange: last.exchange(route_hash, at_ms),
                request: request.clone(),
                sent: last.body().to_vec(),
            });
        } else if accepted {
            self.lose(request);
        }
        accepted
    }

    /// Requests of before were answered with what `request` carries behind their newest messages.
    fn answer(&mut self, request: &Request) {
        for pair in messages(request).windows(2) {
            if pair[1]["role"] != "assistant" {
                continue;
            }
            let key = (request.owner.label(), pair[0].to_string());
            if let Some(dry_run) = self.answers.remove(&key) {
                dry_run.record_answer(&pair[1]);
            }
        }
    }

    /// The body of `rehearsal`, or what a planted bug makes of it.
    fn expected_body(&self, request: &Request, rehearsal: &DryRun, used: Used) -> Bytes {
        let bug = self.ground.bug;
        let spoils = matches!(
            bug,
            Some(Bug::ViewOneTooMany | Bug::FrontForgotten | Bug::ViewPartsRound)
        );
        match self.aligned_chain(rehearsal) {
            Some(aligned_chain) if spoils => {
                with_bug(bug, &self.ledger(), request, used, Some(&aligned_chain))
            }
            _ => spoil_sent(bug, rehearsal.body()),
        }
    }

    /// The chain that a view is of.
    pub fn aligned_chain(&self, rehearsal: &DryRun) -> Option<AlignedChain> {
        let sent = rehearsal.aligned_positions()?;
        let tip = rehearsal.history().tip();
        let path = tip.map_or_else(Vec::new, |tip| self.ledger().digests(tip));
        Some(AlignedChain {
            path,
            sent,
            own: false,
        })
    }

    /// What becomes of a request that was refused; `None` where the process died.
    fn resend(
        &mut self,
        at: usize,
        request: &Request,
        (first, refused): (&DryRun, Refusal),
        exchange: &mut Exchange,
    ) -> Option<Sent> {
        let blame = match refusal_reason(&refused) {
            Some(RefusalReason::TooLong(_)) => {
                return self.shorten(at, request, (first, refused), exchange);
            }
            Some(RefusalReason::Declined(blame)) => blame,
            None => return Some((first.clone(), Err(refused))),
        };
        let process = &self.processes[at];
        let again = first.fall_back_to_original(&process.memory, blame);
        let Some(again) = self.runtime.block_on(process.store.gate.or_death(again)) else {
            self.crash(at);
            return None;
        };
        let Some(again) = again else {
            return Some((first.clone(), Err(refused)));
        };
        exchange.sent.push((again.body(), self.used(at, &again)));
        self.trace.update(&again.body());
        let answer = judge(&again.body(), &self.rules);
        match answer {
            Ok(accepted) => {
                again.record_accepted(&self.processes[at].memory);
                exchange.stepped_down = true;
                Some((again, Ok(accepted)))
            }
            Err(refused) if matches!(refusal_reason(&refused), Some(RefusalReason::TooLong(_))) => {
                self.shorten(at, request, (&again, refused), exchange)
            }
            Err(refused) => Some((again, Err(refused))),
        }
    }
}

/// What `request` would go out as with that snapshot, or with none.
pub fn with_snapshot(
    ledger: &Ledger,
    request: &Request,
    used: Used,
    aligned_chain: Option<&AlignedChain>,
) -> Bytes {
    with_bug(None, ledger, request, used, aligned_chain)
}

/// The same, not quite.
fn with_bug(
    bug: Option<Bug>,
    ledger: &Ledger,
    request: &Request,
    used: Used,
    aligned_chain: Option<&AlignedChain>,
) -> Bytes {
    let parsed = wire::Request::parse_chat(&request.body).unwrap();
    let sent = used.and_then(|(id, placement)| Some((ledger.snapshot(id)?, placement)));
    let mut front = Vec::new();
    let insert = sent.map(|(snapshot, placement)| {
        let insert = insert(snapshot, placement);
        let Some(aligned_chain) = aligned_chain else {
            return insert;
        };
        let cut = aligned_chain.cut(snapshot.meta.to_count);
        front = aligned_chain.front(cut);
        let mut insert = Insert {
            cut,
            pin: snapshot.meta.pin.and_then(|pin| aligned_chain.sent[pin]),
            front: &front,
            ..insert
        };
        spoil_view(bug, request, &mut insert);
        insert
    });
    let splice = parsed.splice(insert.as_ref(), Additions::default());
    splice.frames(parsed.body()).concat().into()
}

fn messages(request: &Request) -> Vec<Value> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["messages"].as_array().cloned().unwrap_or_default()
}

/// What the product makes of a refusal.
pub fn refusal_reason(refused: &Refusal) -> Option<RefusalReason> {
    usage::refusal_reason(refused.status, refused.body().to_string().as_bytes())
}
