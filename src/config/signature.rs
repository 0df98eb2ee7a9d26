//! Which signed tokens are believed: the keys, the algorithms, what a token has to say. Reads the file of
//! keys, so that a wrong one is found by `diarist check` and not by the first request. Verifies no token;
//! `proxy::identify` does. Called by `identity`.

use std::time::Duration;

use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use secrecy::{ExposeSecret as _, SecretString};

use super::problem::Problem;
use super::settings::{RawToken, RawUsers};
use super::valid::{Key, Signature};
use super::written::{Checked, Reported, Written, Wrong};

/// Shorter secrets are guessed from a single token, offline. (RFC 7518 wants as many bytes as the hash has,
/// which would keep out secrets that applications are run with.)
const SHORTEST_SECRET: usize = 16;

/// Clocks that differ by more are wrong, and what has expired would be believed for as long.
const LARGEST_LEEWAY: Duration = Duration::from_mins(10);

/// What the two sections that verify tokens have in common.
pub(super) struct Said<'a> {
    secret: &'a Written<Option<SecretString>>,
    keys_file: &'a Written<Option<String>>,
    algorithms: &'a Written<Vec<String>>,
    issuer: &'a Written<Option<String>>,
    audience: &'a Written<Option<String>>,
    claim: &'a Written<String>,
    leeway: &'a Written<Duration>,
}

