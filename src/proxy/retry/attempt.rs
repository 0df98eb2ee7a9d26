//! The state machine of refusals: which request goes out after one that the upstream refused.
//!
//! One table, for the status of an answer and for the first event of a stream alike ([`Stage::next_step`]):
//!
//! | refused | as too long | for what it holds | otherwise |
//! |---|---|---|---|
//! | the selected request | shorten it | send the original | stop |
//! | the original, sent after that | shorten it | stop | stop |
//! | a shortened request | shorten it further | move its block | stop |
//!
//! *Stop* means: the client gets the refusal of the last request that was not shortened. That refusal is about
//! its own prompt, so the client can act on it. Which step shortens a request, [`super::overflow`] decides; what a
//! refusal teaches, [`super::declined`]. Called by [`super::send`] and [`super::stream`].

use http::request::Parts;

use super::super::memory::{Memory, MemoryRequest};
use super::super::outgoing_request::OutgoingRequest;
use super::super::shared::Shared;
use super::super::upstream_route;
use super::answer::{AnswerForm, Outcome, UpstreamAnswer, classify, send_once};
use super::overflow::OverflowShortening;
use super::sent_request::SentRequest;
use super::stream_head;
use crate::wire::usage::{Blame, Excess, RefusalReason};

/// Which request the upstream answered last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The first one, with the selected memory.
    Selected,
    /// The client's own bytes, after the selected request was declined.
    Original,
    /// One that was made shorter.
    Shortened,
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    SendOriginal(Blame),
    Shorten(Option<Excess>),
    MoveBlock(Blame),
    Stop,
}

impl Stage {
    /// The table of this module.
    fn next_step(self, outcome: Outcome) -> NextStep {
        let Outcome::Refused(reason) = outcome else {
            return NextStep::Stop;
        };
        match (self, reason) {
            (_, RefusalReason::TooLong(excess)) => NextStep::Shorten(excess),
            (Self::Selected, RefusalReason::Declined(blame)) => NextStep::SendOriginal(blame),
            (Self::Original, RefusalReason::Declined(_)) => NextStep::Stop,
            (Self::Shortened, RefusalReason::Declined(blame)) => NextStep::MoveBlock(blame),
        }
    }
}

/// What came of all attempts.
pub(super) enum Recovery {
    /// The upstream accepted another request.
    Accepted(UpstreamAnswer),
    /// The original was refused as well, and the client gets that refusal.
    Refused(UpstreamAnswer, Outcome),
    /// Nothing better came than the first answer.
    FirstAnswer,
}

/// One request of a client, while the upstream refuses it.
pub(super) struct Attempt<'a> {
    pub(super) shared: &'a Shared,
    pub(super) memory: &'a Memory,
    pub(super) request: &'a MemoryRequest,
    pub(super) parts: &'a Parts,
    pub(super) form: AnswerForm<'a>,
}

impl Attempt<'_> {
    /// `refused` was refused for `reason`: sends other requests until one is accepted or no step is left.
    /// Calls `on_send` with each request that goes out. If no shortened request is accepted, calls it at the
    /// end with the request that should have been shortened: equal requests go out like that one again.
    pub(super) async fn recover(
        &self,
        refused: SentRequest,
        reason: RefusalReason,
        on_send: &mut (dyn FnMut(&OutgoingRequest) + Send),
    ) -> Recovery {
        let (memory, request) = (self.memory, self.request);
        let rules = &request.policy.identity;
        let route = || upstream_route::route_for_request(self.shared, self.parts, rules);
        let mut recovery = Recovery::FirstAnswer;
        let mut unshortened = refused;
        let mut shortening: Option<OverflowShortening<'_>> = None;
        let mut next = Stage::Selected.next_step(Outcome::Refused(reason));
        loop {
            let (stage, candidate) = match next {
                NextStep::Stop => break,
                NextStep::SendOriginal(blame) => {
                    let original = unshortened.fall_back_to_original(memory, request, blame);
                    (Stage::Original, original.await)
                }
                NextStep::Shorten(excess) => {
                    let shortening = shortening.get_or_insert_with(|| {
                        OverflowShortening::new(memory, request, &route, unshortened.clone())
                    });
                    (Stage::Shortened, shortening.next(excess).await)
                }
                NextStep::MoveBlock(blame) => match &mut shortening {
                    Some(shortening) => (Stage::Shortened, shortening.move_block(blame).await),
                    None => break,
                },
            };
            let Some(sent) = candidate.filter(|sent| self.may_send(sent, &unshortened)) else {
                break;
            };
            // The audit entry of a whole answer names the original only once it was answered. If it gets
            // no answer, the entry keeps the first request, whose refusal the client gets.
            let only_if_answered =
                stage == Stage::Original && matches!(self.form, AnswerForm::Whole);
            if !only_if_answered {
                on_send(&sent.outgoing);
            }
            let answer = send_once(self.shared, self.parts, &sent.outgoing, self.form).await;
            let Ok(answer) = answer else {
                break;
            };
            if only_if_answered {
                on_send(&sent.outgoing);
            }
            let (response, outcome) = classify(answer, &sent.outgoing, self.form).await;
            if outcome == Outcome::Accepted {
                return Recovery::Accepted(UpstreamAnswer { response, sent });
            }
            if stage == Stage::Original {
                unshortened = sent.clone();
                let is_readable = match self.form {
                    AnswerForm::Whole => true,
                    AnswerForm::ContinuedStream(_) => stream_head::is_readable_stream(&response),
                };
                // A stream without any event says less than the first refusal.
                if is_readable && outcome != Outcome::Empty {
                    recovery = Recovery::Refused(UpstreamAnswer { response, sent }, outcome);
                }
            }
            next = stage.next_step(outcome);
        }
        if let Some(shortening) = shortening {
            on_send(&shortening.give_up());
        }
        recovery
    }

    /// Whether `sent` may follow `refused`. A stream whose head has gone cannot start to report usage: the
    /// report would reach a client that has not asked for it.
    fn may_send(&self, sent: &SentRequest, refused: &SentRequest) -> bool {
        match self.form {
            AnswerForm::Whole => true,
            AnswerForm::ContinuedStream(_) => {
                refused.outgoing.asks_usage || !sent.outgoing.asks_usage
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [Stage; 3] = [Stage::Selected, Stage::Original, Stage::Shortened];

    #[test]
    fn a_request_that_is_too_long_is_shortened_at_every_stage() {
        let excess = Some(Excess {
            window: 100,
            sent: 120,
        });
        let too_long = Outcome::Refused(RefusalReason::TooLong(excess));
        for stage in STAGES {
            assert_eq!(stage.next_step(too_long), NextStep::Shorten(excess));
        }
    }

    #[test]
    fn a_declined_request_is_retried_as_original_or_with_a_moved_block() {
        let blame = Blame::Placement;
        let declined = Outcome::Refused(RefusalReason::Declined(blame));
        let steps = STAGES.map(|stage| stage.next_step(declined));
        let expected = [
            NextStep::SendOriginal(blame),
            NextStep::Stop,
            NextStep::MoveBlock(blame),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn any_other_answer_ends_the_attempts() {
        for stage in STAGES {
            for outcome in [Outcome::Accepted, Outcome::Unusable, Outcome::Empty] {
                assert_eq!(stage.next_step(outcome), NextStep::Stop);
            }
        }
    }
}
