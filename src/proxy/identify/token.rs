//! Signed tokens (JWT) that say who somebody is: whether one is believed, and whom it names.
//!
//! What is believed, and by which keys, is the operator's ([`Verifier`]); the cryptography is
//! `jsonwebtoken`'s. The one place on the request path where a clock decides, since a token that
//! never ends could be replayed for ever: it decides who is talking, never what of their memory is
//! sent (INV-FREE, INV-SAME). A token is read, hashed and dropped. Called by [`identify`](super::identify).

use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

/// Longer ones are not read. Tokens of providers with many claims have 2 KiB; servers limit a whole head
/// to 8 to 64 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// A key, and by which algorithms of its family tokens may be signed with it.
#[derive(Clone, Debug)]
pub struct VerificationKey {
    /// By which a token names it.
    pub id: Option<String>,
    pub key: DecodingKey,
    /// All of the key's own family: a public key that passed for a shared secret would let anybody sign.
    pub algorithms: Vec<Algorithm>,
}

/// Which tokens are believed.
#[derive(Clone, Debug)]
pub struct Verifier {
    pub keys: Vec<VerificationKey>,
    /// Who has to have issued it.
    pub issuer: Option<String>,
    /// Whom it has to be for; without, one that names an audience is for somebody else.
    pub audience: Option<String>,
    /// The claim that names somebody.
    pub claim: String,
    /// By how much clocks may differ.
    pub leeway: Duration,
}

/// Somebody a token names.
#[derive(Debug, PartialEq, Eq)]
pub struct Subject {
    /// A name is one among those of its issuer. As JSON, which may hold several.
    issuer: String,
    claim: String,
    name: String,
}

impl Subject {
    /// Each part with its length, so that none runs into another.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in [&self.issuer, &self.claim, &self.name] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

/// Why a token is not believed. The name stands in the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is no token, or signed by nothing that is known: `none` among them.
    Malformed,
    /// It names a key that is not among ours.
    UnknownKey,
    /// It is signed by an algorithm that is not believed.
    Algorithm,
    Signature,
    /// Its time is over, has not come, or it names no end.
    Time,
    Issuer,
    Audience,
    /// It names nobody.
    Subject,
}

impl TokenError {
    /// The name in the audit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Time => "expired",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Subject => "no_subject",
        }
    }

    /// The same, where the token was to name a user.
    pub(super) fn resource_name(self) -> &'static str {
        match self {
            Self::Malformed => "resource_malformed",
            Self::UnknownKey => "resource_unknown_key",
            Self::Algorithm => "resource_algorithm",
            Self::Signature => "resource_signature",
            Self::Time => "resource_expired",
            Self::Issuer => "resource_issuer",
            Self::Audience => "resource_audience",
            Self::Subject => "resource_no_subject",
        }
    }

    fn from_kind(error: &ErrorKind) -> Self {
        match error {
            ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => Self::Algorithm,
            ErrorKind::ExpiredSignature | ErrorKind::ImmatureSignature => Self::Time,
            ErrorKind::InvalidIssuer => Self::Issuer,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
                match claim.as_str() {
                    "exp" | "nbf" => Self::Time,
                    "iss" => Self::Issuer,
                    "aud" => Self::Audience,
                    _ => Self::Malformed,
                }
            }
            ErrorKind::InvalidToken | ErrorKind::Json(_) | ErrorKind::Utf8(_) => Self::Malformed,
            _ => Self::Signature,
        }
    }
}

impl Verifier {
    /// The tenant of a request whose `Authorization` is a token: a hash of whom it names. `None` where it
    /// is none, and a credential as any other.
    pub(super) fn tenant(&self, headers: &HeaderMap) -> Option<Result<[u8; 32], TokenError>> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (value, None) = (values.next()?.as_bytes(), values.next()) else {
            return None;
        };
        let (scheme, token) = value.split_at_checked("bearer ".len())?;
        let token = token.trim_ascii();
        // A JSON object in Base64 begins so; API keys of providers do not, dots or not.
        let is_jwt = token.starts_with(b"eyJ") && token.split(|byte| *byte == b'.').count() == 3;
        if !scheme.eq_ignore_ascii_case(b"bearer ") || !is_jwt {
            return None;
        }
        let hash = |subject: Subject| {
            blake3::derive_key("diarist 2026-11 token subject", &subject.to_bytes())
        };
        Some(self.subject(token).map(hash))
    }

    /// Whom `token` names.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn subject(&self, token: &[u8]) -> Result<Subject, TokenError> {
        let token = token.trim_ascii();
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        let mut failure = TokenError::UnknownKey;
        for key in &self.keys {
            let named = header.kid.as_ref().zip(key.id.as_ref());
            if named.is_some_and(|(kid, id)| kid != id) {
                continue;
            }
            if !key.algorithms.contains(&header.alg) {
                failure = TokenError::Algorithm;
                continue;
            }
            match decode::<Map<String, Value>>(token, &key.key, &self.validation(key)) {
                Ok(token) => return self.subject_from_claims(&token.claims),
                Err(error) => failure = TokenError::from_kind(error.kind()),
            }
            if failure != TokenError::Signature {
                // It was signed with this key.
                break;
            }
        }
        Err(failure)
    }

    fn validation(&self, key: &VerificationKey) -> Validation {
        let mut validation = Validation::new_for_family(key.key.family());
        validation.algorithms.clone_from(&key.algorithms);
        validation.leeway = self.leeway.as_secs();
        validation.validate_nbf = true;
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        if let Some(audience) = &self.audience {
            validation.set_audience(&[audience]);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        validation
    }

    fn subject_from_claims(&self, claims: &Map<String, Value>) -> Result<Subject, TokenError> {
        let name = match claims.get(&self.claim) {
            Some(Value::String(name)) if !name.trim().is_empty() => name.clone(),
            // Some number their users.
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            _ => return Err(TokenError::Subject),
        };
        let issuer = claims.get("iss").map(Value::to_string);
        Ok(Subject {
            issuer: issuer.unwrap_or_default(),
            claim: self.claim.clone(),
            name,
        })
    }
}

#[cfg(test)]
pub(super) mod samples;
#[cfg(test)]
mod tests;
