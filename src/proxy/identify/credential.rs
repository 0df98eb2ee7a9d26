//! Collects what a request authenticates with: every credential in headers and query, whole.
//!
//! The caller hashes it at once; it is stored nowhere. Called by [`identify`](super::identify).

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::history::Scope;

/// Headers that carry a credential: by name, and by the end of the name. Gateways have their own headers
/// (`x-portkey-api-key`, `helicone-auth`, `cf-aig-authorization`) beside the `Authorization` that SDKs insist
/// on. All headers present count, whole: two credentials with the same beginning are two tenants.
const CREDENTIAL_HEADERS: [&str; 2] = ["authorization", "api-key"];
const CREDENTIAL_HEADER_SUFFIXES: [&str; 3] = ["-api-key", "-auth", "-authorization"];

/// Query parameters that carry a credential.
const CREDENTIAL_QUERY_KEYS: [&str; 7] = [
    "key",
    "api_key",
    "api-key",
    "apikey",
    "access_token",
    "token",
    "subscription-key",
];

/// Every credential of the request, each with its name and length, so that two lists never have the same bytes.
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
    // The order of headers means nothing. Two values of one header keep their order: the sort is stable.
    presented.sort_by_key(|(name, _)| *name);
    let mut all = Vec::new();
    for (name, value) in presented {
        all.extend_from_slice(name.as_bytes());
        all.extend_from_slice(&(value.len() as u64).to_be_bytes());
        all.extend_from_slice(value);
    }
    all
}

/// `Proxy-Authorization` does not count. It is for the hop between client and Diarist; the upstream never sees
/// it.
fn carries_credential(name: &HeaderName) -> bool {
    let name = name.as_str();
    let has_suffix = || {
        CREDENTIAL_HEADER_SUFFIXES
            .iter()
            .any(|ending| name.ends_with(ending))
    };
    CREDENTIAL_HEADERS.contains(&name) || has_suffix() && name != "proxy-authorization"
}

/// The tenant of requests that send `key` in this header, and no other credential. `None` if the header is none
/// for credentials, or cannot hold the key. In `Authorization`, `Bearer` is added unless the key names a scheme.
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
