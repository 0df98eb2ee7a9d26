//! Tables of what is equal, what differs, what is refused and what is sent. The general laws are
//! property tests in `tests/wire.rs`.

use super::*;
use crate::history::Role;
use crate::history::{AttachmentKind, Detail, Fingerprint, Media, MessagePiece};

fn parsed(messages: &str) -> ChatRequest {
    let body = Bytes::from(format!(r#"{{"model":"m","messages":{messages}}}"#));
    parse(&body).unwrap_or_else(|reason| panic!("{reason}: {messages}"))
}

/// Fingerprint of the last of `messages`.
pub(super) fn last(messages: &str) -> Fingerprint {
    parsed(messages).messages().last().unwrap().fingerprint
}

fn fingerprint_of(message: &str) -> Fingerprint {
    last(&format!(r#"[{{"role":"user","content":"-"}},{message}]"#))
}

fn call(name: &str, arguments: &str) -> String {
    let arguments = serde_json::Value::from(arguments);
    format!(
        r#"{{"role":"assistant","tool_calls":[{{"id":"c1","type":"function","function":{{"name":"{name}","arguments":{arguments}}}}}]}}"#
    )
}

#[test]
fn spellings_of_one_message_have_the_same_fingerprint() {
    for [a, b] in [
        [
            r#"{"role":"user","content":"a"}"#,
            r#"{ "content" : "\u0061" , "role":"user" }"#,
        ],
        [
            r#"{"role":"user","content":"a/é"}"#,
            r#"{"role":"user","content":"a\/\u00e9"}"#,
        ],
        [
            r#"{"role":"user","content":"😀"}"#,
            r#"{"role":"user","content":"\ud83d\ude00"}"#,
        ],
        [r#"{"role":"user","content":null}"#, r#"{"role":"user"}"#],
        [
            r#"{"role":"user","content":[]}"#,
            r#"{"role":"user","content":""}"#,
        ],
        [
            r#"{"role":"user","content":"ab"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"ab"}]}"#,
        ],
        [
            r#"{"role":"user","content":"ab"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text","cache_control":{"type":"ephemeral"}}]}"#,
        ],
        [
            r#"{"role":"user","content":" a b\n"}"#,
            r#"{"role":"user","content":"a b"}"#,
        ],
        [
            r#"{"role":"user","content":"a"}"#,
            r#"{"role":"user","content":"a","name":null,"foo":null,"bar":{}}"#,
        ],
        [
            r#"{"role":"user","content":"a"}"#,
            r#"{"role":"user","content":"a","cache_control":{"type":"ephemeral"}}"#,
        ],
        [
            r#"{"role":"assistant","content":"a"}"#,
            r#"{"role":"assistant","content":"<think>x</think>\n\na "}"#,
        ],
        [
            r#"{"role":"assistant","content":"a"}"#,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"a"}]}"#,
        ],
        [
            r#"{"role":"assistant","content":"a"}"#,
            r#"{"role":"assistant","content":"a","reasoning_content":"r","reasoning":"\ud800","refusal":null,"annotations":[1],"audio":null,"function_call":null,"tool_calls":[],"parsed":{"a":1},"index":0,"foo":1}"#,
        ],
        [
            r#"{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"y","function":{"arguments":"","name":"f","parsed_arguments":{}},"cache_control":{}}]}"#,
        ],
        [
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/a?X-Amz-Signature=1","detail":null}}]}"#,
            r#"{"role":"user","content":[{"image_url":{"url":"https://h/a?X-Amz-Signature=2"},"type":"image_url"},{"type":"text","text":" "}]}"#,
        ],
        [
            r#"{"role":"system","content":"a"}"#,
            r#"{"role":"developer","content":"a"}"#,
        ],
    ] {
        assert_eq!(fingerprint_of(a), fingerprint_of(b), "{a}\n{b}");
    }
}

#[test]
fn arguments_of_equal_meaning_have_the_same_fingerprint() {
    for (a, b) in [
        (r#"{"a":1,"b":[1e3]}"#, r#"{ "b": [1000.0], "a": 1.0 }"#),
        ("", "{}"),
        (" \n", "{}"),
        (r#"{"z":-0}"#, r#"{"z":0}"#),
        (r#"{"city":"P\u00e0ris"}"#, r#"{"city":"Pàris"}"#),
        (" run(1) ", "run(1)"),
    ] {
        assert_eq!(
            fingerprint_of(&call("f", a)),
            fingerprint_of(&call("f", b)),
            "{a} {b}"
        );
    }
}

/// What the Observer is told of a call must be in its fingerprint: else one user is told the arguments of another.
#[test]
fn arguments_of_different_meaning_have_different_fingerprints() {
    for (a, b) in [
        (r#"{"a":null}"#, "{}"),
        (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
        ("import db; db.get('alice')", "import db; db.get('bob')"),
        ("{'customer': 'alice'}", "{'customer': 'bob'}"),
        (r#"{"a":NaN,"b":1}"#, r#"{"a":NaN,"b":2}"#),
        (r#"{"a":"\ud83d","b":1}"#, r#"{"a":"\ud83d","b":2}"#),
        (r#"{"id":9007199254740993}"#, r#"{"id":9007199254740992}"#),
        (r#"{"id":-9007199254740993}"#, r#"{"id":-9007199254740992}"#),
        (r#"{"a":"alice","a":1}"#, r#"{"a":"bob","a":1}"#),
        (
            r#"{"id":12345678901234567890123}"#,
            r#"{"id":12345678901234567890124}"#,
        ),
        (
            r#"{"at":1234567.1234567890123}"#,
            r#"{"at":1234567.1234567890124}"#,
        ),
        ("{broken", "{\"other"),
        ("{broken", "{}"),
    ] {
        assert_ne!(
            fingerprint_of(&call("f", a)),
            fingerprint_of(&call("f", b)),
            "{a} {b}"
        );
    }
    assert_ne!(
        fingerprint_of(&call("f", "{broken")),
        fingerprint_of(&call("g", "{broken"))
    );
}

#[test]
fn different_messages_have_different_fingerprints() {
    let all = [
        r#"{"role":"user","content":"a"}"#,
        r#"{"role":"assistant","content":"a"}"#,
        r#"{"role":"system","content":"a"}"#,
        r#"{"role":"tool","tool_call_id":"c1","content":"a"}"#,
        r#"{"role":"user","content":"A"}"#,
        r#"{"role":"user","content":"a a"}"#,
        r#"{"role":"user","content":"a  a"}"#,
        r#"{"role":"user","content":"\u00e9"}"#,
        r#"{"role":"user","content":"e\u0301"}"#,
        r#"{"role":"user","content":"a","name":"n"}"#,
        r#"{"role":"user","content":"a","foo":0}"#,
        r#"{"role":"user","content":"a","foo":"0"}"#,
        r#"{"role":"user","content":"a","foo":false}"#,
        r#"{"role":"user","content":"a","tool_call_id":"x"}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a","foo":1}]}"#,
        r#"{"role":"user","content":[{"type":"input_text","text":"a"}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/a?v=1"}}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/a?v=2"}}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/a?v=2","detail":"low"}}]}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}}]}"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"a"}]}"#,
        r#"{"role":"user","content":"<think>x</think>a"}"#,
        r#"{"role":"assistant","content":"<think>a"}"#,
        r#"{"role":"assistant","content":"a<think>x</think>"}"#,
        r#"{"role":"assistant","refusal":"a"}"#,
        r#"{"role":"assistant","content":"a","refusal":"b"}"#,
        r#"{"role":"assistant","content":"a","audio":{"id":"1"}}"#,
        r#"{"role":"assistant","content":[{"type":"new","x":1}]}"#,
        r#"{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"g","arguments":"{}"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"g","arguments":"{\"a\":1}"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"g","arguments":"{\"a\":\"1\"}"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"g","arguments":"{"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","custom":{"name":"g","input":"{}"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":""}},{"id":"b","function":{"name":"g","arguments":""}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"b","function":{"name":"g","arguments":""}},{"id":"a","function":{"name":"f","arguments":""}}]}"#,
    ];
    for (index, a) in all.iter().enumerate() {
        for b in &all[index + 1..] {
            assert_ne!(fingerprint_of(a), fingerprint_of(b), "{a}\n{b}");
        }
    }
}

#[test]
fn call_ids_affect_a_fingerprint_only_by_their_order() {
    let round = |a: &str, b: &str, answer: &str| {
        last(&format!(
            r#"[{{"role":"assistant","tool_calls":[{{"id":"{a}","function":{{"name":"f"}}}},{{"id":"{b}","function":{{"name":"f"}}}}]}},
               {{"role":"tool","tool_call_id":"{answer}","content":"ok"}}]"#
        ))
    };
    assert_eq!(round("x", "y", "y"), round("p", "q", "q"));
    assert_ne!(round("x", "y", "x"), round("x", "y", "y"));
    assert_ne!(round("x", "y", "z"), round("x", "y", "y"));
    assert_eq!(round("x", "x", "x"), round("x", "y", "x"));
}

#[test]
fn a_parsed_message_has_the_ids_of_its_calls_and_results() {
    let parsed = parsed(
        r#"[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"b","custom":{"name":"g","input":"i"}}]},
            {"role":"tool","tool_call_id":"b","content":"1"},
            {"role":"assistant","function_call":{"name":"h","arguments":"{}"}},
            {"role":"function","name":"h","content":"2"}]"#,
    );
    let ids: Vec<(Vec<&str>, Option<&str>)> = parsed
        .messages()
        .iter()
        .map(|m| {
            (
                m.calls.iter().map(|id| &**id).collect(),
                m.answers.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        ids,
        [
            (vec!["a", "b"], None),
            (vec![], Some("b")),
            (vec!["fn:h"], None),
            (vec![], Some("fn:h"))
        ]
    );
}

#[test]
fn leading_messages_are_no_part_of_the_history() {
    let rest = r#"{"role":"user","content":"a"},{"role":"system","content":"late"},{"role":"assistant","content":"b"}]"#;
    let scope = Scope::new(b"k", None);
    let bare = parsed(&format!("[{rest}"));
    let led = parsed(&format!(
        r#"[{{"role":"system","content":"x"}},{{"role":"developer","content":"y"}},{rest}"#
    ));
    assert_eq!(
        (
            led.leading_messages().count(),
            led.leading_messages().role()
        ),
        (2, "developer")
    );
    assert_eq!(
        (
            bare.leading_messages().count(),
            bare.leading_messages().role()
        ),
        (0, "system")
    );
    assert_eq!(led.message_count(), 5);
    assert_eq!(led.messages().len(), 3);
    assert_eq!(led.history(&scope).tip(), bare.history(&scope).tip());
}

#[test]
fn model_stream_and_usage_options_are_read_from_the_body() {
    let read = |json: &'static str| parse(&Bytes::from_static(json.as_bytes()));
    let full = read(r#" {"stream_options":{"include_usage":false},"n":2,"stream":true,"mess\u0061ges":[{"role":"user","content":"a"}],"model":"gp\u0074","x":1,"x":2} "#).unwrap();
    assert_eq!(
        (full.model(), full.stream(), full.requested_usage()),
        (Some("gpt"), true, Some(false))
    );
    let bare = read(r#"{"messages":[{"role":"user","content":"a"}],"model":null,"stream":null,"stream_options":null}"#).unwrap();
    assert_eq!(
        (bare.model(), bare.stream(), bare.requested_usage()),
        (None, false, None)
    );
}

#[test]
fn a_body_that_is_no_valid_request_returns_its_parse_error() {
    use ParseError as N;
    let user = r#"{"role":"user","content":"a"}"#;
    let message = |fields: &str| format!(r#"{{"messages":[{{"role":"user",{fields}}}]}}"#);
    let top = |fields: &str| format!(r#"{{"messages":[{user}],{fields}}}"#);
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let table: Vec<(String, N)> = vec![
        (String::new(), N::NotAnObject),
        ("\u{feff}{}".into(), N::NotAnObject),
        ("[]".into(), N::NotAnObject),
        ("{}".into(), N::MessagesMissing),
        ("{".into(), N::InvalidJson),
        (r#"{"messages":null}"#.into(), N::MessagesNotAnArray),
        (r#"{"messages":{}}"#.into(), N::MessagesNotAnArray),
        (r#"{"messages":[]}"#.into(), N::MessagesEmpty),
        (r#"{"messages":["a"]}"#.into(), N::MessageNotAnObject),
        (r#"{"messages":[{}]}"#.into(), N::UnknownRole),
        (
            r#"{"messages":[{"role":"narrator"}]}"#.into(),
            N::UnknownRole,
        ),
        (r#"{"messages":[{"role":1}]}"#.into(), N::WrongType),
        (
            r#"{"messages":[{"role":"tool","content":"a"}]}"#.into(),
            N::WrongType,
        ),
        (
            r#"{"messages":[{"role":"function","content":"a"}]}"#.into(),
            N::WrongType,
        ),
        (message(r#""content":1"#), N::WrongType),
        (message(r#""content":{}"#), N::WrongType),
        (message(r#""content":["a"]"#), N::WrongType),
        (message(r#""name":1"#), N::WrongType),
        (
            message(r#""tool_calls":[{"id":"a","function":{"name":"f"}}]"#),
            N::WrongType,
        ),
        (message(r#""content":"a","content":"b""#), N::DuplicateKey),
        (message(r#""content":"a","role":"user""#), N::DuplicateKey),
        (
            message(r#""content":"a","c\u006fntent":"b""#),
            N::DuplicateKey,
        ),
        (message(r#""content":"\ud800""#), N::InvalidJson),
        (message(r#""foo":"\ud800""#), N::InvalidJson),
        (message(r#""foo":1e999"#), N::InvalidJson),
        (message(r#""foo":1m","foo":1"#), N::InvalidJson),
        (message("\"content\":\"\n\""), N::InvalidJson),
        (message(&format!(r#""foo":{}"#, nested(128))), N::TooDeep),
        (top(&format!(r#""foo":{}"#, nested(100_000))), N::TooDeep),
        (
            format!(r#"{{"messages":{}"#, "[".repeat(100_000)),
            N::MessageNotAnObject,
        ),
        (top(r#""foo":tru"#), N::InvalidJson),
        (top(r#""foo":{]"#), N::InvalidJson),
        (top(r#""foo":01"#), N::InvalidJson),
        (top(r#""foo":NaN"#), N::InvalidJson),
        (top(r#""model":1"#), N::WrongType),
        (top(r#""stream":"yes""#), N::WrongType),
        (top(r#""stream_options":true"#), N::WrongType),
        (top(r#""stream_options":{"include_usage":1}"#), N::WrongType),
        (
            top(r#""stream_options":{"include_usage":true,"include_usage":true}"#),
            N::DuplicateKey,
        ),
        (top(r#""messages":[]"#), N::DuplicateKey),
        (top(r#""model":"a","model":"a""#), N::DuplicateKey),
        (format!("{} x", top(r#""n":1"#)), N::InvalidJson),
        (format!("{}\0", top(r#""n":1"#)), N::InvalidJson),
        (format!(r#"{{"messages":[{user},]}}"#), N::InvalidJson),
        (format!(r#"{{"messages":[{user}]"#), N::InvalidJson),
    ];
    for (body, reason) in table {
        let got = parse(&Bytes::from(body.clone())).map(|_| ());
        assert_eq!(got, Err(reason), "{}", &body[..body.len().min(120)]);
    }
    assert_eq!(
        parse(&Bytes::from_static(
            b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"
        ))
        .map(|_| ()),
        Err(N::InvalidUtf8)
    );
    let many = |count: usize| {
        let all = vec![r#"{"role":"user","content":""}"#; count].join(",");
        parse(&Bytes::from(format!(r#"{{"messages":[{all}]}}"#))).map(|_| ())
    };
    assert_eq!(many(super::MAX_MESSAGES), Ok(()));
    assert_eq!(many(super::MAX_MESSAGES + 1), Err(N::TooManyMessages));
    // Numbers that are never compared may be as large as they like.
    assert!(
        parse(&Bytes::from(top(
            r#""seed":1e999,"m":123456789012345678901234567890"#
        )))
        .is_ok()
    );
}

#[test]
fn every_cut_off_body_is_refused() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\u00e9"}]}],"n":1}"#;
    for end in 0..body.len() {
        assert!(
            parse(&Bytes::copy_from_slice(&body.as_bytes()[..end])).is_err(),
            "{end}"
        );
    }
}

#[test]
fn the_plain_text_of_a_message_leaves_data_and_reasoning_out() {
    let long = "QUJD".repeat(100);
    let parsed = parsed(&format!(
        r#"[{{"role":"system","content":"s"}},
            {{"role":"user","name":"Ann","content":[{{"type":"text","text":" a"}},{{"type":"text","text":"b "}},
              {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{long}"}}}},
              {{"type":"image_url","image_url":{{"url":"https://h/x/cat.png?token=1"}}}},
              {{"type":"input_audio","input_audio":{{"data":"{long}","format":"wav"}}}},
              {{"type":"file","file":{{"filename":"a.pdf","file_data":"data:application/pdf;base64,{long}"}}}},
              {{"type":"new","blob":"{long}","n":1}}]}},
            {{"role":"assistant","content":"<think>t</think> hi","reasoning_content":"r",
              "tool_calls":[{{"id":"c","function":{{"name":"f","arguments":"{{ \"a\": 1 }}"}}}}]}},
            {{"role":"tool","tool_call_id":"c","content":"done"}}]"#
    ));
    let attachment = |kind, label: &str, mime: Option<&str>| MessagePiece::Attachment {
        kind,
        label: label.into(),
        media: Media {
            mime: mime.map(str::to_owned),
            bytes: mime.map(|_| 300),
            ..Media::default()
        },
    };
    let user = parsed.plain_text(0).unwrap();
    assert_eq!((user.role, user.name.as_deref()), (Role::User, Some("Ann")));
    assert_eq!(
        user.pieces,
        [
            MessagePiece::Text("ab".into()),
            attachment(AttachmentKind::Image, "image/png", Some("image/png")),
            attachment(AttachmentKind::Image, "cat.png", None),
            attachment(AttachmentKind::Audio, "wav", Some("wav")),
            attachment(AttachmentKind::File, "a.pdf", Some("application/pdf")),
            MessagePiece::Unknown(r#"{"blob":"[data]","n":1.0,"type":"new"}"#.into()),
        ]
    );
    assert_eq!(
        parsed.plain_text(1).unwrap().pieces,
        [
            MessagePiece::Text("hi".into()),
            MessagePiece::Call {
                id: "c".into(),
                name: "f".into(),
                arguments: r#"{ "a": 1 }"#.into()
            },
        ]
    );
    assert_eq!(
        parsed.plain_text(2).unwrap().pieces,
        [
            MessagePiece::Result { id: "c".into() },
            MessagePiece::Text("done".into())
        ]
    );
    assert_eq!(parsed.plain_text(3), None);
}

#[test]
fn image_pieces_contain_their_size_and_detail_level() {
    let gif = "R0lGODlhIANYAg";
    let parsed = parsed(&format!(
        r#"[{{"role":"user","content":[
            {{"type":"image_url","image_url":{{"url":"data:image/gif;base64,{gif}","detail":"low"}}}},
            {{"type":"image_url","image_url":{{"url":"https://h/cat.png","detail":"high"}}}},
            {{"type":"image_url","image_url":"data:image/gif;base64,{gif}"}},
            {{"type":"image","source":{{"type":"base64","media_type":"image/gif","data":"{gif}"}}}},
            {{"type":"file","file":{{"file_id":"file-1"}}}}]}}]"#
    ));
    let media: Vec<_> = parsed
        .plain_text(0)
        .unwrap()
        .pieces
        .into_iter()
        .map(|piece| match piece {
            MessagePiece::Attachment { label, media, .. } => (label, media.pixels, media.detail),
            other => panic!("{other:?}"),
        })
        .collect();
    let size = Some((800, 600));
    assert_eq!(
        media,
        [
            ("image/gif".to_owned(), size, Detail::Low),
            ("cat.png".to_owned(), None, Detail::High),
            ("image/gif".to_owned(), size, Detail::Auto),
            ("image/gif".to_owned(), size, Detail::Auto),
            ("file-1".to_owned(), None, Detail::Auto),
        ]
    );
}

#[test]
fn an_attachment_keeps_only_the_fields_needed_to_send_it_again() {
    let body = serde_json::json!({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "these"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a/cat.JPG?X-Amz-Signature=1", "detail": "low", "x": 1}, "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": "data:Image/PNG;base64,AAAA"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "BBBB"}},
        {"type": "input_audio", "input_audio": {"data": "CCCC", "format": "wav"}},
        {"type": "file", "file": {"filename": "plan.pdf", "file_data": "DDDD"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/thing"}},
        {"type": "unheard_of", "data": 1},
    ]}, {"role": "assistant", "content": "listen", "audio": {"id": "a1"}}]});
    let parsed = parse(&Bytes::from(body.to_string())).unwrap();
    let attached = parsed.attachments(0);
    let image =
        |url: &str| Some(serde_json::json!({"type": "image_url", "image_url": {"url": url}}));
    // The link is signed; without its signature it cannot be fetched.
    let mut signed = image("https://example.com/a/cat.JPG?X-Amz-Signature=1").unwrap();
    signed["image_url"]["detail"] = "low".into();
    let expected = [
        ("image/jpeg", Some(signed)),
        ("image/png", image("data:Image/PNG;base64,AAAA")),
        ("image/webp", image("data:image/webp;base64,BBBB")),
        (
            "audio/wav",
            Some(
                serde_json::json!({"type": "input_audio", "input_audio": {"data": "CCCC", "format": "wav"}}),
            ),
        ),
        (
            "application/pdf",
            Some(
                serde_json::json!({"type": "file", "file": {"filename": "plan.pdf", "file_data": "DDDD"}}),
            ),
        ),
        ("application/octet-stream", None),
        ("image/*", image("https://example.com/thing")),
    ];
    assert_eq!(attached.len(), expected.len());
    for (attachment, (media_type, part)) in attached.iter().zip(expected) {
        assert_eq!(
            (attachment.media_type.as_str(), &attachment.part),
            (media_type, &part)
        );
    }
    // One for each placeholder, in the same order.
    for index in 0..2 {
        let pieces = parsed.plain_text(index).unwrap().pieces;
        let named = pieces
            .iter()
            .filter(|piece| matches!(piece, MessagePiece::Attachment { .. }));
        assert_eq!(named.count(), parsed.attachments(index).len());
    }
    assert_eq!(parsed.attachments(1)[0].part, None);
}

/// A reader can distinguish a block in a part of its own from the user's words, and the fingerprint of
/// the message stays the same.
#[test]
fn reader_text_separates_a_tag_part_by_line_breaks() {
    let by = |role: &str, content: &str| {
        parsed(&format!(
            r#"[{{"role":"{role}","content":{content}}},{{"role":"user","content":"-"}}]"#
        ))
    };
    let parts = r#"[{"type":"text","text":"why?"},{"type":"text","text":"<env>\n</env>"},{"type":"text","text":" and "},{"type":"text","text":"how"}]"#;
    let user = by("user", parts);
    let words = |text: &str| [MessagePiece::Text(text.into())];
    assert_eq!(
        user.reader_text(0).unwrap().pieces,
        words("why?\n<env>\n</env>\n and how")
    );
    assert_eq!(
        user.plain_text(0).unwrap().pieces,
        words("why?<env>\n</env> and how")
    );
    let answer = by("assistant", parts);
    assert_eq!(answer.reader_text(0), answer.plain_text(0));
}
