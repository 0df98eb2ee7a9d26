//! Reproduction bundles: a failed model call of memory in a file, so that somebody else can repeat
//! it (`diarist reproduce`).
//!
//! Written only if the operator configured a folder. Secrets of every known shape are removed from
//! all text; credentials and header values are never included. Only the owner can read the files.
//! There is one per job, and only the newest are kept. The model caller records each call, and the
//! worker reports how the job ended.

mod files;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::base::Base;
use crate::history::Scope;
use crate::llm::{CallError, CallSettings, Endpoint, Finish, Prompt, Reply};
use crate::memory::redact::{RedactKind, Redactor};
use crate::memory::{PartKind, Span};
use crate::store::Job;

/// The format that this version writes, and the only one it reads.
pub const FORMAT: u32 = 1;

/// A failed model call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bundle {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of Diarist that made the call.
    pub diarist: String,
    /// When it was written, RFC 3339.
    pub at: String,
    /// `chunk` for the Observer, `reflection` for the Reflector.
    pub kind: String,
    /// How often the job was tried, this try included.
    pub attempts: u32,
    /// Scheme, host and port of the endpoint.
    pub origin: String,
    /// The parameters of the call.
    #[serde(rename = "asked")]
    pub parameters: CallParameters,
    /// The prompt, redacted.
    pub prompt: PromptText,
    /// The answer or the error.
    pub answer: BundledAnswer,
    /// Why the job failed, for people.
    pub verdict: String,
}

/// The parameters of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallParameters {
    pub model: String,
    pub temperature: Option<f64>,
    pub max_output_tokens: Option<u32>,
    pub parameters: Map<String, Value>,
    pub options: Map<String, Value>,
    pub deadline_ms: u64,
}

/// The text of a prompt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PromptText {
    pub system: String,
    pub user: String,
    /// Names of pictures and files. Their contents are left out.
    pub attachments: Vec<String>,
}

/// The answer of the model, or the provider's error message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BundledAnswer {
    /// The name in the file is older.
    #[serde(rename = "said")]
    Replied {
        text: String,
        model: String,
        finish: String,
        prompt_tokens: Option<u64>,
        completion_tokens: Option<u64>,
    },
    Failed {
        class: String,
        message: String,
    },
}

impl Bundle {
    /// The settings with which the call is repeated.
    #[must_use]
    pub fn settings(&self) -> CallSettings {
        CallSettings {
            model: self.parameters.model.clone(),
            temperature: self.parameters.temperature,
            max_output_tokens: self.parameters.max_output_tokens,
            parameters: self.parameters.parameters.clone(),
            options: self.parameters.options.clone(),
            deadline: Duration::from_millis(self.parameters.deadline_ms),
        }
    }

    /// The prompt to send again. A bundle has no attachments.
    #[must_use]
    pub fn prompt(&self) -> Prompt {
        Prompt {
            system: self.prompt.system.clone(),
            user: self.prompt.user.clone(),
            attachments: Vec::new(),
        }
    }
}

/// The last call of each running job, if bundles are configured. Jobs that a client waits for have
/// no number of their own, so scope and span are part of the key.
#[derive(Debug, Default)]
struct LastCalls(Mutex<HashMap<CallKey, RecordedCall>>);

type CallKey = (i64, Scope, Span);

fn call_key(job: &Job) -> CallKey {
    (job.id, job.scope.clone(), job.spec.span)
}

#[derive(Debug)]
struct RecordedCall {
    origin: String,
    settings: CallSettings,
    prompt: Prompt,
    answer: Result<Reply, CallError>,
}

