//! Turns every error into the HTTP response that the client gets, and logs it once.
//!
//! The response has the form that OpenAI's clients parse. It says what the client can do; addresses, causes and
//! other details go to the log only.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::abort::Abort;
use super::body::{self, IdleTimeout, ProxyBody};
use super::error::{ProxyError, Side};
use super::headers;
use crate::telemetry;
use crate::upstream::SendError;

/// In seconds. Overload passes quickly or not at all; clients add their own backoff.
const RETRY_AFTER_OVERLOAD: HeaderValue = HeaderValue::from_static("1");

/// What the client gets.
struct ClientError {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    message: String,
}

/// The id of a chat completion: of its audit line, and of its lines in the log.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-diarist-request-id");

/// The response for an error. Logs and counts it. A chat completion has a `request_id`.
pub fn error(error: &ProxyError, request_id: Option<&str>) -> Response<ProxyBody> {
    let client_error = describe(error);
    record(error, &client_error, request_id);
    let mut response = Response::new(body::full(render(&client_error)));
    *response.status_mut() = client_error.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if matches!(
        client_error.status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) {
        headers.insert(RETRY_AFTER, RETRY_AFTER_OVERLOAD);
    }
    response
}

/// What is wrong with a head that hyper answers with `status`. `None` if it is no status of a head.
pub fn unreadable_head(status: StatusCode, max_head_bytes: usize) -> Option<ProxyError> {
    let limit = max_head_bytes;
    match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Some(ProxyError::HeadTooLarge { limit }),
        StatusCode::URI_TOO_LONG => Some(ProxyError::TargetTooLong),
        StatusCode::BAD_REQUEST => Some(ProxyError::HeadMalformed),
        _ => None,
    }
}

/// The whole answer, head and body, to a request whose head could not be read, and the bytes of its body. The connection
/// ends with it.
pub fn bad_request(error: &ProxyError) -> (Bytes, usize) {
    let client_error = describe(error);
    record(error, &client_error, None);
    let (status, body) = (client_error.status, render(&client_error));
    let mut answer = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    (answer.into(), body.len())
}

/// The upstream's response as the client gets it, frame by frame. The body fails after a pause of
/// `response_idle`.
pub(super) fn stream_back(
    response: Response<Incoming>,
    response_idle: Duration,
    abort: Abort,
) -> Response<ProxyBody> {
    let (mut parts, body) = response.into_parts();
    parts.version = Version::HTTP_11;
    parts.headers = headers::towards_client(parts.headers);
    let body = IdleTimeout::new(body, response_idle);
    Response::from_parts(parts, abort.guard(body).boxed_unsync())
}

/// The status that [`error`] answers with.
pub(super) fn status(error: &ProxyError) -> StatusCode {
    describe(error).status
}

/// The code in the answer of [`error`].
pub(super) fn code(error: &ProxyError) -> &'static str {
    describe(error).code
}

