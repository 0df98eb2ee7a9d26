//! Tokens for tests, signed with keys made for the tests.

use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

use super::{VerificationKey, Verifier};

pub(in crate::proxy::identify) const SECRET: &str = "a secret that only the tests know";

pub(super) const ED_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINWAKG3uwPLawLHJlYnRtvNB0B8nrmlfPjPPI7ho9f85
-----END PRIVATE KEY-----";
pub(super) const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAI6K032fDLUoHoHeT/TOd5oUw3Yz7IZqD36e8gCqPzp8=
-----END PUBLIC KEY-----";

pub(in crate::proxy::identify) fn by_secret(secret: &str) -> VerificationKey {
    VerificationKey {
        id: None,
        key: DecodingKey::from_secret(secret.as_bytes()),
        algorithms: vec![Algorithm::HS256],
    }
}

pub(super) fn verifier_with(keys: Vec<VerificationKey>) -> Verifier {
    Verifier {
        keys,
        issuer: None,
        audience: None,
        claim: "sub".to_owned(),
        leeway: Duration::from_secs(30),
    }
}

/// A verifier for tokens signed with [`SECRET`].
pub(in crate::proxy::identify) fn verifier() -> Verifier {
    verifier_with(vec![by_secret(SECRET)])
}

/// The claims that Open WebUI writes about a user; they expire in `seconds`.
pub(in crate::proxy::identify) fn claims(subject: &str, seconds: i64) -> Value {
    let now = i64::try_from(get_current_timestamp()).expect("a time");
    json!({
        "sub": subject,
        "email": "someone@example.com",
        "name": "Someone",
        "role": "user",
        "iss": "open-webui",
        "iat": now,
        "exp": now + seconds,
    })
}

pub(in crate::proxy::identify) fn token(secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    encode(&Header::new(Algorithm::HS256), claims, &key).expect("a token")
}

/// A token signed with the private key above, whose key id is `id`.
pub(super) fn public(claims: &Value, id: Option<&str>) -> String {
    let header = Header {
        kid: id.map(str::to_owned),
        ..Header::new(Algorithm::EdDSA)
    };
    let key = EncodingKey::from_ed_pem(ED_PRIVATE.as_bytes()).expect("a key");
    encode(&header, claims, &key).expect("a token")
}
