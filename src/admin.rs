//! Answers requests on the admin port: health, readiness and metrics. These are never on the data port.
//!
//! - `/healthz`: the process runs. Restart it only if this fails.
//! - `/readyz`: 200 if requests should be sent here, otherwise 503, with the reasons as JSON. A broken store is reported,
//!   but the proxy stays ready: requests pass without memory. If a full disk took every replica out of rotation, lost
//!   memory would become lost service. A drain makes the proxy unready.
//! - `/metrics`: Prometheus text.
//!
//! Decides nothing itself; other rooms report their condition through [`Readiness`]. Called by `server`.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;

pub use crate::tasks::{Condition, Readiness};
use crate::telemetry;

/// The pages of the admin port.
#[derive(Debug)]
pub struct Admin {
    readiness: Readiness,
    metrics: PrometheusHandle,
}

impl Admin {
    #[must_use]
    pub fn new(readiness: Readiness, metrics: PrometheusHandle) -> Self {
        Self { readiness, metrics }
    }

    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Merges metric samples regularly; never returns.
    pub fn upkeep(&self) -> impl Future<Output = ()> + Send + use<> {
        telemetry::run_upkeep(self.metrics.clone())
    }

    /// Answers one request of the admin port.
    pub fn handle<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let page = match request.uri().path() {
            "/healthz" => Page::json(StatusCode::OK, r#"{"status":"ok"}"#.to_owned()),
            "/readyz" => {
                let (ready, report) = self.readiness.report();
                let status = if ready {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                Page::json(status, report)
            }
            "/metrics" => Page {
                status: StatusCode::OK,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                body: self.metrics.render(),
            },
            _ => Page::json(
                StatusCode::NOT_FOUND,
                r#"{"error":"no such page"}"#.to_owned(),
            ),
        };
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return page.into_response();
        }
        let refusal = Page::json(
            StatusCode::METHOD_NOT_ALLOWED,
            r#"{"error":"this page can only be read"}"#.to_owned(),
        );
        let mut response = refusal.into_response();
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    }
}

struct Page {
    status: StatusCode,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn json(status: StatusCode, body: String) -> Self {
        Self {
            status,
            content_type: "application/json",
            body,
        }
    }

    fn into_response(self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body));
        *response.status_mut() = self.status;
        let content_type = HeaderValue::from_static(self.content_type);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }
}
