//! The token that opens the pages of the admin port.

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// A hash of the token, so that no copy of it stays in memory.
#[derive(Clone)]
pub struct AdminToken(blake3::Hash);

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken")
    }
}

impl AdminToken {
    pub fn new(token: &str) -> Self {
        Self(blake3::hash(token.as_bytes()))
    }

    /// Whether `headers` carry the token, as `Authorization: Bearer …`.
    pub(super) fn opens(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes);
        let presented = value.and_then(|value| value.split_at_checked(7));
        let Some((scheme, presented)) = presented else {
            return false;
        };
        // Hashes are compared in constant time.
        scheme.eq_ignore_ascii_case(b"bearer ") && blake3::hash(presented) == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_admin_token_gives_access() {
        let token = AdminToken::new("secret-1");
        let opens = |value: &str| {
            let value = value.parse().expect("a value");
            token.opens(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert!(opens("Bearer secret-1") && opens("bearer secret-1"));
        for wrong in [
            "Bearer secret-2",
            "Bearer secret-",
            "secret-1",
            "Basic secret-1",
            "Bearer ",
            "",
        ] {
            assert!(!opens(wrong), "{wrong}");
        }
        assert!(!token.opens(&HeaderMap::new()));
    }
}
