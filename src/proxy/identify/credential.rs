//! Collects what a request authenticates with: every credential in headers and query, whole; and the one of them that
//! stands for its account.
//!
//! The caller hashes it at once; it is stored nowhere. Called by [`identify`](super::identify).

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::history::{Pepper, Scope};
use crate::llm::{CredentialHeaders, credentials_in_query};

/// The rank of a credential in the query: behind every header.
const IN_QUERY: usize = usize::MAX;

/// The credentials of a request.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    /// Every credential, each with its name and length, so that two lists never have the same bytes. Empty without
    /// one.
    pub(super) all: Vec<u8>,
    /// In the same form, the one that stands for the account. A client can add headers that its upstream ignores, and
    /// each value would be another tenant; but it cannot change the credential that the upstream checks. It can write it
    /// in other ways, so here it has one spelling.
    pub(super) account: Vec<u8>,
    /// Whether there is nothing but a cookie or a header without a value, or nothing at all. A cookie only keeps such requests apart: any server can
    /// set one, and it may be the same for all.
    pub(super) anonymous: bool,
}

impl Credentials {
    pub(super) fn from_request(
        headers: &HeaderMap,
        query: &str,
        listed: &CredentialHeaders,
    ) -> Self {
        let in_headers = headers.iter().filter_map(|(name, value)| {
            let rank = listed.rank(name)?;
            Some((name.as_str(), value.as_bytes(), rank))
        });
        let in_query =
            credentials_in_query(query).map(|(name, value)| (name, value.as_bytes(), IN_QUERY));
        let mut presented: Vec<_> = in_headers.chain(in_query).collect();
        let is_cookie = |(name, ..): &(&str, &[u8], usize)| *name == COOKIE.as_str();
        let is_empty = |entry: &(&str, &[u8], usize)| is_empty_credential(entry.0, entry.1);
        let anonymous = presented
            .iter()
            .all(|entry| is_cookie(entry) || is_empty(entry));
        let only_cookies = !listed.have_other_than_cookie(headers, query);
        if !only_cookies {
            presented.retain(|entry| !is_cookie(entry));
        }
        // The order of headers means nothing. Two values of one header keep their order: the sort is stable.
        presented.sort_by_key(|(name, ..)| *name);
        let mut credentials = Self {
            anonymous,
            ..Self::default()
        };
        for (name, value, _) in &presented {
            append(&mut credentials.all, name, value);
        }
        presented.retain(|entry| !only_cookies && !is_empty(entry));
        if let Some((rank, name)) = presented.iter().map(|(name, _, rank)| (*rank, *name)).min() {
            // A client can add parameters of any name to a query, so all of them are one kind.
            presented.retain(|(other, _, at)| *at == rank && (rank == IN_QUERY || *other == name));
            let account = &mut credentials.account;
            match presented[..] {
                [(_, value, IN_QUERY)] => append(account, name, &decoded(value)),
                [(_, value, _)] if name == header::AUTHORIZATION.as_str() => {
                    append(account, name, &one_spelling(value));
                }
                [(_, value, _)] => append(account, name, value),
                // Nobody knows which of them the upstream checks. All requests of this kind are one account.
                _ if rank == IN_QUERY => append(account, "query", b""),
                _ => append(account, name, b""),
            }
        }
        credentials
    }
}

/// Whether a client without a key wrote this header all the same: `Authorization` then holds a scheme and nothing behind
/// it.
fn is_empty_credential(name: &str, value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let is_scheme =
        || value.eq_ignore_ascii_case(b"bearer") || value.eq_ignore_ascii_case(b"basic");
    value.is_empty() || name == header::AUTHORIZATION.as_str() && is_scheme()
}

/// A value of `Authorization` as most clients write it: servers ignore the case of the scheme (RFC 9110, section 11.1),
/// and most of them how much space follows.
fn one_spelling(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii();
    let end = value.iter().position(u8::is_ascii_whitespace);
    let (scheme, rest) = value.split_at(end.unwrap_or(value.len()));
    if rest.is_empty() {
        return value.to_vec();
    }
    let mut spelled = scheme.to_ascii_lowercase();
    spelled[..1].make_ascii_uppercase();
    spelled.push(b' ');
    spelled.extend_from_slice(rest.trim_ascii_start());
    spelled
}

