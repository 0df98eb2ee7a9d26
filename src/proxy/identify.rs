//! Who is talking, and whether memory may serve them.
//!
//! The owner is decided from headers and query alone, before the body is read; what the client calls the
//! conversation ([mod@thread]) comes after. A key groups requests, it does not admit: what memory a request
//! gets is decided by its content (see `memory::select`). Called by `remember`.

pub mod sources;
mod thread;

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderName};

use jiff::tz::TimeZone;

use crate::history::Scope;

pub use self::sources::Sources;
pub use self::thread::{Thread, thread};

/// Headers that carry a credential by name, and by how their names end: gateways have their own
/// (`x-portkey-api-key`, `helicone-auth`, `cf-aig-authorization`), beside an `Authorization` that SDKs
/// insist on. All that are present count, whole: two credentials that share a beginning are two
/// tenants.
const CREDENTIALS: [&str; 2] = ["authorization", "api-key"];
const CREDENTIAL_ENDINGS: [&str; 3] = ["-api-key", "-auth", "-authorization"];

/// Members of a query that carry one.
const CREDENTIALS_IN_QUERY: [&str; 7] = [
    "key",
    "api_key",
    "api-key",
    "apikey",
    "access_token",
    "token",
    "subscription-key",
];

/// A user of the application: a second wall within a tenant.
const RESOURCE: HeaderName = HeaderName::from_static("x-diarist-resource");

/// The zone days and minutes are told in, by its IANA name: `Europe/Oslo`.
const ZONE: HeaderName = HeaderName::from_static("x-diarist-timezone");

/// Headers that sign or digest the body: one changed byte would make the request invalid.
const SIGNATURES: [HeaderName; 7] = [
    HeaderName::from_static("signature"),
    HeaderName::from_static("signature-input"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("x-amz-content-sha256"),
];

/// Schemes of `Authorization` that sign the request, in lower case.
const SIGNING_SCHEMES: [&str; 3] = ["aws4-hmac-sha256", "signature", "hmac"];

/// The longest resource taken, in bytes.
const LONGEST: usize = 256;

/// Who a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The owner.
    pub scope: Scope,
    /// What the client calls the conversation; empty until its body is parsed.
    pub thread: Thread,
    /// What the client says of the time zone it lives in, not yet judged.
    pub zone_name: Option<String>,
}

impl Identity {
    /// The zone the client lives in, where it names one there is. May read a file: not for the time
    /// before a request is forwarded.
    pub fn zone(&self) -> Option<TimeZone> {
        TimeZone::get(self.zone_name.as_deref()?).ok()
    }
}

/// Why memory stays out of a request. The name stands in audit and response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// `[memory] enabled = false`.
    Disabled,
    /// The client said `x-diarist-memory: off`.
    Asked,
    /// A rule of the operator says so.
    Rule,
    /// No credential, on a listener others can reach: one tenant for strangers would be none.
    Anonymous,
    /// Headers sign or digest the body.
    Signed,
    /// The body is compressed.
    Encoded,
    /// `x-diarist-resource` is there but cannot be used; leaving it out would remove a wall.
    BadResource,
}

impl Off {
    /// Whether memory was wanted and could not be had; else it was not wanted here.
    pub fn is_doubt(self) -> bool {
        matches!(self, Self::Signed | Self::Encoded | Self::BadResource)
    }

    /// The name in audit and header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Asked => "asked",
            Self::Rule => "rule",
            Self::Anonymous => "anonymous",
            Self::Signed => "signed_body",
            Self::Encoded => "encoded_body",
            Self::BadResource => "bad_resource",
        }
    }
}

/// Reads identity from `headers` and the `query` of the address. `anonymous` says whether a request
/// without a credential may have memory (only on a loopback listener).
///
/// # Errors
/// Why the request gets no memory.
pub fn identify(
    headers: &HeaderMap,
    query: Option<&str>,
    anonymous: bool,
) -> Result<Identity, Off> {
    if is_signed(headers) {
        return Err(Off::Signed);
    }
    if is_encoded(headers) {
        return Err(Off::Encoded);
    }
    let credential = credential(headers, query.unwrap_or_default());
    if credential.is_empty() && !anonymous {
        return Err(Off::Anonymous);
    }
    let mut resources = headers.get_all(RESOURCE).iter();
    let resource = match (resources.next(), resources.next()) {
        (None, _) => None,
        (Some(value), None) => Some(usable(value.as_bytes()).ok_or(Off::BadResource)?),
        // Two walls: which one is meant is not for us to guess.
        (Some(_), Some(_)) => return Err(Off::BadResource),
    };
    // Said twice, or unreadable: as good as a name nobody knows, so that it is told and not obeyed.
    let mut zones = headers.get_all(ZONE).iter();
    let zone_name = zones.next().map(|value| {
        let alone = zones.next().is_none();
        let name = usable(value.as_bytes()).filter(|_| alone);
        name.unwrap_or_default().to_owned()
    });
    Ok(Identity {
        zone_name,
        scope: Scope::of(&credential, resource.map(str::as_bytes)),
        thread: Thread::default(),
    })
}