fn describe(error: &ProxyError) -> ClientError {
    use StatusCode as S;
    let (status, code, message) = match error {
        ProxyError::Connect => (
            S::METHOD_NOT_ALLOWED,
            "method_not_supported",
            "Diarist does not proxy CONNECT requests.".to_owned(),
        ),
        ProxyError::ForeignHost(_) => (
            S::MISDIRECTED_REQUEST,
            "unknown_host",
            "Diarist listens for programs on this machine only, and this request names another host. Use \
             localhost or 127.0.0.1 in the address, or add the name to server.hosts."
                .to_owned(),
        ),
        ProxyError::Target(_) => (
            S::BAD_REQUEST,
            "invalid_target",
            "The address of this request cannot be forwarded.".to_owned(),
        ),
        ProxyError::HeadTooLarge { limit } => (
            S::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "request_head_too_large",
            format!(
                "The head of this request, its address and headers, is larger than {limit} bytes or has more \
                 than 100 headers. Send fewer or shorter ones."
            ),
        ),
        ProxyError::TargetTooLong => (
            S::URI_TOO_LONG,
            "target_too_long",
            "The address of this request is too long. Send its parameters in the body.".to_owned(),
        ),
        ProxyError::HeadMalformed => (
            S::BAD_REQUEST,
            "malformed_request",
            "This is not a valid HTTP request. Check its first line, the names and values of its headers, \
             and the headers about the length of its body."
                .to_owned(),
        ),
        ProxyError::TransferCoding => (
            S::NOT_IMPLEMENTED,
            "transfer_coding_not_supported",
            "The body of this request has a transfer coding other than chunked. Send it without one; a compressed \
             body is named in content-encoding."
                .to_owned(),
        ),
        ProxyError::BodyTooLarge { limit } => (
            S::PAYLOAD_TOO_LARGE,
            "request_too_large",
            format!(
                "The request body is larger than {limit} bytes, the limit set by server.max_body_bytes."
            ),
        ),
        ProxyError::BodyWithoutRoom => (
            S::SERVICE_UNAVAILABLE,
            "too_many_bytes",
            "Diarist is already carrying as many request bodies as server.max_buffered_bytes allows. Try again \
             shortly."
                .to_owned(),
        ),
        ProxyError::BodyStalled => (
            S::REQUEST_TIMEOUT,
            "request_timeout",
            "The request body did not arrive in time.".to_owned(),
        ),
        ProxyError::BodyBroken(_) => (
            S::BAD_REQUEST,
            "request_incomplete",
            "The request body ended before it was complete.".to_owned(),
        ),
        ProxyError::TooManyRequests(limit) => (
            S::TOO_MANY_REQUESTS,
            "too_many_requests",
            format!("Diarist is already carrying {limit} requests. Try again shortly."),
        ),
        ProxyError::TooManyUploads(limit) => (
            S::TOO_MANY_REQUESTS,
            "too_many_uploads",
            format!(
                "Diarist is already receiving {limit} request bodies, half of server.max_requests. Try again shortly."
            ),
        ),
        ProxyError::TooManyOfConnection(held) => (
            S::TOO_MANY_REQUESTS,
            "too_many_requests",
            format!("This connection already has {held} requests in progress. Try again shortly."),
        ),
        ProxyError::TooManyOfAddress(limit) => (
            S::TOO_MANY_REQUESTS,
            "too_many_requests_from_address",
            format!(
                "{limit} requests of your address are already in progress, the limit set by \
                 server.max_requests_per_address. Try again shortly."
            ),
        ),
        ProxyError::TooManyConnections(limit) => (
            S::SERVICE_UNAVAILABLE,
            "too_many_connections",
            format!("Diarist already has {limit} open connections. Try again shortly."),
        ),
        ProxyError::UnrequestedUpgrade { .. } => (
            S::BAD_GATEWAY,
            "upstream_invalid_response",
            "The upstream switched protocols without being asked.".to_owned(),
        ),
        ProxyError::Upstream { source, .. } => describe_upstream(source),
    };
    let kind = match error.side() {
        Side::Downstream => "invalid_request_error",
        Side::Upstream => "upstream_error",
        Side::Internal => "overloaded_error",
    };
    ClientError {
        status,
        kind,
        code,
        message,
    }
}

fn describe_upstream(error: &SendError) -> (StatusCode, &'static str, String) {
    use StatusCode as S;
    match error {
        SendError::Connect(_) => (
            S::BAD_GATEWAY,
            "upstream_unreachable",
            "Diarist could not connect to the upstream.".to_owned(),
        ),
        SendError::ConnectTimeout(_) => (
            S::GATEWAY_TIMEOUT,
            "upstream_connect_timeout",
            "Connecting to the upstream took too long.".to_owned(),
        ),
        SendError::HeadTimeout(after) => (
            S::GATEWAY_TIMEOUT,
            "upstream_timeout",
            format!(
                "The upstream did not begin to answer within {} s.",
                after.as_secs_f32()
            ),
        ),
        SendError::Body(_) | SendError::Broken(_) | SendError::Lost => (
            S::BAD_GATEWAY,
            "upstream_disconnected",
            "The upstream closed the connection without a valid answer.".to_owned(),
        ),
    }
}

fn render(client_error: &ClientError) -> Bytes {
    let body = serde_json::json!({"error": {
        "message": client_error.message,
        "type": client_error.kind,
        "param": null,
        "code": client_error.code,
    }});
    Bytes::from(body.to_string())
}

