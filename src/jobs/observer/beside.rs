//! What the Observer is shown beside a piece: the log before it and the application's prompt. It is
//! background, so it gives way before the piece does where a model finds a call too long.

use std::sync::Arc;

use super::draft::Draft;
use super::{LEAST_INPUT, Observing};
use crate::jobs::{Settings, Shop};
use crate::memory::transcript::capped;
use crate::memory::{PartKind, observe};
use crate::store::{Job, StoreError};

/// Chunks of the log that are read for one call at most, where not all of it is to be shown.
const EARLIER_CHUNKS: usize = 64;

/// How much more of the log is read than is shown: what matters most of its older part is shown too.
const EARLIER_READ: u32 = 4;

/// A piece weighs so many times what is shown beside it, or that gives way first.
const OUTWEIGHED: u32 = 4;

/// What was observed before a range.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Parts that follow each other, the oldest first.
    texts: Vec<String>,
    /// The hints of the newest chunk, where hints are asked for.
    pub(super) task: Option<String>,
    pub(super) response: Option<String>,
}

impl Log {
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
            bound.saturating_mul(EARLIER_READ)
        });
        let mut log = Self::default();
        let texts = &mut log.texts;
        let mut tokens = 0_u32;
        let mut at = job.work.span.from;
        while tokens < enough && (bound.is_none() || texts.len() < EARLIER_CHUNKS) {
            let ending = |kind| shop.store.part_ending(&job.scope, kind, at);
            let Some(chunk) = ending(PartKind::Chunk).await? else {
                break;
            };
            if texts.is_empty() {
                let wanted = settings.observer.hints;
                let stood = chunk.body.clone();
                log.task = stood.current_task.filter(|_| wanted.current_task);
                log.response = stood
                    .suggested_response
                    .filter(|_| wanted.suggested_response);
            }
            let reflection = match bound {
                None => ending(PartKind::Reflection).await?,
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
pub(super) struct Beside {
    pub(super) earlier: String,
    pub(super) application: String,
    pub(super) tokens: u32,
}

impl Observing<'_> {
    /// What is shown beside the piece at hand: the end of the log and of what is already written of
    /// this range, and the application's prompt.
    pub(super) async fn beside(&self, draft: &Draft, piece: &str) -> Beside {
        let mut texts = self.log.texts.clone();
        texts.extend(draft.texts().map(str::to_owned));
        let application = self.payload.application.clone();
        let bound = self.settings.observer.previous_tokens;
        let (limit, room, piece) = (draft.limit, draft.room, piece.to_owned());
        let counter = Arc::clone(&self.shop.counter);
        let shown = tokio::task::spawn_blocking(move || {
            let room = room.map(|room| room.saturating_sub(counter.count(&piece)));
            let application = match room {
                // Of room that is short the log has at least half.
                Some(room) if room < 2 => String::new(),
                Some(room) => capped(&application, room / 2, &*counter),
                None => application,
            };
            let told = counter.count(&application);
            let room = room.map_or(limit, |room| room.saturating_sub(told));
            let budget = bound.unwrap_or(limit).min(limit).min(room);
            let earlier = observe::earlier(&texts.join("\n"), budget as usize, |line| {
                counter.count(line) as usize
            });
            let tokens = told.saturating_add(counter.count(&earlier));
            Beside {
                earlier,
                application,
                tokens,
            }
        });
        shown.await.unwrap_or_default()
    }

    /// Leaves room beside `piece`, which was too long with what was shown there, for half of that;
    /// `false` where it is not what makes the call long.
    pub(super) async fn less_beside(&self, draft: &mut Draft, piece: &str) -> bool {
        let shown = self.beside(draft, piece).await.tokens;
        let tokens = crate::jobs::count(self.shop, piece).await;
        if shown <= (tokens / OUTWEIGHED).max(LEAST_INPUT) {
            return false;
        }
        draft.leaves(tokens.saturating_add(shown / 2));
        true
    }
}
