//! `[identity]`: what names a conversation, who vouches for users, which tokens are believed. Every refusal.

use diarist::proxy::identify::token::VerificationKey;
use diarist::proxy::identify::users::Proof;

use crate::config::{ConfigInput, assert_problems};

const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAI6K032fDLUoHoHeT/TOd5oUw3Yz7IZqD36e8gCqPzp8=
-----END PUBLIC KEY-----";

const EC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaUE6Nj367P1IVBIxdqKGgCN+9XL0
kS4Fp2EfzXohXWxt/jHx8oGoGVrSqRv1IMWYStRTokB3xepW4hxmtXysxw==
-----END PUBLIC KEY-----";

const JWKS: &str = r#"{"keys": [
    {"kty": "OKP", "crv": "Ed25519", "kid": "k1", "use": "sig", "alg": "EdDSA",
     "x": "I6K032fDLUoHoHeT_TOd5oUw3Yz7IZqD36e8gCqPzp8"},
    {"kty": "RSA", "kid": "for-something-else", "use": "enc", "n": "AQAB", "e": "AQAB"},
    {"kty": "oct", "kid": "shared", "k": "c2hhcmVkIHNlY3JldCBhbW9uZyBwdWJsaWM"},
    {"kty": "of-tomorrow", "kid": "k9"}
]}"#;

fn kept(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn keys(file: &tempfile::NamedTempFile) -> Vec<VerificationKey> {
    let path = file.path().display().to_string();
    let given = ConfigInput::default().env("DIARIST__IDENTITY__TOKEN__KEYS_FILE", &path);
    given.valid().requests.identity.subjects.unwrap().keys
}

fn identity_config(section: &str, lines: &str) -> ConfigInput {
    ConfigInput::file(&format!("[identity{section}]\n{lines}"))
}

#[test]
fn by_default_no_users_and_no_tokens_are_read() {
    let identity = ConfigInput::default().valid().requests.identity;
    assert!(identity.users.is_none() && identity.subjects.is_none());
}

#[test]
fn conversations_share_memory_only_with_a_configured_user_identity() {
    let shared = |lines: &str| {
        ConfigInput::file(&format!(
            "[identity.resource]\nheader = \"x-user\"\nset_by = \"application\"\n\
             [memory]\nscope = \"resource\"\n{lines}"
        ))
    };
    assert_eq!(
        ConfigInput::default().valid().memory.peer_memory_tokens,
        None
    );
    assert_eq!(shared("").valid().memory.peer_memory_tokens, Some(4_000));
    let others = |written: &str| {
        let lines = format!("other_conversations = {written}");
        shared(&lines).valid().memory.peer_memory_tokens
    };
    assert_eq!(others("900"), Some(900));
    assert_eq!(others("0.25"), Some(10_000));
    assert_problems(
        &shared("other_conversations = 40001"),
        &[
            "memory.other_conversations: 40001 makes 40001 tokens, but it must be above 0 and at most observation_tokens (40000)",
        ],
    );
    assert_problems(
        &ConfigInput::file("[memory]\nscope = \"resource\""),
        &[
            "memory.scope: \"resource\" needs to know which user is talking, but identity.resource is not set | set header",
        ],
    );
}

#[test]
fn each_kind_of_user_identity_is_read() {
    let users = |lines: &str| {
        let given = identity_config(".resource", lines);
        given.valid().requests.identity.users.unwrap()
    };
    let by_proxy = users("header = \"X-User\"\nset_by = \"trusted-proxy\"");
    assert_eq!(by_proxy.header, "x-user");
    assert!(matches!(by_proxy.proof, Proof::TrustedHeader));
    let by_app = users("header = \"x-openwebui-user-id\"\nset_by = \"application\"");
    assert!(matches!(by_app.proof, Proof::TrustedHeader));
    let signed = users(
        "header = \"x-user-token\"\nset_by = \"signed\"\nsecret = \"sixteen bytes ok\"\n\
         issuer = \"open-webui\"\nalgorithms = [\"HS256\"]",
    );
    let Proof::Token(signature) = signed.proof else {
        panic!("{signed:?}");
    };
    assert_eq!(signature.issuer.as_deref(), Some("open-webui"));
    assert_eq!(
        (signature.claim.as_str(), signature.leeway.as_secs()),
        ("sub", 30)
    );
    assert_eq!(signature.keys[0].algorithms.len(), 1);
}

#[test]
fn keys_are_read_from_pem_and_from_a_jwks() {
    for pem in [PUBLIC, EC] {
        let found = keys(&kept(pem));
        assert!(found.len() == 1 && found[0].id.is_none(), "{found:?}");
    }
    // What is for something else, shared or unknown is passed over.
    let found = keys(&kept(JWKS));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].id.as_deref(), Some("k1"));
}

