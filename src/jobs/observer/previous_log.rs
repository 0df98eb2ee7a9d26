//! The part of the observation log that lies before a range: the Observer reads it as background.

use crate::jobs::settings::Settings;
use crate::store::{Job, LogBounds, Store, StoreError};

/// The most chunks read for one call, if not all of the log is shown.
const MAX_EARLIER_CHUNKS: usize = 64;

/// How much more of the log is read than shown: the most important lines of its older part are
/// shown too.
const READ_FACTOR: u32 = 4;

/// The observations before a range.
#[derive(Debug, Default)]
pub(super) struct PreviousLog {
    /// The texts of consecutive parts, the oldest first.
    pub(super) texts: Vec<String>,
    /// The hints of the newest chunk, if hints are configured.
    pub(super) task: Option<String>,
    pub(super) response: Option<String>,
}

impl PreviousLog {
    /// Reads the log before the range of `job`, from the same chain and never from the thread. With
    /// a configured bound: enough chunks to choose from. Without one: all that is sent of the log
    /// (the newest reflection and the chunks after it), as far as it fits into one call.
    pub(super) async fn before(
        store: &dyn Store,
        job: &Job,
        settings: &Settings,
    ) -> Result<Self, StoreError> {
        let bound = settings.observer.previous_tokens;
        let bounds = LogBounds {
            tokens: bound.map_or(settings.observer.max_input_tokens, |bound| {
                bound.saturating_mul(READ_FACTOR)
            }),
            chunks: bound.map(|_| MAX_EARLIER_CHUNKS),
        };
        let enabled = settings.observer.hints;
        let log = store
            .log_before(&job.scope, job.spec.span.from, bounds)
            .await?;
        Ok(Self {
            texts: log.texts,
            task: log.current_task.filter(|_| enabled.current_task),
            response: log
                .suggested_response
                .filter(|_| enabled.suggested_response),
        })
    }
}
