use super::*;
use proptest::prelude::*;

fn redact(text: &str) -> String {
    Redactor::default().redact(text)
}

fn clean(text: &str) -> String {
    Redactor::default().clean(text)
}

#[test]
fn only_chosen_kinds_and_custom_patterns_are_redacted() {
    let text = "password=hunter2 and sk-a1B2c3D4e5F6g7H8a1B2c3D4 for QX-2291 and QX-17";
    let patterns = vec![Regex::new(r"QX-\d{3,}").unwrap()];
    let chosen = Redactor::new(vec![RedactKind::Password], patterns);
    assert_eq!(
        chosen.clean(text),
        "password=[redacted: password] and sk-a1B2c3D4e5F6g7H8a1B2c3D4 for [redacted: pattern] and QX-17"
    );
    assert_eq!(Redactor::new(Vec::new(), Vec::new()).clean(text), text);
    // A reference to a group is not expanded here.
    let dollar = Redactor::new(Vec::new(), vec![Regex::new("(a)(b)?").unwrap()]);
    assert_eq!(dollar.clean("xay"), "x[redacted: pattern]y");
}

#[test]
fn long_encrypted_content_is_replaced_by_its_length() {
    let sealed = "gAAA.b:c d".repeat(30);
    for name in ["encryptedContent", "encrypted_content"] {
        assert_eq!(
            clean(&format!(r#"{{"{name}": "{sealed}", "b": 1}}"#)),
            format!(r#"{{"{name}": "[300 characters of encrypted data left out]", "b": 1}}"#)
        );
        let short = format!(r#"{{"{name}":"{}"}}"#, &sealed[..256]);
        assert_eq!(clean(&short), short);
    }
    let other = format!(r#"{{"content": "{sealed}"}}"#);
    assert_eq!(clean(&other), other);
}

/// Composed here, so that no secret scanner reports this file.
fn key(prefix: &str, length: usize) -> String {
    let body: String = "a1B2c3D4e5F6g7H8".chars().cycle().take(length).collect();
    format!("{prefix}{body}")
}

#[test]
fn known_forms_of_secrets_are_redacted() {
    let upper = key("AKIA", 16).to_ascii_uppercase();
    for (secret, kind) in [
        (key("sk-", 48), "API key"),
        (key("sk-ant-api03-", 90), "API key"),
        (key("sk-proj-", 60), "API key"),
        (key("sk_live_", 24), "API key"),
        (upper, "API key"),
        (key("ghp_", 36), "API key"),
        (key("github_pat_", 60), "API key"),
        (key("glpat-", 20), "API key"),
        (key("xoxb-", 40), "API key"),
        (key("AIza", 35), "API key"),
        (key("hf_", 34), "API key"),
        (format!("AKIA{}", "QWERTYUIOPASDFGH"), "API key"),
        (key("xai-", 80), "API key"),
        (key("r8_", 37), "API key"),
        (key("dapi", 32), "API key"),
        (key("shpat_", 32), "API key"),
        (key("dop_v1_", 64), "API key"),
        (key("glsa_", 41), "API key"),
        (key("GOCSPX-", 28), "API key"),
        (key("AGE-SECRET-KEY-", 58), "API key"),
        (format!("{}.{}", key("SG.", 22), key("", 43)), "API key"),
        (format!("123456789:{}", key("AA", 33)), "token"),
        (
            format!("{}.{}.{}", key("M", 23), key("", 6), key("", 38)),
            "token",
        ),
        (
            format!("{}.{}.{}", key("eyJ", 20), key("eyJ", 30), key("", 43)),
            "token",
        ),
    ] {
        for (before, after) in [
            ("", ""),
            ("use ", " please"),
            ("\"", "\""),
            ("`", "`."),
            ("ключ ", "é"),
        ] {
            assert_eq!(
                redact(&format!("{before}{secret}{after}")),
                format!("{before}[redacted: {kind}]{after}"),
                "{secret}"
            );
        }
    }
}

#[test]
fn values_with_a_secret_name_are_redacted_and_the_names_stay() {
    for (text, want) in [
        ("password=hunter2", "password=[redacted: password]"),
        (
            "https://hooks.slack.com/services/T0000/B0000/x8Kq93hfQw now",
            "https://hooks.slack.com/services/[redacted: token] now",
        ),
        (
            "/get?X-Amz-Signature=9f86d081884c7d659a2feaa0c55ad015&x=1",
            "/get?X-Amz-Signature=[redacted: token]&x=1",
        ),
        (
            "/blob?sv=2024&sig=a8fK29dk%2Fdl30sKq9w%3D",
            "/blob?sv=2024&sig=[redacted: token]",
        ),
        (
            "DB_PASSWORD=correcthorse\nX=1",
            "DB_PASSWORD=[redacted: password]\nX=1",
        ),
        (
            r#"{"password": "s3cr\u0065t!"}"#,
            r#"{"password": "[redacted: password]"}"#,
        ),
        (
            r#"{\"api_key\":\"abcd1234\"}"#,
            r#"{\"api_key\":\"[redacted: secret]\"}"#,
        ),
        (
            "client-secret: 'zz91-aa'",
            "client-secret: '[redacted: secret]'",
        ),
        (
            "wifi password: sunflower22, ok?",
            "wifi password: [redacted: password], ok?",
        ),
        (
            ":password => \"tr0ub4dor\"",
            ":password => \"[redacted: password]\"",
        ),
        (
            "Authorization: Bearer abc123def456ghi789",
            "Authorization: Bearer [redacted: token]",
        ),
        (
            "postgres://app:p4ss@db:5432/x",
            "postgres://app:[redacted: password]@db:5432/x",
        ),
        (
            "?access_token=abcdef0123456789&b=1",
            "?access_token=[redacted: token]&b=1",
        ),
    ] {
        assert_eq!(redact(text), want);
    }
}

#[test]
fn an_api_key_before_a_password_in_a_url_is_redacted() {
    let user = key("sk_live_", 24);
    assert_eq!(
        redact(&format!("https://{user}:x9@api.example/v1")),
        "https://[redacted: API key]:[redacted: password]@api.example/v1"
    );
}

/// By the bytes that are looked at, not by the clock.
#[test]
fn the_work_of_redaction_grows_linearly_with_the_text() {
    let opening = format!("{0}BEGIN PRIVATE KEY{0}", "-----");
    for unit in [
        "secret:",
        "secret=",
        "secret=(",
        "secret: ",
        "secret='",
        "password=$",
        "://",
        "://a:",
        "://user:word",
        "eyJ.",
        "eyJaaaaaaaaaa.",
        "sk-",
        "sk-a1b2-",
        "bearer ",
        "12345678:",
        "MTIzNDU2Nzg5MDEyMzQ1Njc4.",
        opening.as_str(),
        "-----BEGIN ",
        "encryptedContent\":\"",
    ] {
        let work = |bytes: usize| {
            let text = unit.repeat(bytes / unit.len());
            Redactor::default().replace_shapes(&text, &mut String::new())
        };
        let (once, twice) = (work(50_000), work(100_000));
        assert!(twice <= 2 * once + 20_000, "{unit:?}: {once}, {twice}");
        assert!(twice <= 600_000, "{unit:?}: {twice} bytes for 100,000");
    }
}

#[test]
fn a_private_key_is_redacted_as_a_whole() {
    let body = key("MIIE", 60);
    let dashes = "-----";
    let pem = format!(
        "{dashes}BEGIN RSA PRIVATE KEY{dashes}\n{body}\n{body}\n{dashes}END RSA PRIVATE KEY{dashes}"
    );
    assert_eq!(redact(&format!("a {pem} b")), "a [redacted: private key] b");
    let escaped = pem.replace('\n', "\\n");
    assert_eq!(
        redact(&format!("\"{escaped}\"")),
        "\"[redacted: private key]\""
    );
    let unfinished = format!("{dashes}BEGIN PRIVATE KEY{dashes}\n{body}\n{body}\nand so on");
    assert_eq!(redact(&unfinished), "[redacted: private key]\nand so on");
    let public = format!("{dashes}BEGIN PUBLIC KEY{dashes}\n{body}");
    assert_eq!(redact(&public), public);
}

#[test]
fn text_that_only_resembles_a_secret_stays() {
    for text in [
        "password = getpass.getpass()",
        "password=os.environ['PW']",
        "PASSWORD=$DB_PASS and <password>",
        "\"password\": \"string\"",
        "\"password\": \"must have 8 characters\"",
        "password: I forgot it",
        "if password == given1:",
        "max_tokens: 4096, token: string",
        "the token: a piece of a word",
        "sk-learn-tutorial-for-beginners-2",
        "task-12 risk-averse-people-in-2026-and-beyond",
        "AKIA is a prefix",
        "Bearer of good news in the year 2026",
        "https://example.com:8080/a@b",
        "http://localhost:3000/?q=1",
        "a == b, c: d, e := f",
        "secret: none",
        "пароль: забыл",
    ] {
        assert_eq!(redact(text), text);
    }
}

#[test]
fn long_encoded_data_is_replaced_by_its_length() {
    let blob = key("", 300);
    assert_eq!(
        clean(&format!("data:image/png;base64,{blob} end")),
        "data:image/png;base64,[300 characters of encoded data left out] end"
    );
    for kept in [
        key("", 256),
        "-".repeat(400),
        "ha".repeat(400),
        "言葉".repeat(400),
    ] {
        assert_eq!(clean(&kept), kept);
    }
}

proptest! {
    #[test]
    fn an_api_key_is_redacted_whatever_text_surrounds_it(
        before in "(sk-|eyJ|password|token|secret|[=:\"'@./\\\\ \n-]|://|Bearer |-----BEGIN |PRIVATE KEY-----|[a-z0-9]{1,20}|é|漢|👍){0,30}",
        after in "([=:\"'@./\\\\ \n-]|PRIVATE KEY-----|é|漢|👍){0,9}",
    ) {
        let key = key("sk-", 40);
        let cleaned = clean(&format!("{before} {key} {after}"));
        prop_assert!(!cleaned.contains(&key));
        prop_assert!(cleaned.contains("[redacted: "));
    }
}
