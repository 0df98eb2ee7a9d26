//! Where a model is called, and with which credential.

use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use url::{Url, form_urlencoded};
use zeroize::Zeroizing;

use super::credential_headers::CredentialHeaders;
use super::error::CallError;

/// An address and a credential for model calls.
#[derive(Clone)]
pub enum Endpoint {
    /// The operator's own.
    Configured {
        base_url: Url,
        api_key: SecretString,
    },
    /// The conversation's own, as its last request used it.
    Borrowed(Arc<UpstreamRoute>),
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured { .. } => write!(f, "Configured({})", self.origin()),
            Self::Borrowed(route) => route.fmt(f),
        }
    }
}

impl Endpoint {
    /// Scheme, host and port. May be logged.
    #[must_use]
    pub fn origin(&self) -> String {
        match self {
            Self::Configured { base_url, .. } => base_url.origin().ascii_serialization(),
            Self::Borrowed(route) => route.origin.clone(),
        }
    }

    /// Whether it is called over TLS.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.origin().starts_with("https:")
    }

    /// The key of this endpoint in a [`super::Breaker`]. Each borrowed credential has its own,
    /// because limits and revocations concern single credentials. Not for logs.
    #[must_use]
    pub fn breaker_key(&self) -> String {
        match self {
            Self::Configured { .. } => self.origin(),
            Self::Borrowed(route) => {
                let hash = blake3::Hash::from(route.hash).to_hex();
                format!("{}#{}", route.origin, hash.get(..16).unwrap_or_default())
            }
        }
    }

    pub(super) fn url(&self) -> Result<Url, CallError> {
        let no_url = || CallError::Fatal {
            message: "the endpoint's URL cannot be used".to_owned(),
        };
        match self {
            Self::Configured { base_url, .. } => {
                let mut url = base_url.clone();
                url.path_segments_mut()
                    .map_err(|()| no_url())?
                    .pop_if_empty()
                    .extend(["chat", "completions"]);
                Ok(url)
            }
            Self::Borrowed(route) => Url::parse(&route.url).map_err(|_| no_url()),
        }
    }

    pub(super) fn headers(&self) -> Result<HeaderMap, CallError> {
        match self {
            Self::Configured { api_key, .. } => {
                let bearer = Zeroizing::new(format!("Bearer {}", api_key.expose_secret()));
                let value = sensitive(bearer.as_bytes())?;
                Ok(HeaderMap::from_iter([(AUTHORIZATION, value)]))
            }
            Self::Borrowed(route) => {
                let mut headers = HeaderMap::new();
                for (name, value) in &route.headers {
                    headers.append(name, sensitive(value)?);
                }
                Ok(headers)
            }
        }
    }

    /// The secrets that must not appear in an error message.
    pub(super) fn secrets(&self) -> Vec<Zeroizing<String>> {
        match self {
            Self::Configured { base_url, api_key } => {
                let mut secrets = url_secrets(base_url);
                secrets.push(Zeroizing::new(api_key.expose_secret().to_owned()));
                secrets
            }
            Self::Borrowed(route) => route.secrets(),
        }
    }
}

fn sensitive(value: &[u8]) -> Result<HeaderValue, CallError> {
    let mut value = HeaderValue::from_bytes(value).map_err(|_| CallError::Fatal {
        message: "the credential is not a valid header value".to_owned(),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The complete route of a conversation to its upstream: URL with path and query, credential,
/// organisation.
///
/// This is the only copy of a borrowed credential that Diarist keeps. It lives in memory, cannot be
/// cloned or serialised, prints nothing of itself and is overwritten when it is dropped. While a
/// call runs, the HTTP client has a copy of the header too.
pub struct UpstreamRoute {
    origin: String,
    hash: [u8; 32],
    url: Zeroizing<String>,
    headers: Vec<(HeaderName, Zeroizing<Vec<u8>>)>,
}

impl fmt::Debug for UpstreamRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({})", self.origin)
    }
}

impl UpstreamRoute {
    /// `url` is the URL of the conversation's request. Of its `headers`, those are kept that
    /// identify the caller and the account: `listed` says which carry a credential. `hash` computes
    /// [`UpstreamRoute::hash`]; it is keyed by the pepper.
    #[must_use]
    pub fn new(
        url: &Url,
        headers: &HeaderMap,
        listed: &CredentialHeaders,
        hash: blake3::Hasher,
    ) -> Self {
        let copied = copied_headers(url, headers, listed)
            .map(|(name, value)| (name.clone(), Zeroizing::new(value.as_bytes().to_vec())));
        Self {
            hash: Self::hash_of(url, headers, listed, hash),
            origin: url.origin().ascii_serialization(),
            url: Zeroizing::new(url.as_str().to_owned()),
            headers: copied.collect(),
        }
    }

    /// The [`UpstreamRoute::hash`] of the route that [`UpstreamRoute::new`] makes of the same. Copies nothing.
    #[must_use]
    pub fn hash_of(
        url: &Url,
        headers: &HeaderMap,
        listed: &CredentialHeaders,
        mut hash: blake3::Hasher,
    ) -> [u8; 32] {
        let mut field = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(url.as_str().as_bytes());
        for (name, value) in copied_headers(url, headers, listed) {
            field(name.as_str().as_bytes());
            field(value.as_bytes());
        }
        hash.finalize().into()
    }

    /// Identifies this route across restarts and replicas. It is a hash keyed by the pepper, so it may be
    /// stored: the credential cannot be read from it.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    fn secrets(&self) -> Vec<Zeroizing<String>> {
        let values = self.headers.iter().flat_map(|(_, value)| {
            // Of "Bearer <key>" and "session=<key>; a=b", an echo may repeat the key alone.
            let text = Zeroizing::new(String::from_utf8_lossy(value).into_owned());
            let words = text.split(|c: char| c.is_ascii_whitespace() || c == ';');
            let words =
                words.flat_map(|word| [word, word.split_once('=').map_or("", |pair| pair.1)]);
            words
                .map(|word| Zeroizing::new(word.to_owned()))
                .collect::<Vec<_>>()
        });
        let url = Url::parse(&self.url).ok();
        values.chain(url.iter().flat_map(url_secrets)).collect()
    }
}