/// A value of the query without its escapes. Servers read `+` as itself or as a blank, so both are a `+` here.
fn decoded(value: &[u8]) -> Vec<u8> {
    // The parser takes a pair of name and value.
    let pair = [b"=", value].concat();
    let (_, value) = url::form_urlencoded::parse(&pair)
        .next()
        .unwrap_or_default();
    value.replace(' ', "+").into_bytes()
}

fn append(all: &mut Vec<u8>, name: &str, value: &[u8]) {
    all.extend_from_slice(name.as_bytes());
    all.extend_from_slice(&(value.len() as u64).to_be_bytes());
    all.extend_from_slice(value);
}

/// The tenant of requests that send `key` in this header, and no other credential, if the header carries one
/// ([`CredentialHeaders::contains`]). `None` if it cannot hold the key. In `Authorization`, `Bearer` is added unless the key names a scheme.
pub fn tenant_of_key(header: &str, key: &str, pepper: &Pepper) -> Option<[u8; 32]> {
    let name: HeaderName = header.parse().ok()?;
    let scheme = name == header::AUTHORIZATION && !key.contains(' ');
    let value = if scheme {
        HeaderValue::try_from(format!("Bearer {key}"))
    } else {
        HeaderValue::try_from(key)
    };
    let mut all = Vec::new();
    append(&mut all, name.as_str(), value.ok()?.as_bytes());
    (!key.is_empty()).then(|| Scope::hash_tenant(pepper, &all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(pairs: &[(&'static str, &'static str)], query: &str) -> Credentials {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        Credentials::from_request(&pairs.collect(), query, &CredentialHeaders::default())
    }

    const KEY: (&str, &str) = ("authorization", "Bearer k");

    #[test]
    fn an_ignored_header_makes_another_tenant_of_the_same_account() {
        let plain = credentials(&[KEY], "");
        assert_eq!(plain.account, plain.all);
        for (more, query) in [(&[("x-any-auth", "1")][..], ""), (&[], "token=1")] {
            let more = credentials(&[&[KEY], more].concat(), query);
            assert_ne!(more.all, plain.all);
            assert_eq!(more.account, plain.all);
        }
        let other = credentials(&[("authorization", "Bearer l"), ("x-any-auth", "1")], "");
        assert_ne!(other.account, plain.account);
    }

    #[test]
    fn another_spelling_of_a_credential_is_the_same_account() {
        let plain = credentials(&[KEY], "");
        for spelling in [
            "bearer k",
            "BEARER k",
            "Bearer   k",
            "bEaReR\tk ",
            " Bearer k",
        ] {
            let other = credentials(&[("authorization", spelling)], "");
            assert_eq!(other.account, plain.account, "{spelling:?}");
        }
        for other in ["Bearer K", "Basic k", "k", "Bearer k k"] {
            let other = credentials(&[("authorization", other)], "");
            assert_ne!(other.account, plain.account);
        }
        // `HeaderMap::from_iter` appends.
        let twice = |second| credentials(&[KEY, ("authorization", second)], "");
        assert_eq!(twice("Bearer 1").account, twice("Bearer 2").account);
        assert_ne!(twice("Bearer 1").all, twice("Bearer 2").all);
        assert_ne!(twice("Bearer 1").account, plain.account);
    }

    /// SDKs without a key write the header all the same.
    #[test]
    fn a_header_without_a_key_is_no_credential() {
        for empty in [
            ("authorization", ""),
            ("authorization", "Bearer"),
            ("authorization", "bearer "),
            ("x-api-key", ""),
            ("x-any-auth", " "),
        ] {
            assert!(credentials(&[empty], "").anonymous, "{empty:?}");
            assert!(!credentials(&[KEY, empty], "").anonymous, "{empty:?}");
        }
        let with_cookie =
            |value| credentials(&[("authorization", "Bearer"), ("cookie", value)], "").all;
        assert_eq!(with_cookie("a=1"), with_cookie("a=2"));
        assert!(!credentials(&[("authorization", "Bearer")], "key=k").anonymous);
        assert!(!credentials(&[("x-api-key", "bearer")], "").anonymous);
    }

    #[test]
    fn query_credentials_are_recognised_in_any_spelling() {
        let plain = credentials(&[], "key=alice");
        for query in ["Key=alice", "KEY=alice", "%6Bey=alice", "a=b&k%65y=alice"] {
            assert_eq!(credentials(&[], query).all, plain.all, "{query}");
        }
        for query in ["api%5Fkey=a", "Subscription-Key=a", "API_KEY=a"] {
            assert!(!credentials(&[], query).all.is_empty(), "{query}");
        }
        assert!(credentials(&[], "keys=a&key=").all.is_empty());
    }

    /// The tenant stays what the client wrote, as with a header.
    #[test]
    fn another_spelling_of_a_key_in_the_query_is_the_same_account() {
        let plain = credentials(&[], "key=a+B/c=");
        assert_eq!(plain.account, plain.all);
        for query in ["key=%61+B/c=", "KEY=a%2bB%2Fc%3D", "x=1&k%65y=a%20%42/c="] {
            let other = credentials(&[], query);
            assert_eq!(other.account, plain.account, "{query}");
        }
        for query in ["key=a+b/c=", "token=a+B/c=", "key=%2561+B/c="] {
            assert_ne!(credentials(&[], query).account, plain.account, "{query}");
        }
        let several = credentials(&[], "key=k&key=l").account;
        assert_ne!(several, plain.account);
        for query in ["key=k&access_token=1", "token=2&key=k", "key=l&api-key=k"] {
            assert_eq!(credentials(&[], query).account, several, "{query}");
        }
    }

    #[test]
    fn a_header_without_a_key_changes_no_account() {
        let api_key = ("api-key", "k");
        for empty in ["", " ", "Bearer", "basic "] {
            let empty = ("authorization", empty);
            let in_query = credentials(&[empty], "key=k");
            assert_eq!(in_query.account, credentials(&[], "key=k").account);
            let beside = credentials(&[empty, api_key], "");
            assert_eq!(beside.account, credentials(&[api_key], "").account);
            let twice = credentials(&[empty, KEY], "");
            assert_eq!(twice.account, credentials(&[KEY], "").account);
            assert_eq!(
                credentials(&[empty], "").account,
                credentials(&[], "").account
            );
        }
    }

    #[test]
    fn the_first_credential_in_the_list_defines_the_account() {
        let api_key = ("api-key", "k");
        let both = credentials(&[("a-auth", "x"), api_key], "");
        assert_eq!(both.account, credentials(&[api_key], "").all);
        let in_query = credentials(&[], "key=k");
        assert_eq!(in_query.account, in_query.all);
    }

    #[test]
    fn known_gateway_headers_make_separate_tenants() {
        let tenants = [
            "ocp-apim-subscription-key",
            "x-auth-token",
            "x-access-token",
        ]
        .map(|name| {
            assert_ne!(
                credentials(&[KEY, (name, "alice")], "").all,
                credentials(&[KEY], "").all
            );
            credentials(&[(name, "alice")], "").all
        });
        assert!(tenants.iter().all(|tenant| !tenant.is_empty()));
        assert_ne!(
            tenants[0],
            credentials(&[("ocp-apim-subscription-key", "bob")], "").all
        );
    }

    #[test]
    fn a_cookie_counts_only_without_another_credential() {
        let cookie = ("cookie", "session=1");
        assert_eq!(
            credentials(&[KEY, cookie], "").all,
            credentials(&[KEY], "").all
        );
        let only = credentials(&[cookie], "");
        assert!(only.anonymous && !only.all.is_empty());
        assert_ne!(only.all, credentials(&[("cookie", "session=2")], "").all);
        assert_eq!(
            only.account,
            credentials(&[], "").account,
            "one account for all of them"
        );
        assert!(credentials(&[], "").anonymous && !credentials(&[KEY], "").anonymous);
    }
}
