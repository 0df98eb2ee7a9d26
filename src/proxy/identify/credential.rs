//! What a request presents to be let in: every credential in headers and query, whole. It is hashed at once
//! and goes nowhere. Called by [`identify`](super::identify).

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::history::Scope;

/// Headers that carry a credential by name, and by how their names end: gateways have their own
/// (`x-portkey-api-key`, `helicone-auth`, `cf-aig-authorization`), beside an `Authorization` that SDKs
/// insist on. All that are present count, whole: two credentials that share a beginning are two
/// tenants.
const CREDENTIAL_HEADERS: [&str; 2] = ["authorization", "api-key"];
const CREDENTIAL_HEADER_SUFFIXES: [&str; 3] = ["-api-key", "-auth", "-authorization"];

/// Members of a query that carry one.
const CREDENTIAL_QUERY_KEYS: [&str; 7] = [
    "key",
    "api_key",
    "api-key",
    "apikey",
    "access_token",
    "token",
    "subscription-key",
];

/// Every presented credential, each with its name and length, so that none runs into another.
pub(super) fn credential(headers: &HeaderMap, query: &str) -> Vec<u8> {
    let in_headers = headers
        .iter()
        .filter(|(name, _)| carries_credential(name))
        .map(|(name, value)| (name.as_str(), value.as_bytes()));
    let in_query = query
        .split('&')
        .filter_map(|member| member.split_once('='))
        .filter(|(name, value)| CREDENTIAL_QUERY_KEYS.contains(name) && !value.is_empty())
        .map(|(name, value)| (name, value.as_bytes()));
    let mut presented: Vec<(&str, &[u8])> = in_headers.chain(in_query).collect();
    // Their order means nothing; that of two values under one name does, and is kept.
    presented.sort_by_key(|(name, _)| *name);
    let mut all = Vec::new();
    for (name, value) in presented {
        all.extend_from_slice(name.as_bytes());
        all.extend_from_slice(&(value.len() as u64).to_be_bytes());
        all.extend_from_slice(value);
    }
    all
}

/// `Proxy-Authorization` is for the hop between the client and us: the upstream never sees it.
fn carries_credential(name: &HeaderName) -> bool {
    let name = name.as_str();
    let has_suffix = || {
        CREDENTIAL_HEADER_SUFFIXES
            .iter()
            .any(|ending| name.ends_with(ending))
    };
    CREDENTIAL_HEADERS.contains(&name) || has_suffix() && name != "proxy-authorization"
}

/// The tenant of requests that present `key` in this header and nothing else. `None` where that is no
/// header for credentials, or could not carry it. In `Authorization` a key stands behind `Bearer`, unless
/// it names its scheme.
pub fn tenant_of_key(header: &str, key: &str) -> Option<[u8; 32]> {
    let name: HeaderName = header.parse().ok()?;
    let scheme = name == header::AUTHORIZATION && !key.contains(' ');
    let value = if scheme {
        HeaderValue::try_from(format!("Bearer {key}"))
    } else {
        HeaderValue::try_from(key)
    };
    let headers = HeaderMap::from_iter([(name, value.ok()?)]);
    let credential = credential(&headers, "");
    (!key.is_empty() && !credential.is_empty()).then(|| Scope::hash_tenant(&credential))
}
