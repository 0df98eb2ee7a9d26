//! Why a request has no memory.

use super::token::TokenError;

/// Why memory stays out of a request. Audit and response header have its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// `[memory] enabled = false`.
    Disabled,
    /// The client said `x-diarist-memory: off`.
    ByHeader,
    /// A rule of the operator turns memory off.
    Rule,
    /// No credential, on a listener that others can reach: strangers would share one tenant.
    Anonymous,
    /// No credential, and a page of another site sent it from somebody's browser.
    CrossSite,
    /// The account has begun too many tenants in this hour, and this one is new.
    TooManyTenants,
    /// Headers sign or digest the body.
    Signed,
    /// The body is compressed.
    Encoded,
    /// The request names a user, but the name is not usable. Without it, users would no longer be kept apart.
    BadResource,
    /// The request names a user by a token that is not valid.
    Unverified(TokenError),
}

impl OffReason {
    /// Whether memory should apply but cannot. Otherwise it is turned off.
    pub fn is_bypass(self) -> bool {
        matches!(
            self,
            Self::TooManyTenants
                | Self::Signed
                | Self::Encoded
                | Self::BadResource
                | Self::Unverified(_)
        )
    }

    /// The name in audit and response header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::ByHeader => "asked",
            Self::Rule => "rule",
            Self::Anonymous => "anonymous",
            Self::CrossSite => "cross_site",
            Self::TooManyTenants => "too_many_tenants",
            Self::Signed => "signed_body",
            Self::Encoded => "encoded_body",
            Self::BadResource => "bad_resource",
            Self::Unverified(token_error) => token_error.resource_name(),
        }
    }
}
