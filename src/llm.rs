//! Calls to the models that observe and reflect. Never on the request path.
//!
//! One [`Llm`] for the process: a pooled client that follows no redirects, knows no proxies and has
//! no total timeout (each call carries its deadline). Decides how a call is spelled for a model
//! (parameters it refuses are left out and remembered) and of which class a failure is; never
//! decides whether to call or to try again: `jobs` does, by [`backoff()`] and [`Breaker`]. Never logs
//! a prompt, an answer or a credential.

mod backoff;
mod breaker;
mod capabilities;
mod endpoint;
mod error;
pub mod model_catalog;
mod reply;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use serde_json::{Map, Value};

pub use crate::memory::prompt::Prompt;
use crate::wire::usage::Usage;
pub use backoff::{backoff, retry_after};
pub use breaker::Breaker;
use capabilities::CallCapabilities;
pub use endpoint::{Endpoint, UpstreamRoute};
pub use error::CallError;
use error::Redaction;

/// An upstream that cannot be reached is not worth more of a deadline than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Below the keep-alive of common upstreams, so that we close first.
const POOL_IDLE: Duration = Duration::from_secs(30);
/// Answers of some 40,000 tokens are 200 KB; what is longer is not an observation.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// Models whose refusals are remembered. Clients choose the names, so it must have an end.
const MAX_REMEMBERED: usize = 1024;

/// How a model is asked.
#[derive(Clone, Debug)]
pub struct CallSettings {
    pub model: String,
    pub temperature: Option<f64>,
    /// Most tokens the answer may have; `None` leaves it to the model.
    pub max_output_tokens: Option<u32>,
    /// Further parameters, under the names chat completions has for them.
    pub parameters: Map<String, Value>,
    /// Fields of the body as the operator wrote them; each replaces ours of that name whole.
    pub options: Map<String, Value>,
    /// From the call to the end of the answer, repetitions for refused parameters included.
    pub deadline: Duration,
}

/// Which model is asked, by the size of the whole prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    One(String),
    /// By the most tokens a prompt may have, ascending.
    Tiers(Vec<(u32, String)>),
}

impl Models {
    /// The model for a prompt of so many tokens: of the first bound that holds it, else the last.
    #[must_use]
    pub fn pick(&self, tokens: u32) -> &str {
        match self {
            Self::One(name) => name,
            Self::Tiers(tiers) => tiers
                .iter()
                .find(|(up_to, _)| tokens <= *up_to)
                .or(tiers.last())
                .map_or("", |(_, name)| name),
        }
    }
}

/// What a model answered. The text may be empty.
#[derive(Clone)]
pub struct Reply {
    pub text: String,
    /// As reported; what was not reported is absent.
    pub usage: Usage,
    pub finish: Finish,
    /// The model that answered, by its own word.
    pub model: String,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply")
            .field("text_bytes", &self.text.len())
            .field("usage", &self.usage)
            .field("finish", &self.finish)
            .field("model", &self.model)
            .finish()
    }
}

/// Why an answer ended. A refusal is no ending but [`CallError::Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    /// Cut by a token limit.
    Length,
    /// A reason that is absent or not known.
    Other,
}

/// Whoever answers for a model. [`Llm`] does, by asking it; a test may answer itself.
#[async_trait]
pub trait ModelClient: std::fmt::Debug + Send + Sync {
    /// One question and its whole answer; see [`Llm::call`].
    ///
    /// # Errors
    ///
    /// By class, see [`CallError`].
    async fn call(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, CallError>;
}

#[async_trait]
impl ModelClient for Llm {
    async fn call(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, CallError> {
        Self::call(self, endpoint, settings, prompt).await
    }
}

/// The model client of the process.
#[derive(Debug)]
pub struct Llm {
    client: reqwest::Client,
    /// By (origin, model), what it takes.
    capabilities: Mutex<HashMap<(String, String), CallCapabilities>>,
}

impl Llm {
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("diarist/", env!("CARGO_PKG_VERSION")))
            // A redirect would carry a credential to another host.
            .redirect(reqwest::redirect::Policy::none())
            // The same way to the upstream that the conversation takes.
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .build()?;
        Ok(Self {
            client,
            capabilities: Mutex::default(),
        })
    }

    /// Makes one call and waits for the whole answer, at most until the deadline. Calls again only
    /// without a parameter that the model has refused.
    ///
    /// # Errors
    ///
    /// By class, see [`CallError`].
    pub async fn call(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, CallError> {
        let call = self.call_with_retries(endpoint, settings, prompt);
        match tokio::time::timeout(settings.deadline, call).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Timeout {
                message: format!("no answer within {} s", settings.deadline.as_secs_f32()),
            }),
        }
    }

    async fn call_with_retries(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, CallError> {
        let remembered = self.capabilities(endpoint, &settings.model);
        let mut capabilities = remembered.clone();
        let mut refused = Vec::new();
        loop {
            let answer = self
                .send(endpoint, capabilities.body(settings, prompt))
                .await?;
            if answer.status.is_success() {
                let reply = reply::parse(&answer, settings, &Redaction::new(endpoint, prompt))?;
                // Only what has helped is remembered: the guess may have been wrong.
                let learned = capabilities.confirmed_by(&remembered, &refused);
                if learned != remembered {
                    tracing::info!(
                        origin = %endpoint.origin(),
                        model = %settings.model,
                        "the model takes calls without what it refused: {learned}"
                    );
                    self.remember(endpoint, &settings.model, learned);
                }
                return Ok(reply);
            }
            // Each step leaves something out, so there is a last one.
            let Some(next) =
                capabilities.without_refused(settings, prompt, answer.status, &answer.body)
            else {
                let redaction = Redaction::new(endpoint, prompt);
                return Err(CallError::from_answer(&answer, &redaction));
            };
            capabilities = next;
            refused = answer.body;
        }
    }

    async fn send(&self, endpoint: &Endpoint, body: Value) -> Result<RawResponse, CallError> {
        let url = endpoint.url()?;
        let request = self.client.post(url).headers(endpoint.headers()?);
        let mut response = request.json(&body).send().await?;
        let status = response.status();
        let retry_after = retry_after(response.headers(), jiff::Timestamp::now());
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            if body.len() + piece.len() > MAX_ANSWER {
                return Err(CallError::Fatal {
                    message: format!("the answer is longer than {MAX_ANSWER} bytes"),
                });
            }
            body.extend_from_slice(&piece);
        }
        Ok(RawResponse {
            status,
            retry_after,
            body,
        })
    }

    fn capabilities(&self, endpoint: &Endpoint, model: &str) -> CallCapabilities {
        let by_model = self
            .capabilities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let remembered = by_model.get(&(endpoint.origin(), model.to_owned()));
        remembered.cloned().unwrap_or_default()
    }

    fn remember(&self, endpoint: &Endpoint, model: &str, capabilities: CallCapabilities) {
        let mut by_model = self
            .capabilities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if by_model.len() >= MAX_REMEMBERED {
            // Forgetting costs one refused call per model that is still in use.
            by_model.clear();
        }
        by_model.insert((endpoint.origin(), model.to_owned()), capabilities);
    }
}

/// A whole HTTP answer.
struct RawResponse {
    status: StatusCode,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}
