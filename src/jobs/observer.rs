//! One observation: the end of the log and new history in, a chunk out.
//!
//! A range that is too long for one call is observed piece by piece and still makes one chunk: what
//! covers half a range covers nothing. Pieces that are written are kept in this process until the
//! chunk is, so a failed call repeats one piece; a crash repeats the calls of this one job. An empty
//! answer is asked for again once, then code covers what no model will speak about: a range must not
//! stand in the way of those after it.

mod background;
mod draft;
mod window_fit;

use std::sync::Arc;

use self::background::{Background, PreviousLog};
use self::draft::ChunkDraft;
pub(crate) use self::draft::{ChunkDrafts, LearnedLimits};
use super::failure::{Failure, is_rejected_for_good};
use super::model_call::{self, call_model};
use super::payload::ObservationPayload;
use super::{Phase, Settings, Shop, events};
use crate::llm::{CallError, Endpoint, Finish};
use crate::memory::observe::{self, ObserveInput, ParsedAnswer};
use crate::memory::prompt::{Prompt, PromptAttachment};
use crate::memory::{NewPart, PartKind, dates, render};
use crate::store::Job;

/// A model that finds less than this too long will take nothing. Tokens.
const MIN_INPUT_TOKENS: u32 = 500;

/// What stands for a range in which nothing was said, so that what covers it is never empty.
const EMPTY_CHUNK_TEXT: &str = "* 🟢 Nothing was said here.";

/// Calls the Observer for `job` and reads its answers.
pub(super) async fn observe(
    shop: &Shop,
    settings: &Settings,
    endpoint: &Endpoint,
    job: &Job,
) -> Result<NewPart, Failure> {
    let Some(payload) = ObservationPayload::from_json(&job.spec.payload) else {
        // Not JSON any more; nothing in the row could be observed.
        return Err(Failure::Unreadable);
    };
    if payload.transcript.trim().is_empty() {
        // Only system messages, which code copies, or echoes of our own block: nothing to ask.
        let written = ObservedText::from_payload(&payload);
        return Ok(build_chunk(shop, job, &payload, written).await);
    }
    let phase = &settings.observation;
    let observe_job = ObserveJob {
        shop,
        phase,
        endpoint,
        job,
        settings,
        payload: &payload,
        log: PreviousLog::before(shop, job, settings)
            .await
            .map_err(|error| Failure::from_store(&error))?,
        title: current_title(shop, job, settings).await,
    };
    let max_tokens = settings.observer.max_input_tokens;
    let mut draft = match shop.drafts.take(job) {
        Some(draft) => draft,
        None => ChunkDraft::new(
            split_transcript(shop, payload.transcript.clone(), max_tokens).await,
            max_tokens,
        ),
    };
    observe_job.apply_learned_limits(&mut draft).await;
    let result = observe_job.observe_pieces(&mut draft).await;
    observe_job.remember_limits(&draft);
    if let Err(failure) = result {
        shop.drafts.put(job, draft);
        return Err(failure);
    }
    let written = draft.finish();
    if let Some(title) = &written.title {
        set_title(shop, job, title).await;
    }
    Ok(build_chunk(shop, job, &payload, written).await)
}

/// What a range became.
#[derive(Debug, Default)]
struct ObservedText {
    text: String,
    current_task: Option<String>,
    suggested_response: Option<String>,
    title: Option<String>,
    /// `code` where no model wrote any of it.
    model: String,
}

impl ObservedText {
    fn from_payload(payload: &ObservationPayload) -> Self {
        Self {
            text: payload.by_code.clone(),
            model: CODE_AUTHOR.to_owned(),
            ..Self::default()
        }
    }
}

/// What a model said of a piece.
struct PieceAnswer {
    outcome: ParsedAnswer,
    /// A limit of its output ended it.
    truncated: bool,
    model: String,
}

/// The name of the author that is no model.
const CODE_AUTHOR: &str = "code";

/// One job, and everything its calls have in common.
struct ObserveJob<'a> {
    shop: &'a Shop,
    phase: &'a Phase,
    endpoint: &'a Endpoint,
    job: &'a Job,
    settings: &'a Settings,
    payload: &'a ObservationPayload,
    log: PreviousLog,
    /// See [`ObserveInput::title`].
    title: Option<String>,
}

