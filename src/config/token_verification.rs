//! Which signed tokens are accepted: the keys, the algorithms, and the claims they need.
//!
//! Reads the file of keys, so that `diarist check` finds an unusable one before the first request does. It
//! verifies no token; `proxy::identify` does. Called by `identity`.

use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use secrecy::{ExposeSecret as _, SecretString};

use super::parse::{CheckResult, ErrorReported, Invalid, Setting};
use super::problem::Problem;
use super::settings::{RawResource, RawToken};
use crate::proxy::identify::token::{VerificationKey, Verifier};

/// A shorter secret can be guessed offline from a single token. RFC 7518 asks for as many bytes as the hash
/// has, but applications run with shorter ones.
const SHORTEST_SECRET: usize = 16;

/// An expired token is accepted for this long. Clocks that differ by more should be corrected.
const LARGEST_LEEWAY: Duration = Duration::from_mins(10);

/// The keys that both sections with tokens have.
pub(super) struct RawVerification<'a> {
    secret: &'a Setting<Option<SecretString>>,
    keys_file: &'a Setting<Option<String>>,
    algorithms: &'a Setting<Vec<String>>,
    issuer: &'a Setting<Option<String>>,
    audience: &'a Setting<Option<String>>,
    claim: &'a Setting<String>,
    leeway: &'a Setting<Duration>,
}

impl<'a> From<&'a RawResource> for RawVerification<'a> {
    fn from(raw: &'a RawResource) -> Self {
        Self {
            secret: &raw.secret,
            keys_file: &raw.keys_file,
            algorithms: &raw.algorithms,
            issuer: &raw.issuer,
            audience: &raw.audience,
            claim: &raw.claim,
            leeway: &raw.leeway,
        }
    }
}

impl<'a> From<&'a RawToken> for RawVerification<'a> {
    fn from(raw: &'a RawToken) -> Self {
        Self {
            secret: &raw.secret,
            keys_file: &raw.keys_file,
            algorithms: &raw.algorithms,
            issuer: &raw.issuer,
            audience: &raw.audience,
            claim: &raw.claim,
            leeway: &raw.leeway,
        }
    }
}

/// Which tokens are accepted; `None` if neither a key nor anything that needs one is set.
pub(super) fn token_verification(
    raw: &RawVerification<'_>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<Verifier>> {
    let allowed = raw
        .algorithms
        .check_each(problems, &raw.algorithms.value, |name| algorithm(name));
    let claim = raw.claim.check(problems, |name| non_empty_name(name));
    let issuer = raw.issuer.check_some(problems, |name| non_empty_name(name));
    let audience = raw
        .audience
        .check_some(problems, |name| non_empty_name(name));
    let leeway = raw.leeway.check(problems, check_leeway);
    let by_secret = raw.secret.check_some(problems, secret_key);
    let by_file = raw
        .keys_file
        .check_some(problems, |path| read_keys_file(path));
    let keys = match (by_secret?, by_file?) {
        (Some(_), Some(_)) => {
            problems.push(raw.keys_file.problem(
                "keys_file and secret are both set, but only one of them can be used",
                "keep the one that your tokens are signed with",
            ));
            return Err(ErrorReported);
        }
        (Some(key), None) => vec![key],
        (None, Some(keys)) => keys,
        (None, None) => {
            reject_unused(raw, problems)?;
            return Ok(None);
        }
    };
    Ok(Some(Verifier {
        keys: restrict_algorithms(keys, &allowed?, raw, problems)?,
        issuer: issuer?,
        audience: audience?,
        claim: claim?,
        leeway: leeway?,
    }))
}

fn check_leeway(leeway: &Duration) -> Result<Duration, Invalid> {
    if *leeway > LARGEST_LEEWAY {
        return Err(Invalid::new(
            "it is more than 10 minutes, and expired tokens would be accepted for so long",
            "write a duration of at most \"10m\", such as \"30s\"",
        ));
    }
    Ok(*leeway)
}

/// Without a key no token is verified, so the other keys about tokens would have no effect.
fn reject_unused(raw: &RawVerification<'_>, problems: &mut Vec<Problem>) -> CheckResult<()> {
    let what = "it has no effect: neither secret nor keys_file is set, so no token is verified";
    let remedy = "set secret or keys_file in the same section, or remove this key";
    let before = problems.len();
    if !raw.algorithms.value.is_empty() {
        problems.push(raw.algorithms.problem(what, remedy));
    }
    let claims = [raw.issuer, raw.audience].into_iter();
    problems.extend(
        claims
            .filter(|setting| setting.value.is_some())
            .map(|setting| setting.problem(what, remedy)),
    );
    if problems.len() > before {
        return Err(ErrorReported);
    }
    Ok(())
}

