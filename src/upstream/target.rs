//! Maps paths of the data port to addresses of the upstream. Pure.
//!
//! Scheme and authority always come from the configured base URL, so that no spelling of a path can reach another
//! origin. Called by [`super::Upstream`].

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use url::Url;

use super::SetupError;

/// What the data port calls the root of the API.
const API_ROOT: &str = "/v1";

/// The address of an upstream, taken apart once.
#[derive(Debug)]
pub(super) struct Target {
    scheme: Scheme,
    authority: Authority,
    /// Path of the base URL without its last slash; empty at the root.
    base_path: String,
    origin: String,
}

impl Target {
    pub(super) fn new(base_url: &Url) -> Result<Self, SetupError> {
        let scheme = match base_url.scheme() {
            "http" => Scheme::HTTP,
            "https" => Scheme::HTTPS,
            other => return Err(SetupError::Scheme(other.to_owned())),
        };
        if !base_url.username().is_empty() || base_url.password().is_some() {
            return Err(SetupError::Userinfo);
        }
        if base_url.query().is_some() || base_url.fragment().is_some() {
            return Err(SetupError::Query);
        }
        let host = base_url.host_str().ok_or(SetupError::Host)?;
        let authority = match base_url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Ok(Self {
            origin: format!("{scheme}://{authority}"),
            scheme,
            authority: authority.parse().map_err(|_| SetupError::Host)?,
            base_path: base_url.path().trim_end_matches('/').to_owned(),
        })
    }

    pub(super) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    pub(super) fn base_url(&self) -> String {
        format!("{}{}", self.origin, self.base_path)
    }

    pub(super) fn uri_for(&self, received: &PathAndQuery) -> Result<Uri, http::Error> {
        let path_and_query = match below_api_root(received.as_str()) {
            Some("") if self.base_path.is_empty() => PathAndQuery::from_static("/"),
            Some(rest) if self.base_path.is_empty() && rest.starts_with('?') => {
                format!("/{rest}").parse()?
            }
            Some(rest) => format!("{}{rest}", self.base_path).parse()?,
            None => received.clone(),
        };
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path_and_query)
            .build()
    }
}

/// What follows `/v1`, if the path lies below it.
fn below_api_root(path_and_query: &str) -> Option<&str> {
    path_and_query
        .strip_prefix(API_ROOT)
        .filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(base: &str) -> Target {
        Target::new(&base.parse().unwrap()).unwrap()
    }

    fn mapped(base: &str, received: &str) -> String {
        let received: PathAndQuery = received.parse().unwrap();
        target(base).uri_for(&received).unwrap().to_string()
    }

    #[test]
    fn the_api_root_maps_onto_the_path_of_the_base_url() {
        for (base, received, sent) in [
            (
                "https://api.openai.com/v1",
                "/v1/chat/completions",
                "https://api.openai.com/v1/chat/completions",
            ),
            (
                "https://host/api/v1/",
                "/v1/models?a=b&a=c",
                "https://host/api/v1/models?a=b&a=c",
            ),
            ("https://host/openai", "/v1", "https://host/openai"),
            ("https://host/openai", "/v1?x", "https://host/openai?x"),
            ("http://host:8080", "/v1/models", "http://host:8080/models"),
            ("http://host:8080", "/v1", "http://host:8080/"),
            ("http://host:8080", "/v1?x", "http://host:8080/?x"),
            ("http://host:80/v1", "/v1/", "http://host/v1/"),
            ("http://[::1]:9/v1", "/v1/a", "http://[::1]:9/v1/a"),
        ] {
            assert_eq!(mapped(base, received), sent, "{received} at {base}");
        }
    }

    #[test]
    fn paths_outside_the_api_root_go_to_the_origin_unchanged() {
        for path in [
            "/",
            "/v1beta/models",
            "/v10",
            "/dashboard?x=%2F..",
            "/V1/models",
        ] {
            assert_eq!(
                mapped("https://host/api/v1", path),
                format!("https://host{path}")
            );
        }
    }

    #[test]
    fn no_spelling_of_a_path_changes_the_upstream_host() {
        for path in [
            "//evil.example/x",
            "/v1//evil.example/x",
            "/../x",
            "/v1/../../x",
            "/v1/%2e%2e/x",
            "/v1%2Fchat",
            "/\\evil.example",
            "/@evil.example",
            "/:80@evil.example",
            "/v1/@evil.example",
        ] {
            let received: PathAndQuery = path.parse().unwrap();
            let uri = target("https://host:444/api").uri_for(&received).unwrap();
            assert_eq!(uri.authority().unwrap(), "host:444", "{path}");
            assert_eq!(uri.scheme_str(), Some("https"), "{path}");
        }
    }

    #[test]
    fn the_error_of_an_invalid_upstream_address_names_the_reason() {
        for (base, message) in [
            ("ftp://host/", "the scheme `ftp` is not http or https"),
            (
                "http://user:secret@host/",
                "credentials in the address are not sent to an upstream; clients bring their own",
            ),
            (
                "http://host/?key=1",
                "an upstream's address has no query and no fragment",
            ),
        ] {
            let error = Target::new(&base.parse().unwrap()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
