//! Decides whom a request belongs to, and whether memory may serve it.
//!
//! The owner comes from headers and query alone, before the body is read: the tenant from its credential, or
//! from a verified token ([`token`]); then the tenant that the operator set in its place
//! ([`IdentityRules::aliases`]); then the user of the application ([`users`]). The client's name for the
//! conversation ([mod@thread]) is read later. A name groups requests and grants nothing: a request gets memory
//! by its content (`memory::select`). Called by `read_request`.

mod credential;
mod name;
mod off_reason;
mod signed;
pub mod sources;
mod thread;
pub mod token;
pub mod users;

use self::name::usable_name;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, HeaderName, HeaderValue, ORIGIN};

use jiff::tz::TimeZone;

use self::credential::Credentials;
use self::signed::is_signed;
use self::token::{TokenError, Verifier};
use self::users::{Resource, Users};
use crate::history::{Pepper, Scope};
use crate::llm::CredentialHeaders;
use crate::store::{Aliases, TenantAccount};

pub use self::credential::tenant_of_key;
pub use self::off_reason::OffReason;
pub use self::sources::Sources;
pub use self::thread::{Thread, find_thread};

/// The client's time zone, by its IANA name: `Europe/Oslo`.
const TIME_ZONE_HEADER: HeaderName = HeaderName::from_static("x-diarist-timezone");

/// The operator's rules for telling tenants and users apart.
#[derive(Clone, Debug, Default)]
pub struct IdentityRules {
    /// Whether a request without a credential may have memory (only on a loopback listener).
    pub anonymous: bool,
    /// How users of the application are recognised, if the operator vouches for their names.
    pub users: Option<Users>,
    /// Headers whose values tell tenants apart.
    pub credentials: CredentialHeaders,
    /// The most tenants that one account may begin in an hour; `None`: any number.
    pub new_tenants_per_hour: Option<u32>,
    /// Tokens whose subject is the tenant.
    pub subjects: Option<Verifier>,
    /// Tenants that are served as other tenants, so that a rotated key keeps its memory.
    pub aliases: Aliases,
    /// Keys every hash of credentials, names and texts. Set at the start, for as long as the process runs.
    pub pepper: Pepper,
}

/// Whom a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The owner.
    pub scope: Scope,
    /// Who pays for the tenant: shares and budgets are for an account. It is a tenant itself, the one of the
    /// credential that the upstream checks. Most tenants are their own account.
    pub account: [u8; 32],
    /// The user of the application, if one is named. Its hash is the second half of the scope.
    pub resource: Option<Resource>,
    /// Why the token in `Authorization` was treated as an ordinary credential.
    pub token_error: Option<TokenError>,
    /// The client's name for the conversation; empty until the body is parsed.
    pub thread: Thread,
    /// The client's time zone as it wrote it, not yet checked.
    pub zone_name: Option<String>,
}

impl Identity {
    /// Its tenant, and who pays for it.
    pub fn tenant_account(&self) -> TenantAccount {
        TenantAccount {
            tenant: self.scope.tenant,
            account: self.account,
        }
    }

    /// Whether conversations of this owner may share memory: only those of a user whom the operator vouches
    /// for. A name that any client can write grants nothing.
    pub fn shares_memory(&self) -> bool {
        self.resource.is_some_and(|resource| resource.trusted)
    }

    /// The client's time zone, if the name is a known zone. May read a file, so it is not called before the
    /// request is forwarded.
    pub fn time_zone(&self) -> Option<TimeZone> {
        TimeZone::get(self.zone_name.as_deref()?).ok()
    }
}

/// Reads the identity from `headers` and the `query` of the address.
///
/// # Errors
/// The reason why memory must not touch the request.
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

/// Whether a browser sent this for a page of another origin. Any page in the world can make a browser on this
/// machine do so; it must neither read nor add to the memory that requests without a credential share.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    match site {
        Some(site) => !matches!(site, b"none" | b"same-origin"),
        // Browsers without that header still send this one with every POST.
        None => headers.contains_key(ORIGIN),
    }
}

/// The hash of all credentials of a request, as they came.
pub fn hash_credentials(
    headers: &HeaderMap,
    query: Option<&str>,
    rules: &IdentityRules,
) -> [u8; 32] {
    let query = query.unwrap_or_default();
    let credentials = Credentials::from_request(headers, query, &rules.credentials);
    Scope::hash_tenant(&rules.pepper, &credentials.all)
}

