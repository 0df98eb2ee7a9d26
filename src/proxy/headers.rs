//! Decides which headers pass the proxy. Pure.
//!
//! Hop-by-hop headers end here in both directions (RFC 9110 §7.6.1), including those that a `Connection` header
//! names. Diarist's own control headers never reach the upstream. All others pass in their order and number.
//! Called by `flow`, `forward`, `respond`, `upgrade` and `chat_completions`.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Prefix of Diarist's own control headers.
pub const CONTROL_PREFIX: &str = "x-diarist-";

/// Headers that end at every hop. `Trailer` is not one of them since RFC 9110, and hyper sends only the trailers
/// it announces.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers that stay even if a `Connection` header names them. Without the first ones a request would lose its
/// credential or framing; without the others its trace. (This is a known way around access rules.)
const PROTECTED: [HeaderName; 12] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::SET_COOKIE,
    header::HOST,
    header::ACCEPT,
    header::CACHE_CONTROL,
    header::FORWARDED,
    header::VIA,
    header::EXPECT,
    header::TRAILER,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-api-key"),
];

/// Like [`PROTECTED`], by the beginning of the name.
const PROTECTED_PREFIXES: [&str; 5] = [
    "content-",
    "x-forwarded-",
    "openai-",
    "anthropic-",
    "x-goog-",
];

/// The headers of a request as the upstream gets them. `Host` is left out: the client library
/// writes the upstream's authority.
#[must_use]
pub fn towards_upstream(received: HeaderMap) -> HeaderMap {
    let trailers = lists(&received, &header::TE, "trailers");
    let mut forwarded =
        without_hop_by_hop(received, |name| *name == header::HOST || is_control(name));
    if trailers {
        forwarded.insert(header::TE, HeaderValue::from_static("trailers"));
        forwarded.insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
    join_cookies(&mut forwarded);
    forwarded
}

/// The headers of a response as the client gets them.
#[must_use]
pub fn towards_client(received: HeaderMap) -> HeaderMap {
    without_hop_by_hop(received, |_| false)
}

/// Whether a comma-separated header lists a token. Parameters (`;q=`) are ignored.
#[must_use]
pub fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|item| item.split(';').next().unwrap_or_default().trim())
}

/// Whether the body has no transfer coding other than `chunked`. A body in another one would reach the upstream without
/// the name of its coding, because that header ends here (RFC 9112 §6.1 asks for status 501).
#[must_use]
pub fn is_only_chunked(headers: &HeaderMap) -> bool {
    tokens(headers, &header::TRANSFER_ENCODING)
        .all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case("chunked"))
}

/// Whether `name` is a control header, also in the spelling with underscores that some servers treat alike.
fn is_control(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= CONTROL_PREFIX.len()
        && name
            .iter()
            .zip(CONTROL_PREFIX.bytes())
            .all(|(&found, expected)| found == expected || (expected == b'-' && found == b'_'))
}

/// The values of a control header of a fixed name, also of those that some servers in between write with underscores. Both
/// spellings end here ([`towards_upstream`]), so both must count. Not for a name that the operator configures: a proxy
/// that removes it from what clients send does not know the other spelling.
pub fn both_spellings<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a HeaderValue> + use<'a> {
    let with_underscores = name.as_str().replace('-', "_");
    let named = headers.get_all(name).iter();
    named.chain(headers.get_all(with_underscores.as_str()))
}

fn is_protected(name: &str) -> bool {
    PROTECTED.iter().any(|protected| protected == name)
        || PROTECTED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Builds a new map, because removing from one moves its last entry into the gap.
fn without_hop_by_hop(received: HeaderMap, also: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let nominated: Vec<String> = tokens(&received, &header::CONNECTION)
        .map(str::to_ascii_lowercase)
        .filter(|name| !is_protected(name))
        .collect();
    // Beside a transfer coding, a length is not that of the body (RFC 9112 §6.3).
    let is_coded = received.contains_key(header::TRANSFER_ENCODING);
    let mut forwarded = HeaderMap::with_capacity(received.len());
    let mut kept_name = None;
    for (name, value) in received {
        if let Some(name) = name {
            let is_dropped = HOP_BY_HOP.contains(&name)
                || is_coded && name == header::CONTENT_LENGTH
                || nominated.iter().any(|nominee| nominee == name.as_str())
                || also(&name);
            kept_name = (!is_dropped).then_some(name);
        }
        if let Some(name) = &kept_name {
            forwarded.append(name.clone(), value);
        }
    }
    forwarded
}

/// HTTP/2 clients may split a cookie header; HTTP/1.1 knows only one (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(header::COOKIE).iter();
    if crumbs.by_ref().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        map
    }

    fn lines(map: &HeaderMap) -> Vec<(&str, &str)> {
        map.iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn header_order_and_duplicates_are_kept() {
        let received = map(&[
            ("b", "1"),
            ("connection", "keep-alive"),
            ("a", "2"),
            ("b", "3"),
            ("c", ""),
        ]);
        let kept = towards_client(received);
        assert_eq!(
            lines(&kept),
            [("b", "1"), ("b", "3"), ("a", "2"), ("c", "")]
        );
    }

    #[test]
    fn hop_by_hop_headers_and_those_named_by_connection_are_removed() {
        let received = map(&[
            ("connection", "close, X-Hop , authorization;q=1"),
            ("connection", "x-forwarded-for,content-length, x-api-key"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "close"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("authorization", "Bearer k"),
            ("x-forwarded-for", "::1"),
            ("content-length", "3"),
            ("x-api-key", "k"),
        ]);
        let kept = towards_upstream(received);
        assert_eq!(
            lines(&kept),
            [
                ("authorization", "Bearer k"),
                ("x-forwarded-for", "::1"),
                ("content-length", "3"),
                ("x-api-key", "k")
            ]
        );
    }

    #[test]
    fn a_length_beside_a_transfer_coding_is_removed() {
        let received = || map(&[("content-length", "3"), ("transfer-encoding", "chunked")]);
        assert_eq!(lines(&towards_client(received())), []);
        assert_eq!(lines(&towards_upstream(received())), []);
    }

    #[test]
    fn control_headers_never_reach_the_upstream_in_any_spelling() {
        let received = map(&[
            ("x-diarist-thread", "t"),
            ("x_diarist_memory", "off"),
            ("x-diarist_resource", "r"),
            ("x-diarists", "not ours"),
            ("x-thread-id", "the client's own"),
            ("host", "127.0.0.1"),
        ]);
        assert_eq!(
            lines(&towards_upstream(received)),
            [
                ("x-diarists", "not ours"),
                ("x-thread-id", "the client's own")
            ]
        );
    }

    #[test]
    fn only_trailers_is_forwarded_from_the_te_header() {
        let kept = towards_upstream(map(&[("te", "gzip;q=0.5, trailers"), ("connection", "te")]));
        assert_eq!(lines(&kept), [("te", "trailers"), ("connection", "te")]);
    }

    #[test]
    fn split_cookies_are_joined() {
        let kept = towards_upstream(map(&[("cookie", "a=1"), ("cookie", "b=2")]));
        assert_eq!(lines(&kept), [("cookie", "a=1; b=2")]);
    }
}
