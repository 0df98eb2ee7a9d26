//! Registers the route of an accepted request, so that jobs of its conversation may borrow it, and pauses those
//! jobs while the client needs its rate limit for itself.
//!
//! A route is the upstream's address with the client's credential; it stays in memory. Called by
//! `chat_completions`.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, Response, StatusCode};

use super::body::ProxyBody;
use super::identify::IdentityRules;
use super::memory::{Memory, MemoryRequest};
use super::shared::Shared;
use crate::history::HashPurpose;
use crate::llm::{UpstreamRoute, retry_after};

/// How long jobs pause if less than half of a rate limit is left. Limits are per minute, and the next answer says
/// how much is left then.
const LOW_LIMIT_PAUSE: Duration = Duration::from_secs(15);

/// The names of the headers of one limit.
struct LimitHeaders {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

/// As OpenAI and compatible upstreams send them.
static RATE_LIMIT_HEADERS: [LimitHeaders; 2] = [
    LimitHeaders {
        limit: HeaderName::from_static("x-ratelimit-limit-requests"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
        reset: HeaderName::from_static("x-ratelimit-reset-requests"),
    },
    LimitHeaders {
        limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
        reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
    },
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
        && let Some(url) = parts
            .uri
            .path_and_query()
            .and_then(|path| shared.upstream.url_for(path))
    {
        let rules = &request.policy.identity;
        let (listed, hasher) = (&rules.credentials, rules.pepper.hasher(&ROUTE));
        let hash = UpstreamRoute::hash_of(&url, &parts.headers, listed, hasher.clone());
        // Nearly always the route is held, and need not be copied.
        if !routes.renew(tenant, hash) {
            let route = UpstreamRoute::new(&url, &parts.headers, listed, hasher);
            routes.register(tenant, Arc::new(route));
        }
        route_hash = Some(hash);
    }
    let headers = response.headers();
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        routes.limited(&tenant, limited_for(headers, jiff::Timestamp::now()));
    } else if is_nearly_used_up(headers) {
        routes.pause(&tenant, LOW_LIMIT_PAUSE);
    }
    route_hash
}

/// What the hash of a route is for. Another name would make every stored one unknown.
static ROUTE: HashPurpose = HashPurpose::new("diarist 2026-11 way");

/// The route of a request to the upstream.
pub(super) fn route_for_request(
    shared: &Shared,
    parts: &Parts,
    rules: &IdentityRules,
) -> Option<UpstreamRoute> {
    let url = shared.upstream.url_for(parts.uri.path_and_query()?)?;
    Some(UpstreamRoute::new(
        &url,
        &parts.headers,
        &rules.credentials,
        rules.pepper.hasher(&ROUTE),
    ))
}

/// How long a refused client has to wait, if the headers say so: `retry-after`, or the reset of a limit that is
/// used up.
fn limited_for(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let resets = RATE_LIMIT_HEADERS.iter().filter_map(|names| {
        let used_up = number(headers, &names.remaining) == Some(0);
        let reset = headers.get(&names.reset)?.to_str().ok()?;
        parse_reset(reset).filter(|_| used_up)
    });
    retry_after(headers, now).or_else(|| resets.max())
}

fn is_nearly_used_up(headers: &HeaderMap) -> bool {
    RATE_LIMIT_HEADERS.iter().any(|names| {
        let all = number(headers, &names.limit);
        let left = number(headers, &names.remaining);
        matches!((all, left), (Some(all), Some(left)) if left < all / 2)
    })
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// `6m0s`, `1.5s`, `20ms`; a bare number means seconds.
fn parse_reset(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (0.0, text.trim());
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (amount, after) = rest.split_at(end.unwrap_or(rest.len()));
        let unit_end = after.find(|c: char| c.is_ascii_digit());
        let (unit, next) = after.split_at(unit_end.unwrap_or(after.len()));
        let seconds = match unit {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        total += amount.parse::<f64>().ok()? * seconds;
        rest = next;
    }
    Duration::try_from_secs_f64(total).ok()
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
    fn less_than_half_of_a_rate_limit_counts_as_nearly_used_up() {
        assert!(!is_nearly_used_up(&headers(&[])));
        let left = |left: &'static str| {
            headers(&[
                ("x-ratelimit-limit-tokens", "100"),
                ("x-ratelimit-remaining-tokens", left),
            ])
        };
        assert!(!is_nearly_used_up(&left("50")));
        assert!(is_nearly_used_up(&left("49")));
    }

    #[test]
    fn the_wait_after_a_rate_limit_is_read_from_its_headers() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let limited = |pairs: &[(&'static str, &'static str)]| limited_for(&headers(pairs), now);
        assert_eq!(limited(&[]), None);
        assert_eq!(
            limited(&[("retry-after", "7")]),
            Some(Duration::from_secs(7))
        );
        let reset = |left: &'static str| {
            [
                ("x-ratelimit-remaining-requests", left),
                ("x-ratelimit-reset-requests", "6m0.5s"),
            ]
        };
        assert_eq!(limited(&reset("0")), Some(Duration::from_millis(360_500)));
        assert_eq!(limited(&reset("3")), None, "another limit was reached");
        for (text, milliseconds) in [("20ms", Some(20)), ("3", Some(3_000)), ("soon", None)] {
            let expected = milliseconds.map(Duration::from_millis);
            assert_eq!(parse_reset(text), expected, "{text}");
        }
    }
}
