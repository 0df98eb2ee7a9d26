//! Calls the Observer piece by piece, and decides what becomes of each answer: it is used, asked for
//! again in smaller pieces, or replaced by lines that code writes.

use super::draft::{ChunkDraft, ObservedText};
use super::job::ObserveJob;
use crate::audit::CallOutcome;
use crate::jobs::failure::{Failure, is_rejected_for_good};
use crate::jobs::model_problem::Problem;
use crate::jobs::part_report::CODE_AUTHOR;
use crate::llm::{CallError, Finish};
use crate::memory::observe::{self, ParsedAnswer};

/// The answer of a model for a piece.
struct PieceAnswer {
    outcome: ParsedAnswer,
    /// Whether an output limit cut it.
    truncated: bool,
    /// Whether it says, in the form that was asked for, that there is nothing to observe.
    is_empty_block: bool,
    model: String,
}

impl ObserveJob<'_> {
    /// Observes the pieces that are left in `draft`. Stops at the first failure.
    pub(super) async fn observe_pieces(&self, draft: &mut ChunkDraft) -> Result<(), Failure> {
        while let Some(piece) = draft.next_piece() {
            let (asked_model, answer) = self.ask_piece(draft, &piece).await;
            self.report_health(&asked_model, &answer);
            draft.set_model(Some(asked_model.clone()));
            match answer {
                Ok(answer) if answer.truncated && answer.outcome != ParsedAnswer::Repetitive => {
                    self.handle_truncated(draft, &piece, answer, &asked_model)
                        .await?;
                }
                Ok(PieceAnswer {
                    outcome:
                        ParsedAnswer::Observed {
                            text,
                            current_task,
                            suggested_response,
                            title,
                        },
                    model,
                    ..
                }) => {
                    draft.reset_truncations();
                    draft.push(ObservedText {
                        text,
                        current_task: current_task
                            .filter(|_| self.settings.observer.hints.current_task),
                        suggested_response: suggested_response
                            .filter(|_| self.settings.observer.hints.suggested_response),
                        title: title.filter(|_| self.title.is_some()),
                        model,
                    });
                }
                Ok(PieceAnswer { is_empty_block, .. }) => {
                    self.handle_empty(draft, &piece, (&asked_model, is_empty_block))
                        .await?;
                }
                Err(CallError::Refused { .. }) => {
                    self.handle_empty(draft, &piece, (&asked_model, false))
                        .await?;
                }
                Err(ref error @ CallError::TooLong { excess, .. }) => {
                    if !self.fit_to_window(draft, &piece, excess).await
                        && !self.shrink_background(draft, &piece).await
                        && !self.halve_piece(draft, &piece).await
                    {
                        let (health, problem) = (&self.base.health, Problem::NoShorterCall(error));
                        health.failed(self.endpoint, &asked_model, self.job, problem);
                        self.handle_empty(draft, &piece, (&asked_model, false))
                            .await?;
                    }
                }
                Err(error @ CallError::Rejected { .. })
                    if is_rejected_for_good(self.job)
                        && self.may_write_by_code(&asked_model, false) =>
                {
                    tracing::warn!(
                        error = %error,
                        "the Observer's endpoint keeps rejecting a range; code covers it"
                    );
                    self.write_by_code(draft, &piece);
                }
                Err(error) => return Err(Failure::Call(error)),
            }
        }
        Ok(())
    }

    /// Notes whether the answer of `model` was usable. A call that failed is noted where it was made.
    fn report_health(&self, model: &str, answer: &Result<PieceAnswer, CallError>) {
        let health = &self.base.health;
        match answer {
            Ok(PieceAnswer {
                outcome: ParsedAnswer::Observed { .. },
                ..
            }) => health.worked(self.endpoint, model, self.job),
            Ok(_) => health.failed(self.endpoint, model, self.job, Problem::Unusable),
            Err(_) => {}
        }
    }

    /// Whether code may write in the place of `model`: if the model can do the work, so that the range is
    /// the reason; or if a client waits whose request does not fit.
    fn may_write_by_code(&self, model: &str, is_empty_block: bool) -> bool {
        let health = &self.base.health;
        !self.job.is_queued() || health.is_trusted(self.endpoint, model, self.job, is_empty_block)
    }

    /// Calls the model for `piece`. Returns the model's name and the answer.
    async fn ask_piece(
        &self,
        draft: &ChunkDraft,
        piece: &str,
    ) -> (String, Result<PieceAnswer, CallError>) {
        let prompt = self.prompt(draft, piece, &self.background(draft, piece).await);
        let settings = self.caller.settings(self.phase, self.job, &prompt).await;
        let asked_model = settings.model.clone();
        let reply = self
            .caller
            .call(settings, self.endpoint, self.job, &prompt)
            .await;
        let answer = reply.map(|(reply, mut line)| {
            let cut = reply.finish == Finish::Length;
            let parse = if cut {
                observe::read_truncated
            } else {
                observe::read_answer
            };
            let outcome = parse(&reply.text, piece);
            line.set_outcome(match outcome {
                _ if cut => CallOutcome::Cut,
                ParsedAnswer::Observed { .. } => CallOutcome::Kept,
                ParsedAnswer::Empty | ParsedAnswer::Repetitive => CallOutcome::Empty,
            });
            PieceAnswer {
                is_empty_block: outcome == ParsedAnswer::Empty
                    && observe::is_empty_block(&reply.text),
                outcome,
                truncated: cut,
                model: reply.model,
            }
        });
        (asked_model, answer)
    }

    /// Handles an answer that an output limit cut, so that it covers only a part of `piece`. The
    /// halves are observed instead. Unless a client waits, the tokens of `piece` then count as shown to
    /// the Observer once more, because the model read all of it. If smaller pieces are useless, the
    /// complete lines of the answer are used, followed by what code writes for the piece.
    async fn handle_truncated(
        &self,
        draft: &mut ChunkDraft,
        piece: &str,
        answer: PieceAnswer,
        asked_model: &str,
    ) -> Result<(), Failure> {
        let can_split = draft.count_truncation();
        if can_split && self.halve_piece(draft, piece).await {
            tracing::debug!(
                model = %answer.model,
                "the Observer's answer was cut by an output limit; its next pieces are smaller"
            );
            if !self.job.is_queued() {
                return Ok(());
            }
            let tokens = self.base.count_tokens(piece).await;
            return self
                .base
                .store
                .charge_reobservation(self.job, tokens)
                .await
                .map_err(|error| Failure::from_store(&error));
        }
        if !matches!(answer.outcome, ParsedAnswer::Observed { .. })
            && !self.may_write_by_code(asked_model, answer.is_empty_block)
        {
            return Err(Failure::Useless);
        }
        tracing::warn!(
            tenant = %self.job.scope.tenant_label(),
            messages = self.job.spec.span.to_count,
            model = %answer.model,
            "the Observer's answers are cut by a limit of their length, however little it is shown: \
             code adds to what came whole. Allow it more (`max_output_tokens`, or the endpoint's own limit)"
        );
        let by_code = self.code_text(draft, piece);
        draft.push(match answer.outcome {
            ParsedAnswer::Observed { text, .. } => ObservedText {
                text: observe::join_pieces(&[text, by_code.text]),
                model: answer.model,
                ..ObservedText::default()
            },
            ParsedAnswer::Empty | ParsedAnswer::Repetitive => by_code,
        });
        while let Some(rest) = draft.next_piece().filter(|_| !can_split) {
            self.write_by_code(draft, &rest);
        }
        Ok(())
    }

    /// Handles an answer without usable text. A whole range goes back into the queue, which charges
    /// it, because the Observer will read it again. One piece of several is asked for again at
    /// once, and charged here. While a client waits, no call is repeated. After the second answer without
    /// usable text, code covers the piece if the model has shown that it can do the work, or if a client
    /// waits. Otherwise the range waits.
    async fn handle_empty(
        &self,
        draft: &mut ChunkDraft,
        piece: &str,
        (asked_model, is_empty_block): (&str, bool),
    ) -> Result<(), Failure> {
        if draft.position() == (1, 1) {
            if self.job.empty_answers == 0 {
                return Err(Failure::Empty);
            }
        } else if self.job.is_queued() && draft.allow_retry() {
            let tokens = self.base.count_tokens(piece).await;
            return self
                .base
                .store
                .charge_reobservation(self.job, tokens)
                .await
                .map_err(|error| Failure::from_store(&error));
        }
        if !self.may_write_by_code(asked_model, is_empty_block) {
            return Err(Failure::Useless);
        }
        self.write_by_code(draft, piece);
        Ok(())
    }

    /// Covers `piece` by code.
    fn write_by_code(&self, draft: &mut ChunkDraft, piece: &str) {
        let written = self.code_text(draft, piece);
        draft.push(written);
    }

    fn code_text(&self, draft: &ChunkDraft, piece: &str) -> ObservedText {
        if draft.position() == (1, 1) {
            return ObservedText::from_payload(self.payload);
        }
        ObservedText {
            text: observe::observations_by_code(piece),
            model: CODE_AUTHOR.to_owned(),
            ..ObservedText::default()
        }
    }
}