impl<'a> From<&'a RawUsers> for Said<'a> {
    fn from(raw: &'a RawUsers) -> Self {
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

impl<'a> From<&'a RawToken> for Said<'a> {
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
pub(super) fn signature(
    said: &Said<'_>,
    problems: &mut Vec<Problem>,
) -> Checked<Option<Signature>> {
    let allowed = said.algorithms.check(problems, |names| algorithms(names));
    let claim = said.claim.check(problems, |name| word(name));
    let issuer = said.issuer.check_some(problems, |name| word(name));
    let audience = said.audience.check_some(problems, |name| word(name));
    let leeway = said.leeway.check(problems, lenient);
    let by_secret = said.secret.check_some(problems, secret);
    let by_file = said.keys_file.check_some(problems, |path| file(path));
    let keys = match (by_secret?, by_file?) {
        (Some(_), Some(_)) => {
            problems.push(said.keys_file.problem(
                "there is a secret as well, and one of the two would go unused",
                "keep the one that tokens are signed with",
            ));
            return Err(Reported);
        }
        (Some(key), None) => vec![key],
        (None, Some(keys)) => keys,
        (None, None) => {
            idle(said, problems)?;
            return Ok(None);
        }
    };
    Ok(Some(Signature {
        keys: narrowed(keys, &allowed?, said, problems)?,
        issuer: issuer?,
        audience: audience?,
        claim: claim?,
        leeway: leeway?,
    }))
}

fn lenient(leeway: &Duration) -> Result<Duration, Wrong> {
    if *leeway > LARGEST_LEEWAY {
        return Err(Wrong::new(
            "an expired token would be believed for that long",
            "write 10 minutes at most, such as \"30s\"",
        ));
    }
    Ok(*leeway)
}

/// Something is asked of tokens that nobody verifies.
fn idle(said: &Said<'_>, problems: &mut Vec<Problem>) -> Checked<()> {
    let what = "there is no key, so no token is looked at";
    let remedy = "set secret or keys_file beside it, or remove it";
    let before = problems.len();
    if !said.algorithms.value.is_empty() {
        problems.push(said.algorithms.problem(what, remedy));
    }
    let asked = [said.issuer, said.audience].into_iter();
    problems.extend(
        asked
            .filter(|written| written.value.is_some())
            .map(|written| written.problem(what, remedy)),
    );
    if problems.len() > before {
        return Err(Reported);
    }
    Ok(())
}

/// The keys, each for those of its algorithms that are allowed; all are where none is named.
fn narrowed(
    keys: Vec<Key>,
    allowed: &[Algorithm],
    said: &Said<'_>,
    problems: &mut Vec<Problem>,
) -> Checked<Vec<Key>> {
    if allowed.is_empty() {
        return Ok(keys);
    }
    let useless =
        |algorithm: &&Algorithm| !keys.iter().any(|key| key.algorithms.contains(algorithm));
    if let Some(algorithm) = allowed.iter().find(useless) {
        problems.push(said.algorithms.problem(
            format!("no key that is given verifies {algorithm:?}"),
            "name algorithms of the keys: HS… for a secret, RS…, PS…, ES… or EdDSA for public keys",
        ));
        return Err(Reported);
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

fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, Wrong> {
    let algorithm = |name: &String| {
        if name.eq_ignore_ascii_case("none") {
            return Err(Wrong::new(
                "\"none\" is no signature: anybody could be anybody",
                "name the algorithm that tokens are signed with, such as \"RS256\"",
            ));
        }
        name.parse().map_err(|_| {
            Wrong::new(
                format!("\"{name}\" is no algorithm that is known"),
                "write names such as \"HS256\", \"RS256\", \"PS256\", \"ES256\" or \"EdDSA\"",
            )
        })
    };
    names.iter().map(algorithm).collect()
}

fn word(text: &str) -> Result<String, Wrong> {
    match text.trim() {
        "" => Err(Wrong::new("nothing is in it", "write a name, or remove it")),
        text => Ok(text.to_owned()),
    }
}

fn secret(secret: &SecretString) -> Result<Key, Wrong> {
    let secret = secret.expose_secret();
    if secret.len() < SHORTEST_SECRET {
        return Err(Wrong::new(
            format!(
                "it is shorter than {SHORTEST_SECRET} bytes and could be guessed from one token"
            ),
            "take a longer one, such as the output of `openssl rand -hex 32`, on both sides",
        ));
    }
    Ok(of_family(None, DecodingKey::from_secret(secret.as_bytes())))
}

fn of_family(id: Option<String>, key: DecodingKey) -> Key {
    let algorithms = key.family().algorithms().to_vec();
    Key {
        id,
        key,
        algorithms,
    }
}

fn file(path: &str) -> Result<Vec<Key>, Wrong> {
    let path = path.trim();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Wrong::new(
            format!("\"{path}\" cannot be read: {error}"),
            "name a readable file with public keys, as PEM or as JWKS",
        )
    })?;
    // Its text is not shown: it may be the wrong file.
    if text.trim_start().starts_with('{') {
        return jwks(&text);
    }
    if text.contains("PRIVATE KEY") {
        return Err(Wrong::new(
            "there is a private key in it, which belongs to whoever signs",
            "put the public key there: `openssl pkey -in private.pem -pubout`",
        ));
    }
    let ways = [
        DecodingKey::from_rsa_pem,
        DecodingKey::from_ec_pem,
        DecodingKey::from_ed_pem,
    ];
    match ways.iter().find_map(|read| read(text.as_bytes()).ok()) {
        Some(key) => Ok(vec![of_family(None, key)]),
        None => Err(Wrong::new(
            "there is no public key in it that is understood",
            "write one RSA, EC (P-256, P-384) or Ed25519 key as PEM, or a JWKS",
        )),
    }
}

fn jwks(text: &str) -> Result<Vec<Key>, Wrong> {
    let remedy = "take the document at the jwks_uri of whoever issues the tokens";
    let set: JwkSet =
        serde_json::from_str(text).map_err(|_| Wrong::new("this is JSON, but no JWKS", remedy))?;
    let keys: Vec<Key> = set.keys.iter().filter_map(jwk).collect();
    if keys.is_empty() {
        return Err(Wrong::new("no key in it verifies signatures", remedy));
    }
    Ok(keys)
}

/// A key of a set; `None` where it is for something else or of a kind that is not known.
fn jwk(jwk: &Jwk) -> Option<Key> {
    if jwk.common.public_key_use == Some(PublicKeyUse::Encryption) {
        return None;
    }
    let mut key = of_family(jwk.common.key_id.clone(), DecodingKey::from_jwk(jwk).ok()?);
    if let Some(named) = jwk.common.key_algorithm {
        let named = Algorithm::try_from(named).ok()?;
        key.algorithms.retain(|algorithm| *algorithm == named);
    }
    // A shared secret among public keys: whoever can read the file could sign.
    let public = key.key.family() != AlgorithmFamily::Hmac;
    (public && !key.algorithms.is_empty()).then_some(key)
}
