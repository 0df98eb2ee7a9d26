//! Answers requests on the admin port: health, readiness and metrics. These are never on the data port.
//!
//! - `/healthz`: the process runs. Restart it only if this fails.
//! - `/readyz`: 200 if requests should be sent here, otherwise 503, with the reasons as JSON. A broken store is reported,
//!   but the proxy stays ready: requests pass without memory. If a full disk took every replica out of rotation, lost
//!   memory would become lost service. A drain makes the proxy unready.
//! - `/metrics`: Prometheus text.
//!
//! Beyond loopback, and where a token is configured, only who sends the token reads details: `/metrics`, and the
//! reasons in `/readyz`. Orchestrators and load balancers need no more than the status.
//!
//! Decides nothing itself; other modules report their condition through [`Readiness`]. Called by `server`.

mod token;

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;

pub use self::token::AdminToken;
pub use crate::tasks::{Condition, Readiness};
use crate::telemetry;

/// The pages of the admin port.
#[derive(Debug)]
pub struct Admin {
    readiness: Readiness,
    metrics: PrometheusHandle,
    access: Access,
}

/// Who may read details.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everybody who reaches the port: programs on this machine.
    Open,
    /// Who sends the token.
    Token(AdminToken),
    /// Nobody: others reach the port, and there is no token.
    Closed,
}

impl Access {
    /// What is right for a port at `listen`.
    pub fn new(listen: SocketAddr, token: Option<&str>) -> Self {
        match token {
            Some(token) => Self::Token(AdminToken::new(token)),
            None if listen.ip().is_loopback() => Self::Open,
            None => Self::Closed,
        }
    }
}

impl Admin {
    #[must_use]
    pub fn new(readiness: Readiness, metrics: PrometheusHandle, access: Access) -> Self {
        Self {
            readiness,
            metrics,
            access,
        }
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
                if self.refusal(request.headers()).is_some() {
                    Page::json(status, self.readiness.short_report())
                } else {
                    Page::json(status, report)
                }
            }
            "/metrics" if let Some(refusal) = self.refusal(request.headers()) => refusal,
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

impl Admin {
    /// The page for somebody who may not read details.
    fn refusal(&self, headers: &HeaderMap) -> Option<Page> {
        let (status, error) = match &self.access {
            Access::Open => return None,
            Access::Token(token) if token.opens(headers) => return None,
            Access::Token(_) => (
                StatusCode::UNAUTHORIZED,
                "send server.admin_token as Authorization: Bearer",
            ),
            Access::Closed => (
                StatusCode::FORBIDDEN,
                "beyond loopback this page needs server.admin_token",
            ),
        };
        Some(Page::json(status, format!(r#"{{"error":"{error}"}}"#)))
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
