//! Collects what a request authenticates with: every credential in headers and query, whole; and the one of them that
//! stands for its account.
//!
//! The caller hashes it at once; it is stored nowhere. Called by [`identify`](super::identify).

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::history::{Pepper, Scope};

/// Headers that carry a credential: by name, and by the end of the name (`*-api-key`). Gateways have their own headers
/// (`x-portkey-api-key`, `helicone-auth`, `cf-aig-authorization`) beside the `Authorization` that SDKs insist
/// on. Azure API Management has `ocp-apim-subscription-key`. The order decides which one stands for the account.
const KNOWN_HEADERS: [&str; 14] = [
    "authorization",
    "api-key",
    "x-api-key",
    "ocp-apim-subscription-key",
    "x-auth-token",
    "x-access-token",
    "x-api-token",
    "private-token",
    "x-goog-iam-authorization-token",
    "*-api-key",
    "*-subscription-key",
    "*-auth",
    "*-authorization",
    "cookie",
];

/// Query parameters that carry a credential, in lower case.
const CREDENTIAL_QUERY_KEYS: [&str; 7] = [
    "key",
    "api_key",
    "api-key",
    "apikey",
    "access_token",
    "token",
    "subscription-key",
];

/// What names headers that carry a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeaderPattern {
    Name(HeaderName),
    /// Every header whose name ends so.
    Ending(String),
}

impl HeaderPattern {
    fn parse(text: &str) -> Option<Self> {
        if let Some(ending) = text.strip_prefix('*') {
            // "*" alone would make every header a credential. The rest must be what can stand in a name.
            let name: HeaderName = ending.parse().ok()?;
            return Some(Self::Ending(name.as_str().to_owned()));
        }
        Some(Self::Name(text.parse().ok()?))
    }

    fn matches(&self, name: &HeaderName) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Ending(ending) => name.as_str().ends_with(ending.as_str()),
        }
    }
}

/// The headers that carry a credential, in the order in which they stand for the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialHeaders {
    patterns: Vec<HeaderPattern>,
    /// The header that names the user. Its token changes while the user stays the same.
    user: Option<HeaderName>,
}

impl Default for CredentialHeaders {
    fn default() -> Self {
        let patterns = KNOWN_HEADERS.into_iter().filter_map(HeaderPattern::parse);
        Self {
            patterns: patterns.collect(),
            user: None,
        }
    }
}

impl CredentialHeaders {
    /// The headers of a list of names, endings (`*-api-key`), and `known` for the built-in ones.
    ///
    /// # Errors
    /// The first entry that is none of these.
    pub fn parse(names: &[String]) -> Result<Self, &str> {
        let mut patterns = Vec::new();
        for name in names.iter().map(|name| name.trim()) {
            if name == "known" {
                patterns.extend(Self::default().patterns);
            } else {
                patterns.push(HeaderPattern::parse(name).ok_or(name)?);
            }
        }
        Ok(Self {
            patterns,
            user: None,
        })
    }

    /// The same without the header that names the user.
    #[must_use]
    pub fn without_user(self, user: Option<HeaderName>) -> Self {
        Self { user, ..self }
    }

    /// Whether `name` carries a credential.
    pub fn contains(&self, name: &HeaderName) -> bool {
        self.rank(name).is_some()
    }

    /// The place of `name` in the list. `Proxy-Authorization` does not count: it is for the hop between client and
    /// Diarist; the upstream never sees it.
    fn rank(&self, name: &HeaderName) -> Option<usize> {
        if *name == header::PROXY_AUTHORIZATION || self.user.as_ref() == Some(name) {
            return None;
        }
        self.patterns
            .iter()
            .position(|pattern| pattern.matches(name))
    }
}

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
        let in_query = query
            .split('&')
            .filter_map(|member| member.split_once('='))
            .filter(|(_, value)| !value.is_empty())
            // Behind every header.
            .filter_map(|(name, value)| Some((query_key(name)?, value.as_bytes(), usize::MAX)));
        let mut presented: Vec<_> = in_headers.chain(in_query).collect();
        let is_cookie = |(name, ..): &(&str, &[u8], usize)| *name == COOKIE.as_str();
        let anonymous = presented
            .iter()
            .all(|entry| is_cookie(entry) || is_empty_credential(entry.0, entry.1));
        let only_cookies = presented.iter().all(is_cookie);
        if !only_cookies {
            presented.retain(|entry| !is_cookie(entry));
        }
        // The order of headers means nothing. Two values of one header keep their order: the sort is stable.
        presented.sort_by_key(|(name, ..)| *name);
        let first = presented.iter().map(|(name, _, rank)| (*rank, *name)).min();
        let mut credentials = Self {
            anonymous,
            ..Self::default()
        };
        for (name, value, _) in &presented {
            append(&mut credentials.all, name, value);
        }
        if let Some((_, name)) = first.filter(|_| !only_cookies) {
            let values = presented.iter().filter(|(other, ..)| *other == name);
            let mut values = values.map(|(_, value, _)| *value);
            let account = &mut credentials.account;
            match (values.next(), values.next()) {
                (Some(value), None) if name == header::AUTHORIZATION.as_str() => {
                    append(account, name, &one_spelling(value));
                }
                (Some(value), None) => append(account, name, value),
                // Nobody knows which of them the upstream checks. All requests of this kind are one account.
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

/// The parameter that `name` means to a server that ignores case and decodes names.
fn query_key(name: &str) -> Option<&'static str> {
    let (name, _) = url::form_urlencoded::parse(name.as_bytes()).next()?;
    let mut keys = CREDENTIAL_QUERY_KEYS.into_iter();
    keys.find(|key| name.eq_ignore_ascii_case(key))
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

    #[test]
    fn the_operator_can_replace_or_extend_the_credential_headers() {
        let listed = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            CredentialHeaders::parse(&names).map_err(str::to_owned)
        };
        let name = |name: &'static str| HeaderName::from_static(name);
        let own = listed(&["X-Company-Key", "*-ticket"]).expect("a list");
        assert!(own.contains(&name("x-company-key")) && own.contains(&name("a-ticket")));
        assert!(!own.contains(&name("authorization")));
        let more = listed(&["x-company-key", "known"]).expect("a list");
        assert!(more.contains(&name("x-company-key")) && more.contains(&name("x-foo-auth")));
        assert!(!more.contains(&name("proxy-authorization")));
        assert_eq!(listed(&["known", "*"]), Err("*".to_owned()));
        assert_eq!(listed(&["a b"]), Err("a b".to_owned()));
        let user = more.without_user(Some(name("x-auth-token")));
        assert!(!user.contains(&name("x-auth-token")) && user.contains(&name("api-key")));
    }
}
