use serde_json::json;

use super::samples::{ED_PUBLIC, SECRET, by_secret, claims, of, public, token, verifier};
use super::*;

fn named(verifier: &Verifier, token: &str) -> Result<String, Flaw> {
    Ok(verifier.subject(token.as_bytes())?.name)
}

fn ed(id: Option<&str>) -> Key {
    Key {
        id: id.map(str::to_owned),
        key: DecodingKey::from_ed_pem(ED_PUBLIC.as_bytes()).expect("a key"),
        algorithms: vec![Algorithm::EdDSA],
    }
}

#[test]
fn a_token_that_holds_names_its_subject() {
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

/// What else a token can be.
#[test]
fn a_token_that_does_not_hold_names_nobody() {
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
        ("ada", Flaw::Malformed),
        ("", Flaw::Malformed),
        ("eyJ.eyJ.x", Flaw::Malformed),
        (&unsigned, Flaw::Malformed),
        (&format!("{whole}.x"), Flaw::Malformed),
        (&"e".repeat(LONGEST + 1), Flaw::Malformed),
        (&grafted, Flaw::Signature),
        (cut, Flaw::Signature),
        (
            &token("another secret of enough bytes", &good()),
            Flaw::Signature,
        ),
        (&token(SECRET, &claims("ada", -300)), Flaw::Time),
        (&without("exp"), Flaw::Time),
        (&with("exp", json!("soon")), Flaw::Time),
        (&with("nbf", json!(far)), Flaw::Time),
        (&with("aud", json!("another service")), Flaw::Audience),
        (&without("sub"), Flaw::Subject),
        (&with("sub", json!("")), Flaw::Subject),
        (&with("sub", json!(true)), Flaw::Subject),
        (&with("sub", json!({"id": "ada"})), Flaw::Malformed),
        (&public(&good(), None), Flaw::Algorithm),
    ] {
        assert_eq!(named(&verifier(), sent), Err(flaw), "{sent}");
    }
}

#[test]
fn issuer_and_audience_have_to_be_there_where_they_are_asked_for() {
    let strict = Verifier {
        issuer: Some("open-webui".to_owned()),
        audience: Some("diarist".to_owned()),
        ..verifier()
    };
    let mut said = claims("ada", 300);
    assert_eq!(named(&strict, &token(SECRET, &said)), Err(Flaw::Audience));
    said["aud"] = json!(["other", "diarist"]);
    assert_eq!(named(&strict, &token(SECRET, &said)).as_deref(), Ok("ada"));
    said["iss"] = json!("somebody else");
    assert_eq!(named(&strict, &token(SECRET, &said)), Err(Flaw::Issuer));
    said.as_object_mut().expect("an object").remove("iss");
    assert_eq!(named(&strict, &token(SECRET, &said)), Err(Flaw::Issuer));
}

#[test]
fn what_is_for_somebody_else_is_not_believed() {
    let strict = Verifier {
        audience: Some("diarist".to_owned()),
        ..verifier()
    };
    for (audience, expected) in [
        (json!("diarist"), Ok("ada")),
        (json!("other"), Err(Flaw::Audience)),
        (json!(["other"]), Err(Flaw::Audience)),
        (json!([]), Err(Flaw::Audience)),
        (json!(7), Err(Flaw::Audience)),
    ] {
        let mut said = claims("ada", 300);
        said["aud"] = audience.clone();
        let named = named(&strict, &token(SECRET, &said));
        assert_eq!(
            named.as_deref().map_err(|flaw| *flaw),
            expected,
            "{audience}"
        );
    }
}

#[test]
fn clocks_may_differ_by_so_much_and_no_more() {
    let with = |name: &str, seconds: i64| {
        let mut said = claims("ada", 300);
        said[name] = json!(said["iat"].as_i64().expect("a time") + seconds);
        named(&verifier(), &token(SECRET, &said)).err()
    };
    // The leeway is half a minute.
    for (name, seconds, flaw) in [
        ("exp", -10, None),
        ("exp", -45, Some(Flaw::Time)),
        ("nbf", 10, None),
        ("nbf", 45, Some(Flaw::Time)),
        ("nbf", -300, None),
    ] {
        assert_eq!(with(name, seconds), flaw, "{name} {seconds}");
    }
}

