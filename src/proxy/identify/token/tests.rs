use serde_json::json;

use super::samples::{
    ED_PUBLIC, SECRET, by_secret, claims, public, token, verifier, verifier_with,
};
use super::*;

fn named(verifier: &Verifier, token: &str) -> Result<String, TokenError> {
    Ok(verifier.subject(token.as_bytes())?.name)
}

fn ed(id: Option<&str>) -> VerificationKey {
    VerificationKey {
        id: id.map(str::to_owned),
        key: DecodingKey::from_ed_pem(ED_PUBLIC.as_bytes()).expect("a key"),
        algorithms: vec![Algorithm::EdDSA],
    }
}

#[test]
fn a_valid_token_names_its_subject() {
    let token = token(SECRET, &claims("ada", 300));
    assert_eq!(named(&verifier(), &token).as_deref(), Ok("ada"));
    let mut by_mail = verifier();
    by_mail.claim = "email".to_owned();
    assert_eq!(
        named(&by_mail, &token).as_deref(),
        Ok("someone@example.com")
    );
    let mut numbered = claims("", 300);
    numbered["sub"] = json!(42);
    let numbered = self::token(SECRET, &numbered);
    assert_eq!(named(&verifier(), &numbered).as_deref(), Ok("42"));
}

/// Other things that a token can be.
#[test]
fn an_invalid_token_names_no_subject() {
    let good = || claims("ada", 300);
    let with = |name: &str, value: serde_json::Value| {
        let mut claims = good();
        claims[name] = value;
        token(SECRET, &claims)
    };
    let without = |name: &str| {
        let mut claims = good();
        claims.as_object_mut().expect("an object").remove(name);
        token(SECRET, &claims)
    };
    let whole = token(SECRET, &good());
    let parts: Vec<&str> = whole.split('.').collect();
    // {"alg":"none","typ":"JWT"}, and no signature.
    let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.", parts[1]);
    let other = token(SECRET, &claims("bob", 300));
    let grafted = format!(
        "{}.{}.{}",
        parts[0],
        other.split('.').nth(1).expect("claims"),
        parts[2]
    );
    let cut = &whole[..whole.len() - 2];
    let far = i64::from(u32::MAX);
    for (sent, flaw) in [
        ("ada", TokenError::Malformed),
        ("", TokenError::Malformed),
        ("eyJ.eyJ.x", TokenError::Malformed),
        (&unsigned, TokenError::Malformed),
        (&format!("{whole}.x"), TokenError::Malformed),
        (&"e".repeat(MAX_TOKEN_BYTES + 1), TokenError::Malformed),
        (&grafted, TokenError::Signature),
        (cut, TokenError::Signature),
        (
            &token("another secret of enough bytes", &good()),
            TokenError::Signature,
        ),
        (&token(SECRET, &claims("ada", -300)), TokenError::Time),
        (&without("exp"), TokenError::Time),
        (&with("exp", json!("soon")), TokenError::Time),
        (&with("nbf", json!(far)), TokenError::Time),
        (&with("aud", json!("another service")), TokenError::Audience),
        (&without("sub"), TokenError::Subject),
        (&with("sub", json!("")), TokenError::Subject),
        (&with("sub", json!(true)), TokenError::Subject),
        (&with("sub", json!({"id": "ada"})), TokenError::Malformed),
        (&public(&good(), None), TokenError::Algorithm),
    ] {
        assert_eq!(named(&verifier(), sent), Err(flaw), "{sent}");
    }
}

#[test]
fn a_required_issuer_and_audience_must_be_in_the_token() {
    let strict = Verifier {
        issuer: Some("open-webui".to_owned()),
        audience: Some("diarist".to_owned()),
        ..verifier()
    };
    let mut token_claims = claims("ada", 300);
    assert_eq!(
        named(&strict, &token(SECRET, &token_claims)),
        Err(TokenError::Audience)
    );
    token_claims["aud"] = json!(["other", "diarist"]);
    assert_eq!(
        named(&strict, &token(SECRET, &token_claims)).as_deref(),
        Ok("ada")
    );
    token_claims["iss"] = json!("somebody else");
    assert_eq!(
        named(&strict, &token(SECRET, &token_claims)),
        Err(TokenError::Issuer)
    );
    token_claims
        .as_object_mut()
        .expect("an object")
        .remove("iss");
    assert_eq!(
        named(&strict, &token(SECRET, &token_claims)),
        Err(TokenError::Issuer)
    );
}

#[test]
fn a_token_for_another_audience_is_refused() {
    let strict = Verifier {
        audience: Some("diarist".to_owned()),
        ..verifier()
    };
    for (audience, expected) in [
        (json!("diarist"), Ok("ada")),
        (json!("other"), Err(TokenError::Audience)),
        (json!(["other"]), Err(TokenError::Audience)),
        (json!([]), Err(TokenError::Audience)),
        (json!(7), Err(TokenError::Audience)),
    ] {
        let mut token_claims = claims("ada", 300);
        token_claims["aud"] = audience.clone();
        let named = named(&strict, &token(SECRET, &token_claims));
        assert_eq!(
            named.as_deref().map_err(|flaw| *flaw),
            expected,
            "{audience}"
        );
    }
}

#[test]
fn token_times_have_a_leeway_of_half_a_minute() {
    let with = |name: &str, seconds: i64| {
        let mut token_claims = claims("ada", 300);
        token_claims[name] = json!(token_claims["iat"].as_i64().expect("a time") + seconds);
        named(&verifier(), &token(SECRET, &token_claims)).err()
    };
    // The leeway is half a minute.
    for (name, seconds, flaw) in [
        ("exp", -10, None),
        ("exp", -45, Some(TokenError::Time)),
        ("nbf", 10, None),
        ("nbf", 45, Some(TokenError::Time)),
        ("nbf", -300, None),
    ] {
        assert_eq!(with(name, seconds), flaw, "{name} {seconds}");
    }
}