/// Every presented credential, each with its name and length, so that none runs into another.
fn credential(headers: &HeaderMap, query: &str) -> Vec<u8> {
    let in_headers = headers
        .iter()
        .filter(|(name, _)| carries_credential(name))
        .map(|(name, value)| (name.as_str(), value.as_bytes()));
    let in_query = query
        .split('&')
        .filter_map(|member| member.split_once('='))
        .filter(|(name, value)| CREDENTIALS_IN_QUERY.contains(name) && !value.is_empty())
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
    let ends = || {
        CREDENTIAL_ENDINGS
            .iter()
            .any(|ending| name.ends_with(ending))
    };
    CREDENTIALS.contains(&name) || ends() && name != "proxy-authorization"
}

fn is_signed(headers: &HeaderMap) -> bool {
    let scheme = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .map(|value| {
            value
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase()
        });
    SIGNATURES.iter().any(|name| headers.contains_key(name))
        || scheme.is_some_and(|scheme| SIGNING_SCHEMES.contains(&scheme.as_str()))
}

fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|value| {
        let value = value.as_bytes().trim_ascii();
        !value.is_empty() && !value.eq_ignore_ascii_case(b"identity")
    })
}

/// A value that can be shown and stored: visible ASCII without spaces, not too long.
fn usable(value: &[u8]) -> Option<&str> {
    let value = value.trim_ascii();
    let fits =
        !value.is_empty() && value.len() <= LONGEST && value.iter().all(u8::is_ascii_graphic);
    fits.then(|| std::str::from_utf8(value).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).expect("a value"),
                )
            })
            .collect()
    }

    fn who(pairs: &[(&'static str, &str)]) -> Result<Identity, Off> {
        identify(&headers(pairs), None, false)
    }

    #[test]
    fn the_whole_credential_is_the_tenant() {
        let long = "Bearer sk-0123456789012345678901234567890123456789";
        let one = who(&[("authorization", &format!("{long}a"))]).expect("an identity");
        let two = who(&[("authorization", &format!("{long}b"))]).expect("an identity");
        assert_ne!(one.scope.tenant, two.scope.tenant);
    }

    #[test]
    fn the_header_of_a_credential_counts() {
        let one = who(&[("api-key", "k")]).expect("an identity");
        let two = who(&[("x-api-key", "k")]).expect("an identity");
        assert_ne!(one.scope.tenant, two.scope.tenant);
    }

    #[test]
    fn the_order_of_credentials_means_nothing() {
        let both = [("authorization", "Bearer k"), ("x-portkey-api-key", "p")];
        let one = who(&both).expect("an identity").scope;
        let two = who(&[both[1], both[0]]).expect("an identity").scope;
        assert_eq!(one, two);
        assert_ne!(one, who(&both[..1]).expect("an identity").scope);
        let hop = ("proxy-authorization", "Basic x");
        assert_eq!(who(&[hop]), Err(Off::Anonymous));
    }

    #[test]
    fn a_resource_is_a_wall_that_cannot_be_left_out() {
        let base = ("authorization", "Bearer k");
        let none = who(&[base]).expect("an identity").scope;
        let some = who(&[base, ("x-diarist-resource", "u1")])
            .expect("an identity")
            .scope;
        assert_eq!(none.tenant, some.tenant);
        assert_ne!(none, some);
        assert_eq!(
            who(&[base, ("x-diarist-resource", "")]),
            Err(Off::BadResource)
        );
        let mut two = headers(&[base, ("x-diarist-resource", "u1")]);
        two.append(RESOURCE, HeaderValue::from_static("u2"));
        assert_eq!(identify(&two, None, false), Err(Off::BadResource));
    }

    #[test]
    fn memory_stays_out() {
        let base = ("authorization", "Bearer k");
        assert_eq!(who(&[]), Err(Off::Anonymous));
        assert!(identify(&HeaderMap::new(), None, true).is_ok());
        assert_eq!(
            who(&[base, ("content-encoding", "gzip")]),
            Err(Off::Encoded)
        );
        assert!(who(&[base, ("content-encoding", "identity")]).is_ok());
        assert_eq!(
            who(&[base, ("content-digest", "sha-256=:x:")]),
            Err(Off::Signed)
        );
        assert_eq!(
            who(&[("authorization", "AWS4-HMAC-SHA256 Credential=x")]),
            Err(Off::Signed)
        );
    }
}