/// The values in the query of `url`, and its password: as written, decoded, and in the ways in which a server writes them
/// that has decoded them. The case of hexadecimal digits is left to the comparison.
fn url_secrets(url: &Url) -> Vec<Zeroizing<String>> {
    let members = url.query().unwrap_or_default().split('&');
    let in_query = members.filter_map(|member| Some(member.split_once('=')?.1));
    let written = in_query.chain(url.password());
    let forms = written.flat_map(|written| {
        // As the value of a member without a name, since it may contain "=".
        let member = format!("={written}");
        let decoded: String = form_urlencoded::parse(member.as_bytes())
            .map(|(_, value)| value.into_owned())
            .collect();
        let form: String = form_urlencoded::byte_serialize(decoded.as_bytes()).collect();
        let percent = form.replace('+', "%20");
        [written.to_owned(), decoded, form, percent]
    });
    forms.map(Zeroizing::new).collect()
}

/// The headers of a request that a call on its behalf carries too.
fn copied_headers<'a>(
    url: &'a Url,
    headers: &'a HeaderMap,
    listed: &'a CredentialHeaders,
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    headers.iter().filter(move |(name, _)| match *name {
        name if *name == COOKIE => listed.copies_cookie(headers, url.query().unwrap_or_default()),
        // For the hop between the client and us, and our own.
        name if *name == PROXY_AUTHORIZATION || name.as_str().starts_with("x-diarist-") => false,
        name => listed.is_copied(name) || describes_account(name.as_str()),
    })
}

