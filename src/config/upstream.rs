//! The rules of `[upstream]`: the base URL and the placement of observations.

use std::net::{IpAddr, SocketAddr};

use config::ValueKind;
use http::HeaderName;
use url::{Host, Url};

use super::common::{base_url, one_of};
use super::layers::Layers;
use super::parse::{CheckResult, Invalid, Setting};
use super::problem::Problem;
use super::settings::RawUpstream;
use crate::memory::policy::reads_several_system_messages;
use crate::proxy::headers::CONTROL_PREFIX;
use crate::proxy::{AddForCache, SessionAffinity};
use crate::wire::Placement;

/// Endpoints that users copy into the base URL together with it.
const ENDPOINTS: [&str; 4] = ["/completions", "/embeddings", "/responses", "/models"];

/// The keys of all addresses that conversations are sent to.
const BASE_URLS: [&str; 4] = [
    "upstream.base_url",
    "memory.base_url",
    "memory.observation.base_url",
    "memory.reflection.base_url",
];

/// `listen`: the data port, if it is valid.
pub(super) fn checked_base_url(
    raw: &RawUpstream,
    listen: Option<SocketAddr>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Url> {
    let url = raw.base_url.check(problems, |text| base_url(text))?;
    if listen.is_some_and(|listen| points_at(&url, listen)) {
        problems.push(raw.base_url.problem(
            "this is Diarist's own data port: requests would go round in circles",
            "write the base URL of the provider",
        ));
    }
    Ok(url)
}

/// When something is added for the provider's prompt cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheAdditions {
    pub(super) key: AddForCache,
    pub(super) breakpoint: AddForCache,
}

/// What is added to the body for the prompt cache, and the header that routes to it.
pub(super) fn prompt_cache(
    raw: &RawUpstream,
    problems: &mut Vec<Problem>,
) -> (CheckResult<CacheAdditions>, CheckResult<SessionAffinity>) {
    let mut when = |setting: &Setting<String>| {
        setting.check(problems, |text| {
            one_of(
                text,
                &[
                    ("auto", AddForCache::Auto),
                    ("never", AddForCache::Never),
                    ("always", AddForCache::Always),
                ],
            )
        })
    };
    let key = when(&raw.prompt_cache_key);
    let breakpoint = when(&raw.cache_breakpoint);
    let additions = key.and_then(|key| {
        Ok(CacheAdditions {
            key,
            breakpoint: breakpoint?,
        })
    });
    let affinity = raw
        .session_affinity
        .check(problems, |text| session_affinity(text));
    (additions, affinity)
}

fn session_affinity(text: &str) -> Result<SessionAffinity, Invalid> {
    let own = |name: &str| {
        let name: HeaderName = name.parse().ok()?;
        let text = name.as_str();
        let is_control = text.replace('_', "-").starts_with(CONTROL_PREFIX);
        (text.starts_with("x-") && !is_control).then_some(name)
    };
    match text {
        "auto" => Ok(SessionAffinity::Documented),
        "never" => Ok(SessionAffinity::Never),
        name => own(name).map(SessionAffinity::Header).ok_or_else(|| {
            Invalid::new(
                format!("\"{name}\" is no header that may be added"),
                "write \"auto\", \"never\", or the name of a header that begins with x-, such as \"x-session-affinity\"",
            )
        }),
    }
}

