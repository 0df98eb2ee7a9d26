//! Who is talking, and whether memory may serve them.
//!
//! The owner is decided from headers and query alone, before the body is read: the tenant by its
//! credential, or by a token that is verified ([`token`]); then whether the operator gave it another's
//! name ([`Owners::aliases`]); then the user of the application ([`users`]). What the client calls the conversation
//! ([mod@thread]) comes after. A key groups requests, it does not admit: what memory a request gets is
//! decided by its content (see `memory::select`). Called by `remember`.

mod credential;
mod signed;
pub mod sources;
mod thread;
pub mod token;
pub mod users;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, HeaderName};

use jiff::tz::TimeZone;

use self::credential::credential;
use self::signed::is_signed;
use self::token::{TokenError, Verifier};
use self::users::{Resource, Users};
use crate::history::Scope;
use crate::store::Aliases;

pub use self::credential::tenant_of_key;
pub use self::sources::Sources;
pub use self::thread::{Thread, find_thread};

/// The zone days and minutes are told in, by its IANA name: `Europe/Oslo`.
const TIME_ZONE_HEADER: HeaderName = HeaderName::from_static("x-diarist-timezone");

/// The longest name of a user taken, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// What the operator says of who is who.
#[derive(Clone, Debug, Default)]
pub struct IdentityRules {
    /// Whether a request without a credential may have memory (only on a loopback listener).
    pub anonymous: bool,
    /// How users of the application are known, where somebody vouches for it.
    pub users: Option<Users>,
    /// Tokens whose subject is the tenant.
    pub subjects: Option<Verifier>,
    /// Tenants that are served as others, so that a rotated key keeps its memory.
    pub aliases: Aliases,
}

/// Who a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The owner.
    pub scope: Scope,
    /// The user of the application, where one is named: what the scope's second half stands for.
    pub resource: Option<Resource>,
    /// Why the token in `Authorization` was taken for any other credential.
    pub token_error: Option<TokenError>,
    /// What the client calls the conversation; empty until its body is parsed.
    pub thread: Thread,
    /// What the client says of the time zone it lives in, not yet judged.
    pub zone_name: Option<String>,
}

impl Identity {
    /// Whether conversations of this owner may share what they learn: only those of a user whom the
    /// operator vouches for. A name that any client can write admits to nothing.
    pub fn shares_memory(&self) -> bool {
        self.resource.is_some_and(|resource| resource.trusted)
    }

    /// The zone the client lives in, where it names one there is. May read a file: not for the time
    /// before a request is forwarded.
    pub fn time_zone(&self) -> Option<TimeZone> {
        TimeZone::get(self.zone_name.as_deref()?).ok()
    }
}

/// Why memory stays out of a request. The name stands in audit and response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// `[memory] enabled = false`.
    Disabled,
    /// The client said `x-diarist-memory: off`.
    ByHeader,
    /// A rule of the operator says so.
    Rule,
    /// No credential, on a listener others can reach: one tenant for strangers would be none.
    Anonymous,
    /// Headers sign or digest the body.
    Signed,
    /// The body is compressed.
    Encoded,
    /// The user is named, and the name cannot be used; leaving it out would remove a wall.
    BadResource,
    /// The user is named by a token that does not hold.
    Unverified(TokenError),
}

impl OffReason {
    /// Whether memory was wanted and could not be had; else it was not wanted here.
    pub fn is_bypass(self) -> bool {
        matches!(
            self,
            Self::Signed | Self::Encoded | Self::BadResource | Self::Unverified(_)
        )
    }

    /// The name in audit and header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::ByHeader => "asked",
            Self::Rule => "rule",
            Self::Anonymous => "anonymous",
            Self::Signed => "signed_body",
            Self::Encoded => "encoded_body",
            Self::BadResource => "bad_resource",
            Self::Unverified(token_error) => token_error.resource_name(),
        }
    }
}

/// Reads identity from `headers` and the `query` of the address.
///
/// # Errors
/// Why the request gets no memory.
pub fn identify(
    headers: &HeaderMap,
    query: Option<&str>,
    rules: &IdentityRules,
) -> Result<Identity, OffReason> {
    if is_signed(headers) {
        return Err(OffReason::Signed);
    }
    if is_encoded(headers) {
        return Err(OffReason::Encoded);
    }
    identify_owner(headers, query, rules)
}

