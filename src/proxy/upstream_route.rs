//! Registers the route of an accepted request, so that jobs of its conversation may borrow it, and pauses those
//! jobs while the client needs its rate limit for itself.
//!
//! A route is the upstream's address with the client's credential; it stays in memory. Called by
//! `chat_completions`.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use super::body::ProxyBody;
use super::memory::{Memory, MemoryRequest};
use super::shared::Shared;
use crate::llm::UpstreamRoute;

/// How long jobs pause after a 429 without `retry-after`.
const DEFAULT_429_PAUSE: Duration = Duration::from_secs(30);

/// How long jobs pause if less than half of a rate limit is left. Limits are per minute, and the next answer says
/// how much is left then.
const LOW_LIMIT_PAUSE: Duration = Duration::from_secs(15);

/// Headers with `(limit, remaining)`, as OpenAI and compatible upstreams send them.
const RATE_LIMIT_HEADERS: [(&str, &str); 2] = [
    (
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
    ),
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"),
];

/// Reads the head of the answer. Registers the route if the request was accepted, and returns its hash; pauses jobs
/// if the rate limit requires it.
pub(super) fn register_route(
    memory: &Memory,
    parts: &Parts,
    request: Option<&MemoryRequest>,
    shared: &Shared,
    response: &Response<ProxyBody>,
) -> Option<[u8; 32]> {
    let request = request.filter(|_| memory.jobs.borrows_credentials())?;
    let tenant = request.identity.scope.tenant;
    let routes = memory.jobs.routes();
    let mut route_hash = None;
    if response.status().is_success()
        && let Some(route) = route_for_request(shared, parts)
    {
        route_hash = Some(route.hash());
        routes.register(tenant, Arc::new(route));
    }
    if let Some(pause) = pause(response.status(), response.headers()) {
        routes.pause(&tenant, pause);
    }
    route_hash
}

/// The route of a request to the upstream.
pub(super) fn route_for_request(shared: &Shared, parts: &Parts) -> Option<UpstreamRoute> {
    let uri = shared.upstream.uri_for(parts.uri.path_and_query()?).ok()?;
    let url = url::Url::parse(&uri.to_string()).ok()?;
    Some(UpstreamRoute::new(&url, &parts.headers))
}

fn pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    if status == StatusCode::TOO_MANY_REQUESTS {
        return Some(number("retry-after").map_or(DEFAULT_429_PAUSE, Duration::from_secs));
    }
    let low = RATE_LIMIT_HEADERS.iter().any(|(limit, remaining)| {
        matches!((number(limit), number(remaining)), (Some(all), Some(left)) if left < all / 2)
    });
    low.then_some(LOW_LIMIT_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    http::HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn jobs_rest_when_the_client_needs_its_limit() {
        let ok = StatusCode::OK;
        assert_eq!(pause(ok, &headers(&[])), None);
        let half = [
            ("x-ratelimit-limit-tokens", "100"),
            ("x-ratelimit-remaining-tokens", "50"),
        ];
        assert_eq!(pause(ok, &headers(&half)), None);
        let less = [
            ("x-ratelimit-limit-tokens", "100"),
            ("x-ratelimit-remaining-tokens", "49"),
        ];
        assert_eq!(pause(ok, &headers(&less)), Some(LOW_LIMIT_PAUSE));
        let too_many = StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(pause(too_many, &headers(&[])), Some(DEFAULT_429_PAUSE));
        let seven = headers(&[("retry-after", "7")]);
        assert_eq!(pause(too_many, &seven), Some(Duration::from_secs(7)));
    }
}
