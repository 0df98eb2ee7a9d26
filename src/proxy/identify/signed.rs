//! Decides whether a request is signed, so that one changed byte of its body would make it invalid.
//!
//! Looks at the shape of the headers, not at a list of providers: there are too many schemes to list, and
//! nearly all have similar names. A signature of another shape shows when the upstream refuses the changed
//! request and accepts the original ([`crate::proxy::capabilities`]). Called by [`super::identify`].

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};

/// Headers that sign or digest the body, by their whole name.
const SIGNATURE_HEADERS: [&str; 3] = ["signature", "signature-input", "digest"];

/// Headers that sign or digest the body, by the end of their name.
const SIGNATURE_SUFFIXES: [&str; 9] = [
    "-signature",
    "-signature-256",
    "-signature-input",
    "-digest",
    "-md5",
    "-sha1",
    "-sha256",
    "-sha384",
    "-sha512",
];

/// Headers that sign or digest the body, by the beginning of their name: `x-amz-checksum-crc32` and others.
const SIGNATURE_PREFIXES: [&str; 1] = ["x-amz-checksum-"];

/// Headers with this prefix ask for a digest of the answer.
const WANT_PREFIX: &str = "want-";

/// The value in the place of the body's hash, if the body is not signed.
const UNSIGNED: &[u8] = b"UNSIGNED-PAYLOAD";

/// Whether one changed byte of the body would make the request invalid.
pub(super) fn is_signed(headers: &HeaderMap) -> bool {
    headers
        .iter()
        .any(|(name, value)| is_signature_header(name, value))
        || headers.get_all(AUTHORIZATION).iter().any(is_signing_scheme)
}

fn is_signature_header(name: &HeaderName, value: &HeaderValue) -> bool {
    let name = name.as_str();
    let is_listed = SIGNATURE_HEADERS.contains(&name)
        || SIGNATURE_SUFFIXES
            .iter()
            .any(|ending| name.ends_with(ending))
        || SIGNATURE_PREFIXES
            .iter()
            .any(|beginning| name.starts_with(beginning));
    is_listed && !name.starts_with(WANT_PREFIX) && value.as_bytes().trim_ascii() != UNSIGNED
}

/// Whether the scheme signs the body: `AWS4-HMAC-SHA256`, `HMAC-SHA256`, `hmac`, `GOOG4-RSA-SHA256`, `Signature`.
/// `Digest` counts too, since it may digest the body (`auth-int`).
fn is_signing_scheme(value: &HeaderValue) -> bool {
    let Ok(value) = value.to_str() else {
        return false;
    };
    let scheme = value.split_whitespace().next().unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    let hashes = ["-sha1", "-sha224", "-sha256", "-sha384", "-sha512", "-sm3"];
    matches!(scheme.as_str(), "signature" | "digest")
        || scheme.starts_with("hmac")
        || scheme.ends_with("-hmac")
        || scheme.contains("-hmac-")
        || hashes.iter().any(|hash| scheme.ends_with(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(name: &str, value: &str) -> bool {
        let name = HeaderName::try_from(name).expect("a name");
        let value = HeaderValue::try_from(value).expect("a value");
        is_signed(&[(name, value)].into_iter().collect())
    }

    #[test]
    fn every_signing_scheme_is_recognised_by_its_form() {
        for scheme in [
            "AWS4-HMAC-SHA256 Credential=x",
            "AWS4-ECDSA-P256-SHA256 Credential=x",
            "TC3-HMAC-SHA256 Credential=x",
            "ACS3-HMAC-SHA256 Credential=x",
            "SDK-HMAC-SHA256 Access=x",
            "GOOG4-HMAC-SHA256 Credential=x",
            "GOOG4-RSA-SHA256 Credential=x",
            "EG1-HMAC-SHA256 client_token=x",
            "ACS3-HMAC-SM3 Credential=x",
            "X-HMAC-SHA1 x",
            "X-HMAC-SHA512 x",
            "HMAC-SHA256 Credential=x",
            "hmac username=x",
            "HmacSHA256 x",
            "Signature keyId=x",
            "Digest username=x, qop=auth-int",
        ] {
            assert!(signed("authorization", scheme), "{scheme}");
            let lower = scheme.to_ascii_lowercase();
            assert!(signed("authorization", &lower), "{lower}");
        }
        for scheme in [
            "Bearer sk-hmac-sha256",
            "Bearer eyJhbGciOiJIUzI1NiJ9.x.y",
            "Basic dXNlcjpoYXNo",
            "Negotiate x",
            "sk-plain-key",
            "",
        ] {
            assert!(!signed("authorization", scheme), "{scheme}");
        }
    }

    #[test]
    fn every_signature_or_digest_header_is_recognised_by_its_form() {
        for name in [
            "signature",
            "signature-input",
            "x-signature",
            "x-hub-signature",
            "x-hub-signature-256",
            "x-acs-signature",
            "x-ca-signature",
            "webhook-signature",
            "digest",
            "content-digest",
            "repr-digest",
            "x-body-digest",
            "content-md5",
            "x-content-md5",
            "x-content-sha256",
            "x-amz-content-sha256",
            "x-ms-content-sha256",
            "x-amz-checksum-sha256",
            "x-amz-checksum-crc32",
        ] {
            assert!(signed(name, "0123abcd"), "{name}");
        }
        for name in [
            "want-digest",
            "want-content-digest",
            "want-repr-digest",
            "x-signature-version-wanted",
            "x-request-id",
            "user-agent",
            "content-type",
            "x-digest-of-the-day",
        ] {
            assert!(!signed(name, "0123abcd"), "{name}");
        }
        assert!(!signed("x-amz-content-sha256", "UNSIGNED-PAYLOAD"));
    }

    #[test]
    fn a_second_authorization_header_is_also_checked_for_signing() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer k"));
        assert!(!is_signed(&headers));
        headers.append(AUTHORIZATION, HeaderValue::from_static("HMAC-SHA256 x"));
        assert!(is_signed(&headers));
    }
}
