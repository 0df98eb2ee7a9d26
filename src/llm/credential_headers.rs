//! What carries a credential: the headers, by name and ending, and the parameters of a query.
//!
//! There is one list. By it the proxy tells tenants apart (`proxy::identify`), and by it a model call of memory gets the
//! credential of its conversation ([`super::UpstreamRoute`]). Reads names only, and keeps no value.

use http::header::{self, COOKIE};
use http::{HeaderMap, HeaderName};

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
    /// Whether the known ones are among them.
    has_known: bool,
    /// Whether the operator named `cookie` itself.
    names_cookie: bool,
}

impl Default for CredentialHeaders {
    fn default() -> Self {
        let patterns = KNOWN_HEADERS.into_iter().filter_map(HeaderPattern::parse);
        Self {
            patterns: patterns.collect(),
            user: None,
            has_known: true,
            names_cookie: false,
        }
    }
}

impl CredentialHeaders {
    /// The headers of a list of names, endings (`*-api-key`), and `known` for the built-in ones.
    ///
    /// # Errors
    /// The entries that are none of these.
    pub fn parse(names: &[String]) -> Result<Self, Vec<&str>> {
        let (mut patterns, mut wrong) = (Vec::new(), Vec::new());
        let (mut has_known, mut names_cookie) = (false, false);
        for name in names.iter().map(|name| name.trim()) {
            if name == "known" {
                patterns.extend(Self::default().patterns);
                has_known = true;
            } else {
                match HeaderPattern::parse(name) {
                    Some(pattern) => patterns.push(pattern),
                    None => wrong.push(name),
                }
                names_cookie |= name.eq_ignore_ascii_case(COOKIE.as_str());
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Self {
            patterns,
            user: None,
            has_known,
            names_cookie,
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
    pub(crate) fn rank(&self, name: &HeaderName) -> Option<usize> {
        if *name == header::PROXY_AUTHORIZATION || self.user.as_ref() == Some(name) {
            return None;
        }
        self.patterns
            .iter()
            .position(|pattern| pattern.matches(name))
    }

    /// Whether a request with these headers and this query has a credential that is no cookie. Beside one, a cookie
    /// tells nobody apart.
    pub(crate) fn have_other_than_cookie(&self, headers: &HeaderMap, query: &str) -> bool {
        let in_headers = headers
            .keys()
            .any(|name| *name != COOKIE && self.contains(name));
        in_headers || in_query(query).next().is_some()
    }

    /// Whether a call on behalf of a request carries its header `name`: a known credential, or one that the operator
    /// added. A cookie is decided by [`Self::copies_cookie`].
    pub(super) fn is_copied(&self, name: &HeaderName) -> bool {
        let is_listed = self.patterns.iter().any(|pattern| pattern.matches(name));
        is_listed || (!self.has_known && is_known(name))
    }

    /// Whether such a call carries the cookies of the request: if nothing else tells its tenant apart, or if the operator
    /// names `cookie`. Otherwise they may be the client's session with something else.
    pub(super) fn copies_cookie(&self, headers: &HeaderMap, query: &str) -> bool {
        self.names_cookie || self.contains(&COOKIE) && !self.have_other_than_cookie(headers, query)
    }
}

fn is_known(name: &HeaderName) -> bool {
    KNOWN_HEADERS
        .iter()
        .any(|known| match known.strip_prefix('*') {
            Some(ending) => name.as_str().ends_with(ending),
            None => name == known,
        })
}

/// The credentials in a query: their parameters and their values as written.
pub(crate) fn in_query(query: &str) -> impl Iterator<Item = (&'static str, &str)> {
    query
        .split('&')
        .filter_map(|member| member.split_once('='))
        .filter(|(_, value)| !value.is_empty())
        .filter_map(|(name, value)| Some((query_key(name)?, value)))
}

/// The parameter that `name` means to a server that ignores case and decodes names.
fn query_key(name: &str) -> Option<&'static str> {
    let (name, _) = url::form_urlencoded::parse(name.as_bytes()).next()?;
    let mut keys = CREDENTIAL_QUERY_KEYS.into_iter();
    keys.find(|key| name.eq_ignore_ascii_case(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_can_replace_or_extend_the_credential_headers() {
        let listed = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            CredentialHeaders::parse(&names).map_err(|wrong| wrong.join(" "))
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
