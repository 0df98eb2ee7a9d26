//! The Observer: observations before a range and the text of the range go in, a chunk comes out.
//!
//! A range that is too long for one call is observed in pieces and still becomes one chunk, because
//! half a chunk covers nothing. Finished pieces stay in this process until the chunk is stored, so
//! that a failed call repeats one piece; a crash repeats the calls of one job. An empty answer is
//! asked for once more. After that code covers the range, because a range must not block the ones
//! after it.

mod draft;
mod job;
mod pieces;
mod previous_log;
mod window_fit;

use std::sync::Arc;

use self::draft::{ChunkDraft, ChunkDrafts, ObservedText};
use self::job::{ObserveJob, WindowLimits, split_transcript};
use self::previous_log::PreviousLog;
use super::base::Base;
use super::failure::Failure;
use super::model_call::ModelCaller;
use super::payload::ObservationPayload;
use super::settings::Settings;
use crate::llm::Endpoint;
use crate::memory::{NewPart, PartKind, render};
use crate::store::Job;

/// The text of a chunk for a range without content. A chunk must not be empty.
const EMPTY_CHUNK_TEXT: &str = "* 🟢 Nothing was said here.";

/// Observes ranges by model calls.
pub(super) struct Observer {
    base: Base,
    caller: Arc<ModelCaller>,
    drafts: ChunkDrafts,
    limits: WindowLimits,
}

impl Observer {
    pub(super) fn new(base: &Base, caller: &Arc<ModelCaller>) -> Self {
        Self {
            base: base.clone(),
            caller: Arc::clone(caller),
            drafts: ChunkDrafts::default(),
            limits: WindowLimits::default(),
        }
    }

    /// Observes the range of `job`.
    pub(super) async fn observe(
        &self,
        settings: &Settings,
        endpoint: &Endpoint,
        job: &Job,
    ) -> Result<NewPart, Failure> {
        let Some(payload) = ObservationPayload::from_json(&job.spec.payload) else {
            // The row is not JSON any more, so there is nothing to observe.
            return Err(Failure::Unreadable);
        };
        if payload.transcript.trim().is_empty() {
            // The range has only system messages, which code copies, or reminders of Diarist.
            let written = ObservedText::from_payload(&payload);
            return Ok(self.build_chunk(job, &payload, written).await);
        }
        let phase = &settings.observation;
        let observe_job = ObserveJob {
            base: &self.base,
            caller: &self.caller,
            limits: &self.limits,
            phase,
            endpoint,
            job,
            settings,
            payload: &payload,
            log: PreviousLog::before(&*self.base.store, job, settings)
                .await
                .map_err(|error| Failure::from_store(&error))?,
            title: self.current_title(job, settings).await,
        };
        let max_tokens = settings.observer.max_input_tokens;
        let mut draft = match self.drafts.take(job) {
            Some(draft) => draft,
            None => ChunkDraft::new(
                split_transcript(&self.base, payload.transcript.clone(), max_tokens).await,
                max_tokens,
            ),
        };
        observe_job.apply_learned_limits(&mut draft).await;
        let result = observe_job.observe_pieces(&mut draft).await;
        observe_job.remember_limits(&draft);
        if let Err(failure) = result {
            self.drafts.put(job, draft);
            return Err(failure);
        }
        let written = draft.finish();
        if let Some(title) = &written.title {
            self.set_title(job, title).await;
        }
        Ok(self.build_chunk(job, &payload, written).await)
    }

    /// What code writes for the range of `job`. `None` if its row cannot be read.
    pub(super) async fn write_by_code(&self, job: &Job) -> Option<NewPart> {
        let payload = ObservationPayload::from_json(&job.spec.payload)?;
        let written = ObservedText::from_payload(&payload);
        Some(self.build_chunk(job, &payload, written).await)
    }

    async fn build_chunk(
        &self,
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
            tokens: self.base.count_part_tokens(&text).await,
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

    /// The current title of the conversation that made the job due, if titles are configured.
    async fn current_title(&self, job: &Job, settings: &Settings) -> Option<String> {
        if !settings.observer.title {
            return None;
        }
        let title = self.base.store.title(&job.scope, job.spec.tip).await;
        // If it cannot be read, the Observer writes a new one.
        Some(title.ok().flatten().unwrap_or_default())
    }

    /// Stores a title before its chunk. A title is no part of a request, and one that is lost would
    /// be found again only with the next chunk.
    async fn set_title(&self, job: &Job, title: &str) {
        let (scope, tip) = (&job.scope, job.spec.tip);
        let old = self.base.store.title(scope, tip).await.ok().flatten();
        match self.base.store.set_title(scope, tip, title).await {
            Ok(()) if old.as_deref() != Some(title) => {
                self.base
                    .events
                    .emit_title_change(job, old.as_deref(), title);
            }
            Ok(()) => {}
            Err(error) => tracing::debug!(error = %error, "a title could not be stored"),
        }
    }
}
