//! What the Observer is shown beside a piece: the log before it and the application's prompt. It is
//! background, so it gives way before the piece does where a model finds a call too long.

use std::sync::Arc;

use super::draft::ChunkDraft;
use super::{MIN_INPUT_TOKENS, ObserveJob};
use crate::jobs::{Settings, Shop};
use crate::memory::transcript::truncate_middle;
use crate::memory::{PartKind, observe};
use crate::store::{Job, StoreError};

/// Chunks of the log that are read for one call at most, where not all of it is to be shown.
const MAX_EARLIER_CHUNKS: usize = 64;

/// How much more of the log is read than is shown: what matters most of its older part is shown too.
const READ_FACTOR: u32 = 4;

/// A piece weighs so many times what is shown beside it, or that gives way first.
const PIECE_TO_BACKGROUND: u32 = 4;

/// What was observed before a range.
#[derive(Debug, Default)]
pub(super) struct PreviousLog {
    /// Parts that follow each other, the oldest first.
    texts: Vec<String>,
    /// The hints of the newest chunk, where hints are asked for.
    pub(super) task: Option<String>,
    pub(super) response: Option<String>,
}

impl PreviousLog {
    /// The log before the range of `job`: from the same chain, never from the thread. With a bound
    /// enough of its chunks to choose from; else all that is sent of it, which is the newest reflection
    /// and the chunks behind it, as far as one call may hold it.
    pub(super) async fn before(
        shop: &Shop,
        job: &Job,
        settings: &Settings,
    ) -> Result<Self, StoreError> {
        let bound = settings.observer.previous_tokens;
        let enough = bound.map_or(settings.observer.max_input_tokens, |bound| {
            bound.saturating_mul(READ_FACTOR)
        });
        let mut log = Self::default();
        let texts = &mut log.texts;
        let mut tokens = 0_u32;
        let mut at = job.spec.span.from;
        while tokens < enough && (bound.is_none() || texts.len() < MAX_EARLIER_CHUNKS) {
            let part_ending = |kind| shop.store.part_ending(&job.scope, kind, at);
            let Some(chunk) = part_ending(PartKind::Chunk).await? else {
                break;
            };
            if texts.is_empty() {
                let enabled = settings.observer.hints;
                let newest = chunk.body.clone();
                log.task = newest.current_task.filter(|_| enabled.current_task);
                log.response = newest
                    .suggested_response
                    .filter(|_| enabled.suggested_response);
            }
            let reflection = match bound {
                None => part_ending(PartKind::Reflection).await?,
                Some(_) => None,
            };
            let part = reflection.unwrap_or(chunk).body;
            tokens = tokens.saturating_add(part.tokens);
            at = part.span.from;
            texts.push(part.text);
        }
        texts.reverse();
        Ok(log)
    }
}

/// What stands beside one piece.
#[derive(Debug, Default)]
pub(super) struct Background {
    pub(super) earlier: String,
    pub(super) application: String,
    pub(super) tokens: u32,
}

impl ObserveJob<'_> {
    /// What is shown beside the piece at hand: the end of the log and of what is already written of
    /// this range, and the application's prompt.
    pub(super) async fn background(&self, draft: &ChunkDraft, piece: &str) -> Background {
        let mut texts = self.log.texts.clone();
        texts.extend(draft.texts().map(str::to_owned));
        let application = self.payload.application.clone();
        let bound = self.settings.observer.previous_tokens;
        let (limit, combined_limit, piece) =
            (draft.piece_limit, draft.combined_limit, piece.to_owned());
        let counter = Arc::clone(&self.shop.counter);
        let background = tokio::task::spawn_blocking(move || {
            let room_left = combined_limit.map(|room| room.saturating_sub(counter.count(&piece)));
            let application = match room_left {
                // Of room that is short the log has at least half.
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

    /// Leaves room beside `piece`, which was too long with what was shown there, for half of that;
    /// `false` where it is not what makes the call long.
    pub(super) async fn shrink_background(&self, draft: &mut ChunkDraft, piece: &str) -> bool {
        let background_tokens = self.background(draft, piece).await.tokens;
        let tokens = crate::jobs::count_tokens(self.shop, piece).await;
        if background_tokens <= (tokens / PIECE_TO_BACKGROUND).max(MIN_INPUT_TOKENS) {
            return false;
        }
        draft.set_combined_limit(tokens.saturating_add(background_tokens / 2));
        true
    }
}