impl LastCalls {
    fn with_lock<T>(&self, look: impl FnOnce(&mut HashMap<CallKey, RecordedCall>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps model calls that failed, in the folder that the operator configured.
pub(super) struct Bundles {
    base: Base,
    last_calls: LastCalls,
}

impl Bundles {
    pub(super) fn new(base: &Base) -> Self {
        Self {
            base: base.clone(),
            last_calls: LastCalls::default(),
        }
    }

    /// Remembers the last call for `job`, if bundles are configured.
    pub(super) fn record_call(
        &self,
        job: &Job,
        endpoint: &Endpoint,
        settings: CallSettings,
        prompt: &Prompt,
        answer: &Result<Reply, CallError>,
    ) {
        if self.base.settings().bundles.is_none() {
            return;
        }
        let attempt = RecordedCall {
            origin: endpoint.origin(),
            settings,
            prompt: prompt.clone(),
            answer: answer.clone(),
        };
        self.last_calls
            .with_lock(|calls| calls.insert(call_key(job), attempt));
    }

    /// Forgets the last call of `job` when the returned guard is dropped: a client may stop waiting
    /// at any time.
    pub(super) fn forget_on_drop<'a>(&'a self, job: &'a Job) -> ForgetCall<'a> {
        ForgetCall(&self.last_calls, job)
    }

    /// Writes the last call of `job`, which has ended, if it failed with a `verdict`.
    pub(super) async fn job_ended(&self, job: &Job, verdict: Option<&str>) {
        let attempt = self
            .last_calls
            .with_lock(|calls| calls.remove(&call_key(job)));
        let (Some(attempt), Some(verdict)) = (attempt, verdict) else {
            return;
        };
        let settings = self.base.settings();
        let Some(folder) = settings.bundles.clone() else {
            return;
        };
        let at = jiff::Timestamp::from_millisecond(self.base.now_ms());
        let at = at.map_or_else(|_| String::new(), |at| at.to_string());
        let redactor = settings.observer.redactor.clone();
        let (kind, attempts) = (job.spec.kind, job.attempts);
        let name = if job.is_queued() {
            job.id.to_string()
        } else {
            format!("awaited-{}", uuid::Uuid::new_v4().simple())
        };
        let verdict = verdict.to_owned();
        let written = tokio::task::spawn_blocking(move || {
            let bundle = build(&attempt, kind, attempts, at, &verdict, &redactor);
            files::write(
                &folder,
                kind.name(),
                &name,
                &serde_json::to_vec_pretty(&bundle)?,
            )
        });
        match written.await {
            // The command that forgets deletes from the database first, and then the files.
            Ok(Ok(path)) if self.is_deleted(job).await => {
                if let Err(error) = tokio::fs::remove_file(&path).await {
                    let path = path.display();
                    tracing::warn!(%path, %error, "text that was forgotten could not be removed");
                }
            }
            Ok(Ok(path)) => {
                tracing::info!(path = %path.display(), "kept a model call that failed");
            }
            Ok(Err(error)) => tracing::warn!(error = %error, "a model call could not be kept"),
            // The writing panicked. The file is only for people, so nothing else depends on it.
            Err(_) => {}
        }
    }
}

impl Bundles {
    /// Whether what a queued job is about was deleted meanwhile, or may have been.
    async fn is_deleted(&self, job: &Job) -> bool {
        if !job.is_queued() {
            return false;
        }
        let chain = self.base.store.chain_links(&job.scope, job.spec.span.to);
        chain.await.map_or_else(
            |error| {
                tracing::warn!(%error, "a failed model call is not kept: whether its conversation was forgotten is not known");
                true
            },
            |links| links.is_empty(),
        )
    }
}

/// Forgets the last call of a job when it is dropped.
pub(super) struct ForgetCall<'a>(&'a LastCalls, &'a Job);

impl Drop for ForgetCall<'_> {
    fn drop(&mut self) {
        self.0.with_lock(|calls| calls.remove(&call_key(self.1)));
    }
}

fn build(
    attempt: &RecordedCall,
    kind: PartKind,
    attempts: u32,
    at: String,
    verdict: &str,
    redactor: &Redactor,
) -> Bundle {
    // Every kind of secret is removed, even one that the models may see: a bundle may be given to
    // strangers.
    let all_kinds = Redactor::new(RedactKind::ALL.to_vec(), Vec::new());
    let clean = |text: &str| all_kinds.clean(&redactor.clean(text));
    let settings = &attempt.settings;
    let table = |table: &Map<String, Value>| -> Map<String, Value> {
        let entries = table.iter();
        entries
            .map(|(key, value)| (key.clone(), clean_value(value, &clean)))
            .collect()
    };
    Bundle {
        format: FORMAT,
        diarist: env!("CARGO_PKG_VERSION").to_owned(),
        at,
        kind: kind.name().to_owned(),
        attempts,
        origin: attempt.origin.clone(),
        parameters: CallParameters {
            model: settings.model.clone(),
            temperature: settings.temperature,
            max_output_tokens: settings.max_output_tokens,
            parameters: table(&settings.parameters),
            options: table(&settings.options),
            deadline_ms: u64::try_from(settings.deadline.as_millis()).unwrap_or(u64::MAX),
        },
        prompt: PromptText {
            system: clean(&attempt.prompt.system),
            user: clean(&attempt.prompt.user),
            attachments: attempt
                .prompt
                .attachments
                .iter()
                .map(|attached| clean(&attached.name))
                .collect(),
        },
        answer: match &attempt.answer {
            Ok(reply) => BundledAnswer::Replied {
                text: clean(&reply.text),
                model: reply.model.clone(),
                finish: match reply.finish {
                    Finish::Stop => "stop",
                    Finish::Length => "length",
                    Finish::Other => "other",
                }
                .to_owned(),
                prompt_tokens: reply.usage.tokens.prompt,
                completion_tokens: reply.usage.tokens.completion,
            },
            Err(error) => BundledAnswer::Failed {
                class: error.class().to_owned(),
                message: clean(error.message()),
            },
        },
        verdict: clean(verdict),
    }
}

fn clean_value(value: &Value, clean: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(values) => values
            .iter()
            .map(|value| clean_value(value, clean))
            .collect(),
        Value::Object(table) => {
            let entries = table.iter();
            entries
                .map(|(key, value)| (key.clone(), clean_value(value, clean)))
                .collect()
        }
        plain => plain.clone(),
    }
}

/// Removes every bundle in `folder`: none says which conversation it is of. Returns how many.
///
/// # Errors
/// If the folder cannot be read, or a file cannot be removed.
pub fn remove_all(folder: &std::path::Path) -> std::io::Result<usize> {
    files::remove_all(folder)
}

/// Reads a bundle.
///
/// # Errors
/// If the file cannot be read, is no bundle, or has another format. The text is for people.
pub fn read(path: &std::path::Path) -> Result<Bundle, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the file cannot be read: {error}"))?;
    let bundle: Bundle =
        serde_json::from_str(&text).map_err(|error| format!("the file is no bundle: {error}"))?;
    if bundle.format != FORMAT {
        let found = bundle.format;
        return Err(format!(
            "the bundle has format {found}; this version reads format {FORMAT}"
        ));
    }
    Ok(bundle)
}