/// The keys, each with only those of its algorithms that are allowed. An empty list allows all.
fn restrict_algorithms(
    keys: Vec<VerificationKey>,
    allowed: &[Algorithm],
    raw: &RawVerification<'_>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<VerificationKey>> {
    if allowed.is_empty() {
        return Ok(keys);
    }
    let useless =
        |algorithm: &&Algorithm| !keys.iter().any(|key| key.algorithms.contains(algorithm));
    if let Some(algorithm) = allowed.iter().find(useless) {
        problems.push(raw.algorithms.problem(
            format!("no configured key can verify {algorithm:?}"),
            "name algorithms that fit the keys: HS… for a secret; RS…, PS…, ES… or EdDSA for public keys",
        ));
        return Err(ErrorReported);
    }
    Ok(keys
        .into_iter()
        .map(|mut key| {
            key.algorithms
                .retain(|algorithm| allowed.contains(algorithm));
            key
        })
        .filter(|key| !key.algorithms.is_empty())
        .collect())
}

fn algorithm(name: &str) -> Result<Algorithm, Invalid> {
    if name.eq_ignore_ascii_case("none") {
        return Err(Invalid::new(
            "\"none\" means no signature: anybody could use any name",
            "name the algorithm that your tokens are signed with, such as \"RS256\"",
        ));
    }
    name.parse().map_err(|_| {
        Invalid::new(
            format!("\"{name}\" is not a known algorithm"),
            "write names such as \"HS256\", \"RS256\", \"PS256\", \"ES256\" or \"EdDSA\"",
        )
    })
}

fn non_empty_name(text: &str) -> Result<String, Invalid> {
    match text.trim() {
        "" => Err(Invalid::new(
            "the text is empty",
            "write a name, or remove the key",
        )),
        text => Ok(text.to_owned()),
    }
}

fn secret_key(secret: &SecretString) -> Result<VerificationKey, Invalid> {
    let secret = secret.expose_secret();
    if secret.len() < SHORTEST_SECRET {
        return Err(Invalid::new(
            format!(
                "the secret is shorter than {SHORTEST_SECRET} bytes and could be guessed from one token"
            ),
            "use a longer secret on both sides, such as the output of `openssl rand -hex 32`",
        ));
    }
    Ok(key_with_algorithms(
        None,
        DecodingKey::from_secret(secret.as_bytes()),
    ))
}

fn key_with_algorithms(id: Option<String>, key: DecodingKey) -> VerificationKey {
    let algorithms = key.family().algorithms().to_vec();
    VerificationKey {
        id,
        key,
        algorithms,
    }
}

fn read_keys_file(path: &str) -> Result<Vec<VerificationKey>, Invalid> {
    let path = path.trim();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Invalid::new(
            format!("\"{path}\" cannot be read: {error}"),
            "write the path of a readable file with public keys, as PEM or as JWKS",
        )
    })?;
    // Errors do not show the text of the file: it may be the wrong one.
    if text.trim_start().starts_with('{') {
        return jwks(&text);
    }
    if text.contains("PRIVATE KEY") {
        return Err(Invalid::new(
            "the file holds a private key, which only the issuer of tokens should have",
            "use the public key: `openssl pkey -in private.pem -pubout`",
        ));
    }
    let parsers = [
        DecodingKey::from_rsa_pem,
        DecodingKey::from_ec_pem,
        DecodingKey::from_ed_pem,
    ];
    match parsers.iter().find_map(|read| read(text.as_bytes()).ok()) {
        Some(key) => Ok(vec![key_with_algorithms(None, key)]),
        None => Err(Invalid::new(
            "the file holds no public key that Diarist can read",
            "use one RSA, EC (P-256, P-384) or Ed25519 key as PEM, or a JWKS",
        )),
    }
}

fn jwks(text: &str) -> Result<Vec<VerificationKey>, Invalid> {
    let remedy = "use the document at the jwks_uri of the issuer of your tokens";
    let set: JwkSet = serde_json::from_str(text)
        .map_err(|_| Invalid::new("the file is JSON, but not a JWKS", remedy))?;
    let keys: Vec<VerificationKey> = set.keys.iter().filter_map(jwk).collect();
    if keys.is_empty() {
        return Err(Invalid::new(
            "the file holds no key that verifies signatures",
            remedy,
        ));
    }
    Ok(keys)
}

/// A key of a set; `None` if it is not for signatures or of an unknown kind.
fn jwk(jwk: &Jwk) -> Option<VerificationKey> {
    if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
        return None;
    }
    let mut key = key_with_algorithms(jwk.common.key_id.clone(), DecodingKey::from_jwk(jwk).ok()?);
    if let Some(declared) = jwk.common.key_algorithm {
        let declared = Algorithm::try_from(declared).ok()?;
        key.algorithms.retain(|algorithm| *algorithm == declared);
    }
    // A shared secret among public keys is left out: everybody who can read the file could sign with it.
    let public = key.key.family() != AlgorithmFamily::Hmac;
    (public && !key.algorithms.is_empty()).then_some(key)
}
