//! A proxy in front of the upstream: forwards chat requests and records the usage that the upstream reports.
//!
//! Each caller has its own path prefix, which says who it is. Only this proxy has the real key; the client and the
//! Diarist of a replay know [`KEY`]. Answers are forwarded whole, since a replay does not stream.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::cli::replay_client::{ModelCall, observation_block};
use crate::report::Tokens;
use crate::tasks::Tasks;
use crate::wire::usage::UsageReports;
use diarist_provider::CallerKind;

/// The key that the client and Diarist send to this proxy.
pub(super) const KEY: &str = "replay";

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// From the client through Diarist.
    Proxied,
    /// From the client.
    Direct,
    /// From the Observer.
    Observer,
    /// From the Reflector.
    Reflector,
}

const CALL_KINDS: [(CallKind, &str); 4] = [
    (CallKind::Proxied, "carried"),
    (CallKind::Direct, "direct"),
    (CallKind::Observer, "observer"),
    (CallKind::Reflector, "reflector"),
];

/// The running listener. Dropping it closes it.
pub(super) struct RecorderProxy {
    origin: String,
    state: Arc<ProxyState>,
    closing: CancellationToken,
}

struct ProxyState {
    http: reqwest::Client,
    target: Url,
    key: Option<SecretString>,
    calls: Mutex<Vec<ModelCall>>,
}

impl RecorderProxy {
    /// Starts one in front of the upstream at `base_url`.
    ///
    /// # Errors
    ///
    /// No port, or no HTTP client.
    pub(super) async fn start(base_url: &Url, key: Option<SecretString>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("no port")?;
        let origin = format!("http://{}", listener.local_addr().context("no address")?);
        let target = format!(
            "{}/chat/completions",
            base_url.as_str().trim_end_matches('/')
        );
        let state = Arc::new(ProxyState {
            http: reqwest::Client::builder()
                .build()
                .context("the HTTP client cannot be set up")?,
            target: Url::parse(&target).context("the upstream's URL cannot be used")?,
            key,
            calls: Mutex::default(),
        });
        let closing = CancellationToken::new();
        let accepting = accept(listener, Arc::clone(&state), closing.clone());
        Tasks::new().spawn("replay tap", accepting);
        Ok(Self {
            origin,
            state,
            closing,
        })
    }

    /// The base URL for requests of one caller.
    pub(super) fn base_url(&self, kind: CallKind) -> String {
        let name = CALL_KINDS
            .iter()
            .find(|(other, _)| *other == kind)
            .map_or("", |(_, name)| name);
        format!("{}/{name}", self.origin)
    }

    /// The accepted requests since the last call.
    pub(super) fn take_calls(&self) -> Vec<ModelCall> {
        std::mem::take(
            &mut *self
                .state
                .calls
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

impl Drop for RecorderProxy {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>, closing: CancellationToken) {
    let tasks = Tasks::new();
    while let Some(accepted) = closing.run_until_cancelled(listener.accept()).await {
        // A failed accept is a temporary shortage, and the caller gets the error.
        let Ok((stream, _)) = accepted else { continue };
        let (shared, closing) = (Arc::clone(&shared), closing.clone());
        tasks.spawn("replay tap connection", async move {
            closing.run_until_cancelled(serve(stream, shared)).await;
        });
    }
}

async fn serve(stream: TcpStream, shared: Arc<ProxyState>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.handle(request).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new());
    // The caller sees how its connection ends.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

impl ProxyState {
    async fn handle(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let first = request.uri().path().split('/').nth(1).unwrap_or_default();
        let kind = CALL_KINDS
            .iter()
            .find(|(_, name)| *name == first)
            .map(|(kind, _)| *kind);
        let (Some(kind), true) = (kind, request.uri().path().ends_with("/chat/completions")) else {
            return failure(
                StatusCode::NOT_FOUND,
                "a replay sends chat completions only",
            );
        };
        let body = match request.into_body().collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return failure(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        match self.forward(body.clone()).await {
            Ok(response) => {
                if response.status().is_success() {
                    self.record_call(kind, &body, response.body());
                }
                response.map(Full::new)
            }
            Err(error) => {
                let error = anyhow::Error::from(error.without_url());
                failure(
                    StatusCode::BAD_GATEWAY,
                    &format!("the upstream cannot be reached: {error:#}"),
                )
            }
        }
    }

    async fn forward(&self, body: Bytes) -> reqwest::Result<Response<Bytes>> {
        let mut request = self
            .http
            .post(self.target.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.expose_secret());
        }
        let answer = request.send().await?;
        let mut response = Response::new(());
        *response.status_mut() = answer.status();
        for name in [CONTENT_TYPE, RETRY_AFTER] {
            if let Some(value) = answer.headers().get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        let body = answer.bytes().await?;
        Ok(response.map(|()| body))
    }

    fn record_call(&self, kind: CallKind, body: &[u8], answer: &[u8]) {
        let part = match kind {
            CallKind::Proxied | CallKind::Direct => CallerKind::Actor,
            CallKind::Observer => CallerKind::Observer,
            CallKind::Reflector => CallerKind::Reflector,
        };
        let answer: Option<Value> = serde_json::from_slice(answer).ok();
        let usage = answer
            .as_ref()
            .and_then(|answer| UsageReports::in_answer(answer).read().0)
            .unwrap_or_default();
        let body: Option<Value> = (kind == CallKind::Proxied)
            .then(|| serde_json::from_slice(body).ok())
            .flatten();
        let call = ModelCall {
            part,
            tokens: Tokens {
                prompt: usage.prompt,
                cached: usage.cached,
                completion: usage.completion,
            },
            block: body.as_ref().and_then(observation_block),
        };
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(call);
    }
}

/// An error answer of this proxy, in the form of the API.
fn failure(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let body =
        json!({"error": {"message": message, "type": "replay", "param": null, "code": null}});
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
