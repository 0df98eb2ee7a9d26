//! The client of the process: one call, its deadline, and its repetitions without refused
//! parameters.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::backoff::retry_after;
use super::call::CallSettings;
use super::capabilities::CallCapabilities;
use super::endpoint::Endpoint;
use super::error::{CallError, FailedCall, Redaction};
use super::reply::{self, RawResponse, Reply};
use crate::memory::prompt::Prompt;

/// The most time for a connection. An unreachable upstream should not use up the deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Below the keep-alive of common upstreams, so that we close first.
const POOL_IDLE: Duration = Duration::from_secs(30);
/// Answers of about 40,000 tokens have 200 KB. Anything longer is no observation.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// The most models whose refusals are remembered. Clients choose the names, so there must be a
/// bound.
const MAX_REMEMBERED: usize = 1024;

/// Calls a model. [`Llm`] does it over HTTP; tests have their own.
#[async_trait]
pub trait ModelClient: std::fmt::Debug + Send + Sync {
    /// One call and its whole answer; see [`Llm::call`].
    ///
    /// # Errors
    ///
    /// By class, see [`CallError`].
    async fn call(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall>;
}

#[async_trait]
impl ModelClient for Llm {
    async fn call(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        Self::call(self, endpoint, settings, prompt).await
    }
}

/// The HTTP client for model calls.
#[derive(Debug)]
pub struct Llm {
    /// For `http` alone: it trusts no certificate.
    plain: reqwest::Client,
    /// For `https`. To read what the platform trusts takes a while, and a machine whose models are all on `http` may have
    /// no certificates.
    tls: OnceLock<reqwest::Client>,
    /// By (origin, model), what it accepts.
    capabilities: Mutex<HashMap<(String, String), CallCapabilities>>,
}

impl Llm {
    /// A client that reads the platform's root certificates when it first calls over TLS.
    ///
    /// # Errors
    ///
    /// If the HTTP client cannot be built.
    pub fn new() -> Result<Self, reqwest::Error> {
        Ok(Self {
            plain: builder().tls_certs_only([]).build()?,
            tls: OnceLock::new(),
            capabilities: Mutex::default(),
        })
    }

    /// Reads the platform's root certificates now, so that what is wrong with them shows at the start.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or there are none.
    pub fn prepare_tls(&self) -> Result<(), reqwest::Error> {
        self.tls().map(drop)
    }

    fn tls(&self) -> Result<&reqwest::Client, reqwest::Error> {
        if let Some(client) = self.tls.get() {
            return Ok(client);
        }
        let client = builder().build()?;
        Ok(self.tls.get_or_init(|| client))
    }

    /// Makes one call and waits for the whole answer, at most until the deadline. Repeats it only
    /// without a parameter that the model refused.
    ///
    /// # Errors
    ///
    /// By class, see [`CallError`].
    pub async fn call(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        let call = self.call_with_retries(endpoint, settings, prompt);
        match tokio::time::timeout(settings.deadline, call).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Timeout {
                message: format!("no answer within {} s", settings.deadline.as_secs_f32()),
            }
            .into()),
        }
    }

    async fn call_with_retries(
        &self,
        endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        let remembered = self.capabilities(endpoint, &settings.model);
        let mut capabilities = remembered.clone();
        let mut refused = Vec::new();
        loop {
            let answer = self
                .send(endpoint, capabilities.body(settings, prompt))
                .await?;
            if answer.status.is_success() {
                let reply = reply::parse(
                    &answer,
                    settings,
                    &Redaction::new(endpoint.secrets(), prompt),
                )?;
                // A lesson is kept only if it helped: the guess may have been wrong.
                let learned = capabilities.confirmed_by(&remembered, &refused);
                if learned != remembered {
                    tracing::info!(
                        origin = %endpoint.origin(),
                        model = %settings.model,
                        "the model accepts calls without: {learned}"
                    );
                    self.remember(endpoint, &settings.model, learned);
                }
                return Ok(reply);
            }
            // Each step leaves something out, so the loop ends.
            let Some(next) =
                capabilities.without_refused(settings, prompt, answer.status, &answer.body)
            else {
                let redaction = Redaction::new(endpoint.secrets(), prompt);
                return Err(answer.error(&redaction));
            };
            capabilities = next;
            refused = answer.body;
        }
    }

    async fn send(&self, endpoint: &Endpoint, body: Value) -> Result<RawResponse, CallError> {
        let url = endpoint.url()?;
        let client = match url.scheme() {
            "http" => &self.plain,
            _ => self.tls()?,
        };
        let request = client.post(url).headers(endpoint.headers()?);
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
            // Forgetting costs one refused call for each model in use.
            by_model.clear();
        }
        by_model.insert((endpoint.origin(), model.to_owned()), capabilities);
    }
}

/// What both clients have in common.
fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("diarist/", env!("CARGO_PKG_VERSION")))
        // A redirect would carry a credential to another host.
        .redirect(reqwest::redirect::Policy::none())
        // The same path to the upstream that the conversation takes.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
}