#[test]
fn an_algorithm_that_is_not_allowed_is_not_believed_though_the_key_is_right() {
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    let header = jsonwebtoken::Header::new(Algorithm::HS512);
    let other = jsonwebtoken::encode(&header, &claims("ada", 300), &key).expect("a token");
    assert_eq!(named(&verifier(), &other), Err(Flaw::Algorithm));
    let mut both = by_secret(SECRET);
    both.algorithms.push(Algorithm::HS512);
    assert_eq!(named(&of(vec![both]), &other).as_deref(), Ok("ada"));
}

#[test]
fn what_is_longer_than_a_head_may_be_is_not_read() {
    let mut said = claims("ada", 300);
    said["roles"] = json!("r".repeat(LONGEST));
    let long = token(SECRET, &said);
    assert_eq!(named(&verifier(), &long), Err(Flaw::Malformed));
}

#[test]
fn the_flaw_is_that_of_the_key_which_signed_it() {
    let older = "an older secret of enough bytes";
    let expired = token(SECRET, &claims("ada", -300));
    for keys in [[SECRET, older], [older, SECRET]] {
        let both = of(keys.map(by_secret).into());
        assert_eq!(named(&both, &expired), Err(Flaw::Time));
    }
}

#[test]
fn a_name_has_something_in_it_and_is_no_measurement() {
    for name in [json!("  "), json!(1.5), json!(null), json!(["ada"])] {
        let mut said = claims("ada", 300);
        said["id"] = name.clone();
        let by_id = Verifier {
            claim: "id".to_owned(),
            ..verifier()
        };
        let named = named(&by_id, &token(SECRET, &said));
        assert_eq!(named, Err(Flaw::Subject), "{name}");
    }
}

/// The classic: a public key, which everybody knows, taken for a shared secret.
#[test]
fn a_public_key_signs_nothing() {
    let forged = token(ED_PUBLIC, &claims("ada", 300));
    assert_eq!(named(&of(vec![ed(None)]), &forged), Err(Flaw::Algorithm));
}

#[test]
fn a_key_is_found_by_its_name() {
    let set = || of(vec![by_secret(SECRET), ed(Some("k1"))]);
    let said = claims("ada", 300);
    assert_eq!(
        named(&set(), &public(&said, Some("k1"))).as_deref(),
        Ok("ada")
    );
    assert_eq!(named(&set(), &public(&said, None)).as_deref(), Ok("ada"));
    let other = of(vec![ed(Some("k2"))]);
    assert_eq!(named(&other, &public(&said, Some("k1"))), Err(Flaw::Key));
    // Keys that overlap while they are rotated.
    let both = of(vec![
        by_secret("an older secret of enough bytes"),
        by_secret(SECRET),
    ]);
    assert_eq!(named(&both, &token(SECRET, &said)).as_deref(), Ok("ada"));
    let expired = token(SECRET, &claims("ada", -300));
    assert_eq!(named(&both, &expired), Err(Flaw::Time));
}

#[test]
fn names_are_names_of_their_issuer() {
    let subject = |issuer: &str, name: &str| {
        let mut said = claims(name, 300);
        said["iss"] = json!(issuer);
        let token = token(SECRET, &said);
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
fn what_is_no_token_is_a_credential_as_any_other() {
    let tenant = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().expect("a value"));
        }
        verifier().tenant(&headers)
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
    assert_eq!(tenant(&["Bearer eyJh.b.c"]), Some(Err(Flaw::Malformed)));
    let renewed = format!("bearer  {}", token(SECRET, &claims("ada", 900)));
    let found = tenant(&[&bearer]).expect("a token").expect("that holds");
    assert_eq!(tenant(&[&renewed]), Some(Ok(found)));
}