/// Like [`identify`], but also for a signed or compressed body: the answer to such a request is tracked too.
///
/// # Errors
/// The reason why the request has no owner.
pub fn identify_owner(
    headers: &HeaderMap,
    query: Option<&str>,
    rules: &IdentityRules,
) -> Result<Identity, OffReason> {
    let credentials =
        Credentials::from_request(headers, query.unwrap_or_default(), &rules.credentials);
    if credentials.anonymous && !rules.anonymous {
        return Err(OffReason::Anonymous);
    }
    if credentials.anonymous && is_cross_site(headers) {
        return Err(OffReason::CrossSite);
    }
    let subject = rules
        .subjects
        .as_ref()
        .and_then(|verifier| verifier.tenant(headers, &rules.pepper));
    let presented = || Scope::hash_tenant(&rules.pepper, &credentials.all);
    let (tenant, token_error) = match subject {
        Some(Ok(tenant)) => (tenant, None),
        Some(Err(token_error)) => (presented(), Some(token_error)),
        None => (presented(), None),
    };
    let account = match subject {
        // The token is renewed, its subject stays.
        Some(Ok(tenant)) => tenant,
        _ if credentials.account == credentials.all => tenant,
        _ => Scope::hash_tenant(&rules.pepper, &credentials.account),
    };
    // Links, caches and rows are all built on the tenant, so they only ever see the resolved one.
    let tenant = rules.aliases.resolve(tenant);
    let account = rules.aliases.resolve(account);
    let resource = users::resource(headers, rules.users.as_ref(), &rules.pepper)?;
    // A zone that is sent twice or is unreadable becomes an unknown zone: audited as bad, and not used.
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
        account,
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

    fn identity_of(pairs: &[(&'static str, &str)]) -> Result<Identity, OffReason> {
        identify(&headers(pairs), None, &IdentityRules::default())
    }

    #[test]
    fn the_tenant_depends_on_the_whole_credential() {
        let long = "Bearer sk-0123456789012345678901234567890123456789";
        let one = identity_of(&[("authorization", &format!("{long}a"))]).expect("an identity");
        let two = identity_of(&[("authorization", &format!("{long}b"))]).expect("an identity");
        assert_ne!(one.scope.tenant, two.scope.tenant);
    }

    #[test]
    fn the_tenant_depends_on_the_name_of_the_credential_header() {
        let one = identity_of(&[("api-key", "k")]).expect("an identity");
        let two = identity_of(&[("x-api-key", "k")]).expect("an identity");
        assert_ne!(one.scope.tenant, two.scope.tenant);
    }

    #[test]
    fn the_order_of_credentials_does_not_change_the_tenant() {
        let both = [("authorization", "Bearer k"), ("x-portkey-api-key", "p")];
        let one = identity_of(&both).expect("an identity").scope;
        let two = identity_of(&[both[1], both[0]]).expect("an identity").scope;
        assert_eq!(one, two);
        assert_ne!(one, identity_of(&both[..1]).expect("an identity").scope);
        let hop = ("proxy-authorization", "Basic x");
        assert_eq!(identity_of(&[hop]), Err(OffReason::Anonymous));
    }

    #[test]
    fn an_ignored_header_changes_the_tenant_and_not_the_account() {
        let base = ("authorization", "Bearer k");
        let plain = identity_of(&[base]).expect("an identity");
        let more = identity_of(&[base, ("x-any-auth", "1")]).expect("an identity");
        assert_eq!(plain.account, plain.scope.tenant);
        assert_ne!(more.scope.tenant, plain.scope.tenant);
        assert_eq!(more.account, plain.account);
    }

    #[test]
    fn a_resource_separates_memory_and_an_invalid_one_is_refused() {
        let base = ("authorization", "Bearer k");
        let none = identity_of(&[base]).expect("an identity").scope;
        let some = identity_of(&[base, ("x-diarist-resource", "u1")])
            .expect("an identity")
            .scope;
        assert_eq!(none.tenant, some.tenant);
        assert_ne!(none, some);
        assert_eq!(
            identity_of(&[base, ("x-diarist-resource", "")]),
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
    fn an_aliased_credential_uses_the_memory_of_the_other_tenant() {
        let [old, new] = ["Bearer old", "Bearer new"].map(|key| ("authorization", key));
        let tenant = |key| identity_of(&[key]).expect("an identity").scope.tenant;
        let owners = IdentityRules::default();
        owners.aliases.replace(&[Alias {
            name: tenant(new),
            tenant: tenant(old),
            at_ms: 0,
        }]);
        let served = |pairs: &[_]| identify(&headers(pairs), None, &owners).expect("an identity");
        assert_eq!(
            served(&[new]).scope,
            identity_of(&[old]).expect("an identity").scope
        );
        assert_eq!(served(&[old]).scope.tenant, tenant(old));
        // Users stay apart.
        let walled = served(&[new, ("x-diarist-resource", "u1")]);
        assert_ne!(walled.scope, served(&[new]).scope);
    }

    #[test]
    fn anonymous_cross_site_encoded_and_signed_requests_get_no_memory() {
        let base = ("authorization", "Bearer k");
        assert_eq!(identity_of(&[]), Err(OffReason::Anonymous));
        let on_loopback = IdentityRules {
            anonymous: true,
            ..IdentityRules::default()
        };
        assert!(identify(&HeaderMap::new(), None, &on_loopback).is_ok());
        let from_page = |pairs: &[_]| identify(&headers(pairs), None, &on_loopback).map(|_| ());
        let origin = ("origin", "https://page.example");
        assert_eq!(from_page(&[origin]), Err(OffReason::CrossSite));
        for site in ["cross-site", "same-site"] {
            assert_eq!(
                from_page(&[("sec-fetch-site", site)]),
                Err(OffReason::CrossSite)
            );
        }
        for site in ["none", "same-origin"] {
            assert_eq!(from_page(&[("sec-fetch-site", site), origin]), Ok(()));
        }
        let with_key = [("authorization", "Bearer sk-1"), origin];
        assert_eq!(from_page(&with_key), Ok(()));
        assert_eq!(
            identity_of(&[base, ("content-encoding", "gzip")]),
            Err(OffReason::Encoded)
        );
        assert!(identity_of(&[base, ("content-encoding", "identity")]).is_ok());
        assert_eq!(
            identity_of(&[base, ("content-digest", "sha-256=:x:")]),
            Err(OffReason::Signed)
        );
        assert_eq!(
            identity_of(&[("authorization", "AWS4-HMAC-SHA256 Credential=x")]),
            Err(OffReason::Signed)
        );
    }
}
