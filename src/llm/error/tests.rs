use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::json;
use url::Url;

use super::{CallError, Redaction};
use crate::llm::{CredentialHeaders, Endpoint, Prompt, UpstreamRoute};

const KEY: &str = "sk-proj-0123456789";

fn classify(status: u16, body: &str) -> CallError {
    let prompt = Prompt {
        system: "You write down what matters.".to_owned(),
        user: "Nils told his doctor about the pain in his left knee, and the doctor sent him to a specialist.".to_owned(),
        ..Prompt::default()
    };
    let endpoint = Endpoint::Configured {
        base_url: Url::parse("http://h/v1").unwrap(),
        api_key: KEY.into(),
    };
    CallError::from_answer(
        StatusCode::from_u16(status).unwrap(),
        Some(Duration::from_secs(3)),
        body.as_bytes(),
        &Redaction::new(endpoint.secrets(), &prompt),
    )
}

fn class(error: &CallError) -> &'static str {
    match error {
        CallError::RateLimited { .. } => "rate",
        CallError::Transient { .. } => "transient",
        CallError::Timeout { .. } => "late",
        CallError::NotMade { .. } => "not_made",
        CallError::Refused { .. } => "refused",
        CallError::TooLong { .. } => "long",
        CallError::Unauthorised { .. } => "auth",
        CallError::Rejected { .. } => "rejected",
        CallError::Fatal { .. } => "fatal",
    }
}

fn message_of(error: &CallError) -> String {
    error.to_string()
}

#[test]
fn a_call_that_was_not_made_does_not_blame_the_endpoint() {
    let error = CallError::NotMade {
        retry_after: Duration::from_mins(1),
        message: "the tokens of today are spent".to_owned(),
    };
    assert!(!error.blames_endpoint() && !error.is_billed());
    assert!(error.is_retryable());
    assert_eq!(error.retry_after(), Some(Duration::from_mins(1)));
}

#[test]
fn every_status_has_its_class() {
    let plain = r#"{"error":{"message":"no"}}"#;
    for (status, expected) in [
        (400, "rejected"),
        (401, "auth"),
        (402, "fatal"),
        (403, "auth"),
        (404, "fatal"),
        (408, "transient"),
        (413, "long"),
        (422, "rejected"),
        (425, "transient"),
        (429, "rate"),
        (500, "transient"),
        (503, "transient"),
        (529, "transient"),
        (307, "fatal"),
    ] {
        let error = classify(status, plain);
        assert_eq!(class(&error), expected, "{status}");
        let waits = matches!(expected, "rate" | "transient");
        assert_eq!(error.is_retryable(), waits, "{status}");
        assert_eq!(error.retry_after().is_some(), waits, "{status}");
    }
}