/// Section, lines, and how the problem begins.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "",
        "headers = [\"x chat\"]",
        "identity.headers: \"x chat\" is not a header name",
    ),
    (
        "",
        "headers = [\"known\", \"\"]",
        "identity.headers: \"\" is not a header name",
    ),
    (
        "",
        "headers = [\"authorization\"]",
        "identity.headers: \"authorization\" carries a credential",
    ),
    (
        "",
        "headers = [\"Cookie\"]",
        "identity.headers: \"cookie\" carries a credential",
    ),
    (
        "",
        "headers = [\"x-portkey-api-key\"]",
        "identity.headers: \"x-portkey-api-key\" carries",
    ),
    (
        "",
        "headers = [\"helicone-auth\"]",
        "identity.headers: \"helicone-auth\" carries",
    ),
    (
        "",
        "headers = [\"x-csrf-token\"]",
        "identity.headers: \"x-csrf-token\" carries",
    ),
    (
        "",
        "headers = [\"x-app-secret\"]",
        "identity.headers: \"x-app-secret\" carries",
    ),
    (
        "",
        "task_headers = [\"x task\"]",
        "identity.task_headers: \"x task\" is not a header name",
    ),
    (
        "",
        "task_headers = [\"api-key\"]",
        "identity.task_headers: \"api-key\" carries a credential",
    ),
    (
        "",
        "body_fields = [\"user\"]",
        "identity.body_fields: \"user\" names a person",
    ),
    (
        "",
        "body_fields = [\"safety_identifier\"]",
        "identity.body_fields: \"safety_identifier\" names a",
    ),
    (
        "",
        "body_fields = [\"\"]",
        "identity.body_fields: \"\" is not a field",
    ),
    (
        "",
        "body_fields = [\"metadata.\"]",
        "identity.body_fields: \"metadata.\" is not a field",
    ),
    (
        "",
        "body_fields = [\"a..b\"]",
        "identity.body_fields: \"a..b\" is not a field",
    ),
    (
        ".resource",
        "header = \"x-user\"",
        "identity.resource.set_by: set_by is missing",
    ),
    (
        ".resource",
        "header = \"x-user\"\nset_by = \"client\"",
        "identity.resource.set_by: a header set by a client proves nothing",
    ),
    (
        ".resource",
        "header = \"x-user\"\nset_by = \"browser\"",
        "identity.resource.set_by: a header set by a browser proves nothing",
    ),
    (
        ".resource",
        "header = \"x-user\"\nset_by = \"me\"",
        "identity.resource.set_by: \"me\" is not a known value",
    ),
    (
        ".resource",
        "set_by = \"application\"",
        "identity.resource.header: no header is named",
    ),
    (
        ".resource",
        "secret = \"sixteen bytes ok\"",
        "identity.resource.header: no header is named",
    ),
    (
        ".resource",
        "header = \"x-user\"\nset_by = \"signed\"",
        "identity.resource.set_by: \"signed\" needs a key",
    ),
    (
        ".resource",
        "header = \"x-user\"\nset_by = \"application\"\nsecret = \"sixteen bytes ok\"",
        "identity.resource.set_by: identity.resource.secret is set, but only a signed header",
    ),
    (
        ".resource",
        "header = \"authorization\"\nset_by = \"application\"",
        "identity.resource.header: the header \"authorization\" cannot name a user",
    ),
    (
        ".resource",
        "header = \"x-user-auth\"\nset_by = \"application\"",
        "identity.resource.header: the header \"x-user-auth\" cannot name a user",
    ),
    (
        ".resource",
        "header = \"x user\"\nset_by = \"application\"",
        "identity.resource.header: the header \"x user\" cannot name a user",
    ),
    (
        ".token",
        "secret = \"too short\"",
        "identity.token.secret: the secret is shorter than 16 bytes",
    ),
    (
        ".token",
        "issuer = \"me\"",
        "identity.token.issuer: it has no effect",
    ),
    (
        ".token",
        "audience = \"me\"",
        "identity.token.audience: it has no effect",
    ),
    (
        ".token",
        "algorithms = [\"RS256\"]",
        "identity.token.algorithms: it has no effect",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\nalgorithms = [\"None\"]",
        "identity.token.algorithms: \"none\" means no signature",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\nalgorithms = [\"HS1\"]",
        "identity.token.algorithms: \"HS1\" is not a known algorithm",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\nalgorithms = [\"HS256\", \"RS256\"]",
        "identity.token.algorithms: no configured key can verify RS256",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\nclaim = \" \"",
        "identity.token.claim: the text is empty",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\nissuer = \"\"",
        "identity.token.issuer: the text is empty",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\naudience = \"\"",
        "identity.token.audience: the text is empty",
    ),
    (
        ".token",
        "secret = \"sixteen bytes ok\"\nleeway = \"11m\"",
        "identity.token.leeway: it is more than 10 minutes",
    ),
    (
        ".token",
        "keys_file = \"/nowhere/keys.pem\"",
        "identity.token.keys_file: \"/nowhere/keys.pem\" cannot be read",
    ),
];

#[test]
fn every_refused_identity_setting_has_a_reason_and_a_remedy() {
    for (section, lines, beginning) in REFUSED {
        let given = identity_config(section, lines);
        assert_problems(&given, &[beginning]);
        let remedy = given.problems()[0].split_once(" | ").unwrap().1.to_owned();
        assert!(remedy.len() > 10, "{lines}: {remedy}");
    }
}

#[test]
fn a_file_without_a_public_key_is_refused_and_not_quoted() {
    for (text, why) in [
        ("nothing", "the file holds no public key"),
        (
            "-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n-----END PRIVATE KEY-----",
            "the file holds a private key",
        ),
        ("{\"hunter2\": 1}", "the file is JSON, but not a JWKS"),
        (
            "{\"keys\": [{\"kty\": \"oct\", \"k\": \"aHVudGVyMg\"}]}",
            "the file holds no key that verifies",
        ),
    ] {
        let file = kept(text);
        let lines = format!("keys_file = \"{}\"", file.path().display());
        let expected = format!("identity.token.keys_file: {why}");
        let given = identity_config(".token", &lines);
        assert_problems(&given, &[&expected]);
        assert!(!given.problems()[0].contains("hunter2"));
    }
    // A public key verifies nothing that a secret would.
    let file = kept(PUBLIC);
    let path = file.path().display();
    let confused = format!("keys_file = \"{path}\"\nalgorithms = [\"HS256\"]");
    assert_problems(
        &identity_config(".token", &confused),
        &["identity.token.algorithms: no configured key can verify HS256"],
    );
    let both = format!("keys_file = \"{path}\"\nsecret = \"sixteen bytes ok\"");
    assert_problems(
        &identity_config(".token", &both),
        &["identity.token.keys_file: keys_file and secret are both set"],
    );
}
