//! Sends exports to the collector: with the HTTP client and the TLS of the rest of the process.
//!
//! The SDK calls it from threads of its own, which no request waits for. A failure is counted, and logged at most once a
//! minute. The error never quotes a header or a body.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::tasks::{Losses, Outlasting, Tasks};

/// How long one export may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The answer of a collector is some bytes long. More of it is not read.
const MAX_ANSWER: usize = 64 * 1024;

/// The way to the collector.
#[derive(Debug)]
pub(super) struct CollectorClient {
    client: reqwest::Client,
    /// Where the request runs: the SDK's threads belong to no runtime.
    runtime: Handle,
    last: Outlasting,
    losses: Losses,
}

impl CollectorClient {
    pub(super) fn new(tasks: &Tasks, losses: &Losses) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // A credential goes to the configured address only.
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self {
            client,
            runtime: tasks.background().unwrap_or_else(Handle::current),
            last: tasks.outlasting().clone(),
            losses: losses.clone(),
        })
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (sender, answer) = oneshot::channel();
        let client = self.client.clone();
        {
            let _entered = self.runtime.enter();
            self.last.spawn("otlp export", async move {
                // The SDK may have given up.
                let _ = sender.send(send(&client, request).await);
            });
        }
        let answer = answer
            .await
            .unwrap_or_else(|_| Err("the process stops".to_owned()));
        let problem = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status().as_u16())),
            Err(error) => Some(error.clone()),
        };
        match problem {
            None => self.losses.recovered(),
            Some(problem) => self.losses.lost(&format!(
                "spans and metrics cannot be sent to the collector, and are lost: {problem}"
            )),
        }
        answer.map_err(Into::into)
    }
}

async fn send(
    client: &reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, String> {
    let request = reqwest::Request::try_from(request).map_err(|error| describe(&error))?;
    let mut answer = client
        .execute(request)
        .await
        .map_err(|error| describe(&error))?;
    let mut body = Vec::new();
    while body.len() < MAX_ANSWER
        && let Some(bytes) = answer.chunk().await.map_err(|error| describe(&error))?
    {
        body.extend_from_slice(&bytes);
    }
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    Ok(response)
}

/// The error and its causes, without the address: it may hold a credential.
fn describe(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "no answer in time".to_owned()
    } else if error.is_connect() {
        "no connection".to_owned()
    } else {
        "the connection broke".to_owned()
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
