//! Queues jobs for a conversation while the text of its messages is at hand, also those that an
//! operator asked for. Called by the recorder only.

use std::sync::Arc;

use super::state::Recorder;
use crate::jobs::exchange::Exchange;
use crate::jobs::failure::log_store_failure;
use crate::jobs::payload;
use crate::jobs::reflector::ReflectionPayload;
use crate::jobs::track::Track;
use crate::memory::advance::{Action, ChainJob, JobState, observe_all};
use crate::memory::{Node, PartKind, Span};
use crate::store::{EnqueueOutcome, NewJob, OperatorRequest};
use crate::telemetry;

/// The most jobs queued per exchange. A conversation that was long before Diarist saw it is taken
/// up step by step.
const MAX_JOBS_PER_EXCHANGE: usize = 64;

impl Recorder {
    pub(super) async fn observe(
        &self,
        track: &mut Track,
        ranges: Vec<(Span, u32)>,
        exchange: &Exchange,
        focus: Option<&str>,
    ) {
        let nodes: Arc<[Node]> = track.nodes.as_slice().into();
        let settings = self.base.settings().for_model(&track.model);
        let time_style = payload::TimeStyle {
            zone: track.zone.as_ref().unwrap_or(&settings.zone).clone(),
            show_pauses: settings.temporal_markers,
        };
        let urgency = self.urgency(track, PartKind::Chunk);
        // In order, because an Observer needs the observations before its range.
        for (span, message_tokens) in ranges.into_iter().take(MAX_JOBS_PER_EXCHANGE) {
            let Some(sources) = self.archive.locate_texts(exchange, &nodes, &span).await else {
                // The archive had the text when the request arrived, and has deleted it since.
                return;
            };
            let (parsed, nodes) = (Arc::clone(&exchange.parsed), Arc::clone(&nodes));
            let counter = Arc::clone(&self.base.counter);
            let options = Arc::clone(&settings.observer);
            let time_style = time_style.clone();
            let written = tokio::task::spawn_blocking(move || {
                payload::build(
                    &parsed,
                    &nodes,
                    &span,
                    &sources,
                    &options,
                    &time_style,
                    counter.as_ref(),
                )
            });
            let Ok(Some(mut payload)) = written.await else {
                return;
            };
            payload.focus = focus.map(str::to_owned);
            let job = NewJob {
                kind: PartKind::Chunk,
                span,
                message_tokens,
                payload: payload.to_json(),
                parts: Vec::new(),
                model: exchange.model.clone(),
                tip: track.nodes.last().map_or(span.to, |node| node.link),
                tip_count: track.nodes.len(),
                route_hash: track.route,
                urgency,
            };
            if !self.enqueue(track, &job).await {
                return;
            }
        }
    }

    pub(super) async fn reflect(
        &self,
        track: &mut Track,
        parts: Vec<crate::memory::PartId>,
        span: Span,
        message_tokens: u32,
    ) {
        let settings = self.base.settings();
        let zone = track.zone.as_ref().unwrap_or(&settings.zone);
        let job = NewJob {
            kind: PartKind::Reflection,
            span,
            message_tokens,
            payload: ReflectionPayload {
                zone: zone.iana_name().map(str::to_owned),
                ..ReflectionPayload::default()
            }
            .to_json(),
            parts,
            model: track.model.clone(),
            tip: track.nodes.last().map_or(span.to, |node| node.link),
            tip_count: track.nodes.len(),
            route_hash: track.route,
            urgency: self.urgency(track, PartKind::Reflection),
        };
        self.enqueue(track, &job).await;
    }

    /// Puts `job` into the queue. Returns whether it is queued or done, here or elsewhere.
    async fn enqueue(&self, track: &mut Track, job: &NewJob) -> bool {
        let call_audit = &self.shared.call_audit;
        call_audit.set_thread(&track.scope, job.tip, track.label());
        let offered = self
            .base
            .store
            .enqueue(&track.scope, job, self.base.now_ms())
            .await;
        match offered {
            Ok(outcome @ (EnqueueOutcome::Queued | EnqueueOutcome::AlreadyExists)) => {
                // It was queued or done through another chain or by another process, so this track
                // is incomplete.
                track.stale |= outcome == EnqueueOutcome::AlreadyExists;
                if job.kind == PartKind::Chunk {
                    self.base.cache.mark_range_end(&track.scope, job.span.to);
                }
                track.jobs.push(ChainJob {
                    kind: job.kind,
                    span: job.span,
                    state: JobState::Fresh,
                });
                if self
                    .base
                    .cache
                    .resume_observation(&track.scope, job.span.to)
                {
                    log_pause_change("resumed", track, job);
                }
                self.shared.wake.notify_one();
                true
            }
            Ok(EnqueueOutcome::Paused) => {
                track.paused = true;
                if self.base.cache.pause_observation(&track.scope, job.span.to) {
                    log_pause_change("paused", track, job);
                }
                false
            }
            Ok(EnqueueOutcome::Forgotten) => {
                track.stale = true;
                false
            }
            Err(error) => {
                log_store_failure("a job could not be queued", &error);
                false
            }
        }
    }

    /// Does what an operator asked for this conversation: takes over what was written beside this
    /// task, and queues all confirmed messages if the operator asked for an observation. This needs
    /// a request of the conversation, which has the text.
    pub(super) async fn handle_operator_request(
        &self,
        track: &mut Track,
        request: OperatorRequest,
        exchange: &Exchange,
    ) {
        let Some(lineage) = track.lineage else { return };
        let store = &self.base.store;
        let stored = match Track::load(&*self.base.store, &track.scope, &exchange.history).await {
            Ok(stored) => stored,
            Err(error) => {
                return log_store_failure("an operator's request could not be done", &error);
            }
        };
        track.refresh_from(stored);
        if let OperatorRequest::Observe { focus } = request {
            let settings = self.base.settings();
            let steps = observe_all(
                &track.path(),
                &self.base.policy_for(&settings, &track.model),
            );
            let ranges = steps.into_iter().filter_map(|step| match step {
                Action::Observe {
                    span,
                    message_tokens,
                } => Some((span, message_tokens)),
                _ => None,
            });
            self.observe(track, ranges.collect(), exchange, focus.as_deref())
                .await;
        }
        if let Err(error) = store.complete_operator_request(&track.scope, lineage).await {
            log_store_failure(
                "an operator's request could not be marked as done and will be done again",
                &error,
            );
        }
    }
}

fn log_pause_change(change: &'static str, track: &Track, job: &NewJob) {
    metrics::counter!(telemetry::OBSERVER_PAUSES, "change" => change).increment(1);
    tracing::info!(
        tenant = %track.scope.tenant_label(),
        lineage = track.lineage,
        observed = job.span.from_count,
        messages = track.nodes.len(),
        "observing {change}: the Observer is shown at most 1.5 times what is new"
    );
}