/// Whether a header without a credential names an organisation, a version or a gateway's route to a provider.
fn describes_account(name: &str) -> bool {
    const NAMES: [&str; 2] = ["anthropic-version", "chatgpt-account-id"];
    const ENDINGS: [&str; 4] = ["-organization", "-org-id", "-project", "-project-id"];
    const GATEWAYS: [&str; 2] = ["x-portkey-", "cf-aig-"];
    // Headers that name one request. With them, every request would have its own route.
    const TRACES: [&str; 5] = [
        "-trace-id",
        "-span-id",
        "-span-name",
        "-event-id",
        "-request-id",
    ];
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    !ends_with(&TRACES)
        && (NAMES.contains(&name)
            || ends_with(&ENDINGS)
            || GATEWAYS.iter().any(|gateway| name.starts_with(gateway)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "sk-very-secret-value";

    fn route() -> UpstreamRoute {
        let url = Url::parse(&format!(
            "https://me:{SECRET}@host:8443/v2/chat?key={SECRET}&v=1"
        ));
        let headers = [
            ("authorization", SECRET),
            ("OpenAI-Organization", "org"),
            ("x-goog-api-key", SECRET),
            ("proxy-authorization", "hop"),
            ("x-diarist-thread", "t"),
            ("x-portkey-trace-id", "once"),
            ("content-length", "5"),
            ("cookie", "c"),
            ("accept-encoding", "gzip"),
        ];
        let headers = headers.map(|(name, value)| {
            let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap();
            (name, HeaderValue::from_static(value))
        });
        UpstreamRoute::new(
            &url.unwrap(),
            &headers.into_iter().collect(),
            &CredentialHeaders::default(),
            blake3::Hasher::new(),
        )
    }

    fn borrowed(headers: &[(&'static str, &'static str)], listed: &[&str]) -> Vec<String> {
        let headers = headers.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        let listed: Vec<String> = listed.iter().map(|name| (*name).to_owned()).collect();
        let listed = CredentialHeaders::parse(&listed).unwrap();
        let url = Url::parse("https://h/v1").unwrap();
        let route = UpstreamRoute::new(&url, &headers.collect(), &listed, blake3::Hasher::new());
        let names = route.headers.iter().map(|(name, _)| name.to_string());
        names.collect()
    }

    #[test]
    fn every_header_that_tells_tenants_apart_is_borrowed() {
        for name in [
            "ocp-apim-subscription-key",
            "x-any-subscription-key",
            "x-auth-token",
            "x-access-token",
            "x-api-token",
            "private-token",
            "x-goog-iam-authorization-token",
            "x-any-auth",
            "cf-aig-authorization",
        ] {
            assert_eq!(borrowed(&[(name, "k")], &["known"]), [name]);
        }
        let own = ("x-company-key", "k");
        assert!(borrowed(&[own], &["known"]).is_empty());
        assert_eq!(borrowed(&[own], &["x-company-key"]), ["x-company-key"]);
        let key = ("authorization", "Bearer k");
        assert_eq!(borrowed(&[key], &["x-company-key"]), ["authorization"]);
    }

    #[test]
    fn a_cookie_is_borrowed_only_if_it_is_the_credential() {
        let (cookie, key) = (("cookie", "session=1"), ("authorization", "Bearer k"));
        assert_eq!(borrowed(&[cookie], &["known"]), ["cookie"]);
        assert_eq!(borrowed(&[key, cookie], &["known"]), ["authorization"]);
        assert!(borrowed(&[cookie], &["authorization"]).is_empty());
        assert_eq!(
            borrowed(&[key, cookie], &["known", "Cookie"]),
            ["authorization", "cookie"]
        );
    }

    #[test]
    fn only_credential_and_organisation_headers_are_borrowed() {
        let endpoint = Endpoint::Borrowed(Arc::new(route()));
        let headers = endpoint.headers().unwrap();
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["authorization", "openai-organization", "x-goog-api-key"]
        );
        assert!(headers.values().all(HeaderValue::is_sensitive));
        let url = endpoint.url().unwrap();
        assert_eq!(url.path(), "/v2/chat");
        assert_eq!(url.query(), Some(format!("key={SECRET}&v=1").as_str()));
    }

    #[test]
    fn an_endpoint_prints_no_secret() {
        let borrowed = Endpoint::Borrowed(Arc::new(route()));
        let configured = Endpoint::Configured {
            base_url: Url::parse(&format!("https://u:{SECRET}@host/v1?k={SECRET}")).unwrap(),
            api_key: SECRET.into(),
        };
        for endpoint in [borrowed, configured] {
            for printed in [
                format!("{endpoint:?} {endpoint:#?}"),
                format!("{:?}", endpoint.headers().unwrap()),
                endpoint.origin(),
                endpoint.breaker_key(),
            ] {
                assert!(!printed.contains(SECRET), "{printed}");
            }
        }
    }

    #[test]
    fn a_base_url_keeps_its_path_and_query() {
        for (base, expected) in [
            ("https://h/v1", "https://h/v1/chat/completions"),
            ("https://h/v1/", "https://h/v1/chat/completions"),
            ("http://h:1", "http://h:1/chat/completions"),
            (
                "https://h/openai/deployments/d?api-version=1",
                "https://h/openai/deployments/d/chat/completions?api-version=1",
            ),
        ] {
            let endpoint = Endpoint::Configured {
                base_url: Url::parse(base).unwrap(),
                api_key: "k".into(),
            };
            assert_eq!(endpoint.url().unwrap().as_str(), expected);
        }
    }

    #[test]
    fn two_credentials_for_one_host_have_two_breaker_keys() {
        let url = Url::parse("https://h/v1").unwrap();
        let with = |key: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(key))]);
            Endpoint::Borrowed(Arc::new(UpstreamRoute::new(
                &url,
                &headers,
                &CredentialHeaders::default(),
                blake3::Hasher::new(),
            )))
        };
        assert_ne!(with("a").breaker_key(), with("b").breaker_key());
        assert_eq!(with("a").breaker_key(), with("a").breaker_key());
    }

    #[test]
    fn each_project_and_path_of_a_credential_is_its_own_route() {
        let route_hash = |url: &str, project: &'static str| {
            let headers = HeaderMap::from_iter([
                (AUTHORIZATION, HeaderValue::from_static("Bearer k")),
                (
                    HeaderName::from_static("openai-project"),
                    HeaderValue::from_static(project),
                ),
            ]);
            let listed = CredentialHeaders::default();
            let url = Url::parse(url).unwrap();
            UpstreamRoute::new(&url, &headers, &listed, blake3::Hasher::new()).hash()
        };
        let hashes = [
            route_hash("https://h/v1/chat/completions", "a"),
            route_hash("https://h/v1/chat/completions", "b"),
            route_hash("https://h/eu/v1/chat/completions", "a"),
            route_hash("https://h/v1/chat/completions?api-version=1", "a"),
        ];
        for (at, one) in hashes.iter().enumerate() {
            assert!(!hashes[..at].contains(one), "{at}");
        }
        assert_eq!(hashes[0], route_hash("https://h/v1/chat/completions", "a"));
    }
}