/// Where observations stand; `None` sends none.
pub(super) fn placement(
    raw: &RawUpstream,
    host: &str,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<Placement>> {
    // A message that the model's template leaves out takes the conversation with it, and no error says so.
    let auto = if reads_several_system_messages(host) {
        Placement::SystemMessage
    } else {
        Placement::AppendToSystem
    };
    raw.placement.check(problems, |text| {
        one_of(
            text,
            &[
                ("auto", Some(auto)),
                ("system_message", Some(Placement::SystemMessage)),
                ("append_to_system", Some(Placement::AppendToSystem)),
                ("segments", Some(Placement::Segments)),
                ("off", None),
            ],
        )
    })
}

/// A warning for a base URL that is valid, but whose path is probably not the provider's.
pub(super) fn path_warning(url: &Url) -> Option<String> {
    let path = url.path();
    if let Some(endpoint) = ENDPOINTS.iter().find(|end| path.ends_with(*end)) {
        let endpoint = if path.ends_with("/chat/completions") {
            "/chat/completions"
        } else {
            endpoint
        };
        return Some(format!(
            "upstream.base_url ends with {endpoint}, which clients append themselves: requests would go to \
             {path}{endpoint}. Remove {endpoint}."
        ));
    }
    matches!(path, "" | "/").then(|| {
        "upstream.base_url has no path: chat completions go to /chat/completions. Most providers need /v1 at \
         the end of the base URL."
            .to_owned()
    })
}

/// A warning for each address outside this machine that conversations and credentials go to unencrypted.
pub(super) fn plain_http_warnings(layers: &Layers) -> Vec<String> {
    let warning = |key: &&str| {
        let ValueKind::String(url) = layers.value(key) else {
            return None;
        };
        let is_plain =
            Url::parse(&url).is_ok_and(|url| url.scheme() == "http" && is_elsewhere(&url));
        is_plain.then(|| {
            format!(
                "{key} is http://: whoever can read the network on the way to it sees conversations and API keys. Use \
                 https:// if the server offers it."
            )
        })
    };
    BASE_URLS.iter().filter_map(warning).collect()
}

/// Whether the host is another machine. A name without a dot is one of this machine, or of a network of containers.
fn is_elsewhere(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => !ip.is_loopback(),
        Some(Host::Ipv6(ip)) => !ip.to_canonical().is_loopback(),
        Some(Host::Domain(name)) => name.contains('.') && !name.ends_with(".localhost"),
        None => false,
    }
}

/// Whether requests to `url` would arrive at `listen`, as far as this is known without a look-up.
fn points_at(url: &Url, listen: SocketAddr) -> bool {
    let ip = match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
        Some(Host::Ipv6(ip)) => ip.to_canonical(),
        Some(Host::Domain("localhost")) => IpAddr::from([127, 0, 0, 1]),
        _ => return false,
    };
    let reaches = ip == listen.ip() || listen.ip().is_unspecified() && ip.is_loopback();
    listen.port() != 0 && url.port_or_known_default() == Some(listen.port()) && reaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_url_that_points_at_our_data_port_is_recognised() {
        let loops =
            |url: &str, listen: &str| points_at(&url.parse().unwrap(), listen.parse().unwrap());
        assert!(loops("http://127.0.0.1:8484/v1", "127.0.0.1:8484"));
        assert!(loops("http://localhost:8484/v1", "127.0.0.1:8484"));
        assert!(loops("http://127.0.0.1:8484/v1", "0.0.0.0:8484"));
        assert!(loops("http://127.0.0.1", "127.0.0.1:80"));
        assert!(loops("http://[::ffff:127.0.0.1]:84/v1", "127.0.0.1:84"));
        assert!(!loops("http://127.0.0.1:8485/v1", "127.0.0.1:8484"));
        assert!(!loops("http://10.0.0.1:8484/v1", "127.0.0.1:8484"));
        assert!(!loops("https://api.openai.com/v1", "0.0.0.0:443"));
    }

    #[test]
    fn loopback_is_this_machine_in_every_spelling() {
        let elsewhere = |url: &str| is_elsewhere(&url.parse().unwrap());
        for url in [
            "http://127.0.0.1",
            "http://[::1]",
            "http://[::ffff:127.0.0.1]",
        ] {
            assert!(!elsewhere(url), "{url}");
        }
        for url in [
            "http://10.0.0.1",
            "http://[::2]",
            "http://[::ffff:10.0.0.1]",
        ] {
            assert!(elsewhere(url), "{url}");
        }
    }

    #[test]
    fn a_probably_wrong_upstream_path_gets_a_warning() {
        let warning = |url: &str| path_warning(&url.parse().unwrap()).unwrap_or_default();
        for (url, part) in [
            (
                "http://host/v1/chat/completions",
                "Remove /chat/completions.",
            ),
            ("http://host/v1/completions", "Remove /completions."),
            ("http://host/v1/responses", "Remove /responses."),
            ("http://host", "need /v1"),
            ("http://host/", "need /v1"),
        ] {
            assert!(warning(url).contains(part), "{url}: {}", warning(url));
        }
        assert_eq!(warning("http://host/v1"), "");
        assert_eq!(warning("https://host/v1beta/openai"), "");
    }
}