#[test]
fn the_body_can_change_the_error_class_of_the_status() {
    for (status, body, expected) in [
        (
            400,
            r#"{"error":{"code":"context_length_exceeded","message":"x"}}"#,
            "long",
        ),
        (413, r#"{"error":{"message":"prompt is too long"}}"#, "long"),
        (
            429,
            r#"{"error":{"message":"maximum context length"}}"#,
            "rate",
        ),
        (
            400,
            r#"{"error":{"code":429,"message":"slow down"}}"#,
            "rate",
        ),
        (
            502,
            r#"{"error":{"code":"503","message":"x"}}"#,
            "transient",
        ),
        (502, r#"{"error":{"code":401,"message":"x"}}"#, "auth"),
        (
            400,
            r#"{"error":{"code":"content_filter","message":"x"}}"#,
            "refused",
        ),
        (
            400,
            r#"{"error":{"code":"content_policy_violation","message":"x"}}"#,
            "refused",
        ),
        (
            403,
            r#"{"error":{"code":"content_filter","message":"x"}}"#,
            "refused",
        ),
        (400, r#"{"error":{"message":"Model Not Exist"}}"#, "fatal"),
        (
            400,
            r#"{"error":{"message":"tiny/one is not a valid model ID"}}"#,
            "fatal",
        ),
    ] {
        assert_eq!(class(&classify(status, body)), expected, "{status} {body}");
    }
}

#[test]
fn a_long_error_message_is_cut() {
    let body = format!(r#"{{"error":{{"message":"{}"}}}}"#, "日".repeat(5000));
    let CallError::Fatal { message } = classify(404, &body) else {
        panic!("not fatal");
    };
    assert_eq!(message.chars().count(), 2000);
}

#[test]
fn an_error_message_repeats_a_key_of_the_address_in_no_spelling() {
    let route = |query: &str| {
        let url = Url::parse(&format!("http://h/v1/chat/completions?{query}")).unwrap();
        let (headers, listed) = (HeaderMap::new(), CredentialHeaders::default());
        Endpoint::Borrowed(Arc::new(UpstreamRoute::new(
            &url,
            &headers,
            &listed,
            blake3::Hasher::new(),
        )))
    };
    let prompt = Prompt::default();
    for query in ["key=AIza%2BSy%2FPLANT+1%3D", "a=b&key=AIza%2bSy/PLANT%201="] {
        let endpoint = route(query);
        let redaction = Redaction::new(endpoint.secrets(), &prompt);
        for echo in [
            query,
            "key=AIza+Sy/PLANT 1=",
            "key=AIza%2BSy%2FPLANT%201%3D",
            "key=aiza%2bsy%2fplant+1%3d",
        ] {
            let message = redaction.clean(&format!("Cannot POST /v1?{echo}&v=1"));
            assert!(!message.to_lowercase().contains("plant"), "{message}");
            assert!(message.ends_with("key=[credential]&v=1"), "{message}");
        }
    }
    let base_url = Url::parse("http://me:a%2Blong%2Bword@h/v1?k=another%2Bword").unwrap();
    let api_key = KEY.into();
    let endpoint = Endpoint::Configured { base_url, api_key };
    let redaction = Redaction::new(endpoint.secrets(), &prompt);
    let cleaned = redaction.clean("a%2blong%2bword a+long+word another%2Bword another+word");
    assert_eq!(cleaned, ["[credential]"; 4].join(" "));
}

#[test]
fn an_error_message_repeats_no_part_of_a_cookie() {
    let cookie = http::HeaderValue::from_static("session=abcdefgh1; lang=none");
    let headers = HeaderMap::from_iter([(http::header::COOKIE, cookie)]);
    let listed = CredentialHeaders::default();
    let url = Url::parse("http://h/v1").unwrap();
    let route = UpstreamRoute::new(&url, &headers, &listed, blake3::Hasher::new());
    let endpoint = Endpoint::Borrowed(Arc::new(route));
    let prompt = Prompt::default();
    let redaction = Redaction::new(endpoint.secrets(), &prompt);
    assert_eq!(redaction.clean("no ABCDEFGH1"), "no [credential]");
}

#[test]
fn the_words_of_a_content_filter_are_not_repeated() {
    let found = "blocked by policy: 'HIV, Vera Novak'";
    for status in [400, 403, 429, 500] {
        let error = json!({"message": found, "code": "content_filter", "type": "HIV, Vera Novak"});
        let error = classify(status, &json!({ "error": error }).to_string());
        let message = error.message();
        assert_eq!(
            message,
            format!("a content filter, status {status}, code content_filter")
        );
    }
    let other = json!({"error": {"message": "no such deployment", "code": "missing"}});
    assert_eq!(
        classify(400, &other.to_string()).message(),
        "no such deployment"
    );
}

#[test]
fn an_error_message_repeats_neither_key_nor_prompt() {
    let key = format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}."}}}}"#);
    let key = message_of(&classify(401, &key));
    assert!(
        !key.contains(KEY) && key.contains("Incorrect API key provided: [credential]"),
        "{key}"
    );

    let echo = r#"{"error":{"message":"Invalid content: 'told his doctor about the pain in his left knee, and the doctor sent him to'"}}"#;
    let echo = message_of(&classify(400, echo));
    assert!(
        !echo.contains("knee") && echo.contains("repeats the prompt"),
        "{echo}"
    );

    let page = message_of(&classify(502, "<html>told his doctor</html>"));
    assert!(
        !page.contains("doctor") && page.contains("status 502"),
        "{page}"
    );
}

#[test]
fn a_too_long_error_has_the_numbers_that_the_provider_reports() {
    let excess_for = |message: &str| {
        let body = format!(r#"{{"error":{{"message":"{message}"}}}}"#);
        match classify(400, &body) {
            CallError::TooLong { excess, .. } => excess.map(|excess| (excess.window, excess.sent)),
            other => panic!("{other:?}"),
        }
    };
    let both = "maximum context length is 8192 tokens. However, you requested 9000 tokens";
    assert_eq!(excess_for(both), Some((8_192, 9_000)));
    assert_eq!(excess_for("Input is too long for requested model."), None);
}
