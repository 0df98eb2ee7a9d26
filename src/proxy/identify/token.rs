//! Verifies signed tokens (JWT) and returns whom they name.
//!
//! The operator decides which tokens and keys are valid ([`Verifier`]); `jsonwebtoken` does the cryptography.
//! This is the only place on the request path where a clock decides anything, because a token without an end
//! could be replayed for ever. The clock decides who the client is, never which memory is sent (INV-FREE,
//! INV-SAME). A token is read, hashed and dropped. Called by [`identify`](super::identify).

use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

use crate::history::{HashPurpose, Pepper};

/// Longer tokens are not read. Providers' tokens with many claims have 2 KiB; servers limit a whole request head
/// to 8 to 64 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

static TOKEN_SUBJECT: HashPurpose = HashPurpose::new("diarist 2026-11 token subject");

/// A key, and the algorithms that it verifies.
#[derive(Clone, Debug)]
pub struct VerificationKey {
    /// The key id (`kid`) by which tokens name it.
    pub id: Option<String>,
    pub key: DecodingKey,
    /// All of the key's own family. Otherwise anybody could sign a token with a public key, used as a shared secret.
    pub algorithms: Vec<Algorithm>,
}

/// The conditions for a valid token.
#[derive(Clone, Debug)]
pub struct Verifier {
    pub keys: Vec<VerificationKey>,
    /// The required `iss`.
    pub issuer: Option<String>,
    /// The required `aud`. If this is `None`, a token with an audience is for somebody else and not valid.
    pub audience: Option<String>,
    /// The claim that names the subject.
    pub claim: String,
    /// The tolerated difference between clocks.
    pub leeway: Duration,
}

/// Whom a token names.
#[derive(Debug, PartialEq, Eq)]
pub struct Subject {
    /// Names are unique only within an issuer. JSON text, since `iss` may be a list.
    issuer: String,
    claim: String,
    name: String,
}

impl Subject {
    /// Each part with its length, so that two subjects never have the same bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in [&self.issuer, &self.claim, &self.name] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

/// Why a token is not valid. Its name is in the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is not a token, or is signed in an unknown way; `none` counts as that.
    Malformed,
    /// It names a key that is not configured.
    UnknownKey,
    /// It is signed with an algorithm that its key does not allow.
    Algorithm,
    Signature,
    /// It has expired, is not valid yet, or has no end.
    Time,
    Issuer,
    Audience,
    /// It names no subject.
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

    /// The name in the audit, if the token should have named a user.
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
    /// The tenant of a request whose `Authorization` is a token: a hash of the token's subject. `None` if it is no
    /// token, but an ordinary credential.
    pub(super) fn tenant(
        &self,
        headers: &HeaderMap,
        pepper: &Pepper,
    ) -> Option<Result<[u8; 32], TokenError>> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (value, None) = (values.next()?.as_bytes(), values.next()) else {
            return None;
        };
        let (scheme, token) = value.split_at_checked("bearer ".len())?;
        let token = token.trim_ascii();
        // A JSON object begins like this in Base64. API keys of providers do not, even if they have dots.
        let is_jwt = token.starts_with(b"eyJ") && token.split(|byte| *byte == b'.').count() == 3;
        if !scheme.eq_ignore_ascii_case(b"bearer ") || !is_jwt {
            return None;
        }
        let hash = |subject: Subject| pepper.hash(&TOKEN_SUBJECT, &subject.to_bytes());
        Some(self.subject(token).map(hash))
    }

    /// The subject that `token` names.
    ///
    /// # Errors
    /// The reason why the token is not valid.
    pub fn subject(&self, token: &[u8]) -> Result<Subject, TokenError> {
        let token = token.trim_ascii();
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        // RFC 7515 §4.1.11: whoever does not know an extension that `crit` names must refuse the token. None is known.
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
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
                // The signature matched this key, so no other key can help.
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

    /// The subject of a valid token with this name. `issuer` counts if none is required.
    pub(super) fn subject_of_name(&self, name: &str, issuer: Option<&str>) -> Subject {
        let issuer = self.issuer.as_deref().or(issuer).map(Value::from);
        Subject {
            issuer: issuer.as_ref().map(Value::to_string).unwrap_or_default(),
            claim: self.claim.clone(),
            name: name.to_owned(),
        }
    }

    fn subject_from_claims(&self, claims: &Map<String, Value>) -> Result<Subject, TokenError> {
        let name = match claims.get(&self.claim) {
            Some(Value::String(name)) if !name.trim().is_empty() => name.clone(),
            // Some issuers number their users.
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
