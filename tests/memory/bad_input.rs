//! What is no good request goes to the upstream byte for byte, and its answer to the client.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

struct Bad {
    name: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    /// What the client is told of memory.
    memory: &'static str,
}

fn bad(name: &'static str, body: impl Into<Vec<u8>>, memory: &'static str) -> Bad {
    Bad {
        name,
        headers: Vec::new(),
        body: body.into(),
        memory,
    }
}

fn with(header: (&'static str, &'static str), mut bad: Bad) -> Bad {
    bad.headers.push(header);
    bad
}

const GOOD: &str = r#"{"model":"gpt-test","messages":[{"role":"user","content":"hi"}]}"#;

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn deep(levels: usize) -> String {
    let (open, close) = ("[".repeat(levels), "]".repeat(levels));
    GOOD.replace(
        r#"{"model""#,
        &format!(r#"{{"metadata":{open}{close},"model""#),
    )
}

fn cases() -> Vec<Bad> {
    let message = |text: &str| GOOD.replace(r#""hi""#, text);
    let mut broken_utf8 = GOOD.as_bytes().to_vec();
    let at = GOOD.find("hi").unwrap();
    broken_utf8[at] = 0xff;
    let mut marked = b"\xef\xbb\xbf".to_vec();
    marked.extend_from_slice(GOOD.as_bytes());
    vec![
        bad("nothing", "", "bypass; reason=not_an_object"),
        bad("no JSON", "hello", "bypass; reason=not_an_object"),
        bad(
            "cut short",
            &GOOD.as_bytes()[..40],
            "bypass; reason=invalid_json",
        ),
        bad(
            "trailing",
            format!("{GOOD} x"),
            "bypass; reason=invalid_json",
        ),
        bad("an array", "[1]", "bypass; reason=not_an_object"),
        bad(
            "no messages",
            r#"{"model":"gpt-test"}"#,
            "bypass; reason=messages_missing",
        ),
        bad(
            "empty messages",
            r#"{"model":"gpt-test","messages":[]}"#,
            "bypass; reason=messages_empty",
        ),
        bad(
            "messages are text",
            r#"{"model":"gpt-test","messages":"hi"}"#,
            "bypass; reason=messages_not_an_array",
        ),
        bad(
            "a message is a number",
            r#"{"model":"gpt-test","messages":[7]}"#,
            "bypass; reason=message_not_an_object",
        ),
        bad(
            "only a system message",
            r#"{"model":"gpt-test","messages":[{"role":"system","content":"x"}]}"#,
            "bypass; reason=no_history",
        ),
        bad(
            "an unknown role",
            GOOD.replace("user", "oracle"),
            "bypass; reason=unknown_role",
        ),
        bad(
            "no role",
            GOOD.replace(r#""role":"user","#, ""),
            "bypass; reason=unknown_role",
        ),
        bad(
            "content is a number",
            message("7"),
            "bypass; reason=wrong_type",
        ),
        bad(
            "stream is text",
            GOOD.replace(r#""messages""#, r#""stream":"yes","messages""#),
            "bypass; reason=wrong_type",
        ),
        bad("deep", deep(100_000), "bypass; reason=too_deep"),
        bad(
            "deep and open",
            "{\"a\":".repeat(100_000),
            "bypass; reason=too_deep",
        ),
        bad(
            "a lone surrogate",
            message(r#""\ud800""#),
            "bypass; reason=invalid_json",
        ),
        bad("broken UTF-8", broken_utf8, "bypass; reason=invalid_utf8"),
        bad(
            "a key twice",
            GOOD.replace(
                r#"{"model""#,
                r#"{"messages":[{"role":"user","content":"no"}],"model""#,
            ),
            "bypass; reason=duplicate_key",
        ),
        bad(
            "a number no double holds",
            GOOD.replace(r#""content""#, r#""weight":1e999,"content""#),
            "bypass; reason=invalid_json",
        ),
        // Nothing is wrong with it: it only must not be spelled anew.
        bad(
            "a long number",
            GOOD.replace(
                r#""messages""#,
                r#""seed":123456789012345678901234567890.10,"messages""#,
            ),
            "watching",
        ),
        bad("a byte-order mark", marked, "bypass; reason=not_an_object"),
        with(
            ("content-encoding", "gzip"),
            bad("gzip", gzip(GOOD), "bypass; reason=encoded_body"),
        ),
        with(
            ("content-encoding", "gzip"),
            bad("no gzip", GOOD, "bypass; reason=encoded_body"),
        ),
        with(
            ("content-digest", "sha-256=:AAAA:"),
            bad("a digest", GOOD, "bypass; reason=signed_body"),
        ),
        with(
            ("signature", "sig1=:AAAA:"),
            bad("a signature", GOOD, "bypass; reason=signed_body"),
        ),
        with(
            ("x-diarist-resource", ""),
            bad(
                "a resource without a name",
                GOOD,
                "bypass; reason=bad_resource",
            ),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_is_forwarded_unchanged_and_gets_the_upstream_answer() {
    let rig = Rig::small().await;
    let mut mismatches = Vec::new();
    for case in cases() {
        let mut headers = vec![("authorization", "Bearer sk-test")];
        headers.extend_from_slice(&case.headers);
        let answer = rig.post(&headers, case.body.clone()).await;
        let forwarded = rig.last();
        assert_eq!(forwarded.body, case.body, "{}", case.name);
        if answer.memory() != case.memory {
            mismatches.push((case.name, answer.memory().to_owned(), case.memory));
        }

        let mut direct = rig
            .client
            .post(format!("{}/chat/completions", rig.provider.base_url()))
            .header("content-type", "application/json")
            .body(case.body.clone());
        for (name, value) in &headers {
            direct = direct.header(*name, *value);
        }
        let direct = direct.send().await.unwrap();
        assert_eq!(answer.status, direct.status().as_u16(), "{}", case.name);
        if !direct.status().is_success() {
            // An answer holds a new id each time; a refusal is the same for the same body.
            let refusal = direct.text().await.unwrap();
            assert_eq!(answer.text(), refusal, "{}", case.name);
        }
    }
    assert!(
        mismatches.is_empty(),
        "(case, told, wanted): {mismatches:#?}"
    );
    let lines = rig.audited(cases().len()).await;
    for (case, line) in cases().iter().zip(&lines) {
        let state = case.memory.split(';').next().unwrap();
        assert_eq!(line["memory"], state, "{}", case.name);
        assert_eq!(line["bytes_received"], case.body.len(), "{}", case.name);
        assert_eq!(line["bytes_sent"], case.body.len(), "{}: {line}", case.name);
    }
}

/// Also where memory would have had something to send.
#[tokio::test(flavor = "multi_thread")]
async fn a_signed_body_is_never_rewritten() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    assert_eq!(answer.memory(), "active");
    let body = conversation.body(ACTIVE + 1);
    for header in [
        ("content-digest", "sha-256=:AAAA:"),
        ("x-amz-content-sha256", "aa"),
        ("x-content-sha256", "aa"),
        ("x-acme-signature", "aa"),
        ("x-diarist-memory", "off"),
    ] {
        rig.send_as("Bearer sk-test", &[header], &body).await;
        assert_eq!(rig.last().body, body.to_string(), "{header:?}");
    }
    let answer = rig.send(&body).await;
    assert_eq!(answer.memory(), "active", "and memory is still there");
}