impl ObserveJob<'_> {
    /// Writes what is left of `draft`; stops at the first failure.
    async fn observe_pieces(&self, draft: &mut ChunkDraft) -> Result<(), Failure> {
        while let Some(piece) = draft.next_piece() {
            let (asked_model, answer) = self.ask_piece(draft, &piece).await;
            draft.set_model(Some(asked_model));
            match answer {
                Ok(answer) if answer.truncated && answer.outcome != ParsedAnswer::Repetitive => {
                    self.handle_truncated(draft, &piece, answer).await?;
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
                Ok(_) | Err(CallError::Refused { .. }) => self.handle_empty(draft, &piece).await?,
                Err(CallError::TooLong { excess, .. }) => {
                    if !self.fit_to_window(draft, &piece, excess).await
                        && !self.shrink_background(draft, &piece).await
                        && !self.halve_piece(draft, &piece).await
                    {
                        self.handle_empty(draft, &piece).await?;
                    }
                }
                Err(error @ CallError::Rejected { .. }) if is_rejected_for_good(self.job) => {
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

    /// The question for `piece`.
    fn prompt(&self, draft: &ChunkDraft, piece: &str, background: &Background) -> Prompt {
        let attachments: Vec<PromptAttachment> = self
            .payload
            .attachments
            .iter()
            .filter(|attached| mentions_attachment(piece, &attached.name))
            .cloned()
            .collect();
        observe::prompt(&ObserveInput {
            transcript: piece,
            piece: draft.position(),
            earlier: &background.earlier,
            previous_hints: observe::PreviousHints {
                task: self.log.task.as_deref(),
                response: self.log.response.as_deref(),
            },
            application: &background.application,
            nonce: &super::nonce(),
            now_date: &dates::format_day(
                self.shop.clock.now_ms(),
                &self.payload.zone(&self.settings.zone),
            ),
            instruction: self.phase.instruction.as_deref(),
            focus: self.payload.focus.as_deref(),
            hints: self.settings.observer.hints,
            title: self.title.as_deref(),
            attachments: &attachments,
        })
    }

    /// Who was asked for `piece`, and what came of it.
    async fn ask_piece(
        &self,
        draft: &ChunkDraft,
        piece: &str,
    ) -> (String, Result<PieceAnswer, CallError>) {
        let prompt = self.prompt(draft, piece, &self.background(draft, piece).await);
        let settings = model_call::call_settings(self.shop, self.phase, self.job, &prompt).await;
        let asked_model = settings.model.clone();
        let reply = call_model(self.shop, settings, self.endpoint, self.job, &prompt).await;
        let answer = reply.map(|reply| {
            let cut = reply.finish == Finish::Length;
            let parse = if cut {
                observe::read_truncated
            } else {
                observe::read_answer
            };
            PieceAnswer {
                outcome: parse(&reply.text, piece),
                truncated: cut,
                model: reply.model,
            }
        });
        (asked_model, answer)
    }

    /// A limit of its output cut what the model `said` of `piece`, which covers a part of it: the halves
    /// are asked for instead, and that is charged, as all of it was shown. Where it is of no use to ask
    /// for less, what came whole stands before what code writes of all of it.
    async fn handle_truncated(
        &self,
        draft: &mut ChunkDraft,
        piece: &str,
        answer: PieceAnswer,
    ) -> Result<(), Failure> {
        let can_split = draft.count_truncation();
        if can_split && self.halve_piece(draft, piece).await {
            tracing::debug!(
                model = %answer.model,
                "the Observer's answer was cut by a limit of its output; it is shown less at a time"
            );
            if !self.job.is_queued() {
                return Ok(());
            }
            let (store, tokens) = (
                &self.shop.store,
                super::count_tokens(self.shop, piece).await,
            );
            return store
                .charge_reobservation(self.job, tokens)
                .await
                .map_err(|error| Failure::from_store(&error));
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

    /// Nothing usable was said of `piece`. Of a whole range the job is given back and charged, as
    /// the Observer is shown it again; of one piece of several it is asked again at once, and that is
    /// charged here. While a client waits nobody is asked again.
    async fn handle_empty(&self, draft: &mut ChunkDraft, piece: &str) -> Result<(), Failure> {
        if draft.position() == (1, 1) {
            if self.job.empty_answers == 0 {
                return Err(Failure::Empty);
            }
        } else if self.job.is_queued() && draft.allow_retry() {
            let (store, tokens) = (
                &self.shop.store,
                super::count_tokens(self.shop, piece).await,
            );
            return store
                .charge_reobservation(self.job, tokens)
                .await
                .map_err(|error| Failure::from_store(&error));
        }
        self.write_by_code(draft, piece);
        Ok(())
    }

    /// Code writes what no model says of `piece`.
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

    /// Cuts `piece`, and all after it, to half of what was too long; `false` where it is as small as
    /// it can be.
    async fn halve_piece(&self, draft: &mut ChunkDraft, piece: &str) -> bool {
        let tokens = super::count_tokens(self.shop, piece).await;
        let limit = draft.piece_limit.min(tokens) / 2;
        if limit < MIN_INPUT_TOKENS {
            return false;
        }
        draft.record_piece_limit(limit);
        self.split_pending(draft, limit).await;
        true
    }

    async fn split_pending(&self, draft: &mut ChunkDraft, limit: u32) {
        let mut rest = Vec::new();
        for piece in draft.pending_pieces() {
            rest.extend(split_transcript(self.shop, piece, limit).await);
        }
        draft.replace_pending(limit, rest);
    }
}

/// Whether `text` holds the placeholder of the attachment `name`.
fn mentions_attachment(text: &str, name: &str) -> bool {
    let start = format!("[{name}");
    text.match_indices(&start)
        .any(|(at, _)| text[at + start.len()..].starts_with([']', ':']))
}

async fn split_transcript(shop: &Shop, transcript: String, limit: u32) -> Vec<String> {
    let counter = Arc::clone(&shop.counter);
    let whole = transcript.clone();
    tokio::task::spawn_blocking(move || {
        observe::split_pieces(&transcript, limit, |text| counter.count(text))
    })
    .await
    .unwrap_or_else(|_| vec![whole])
}

async fn build_chunk(
    shop: &Shop,
    job: &Job,
    payload: &ObservationPayload,
    written: ObservedText,
) -> NewPart {
    let mut text = render::chunk_text(&written.text, &payload.system);
    if text.trim().is_empty() {
        EMPTY_CHUNK_TEXT.clone_into(&mut text);
    }
    NewPart {
        kind: PartKind::Chunk,
        span: job.spec.span,
        tokens: super::count_part_tokens(shop, &text).await,
        text,
        message_tokens: job.spec.message_tokens,
        current_task: written.current_task,
        suggested_response: written.suggested_response,
        sources: Vec::new(),
        model: written.model,
        requested: false,
        code_reflection: false,
        analysis: crate::memory::PartAnalysis::default(),
    }
}

/// The title so far of the conversation that made the job due, where titles are asked for.
async fn current_title(shop: &Shop, job: &Job, settings: &Settings) -> Option<String> {
    if !settings.observer.title {
        return None;
    }
    let title = shop.store.title(&job.scope, job.spec.tip).await;
    // Without it the Observer finds a new one.
    Some(title.ok().flatten().unwrap_or_default())
}

/// Written before the chunk is: a title is no part of what is sent, and one that is lost with a
/// chunk would be found again only with the next.
async fn set_title(shop: &Shop, job: &Job, title: &str) {
    let (scope, tip) = (&job.scope, job.spec.tip);
    let old = shop.store.title(scope, tip).await.ok().flatten();
    match shop.store.set_title(scope, tip, title).await {
        Ok(()) if old.as_deref() != Some(title) => {
            events::emit_title_change(shop, job, old.as_deref(), title);
        }
        Ok(()) => {}
        Err(error) => tracing::debug!(error = %error, "a title could not be stored"),
    }
}