#[test]
fn a_token_with_a_disallowed_algorithm_is_refused_despite_the_right_key() {
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    let header = jsonwebtoken::Header::new(Algorithm::HS512);
    let other = jsonwebtoken::encode(&header, &claims("ada", 300), &key).expect("a token");
    assert_eq!(named(&verifier(), &other), Err(TokenError::Algorithm));
    let mut both = by_secret(SECRET);
    both.algorithms.push(Algorithm::HS512);
    assert_eq!(
        named(&verifier_with(vec![both]), &other).as_deref(),
        Ok("ada")
    );
}

#[test]
fn a_token_with_an_unknown_critical_extension_is_refused() {
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    let mut header = jsonwebtoken::Header::new(Algorithm::HS256);
    header.crit = Some(vec!["exp-policy".to_owned()]);
    let extended = jsonwebtoken::encode(&header, &claims("ada", 300), &key).expect("a token");
    assert_eq!(named(&verifier(), &extended), Err(TokenError::Malformed));
}

#[test]
fn a_token_longer_than_the_limit_is_refused() {
    let mut token_claims = claims("ada", 300);
    token_claims["roles"] = json!("r".repeat(MAX_TOKEN_BYTES));
    let long = token(SECRET, &token_claims);
    assert_eq!(named(&verifier(), &long), Err(TokenError::Malformed));
}

#[test]
fn the_error_is_that_of_the_key_that_signed_the_token() {
    let older = "an older secret of enough bytes";
    let expired = token(SECRET, &claims("ada", -300));
    for keys in [[SECRET, older], [older, SECRET]] {
        let both = verifier_with(keys.map(by_secret).into());
        assert_eq!(named(&both, &expired), Err(TokenError::Time));
    }
}

#[test]
fn a_subject_must_be_non_empty_text_or_a_whole_number() {
    for name in [json!("  "), json!(1.5), json!(null), json!(["ada"])] {
        let mut token_claims = claims("ada", 300);
        token_claims["id"] = name.clone();
        let by_id = Verifier {
            claim: "id".to_owned(),
            ..verifier()
        };
        let named = named(&by_id, &token(SECRET, &token_claims));
        assert_eq!(named, Err(TokenError::Subject), "{name}");
    }
}

/// The classic attack: a public key, which everybody knows, used as a shared secret.
#[test]
fn a_public_key_used_as_a_secret_is_refused() {
    let forged = token(ED_PUBLIC, &claims("ada", 300));
    assert_eq!(
        named(&verifier_with(vec![ed(None)]), &forged),
        Err(TokenError::Algorithm)
    );
}

#[test]
fn a_verification_key_is_found_by_its_id() {
    let set = || verifier_with(vec![by_secret(SECRET), ed(Some("k1"))]);
    let token_claims = claims("ada", 300);
    assert_eq!(
        named(&set(), &public(&token_claims, Some("k1"))).as_deref(),
        Ok("ada")
    );
    assert_eq!(
        named(&set(), &public(&token_claims, None)).as_deref(),
        Ok("ada")
    );
    let other = verifier_with(vec![ed(Some("k2"))]);
    assert_eq!(
        named(&other, &public(&token_claims, Some("k1"))),
        Err(TokenError::UnknownKey)
    );
    // Two keys are valid while one replaces the other.
    let both = verifier_with(vec![
        by_secret("an older secret of enough bytes"),
        by_secret(SECRET),
    ]);
    assert_eq!(
        named(&both, &token(SECRET, &token_claims)).as_deref(),
        Ok("ada")
    );
    let expired = token(SECRET, &claims("ada", -300));
    assert_eq!(named(&both, &expired), Err(TokenError::Time));
}

#[test]
fn equal_names_of_two_issuers_are_two_subjects() {
    let subject = |issuer: &str, name: &str| {
        let mut token_claims = claims(name, 300);
        token_claims["iss"] = json!(issuer);
        let token = token(SECRET, &token_claims);
        verifier()
            .subject(token.as_bytes())
            .expect("a subject")
            .to_bytes()
    };
    assert_ne!(subject("one", "ada"), subject("two", "ada"));
    assert_ne!(subject("o", "neada"), subject("one", "ada"));
    assert_eq!(subject("one", "ada"), subject("one", "ada"));
}

#[test]
fn a_header_without_a_token_counts_as_a_plain_credential() {
    let tenant = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().expect("a value"));
        }
        verifier().tenant(&headers, &crate::history::Pepper::NONE)
    };
    let good = token(SECRET, &claims("ada", 300));
    for none in [
        "",
        "Bearer sk-proj-a.b.c",
        "Basic eyJh.b.c",
        "Bearer",
        "Bearer eyJh",
    ] {
        assert_eq!(tenant(&[none]), None, "{none:?}");
    }
    let bearer = format!("Bearer {good}");
    assert_eq!(tenant(&[&bearer, &bearer]), None);
    assert_eq!(
        tenant(&["Bearer eyJh.b.c"]),
        Some(Err(TokenError::Malformed))
    );
    let renewed = format!("bearer  {}", token(SECRET, &claims("ada", 900)));
    let found = tenant(&[&bearer]).expect("a token").expect("that holds");
    assert_eq!(tenant(&[&renewed]), Some(Ok(found)));
}
