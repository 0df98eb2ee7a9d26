//! Which signed tokens are believed: the keys, the algorithms, what a token has to say. Reads the file of
//! keys, so that a wrong one is found by `diarist check` and not by the first request. Verifies no token;
//! `proxy::identify` does. Called by `identity`.

use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use secrecy::{ExposeSecret as _, SecretString};

use super::parse::{CheckResult, ErrorReported, Invalid, Setting};
use super::problem::Problem;
use super::settings::{RawResource, RawToken};
use super::valid::{TokenVerification, VerificationKey};

/// Shorter secrets are guessed from a single token, offline. (RFC 7518 wants as many bytes as the hash has,
/// which would keep out secrets that applications are run with.)
const SHORTEST_SECRET: usize = 16;

/// Clocks that differ by more are wrong, and what has expired would be believed for as long.
const LARGEST_LEEWAY: Duration = Duration::from_mins(10);

/// What the two sections that verify tokens have in common.
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

/// What is believed; `None` where no key is given, and nothing that would need one.
pub(super) fn token_verification(
    raw: &RawVerification<'_>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<TokenVerification>> {
    let allowed = raw.algorithms.check(problems, |names| algorithms(names));
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
                "there is a secret as well, and one of the two would go unused",
                "keep the one that tokens are signed with",
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
    Ok(Some(TokenVerification {
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
            "an expired token would be believed for that long",
            "write 10 minutes at most, such as \"30s\"",
        ));
    }
    Ok(*leeway)
}

/// Something is asked of tokens that nobody verifies.
fn reject_unused(raw: &RawVerification<'_>, problems: &mut Vec<Problem>) -> CheckResult<()> {
    let what = "there is no key, so no token is looked at";
    let remedy = "set secret or keys_file beside it, or remove it";
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

/// The keys, each for those of its algorithms that are allowed; all are where none is named.
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
            format!("no key that is given verifies {algorithm:?}"),
            "name algorithms of the keys: HS… for a secret, RS…, PS…, ES… or EdDSA for public keys",
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

fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, Invalid> {
    let algorithm = |name: &String| {
        if name.eq_ignore_ascii_case("none") {
            return Err(Invalid::new(
                "\"none\" is no signature: anybody could be anybody",
                "name the algorithm that tokens are signed with, such as \"RS256\"",
            ));
        }
        name.parse().map_err(|_| {
            Invalid::new(
                format!("\"{name}\" is no algorithm that is known"),
                "write names such as \"HS256\", \"RS256\", \"PS256\", \"ES256\" or \"EdDSA\"",
            )
        })
    };
    names.iter().map(algorithm).collect()
}

fn non_empty_name(text: &str) -> Result<String, Invalid> {
    match text.trim() {
        "" => Err(Invalid::new(
            "nothing is in it",
            "write a name, or remove it",
        )),
        text => Ok(text.to_owned()),
    }
}

fn secret_key(secret: &SecretString) -> Result<VerificationKey, Invalid> {
    let secret = secret.expose_secret();
    if secret.len() < SHORTEST_SECRET {
        return Err(Invalid::new(
            format!(
                "it is shorter than {SHORTEST_SECRET} bytes and could be guessed from one token"
            ),
            "take a longer one, such as the output of `openssl rand -hex 32`, on both sides",
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
            "name a readable file with public keys, as PEM or as JWKS",
        )
    })?;
    // Its text is not shown: it may be the wrong file.
    if text.trim_start().starts_with('{') {
        return jwks(&text);
    }
    if text.contains("PRIVATE KEY") {
        return Err(Invalid::new(
            "there is a private key in it, which belongs to whoever signs",
            "put the public key there: `openssl pkey -in private.pem -pubout`",
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
            "there is no public key in it that is understood",
            "write one RSA, EC (P-256, P-384) or Ed25519 key as PEM, or a JWKS",
        )),
    }
}

fn jwks(text: &str) -> Result<Vec<VerificationKey>, Invalid> {
    let remedy = "take the document at the jwks_uri of whoever issues the tokens";
    let set: JwkSet = serde_json::from_str(text)
        .map_err(|_| Invalid::new("this is JSON, but no JWKS", remedy))?;
    let keys: Vec<VerificationKey> = set.keys.iter().filter_map(jwk).collect();
    if keys.is_empty() {
        return Err(Invalid::new("no key in it verifies signatures", remedy));
    }
    Ok(keys)
}

/// A key of a set; `None` where it is for something else or of a kind that is not known.
fn jwk(jwk: &Jwk) -> Option<VerificationKey> {
    if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
        return None;
    }
    let mut key = key_with_algorithms(jwk.common.key_id.clone(), DecodingKey::from_jwk(jwk).ok()?);
    if let Some(declared) = jwk.common.key_algorithm {
        let declared = Algorithm::try_from(declared).ok()?;
        key.algorithms.retain(|algorithm| *algorithm == declared);
    }
    // A shared secret among public keys: whoever can read the file could sign.
    let public = key.key.family() != AlgorithmFamily::Hmac;
    (public && !key.algorithms.is_empty()).then_some(key)
}
