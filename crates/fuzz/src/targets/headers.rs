//! The headers of a request: the first line is its query, each other line a header. A body follows a blank line.

use bytes::Bytes;
use diarist::proxy::headers::{CONTROL_PREFIX, towards_client, towards_upstream};
use diarist::proxy::identify::{IdentityRules, Sources, find_thread, identify};
use diarist::wire::Request;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

/// The longest name of a conversation that is used, in bytes.
const LONGEST_NAME: usize = 256;

const RESOURCE: HeaderName = HeaderName::from_static("x-diarist-resource");

/// The same header as some servers in between rewrite it. Both together would be two users.
const RESOURCE_WITH_UNDERSCORES: &str = "x_diarist_resource";

pub(crate) fn check(data: &[u8]) {
    let text = data.split(|byte| *byte == b'\n');
    let mut lines = text.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let query = lines.next().and_then(|line| std::str::from_utf8(line).ok());
    let headers: HeaderMap = lines.by_ref().map_while(header).collect();
    let body: Vec<u8> = lines.collect::<Vec<_>>().join(&b'\n');
    nothing_of_ours_goes_on(&headers);
    owners_stay_apart(&headers, query);
    names_are_visible(&headers, body);
}

/// A header from its line; `None` at the blank line. Lines that are no headers become one with a fixed name.
fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    if line.is_empty() {
        return None;
    }
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, value) = line.split_at(colon.unwrap_or(0));
    let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
    let name = HeaderName::from_bytes(name).unwrap_or(HeaderName::from_static("x-other"));
    let value = HeaderValue::from_bytes(value).unwrap_or(HeaderValue::from_static("?"));
    Some((name, value))
}

/// Control headers end here; the credential goes on unchanged; what was filtered once is not filtered further.
fn nothing_of_ours_goes_on(headers: &HeaderMap) {
    let sent = towards_upstream(headers.clone());
    for name in sent.keys() {
        let name = name.as_str().replace('_', "-");
        assert!(
            !name.starts_with(CONTROL_PREFIX),
            "{name} reached the upstream"
        );
    }
    let all = |map: &HeaderMap, name| map.get_all(name).iter().cloned().collect::<Vec<_>>();
    assert_eq!(all(headers, AUTHORIZATION), all(&sent, AUTHORIZATION));
    for name in sent
        .keys()
        .filter(|name| !["te", "connection", "cookie"].contains(&name.as_str()))
    {
        assert_eq!(
            all(headers, name.clone()),
            all(&sent, name.clone()),
            "{name} changed"
        );
    }
    assert_eq!(towards_upstream(sent.clone()), sent);
    let received = towards_client(headers.clone());
    assert_eq!(towards_client(received.clone()), received);
}

/// The order of headers names nobody else; another credential and another user always do.
fn owners_stay_apart(headers: &HeaderMap, query: Option<&str>) {
    let rules = IdentityRules {
        anonymous: true,
        ..IdentityRules::default()
    };
    let owner = |headers: &HeaderMap| identify(headers, query, &rules).ok().map(|one| one.scope);
    let Some(scope) = owner(headers) else {
        return;
    };
    let mut names: Vec<&HeaderName> = headers.keys().collect();
    names.reverse();
    let reversed: HeaderMap = names
        .into_iter()
        .flat_map(|name| {
            headers
                .get_all(name)
                .iter()
                .map(move |value| (name.clone(), value.clone()))
        })
        .collect();
    assert_eq!(
        owner(&reversed),
        Some(scope.clone()),
        "the order of headers counts"
    );

    let mut other = headers.clone();
    other.append(
        AUTHORIZATION,
        HeaderValue::from_static("Bearer another-credential"),
    );
    let other = owner(&other).map(|scope| scope.tenant);
    assert_ne!(
        other,
        Some(scope.tenant),
        "another credential is the same tenant"
    );

    let mut user = headers.clone();
    user.remove(RESOURCE_WITH_UNDERSCORES);
    user.insert(
        RESOURCE,
        HeaderValue::from_static("another-user-of-the-fuzzer"),
    );
    let user = owner(&user).expect("a user is one more wall, and no obstacle");
    assert_eq!(user.tenant, scope.tenant);
    assert_ne!(
        user.resource, scope.resource,
        "another user is the same owner"
    );
}

/// The name of a conversation can be written into a log line and a header.
fn names_are_visible(headers: &HeaderMap, body: Vec<u8>) {
    let Ok(request) = Request::parse_chat(&Bytes::from(body)) else {
        return;
    };
    let found = find_thread(headers, &request, &Sources::default());
    assert_eq!(found.key.is_some(), found.source.is_some());
    if let Some(key) = &found.key {
        assert!(
            !key.is_empty() && key.len() <= LONGEST_NAME,
            "{} bytes",
            key.len()
        );
        assert!(
            !key.chars().any(char::is_control),
            "a name with a control character"
        );
    }
    assert_eq!(found, find_thread(headers, &request, &Sources::default()));
}