/// Every code with its side.
const CODES: [(Side, &str); 20] = [
    (Side::Downstream, "method_not_supported"),
    (Side::Downstream, "unknown_host"),
    (Side::Downstream, "invalid_target"),
    (Side::Downstream, "request_head_too_large"),
    (Side::Downstream, "target_too_long"),
    (Side::Downstream, "malformed_request"),
    (Side::Downstream, "transfer_coding_not_supported"),
    (Side::Downstream, "request_too_large"),
    (Side::Downstream, "request_timeout"),
    (Side::Downstream, "request_incomplete"),
    (Side::Internal, "too_many_bytes"),
    (Side::Internal, "too_many_requests"),
    (Side::Internal, "too_many_uploads"),
    (Side::Internal, "too_many_requests_from_address"),
    (Side::Internal, "too_many_connections"),
    (Side::Upstream, "upstream_invalid_response"),
    (Side::Upstream, "upstream_unreachable"),
    (Side::Upstream, "upstream_connect_timeout"),
    (Side::Upstream, "upstream_timeout"),
    (Side::Upstream, "upstream_disconnected"),
];

/// Lets every series exist before its first event.
pub(super) fn register_metrics() {
    for (side, code) in CODES {
        count(side, code, 0);
    }
}

fn count(side: Side, code: &'static str, times: u64) {
    metrics::counter!(telemetry::ERRORS, "side" => side.label(), "code" => code).increment(times);
}

fn record(error: &ProxyError, client_error: &ClientError, request_id: Option<&str>) {
    let (side, code) = (error.side().label(), client_error.code);
    count(error.side(), code, 1);
    let status = client_error.status.as_u16();
    let detail = with_causes(error);
    if error.side() == Side::Downstream {
        tracing::debug!(
            request_id,
            status,
            code,
            side,
            "Diarist answered {status}: {detail}"
        );
    } else {
        tracing::warn!(
            request_id,
            status,
            code,
            side,
            "Diarist answered {status}: {detail}"
        );
    }
}

/// The error and its causes in one line. The causes are about connections and framing; none quotes a header
/// or a body.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(line, ": {error}");
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn response_to(error: ProxyError) -> (u16, Option<String>, serde_json::Value) {
        let response = super::error(&error, None);
        let status = response.status().as_u16();
        let retry = response
            .headers()
            .get(RETRY_AFTER)
            .map(|v| v.to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, retry, serde_json::from_slice(&body).unwrap())
    }

    /// The table of codes is for the metrics: an answer with another code would have a series late.
    #[test]
    fn every_error_code_has_a_metric_series() {
        let source = include_str!("respond.rs");
        let (_, rest) = source.split_once("\nfn describe(").expect("describe");
        let (arms, _) = rest.split_once("\nfn render(").expect("render");
        let codes: std::collections::BTreeSet<&str> = arms
            .lines()
            .filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","))
            .filter(|code| code.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            .collect();
        assert_eq!(codes, CODES.map(|(_, code)| code).into());
    }

    #[tokio::test]
    async fn error_answers_of_diarist_have_the_form_that_clients_parse() {
        let refused = || Box::new(std::io::Error::other("10.0.0.7 refused"));
        let upstream = |source| ProxyError::Upstream {
            url: "http://10.0.0.7/v1".to_owned(),
            source,
        };
        for (error, status, kind, code) in [
            (
                ProxyError::BodyTooLarge { limit: 7 },
                413,
                "invalid_request_error",
                "request_too_large",
            ),
            (
                ProxyError::TooManyRequests(4),
                429,
                "overloaded_error",
                "too_many_requests",
            ),
            (
                ProxyError::TooManyConnections(4),
                503,
                "overloaded_error",
                "too_many_connections",
            ),
            (
                upstream(SendError::Connect(refused())),
                502,
                "upstream_error",
                "upstream_unreachable",
            ),
            (
                upstream(SendError::Broken(refused())),
                502,
                "upstream_error",
                "upstream_disconnected",
            ),
            (
                upstream(SendError::HeadTimeout(Duration::from_secs(1))),
                504,
                "upstream_error",
                "upstream_timeout",
            ),
        ] {
            let (got, retry, body) = response_to(error).await;
            assert_eq!(got, status);
            assert_eq!(retry.is_some(), matches!(status, 429 | 503));
            let error = &body["error"];
            assert_eq!(
                (error["type"].as_str(), error["code"].as_str()),
                (Some(kind), Some(code))
            );
            assert!(error["param"].is_null() && error["message"].is_string());
            assert!(
                !body.to_string().contains("10.0.0.7"),
                "internal detail reached the client"
            );
        }
    }
}
