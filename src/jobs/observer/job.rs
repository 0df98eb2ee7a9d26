//! One observation job: what its calls have in common, the prompt of a piece, and its background.
//! Background is the log before the piece and the application's prompt. It gives way before the
//! piece if a call is too long for the model. Calls no model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::draft::ChunkDraft;
use super::previous_log::PreviousLog;
use crate::jobs::base::Base;
use crate::jobs::model_call::{ModelCaller, nonce};
use crate::jobs::payload::ObservationPayload;
use crate::jobs::settings::{Phase, Settings};
use crate::llm::Endpoint;
use crate::memory::dates;
use crate::memory::observe::{self, ObserveInput};
use crate::memory::prompt::{Prompt, PromptAttachment};
use crate::memory::transcript::truncate_middle;
use crate::store::Job;

/// A model that refuses less than this, in tokens, will accept nothing.
pub(super) const MIN_INPUT_TOKENS: u32 = 500;

/// The background may have this fraction of the piece's tokens before it is shrunk first.
const PIECE_TO_BACKGROUND: u32 = 4;

/// The most models with a learned limit. Clients choose the names, so there must be a bound.
const MAX_MODELS: usize = 1_024;

/// By origin and model: how many tokens it accepts, if it refused more. Not stored. After a
/// restart, each model costs one refused call if its refusals state the limit, and one per halving
/// if not. Providers do not bill refusals, and a model that got a larger window meanwhile can use
/// it.
#[derive(Debug, Default)]
pub(super) struct LearnedLimits(Mutex<HashMap<(String, String), u32>>);

impl LearnedLimits {
    pub(super) fn get(&self, model: &(String, String)) -> Option<u32> {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.get(model).copied()
    }

    pub(super) fn lower(&self, model: (String, String), limit: u32) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= MAX_MODELS {
            windows.clear();
        }
        // Parallel jobs learn about the same model. One must not raise the limit that another
        // found.
        let current = windows.entry(model).or_insert(limit);
        *current = limit.min(*current);
    }
}

/// The limits learned of the models called.
#[derive(Debug, Default)]
pub(super) struct WindowLimits {
    /// Tokens of a piece.
    pub(super) piece: LearnedLimits,
    /// Tokens of a piece and its background together.
    pub(super) combined: LearnedLimits,
}

/// One job, and what all of its calls need.
pub(super) struct ObserveJob<'a> {
    pub(super) base: &'a Base,
    pub(super) caller: &'a ModelCaller,
    pub(super) limits: &'a WindowLimits,
    pub(super) phase: &'a Phase,
    pub(super) endpoint: &'a Endpoint,
    pub(super) job: &'a Job,
    pub(super) settings: &'a Settings,
    pub(super) payload: &'a ObservationPayload,
    pub(super) log: PreviousLog,
    /// See [`ObserveInput::title`].
    pub(super) title: Option<String>,
}

/// The background of one piece.
#[derive(Debug, Default)]
pub(super) struct Background {
    pub(super) earlier: String,
    pub(super) application: String,
    pub(super) tokens: u32,
}

impl ObserveJob<'_> {
    /// The prompt for `piece`.
    pub(super) fn prompt(
        &self,
        draft: &ChunkDraft,
        piece: &str,
        background: &Background,
    ) -> Prompt {
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
            nonce: &nonce(),
            now_date: &dates::format_day(
                self.base.now_ms(),
                &self.payload.zone(&self.settings.zone),
            ),
            instruction: self.phase.instruction.as_deref(),
            focus: self.payload.focus.as_deref(),
            hints: self.settings.observer.hints,
            title: self.title.as_deref(),
            attachments: &attachments,
        })
    }

    /// The background for `piece`: the end of the log and of the finished pieces, and the
    /// application's prompt.
    pub(super) async fn background(&self, draft: &ChunkDraft, piece: &str) -> Background {
        let mut texts = self.log.texts.clone();
        texts.extend(draft.texts().map(str::to_owned));
        let application = self.payload.application.clone();
        let bound = self.settings.observer.previous_tokens;
        let (limit, combined_limit, piece) =
            (draft.piece_limit, draft.combined_limit, piece.to_owned());
        let counter = Arc::clone(&self.base.counter);
        let bytes = piece.len() + application.len();
        let background = self.base.compute_pool.run(bytes, move || {
            let room_left = combined_limit.map(|room| room.saturating_sub(counter.count(&piece)));
            let application = match room_left {
                // If space is short, the log gets at least half of it.
                Some(room_left) if room_left < 2 => String::new(),
                Some(room_left) => truncate_middle(&application, room_left / 2, &*counter),
                None => application,
            };
            let application_tokens = counter.count(&application);
            let room_left = room_left.map_or(limit, |room_left| {
                room_left.saturating_sub(application_tokens)
            });
            let budget = bound.unwrap_or(limit).min(limit).min(room_left);
            let earlier = observe::earlier(&texts.join("\n"), budget as usize, |line| {
                counter.count(line) as usize
            });
            let tokens = application_tokens.saturating_add(counter.count(&earlier));
            Background {
                earlier,
                application,
                tokens,
            }
        });
        background.await.unwrap_or_default()
    }

    /// Halves the background of `piece`, which was too long together with it; `false` if the
    /// background is not the reason.
    pub(super) async fn shrink_background(&self, draft: &mut ChunkDraft, piece: &str) -> bool {
        let background_tokens = self.background(draft, piece).await.tokens;
        let tokens = self.base.count_tokens(piece).await;
        if background_tokens <= (tokens / PIECE_TO_BACKGROUND).max(MIN_INPUT_TOKENS) {
            return false;
        }
        draft.set_combined_limit(tokens.saturating_add(background_tokens / 2));
        true
    }

    /// Cuts `piece` and all after it to half of the current limit; `false` if they cannot be
    /// smaller.
    pub(super) async fn halve_piece(&self, draft: &mut ChunkDraft, piece: &str) -> bool {
        let tokens = self.base.count_tokens(piece).await;
        let limit = draft.piece_limit.min(tokens) / 2;
        if limit < MIN_INPUT_TOKENS {
            return false;
        }
        draft.record_piece_limit(limit);
        self.split_pending(draft, limit).await;
        true
    }

    pub(super) async fn split_pending(&self, draft: &mut ChunkDraft, limit: u32) {
        let mut rest = Vec::new();
        for piece in draft.pending_pieces() {
            rest.extend(split_transcript(self.base, piece, limit).await);
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

pub(super) async fn split_transcript(base: &Base, transcript: String, limit: u32) -> Vec<String> {
    let counter = Arc::clone(&base.counter);
    let whole = transcript.clone();
    let pieces = base.compute_pool.run(transcript.len(), move || {
        observe::split_pieces(&transcript, limit, |text| counter.count(text))
    });
    pieces.await.unwrap_or_else(|| vec![whole])
}
