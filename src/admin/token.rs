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

    /// Whether `headers` carry the token, as `Authorization: Bearer …`. As on the data port, the case of the scheme and the
    /// number of blanks do not matter.
    pub(super) fn opens(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes);
        let value = value.unwrap_or_default().trim_ascii();
        let end = value.iter().position(u8::is_ascii_whitespace);
        let (scheme, presented) = value.split_at(end.unwrap_or(value.len()));
        // Hashes are compared in constant time.
        scheme.eq_ignore_ascii_case(b"bearer")
            && blake3::hash(presented.trim_ascii_start()) == self.0
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
        for spelling in ["Bearer secret-1", "bearer secret-1", "BEARER \t  secret-1 "] {
            assert!(opens(spelling), "{spelling}");
        }
        for wrong in [
            "Bearer secret-2",
            "Bearer secret-",
            "secret-1",
            "Basic secret-1",
            "Bearer ",
            "Bearersecret-1",
            "Bearer secret-1 x",
            "",
        ] {
            assert!(!opens(wrong), "{wrong}");
        }
        assert!(!token.opens(&HeaderMap::new()));
    }
}