/// The same, whether or not memory may touch the request: what passes is heard all the same.
///
/// # Errors
/// Why it cannot be said whose the request is.
pub fn identify_owner(
    headers: &HeaderMap,
    query: Option<&str>,
    rules: &IdentityRules,
) -> Result<Identity, OffReason> {
    let credential = credential(headers, query.unwrap_or_default());
    if credential.is_empty() && !rules.anonymous {
        return Err(OffReason::Anonymous);
    }
    let subject = rules
        .subjects
        .as_ref()
        .and_then(|verifier| verifier.tenant(headers));
    let (tenant, token_error) = match subject {
        Some(Ok(tenant)) => (tenant, None),
        Some(Err(token_error)) => (Scope::hash_tenant(&credential), Some(token_error)),
        None => (Scope::hash_tenant(&credential), None),
    };
    // Before anything is built upon it: links, caches and rows only ever see whom it is served as.
    let tenant = rules.aliases.resolve(tenant);
    let resource = users::resource(headers, rules.users.as_ref())?;
    // Said twice, or unreadable: as good as a name nobody knows, so that it is told and not obeyed.
    let mut zones = headers.get_all(TIME_ZONE_HEADER).iter();
    let zone_name = zones.next().map(|value| {
        let is_single = zones.next().is_none();
        let name = usable_name(value.as_bytes()).filter(|_| is_single);
        name.unwrap_or_default().to_owned()
    });
    Ok(Identity {
        zone_name,
        scope: Scope {
            tenant,
            resource: resource.map(|resource| resource.id),
        },
        resource,
        token_error,
        thread: Thread::default(),
    })
}

fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|value| {
        let value = value.as_bytes().trim_ascii();
        !value.is_empty() && !value.eq_ignore_ascii_case(b"identity")
    })
}

/// A value that can be shown and stored: visible ASCII without spaces, not too long.
fn usable_name(value: &[u8]) -> Option<&str> {
    let value = value.trim_ascii();
    let fits = !value.is_empty()
        && value.len() <= MAX_NAME_BYTES
        && value.iter().all(u8::is_ascii_graphic);
    fits.then(|| std::str::from_utf8(value).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Alias;
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

    fn who(pairs: &[(&'static str, &str)]) -> Result<Identity, OffReason> {
        identify(&headers(pairs), None, &IdentityRules::default())
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
        assert_eq!(who(&[hop]), Err(OffReason::Anonymous));
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
            Err(OffReason::BadResource)
        );
        let mut two = headers(&[base, ("x-diarist-resource", "u1")]);
        two.append("x-diarist-resource", HeaderValue::from_static("u2"));
        assert_eq!(
            identify(&two, None, &IdentityRules::default()),
            Err(OffReason::BadResource)
        );
    }

    #[test]
    fn a_tenant_is_whom_it_is_served_as() {
        let [old, new] = ["Bearer old", "Bearer new"].map(|key| ("authorization", key));
        let tenant = |key| who(&[key]).expect("an identity").scope.tenant;
        let owners = IdentityRules::default();
        owners.aliases.replace(&[Alias {
            name: tenant(new),
            tenant: tenant(old),
            at_ms: 0,
        }]);
        let served = |pairs: &[_]| identify(&headers(pairs), None, &owners).expect("an identity");
        assert_eq!(
            served(&[new]).scope,
            who(&[old]).expect("an identity").scope
        );
        assert_eq!(served(&[old]).scope.tenant, tenant(old));
        // Users stay parted.
        let walled = served(&[new, ("x-diarist-resource", "u1")]);
        assert_ne!(walled.scope, served(&[new]).scope);
    }

    #[test]
    fn memory_stays_out() {
        let base = ("authorization", "Bearer k");
        assert_eq!(who(&[]), Err(OffReason::Anonymous));
        let on_loopback = IdentityRules {
            anonymous: true,
            ..IdentityRules::default()
        };
        assert!(identify(&HeaderMap::new(), None, &on_loopback).is_ok());
        assert_eq!(
            who(&[base, ("content-encoding", "gzip")]),
            Err(OffReason::Encoded)
        );
        assert!(who(&[base, ("content-encoding", "identity")]).is_ok());
        assert_eq!(
            who(&[base, ("content-digest", "sha-256=:x:")]),
            Err(OffReason::Signed)
        );
        assert_eq!(
            who(&[("authorization", "AWS4-HMAC-SHA256 Credential=x")]),
            Err(OffReason::Signed)
        );
    }
}
