//! The outgoing body, byte for byte.

use super::*;
use crate::wire::{Additions, Insert, Placement};

const SYSTEM: &str = r#"{"role":"system","content":"S"}"#;
const DEVELOPER: &str = r#"{"content":"D\n","role":"developer"}"#;
const U0: &str = r#"{"role":"user","content":"u\u0030"}"#;
const A1: &str = r#"{"role": "assistant", "content":"a1"}"#;
const U2: &str = r#"{"role":"user","content":"u2"}"#;
const A3: &str = r#"{"role":"assistant","content":"a3"}"#;

fn request(messages: &[&str]) -> String {
    format!(r#"{{ "messages":[ {} ], "n":1e0 }}"#, messages.join(" ,\n"))
}

fn send(body: &str, insert: Option<&Insert<'_>>, ask_usage: bool) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let additions = Additions {
        usage: ask_usage,
        cache_mark: true,
        ..Additions::default()
    };
    let splice = parse(&body).unwrap().splice(insert, additions);
    let sent = splice.frames(&body).concat();
    assert_eq!(sent.len(), splice.len());
    let sent = String::from_utf8(sent).unwrap();
    let json: serde_json::Value = serde_json::from_str(&sent).unwrap();
    let messages = json["messages"].as_array().unwrap();
    assert_eq!(splice.message_count(), messages.len());
    sent
}

/// The body that is sent with memory for the first `cut` messages.
fn sent(messages: &[&str], cut: usize, pin: Option<usize>, placement: Placement) -> String {
    let segments = ["one\n".to_owned(), "\"two\"".to_owned()];
    let insert = Insert {
        cut,
        pin,
        segments: &segments,
        placement,
        reminder: "go on",
        front: &[],
        bridge: "so far",
    };
    send(&request(messages), Some(&insert), false)
}

const BLOCK: &str = r#"{"role":"system","content":"one\n\"two\""}"#;
const REMINDER: &str = r#"{"role":"user","content":"go on"}"#;

#[test]
fn a_request_without_additions_is_sent_unchanged() {
    let body = Bytes::from(request(&[SYSTEM, U0, A1, U2]));
    let splice = parse(&body).unwrap().splice(None, Additions::default());
    assert!(splice.is_identity(&body));
    assert_eq!(splice.frames(&body), [body]);
}

#[test]
fn block_stands_behind_the_leading_messages() {
    let system = Placement::SystemMessage;
    assert_eq!(
        sent(&[SYSTEM, U0, A1, U2, A3], 2, None, system),
        format!("{{ \"messages\":[ {SYSTEM},{BLOCK} ,\n{U2} ,\n{A3} ], \"n\":1e0 }}")
    );
    assert_eq!(
        sent(&[U0, A1, U2], 2, None, system),
        format!("{{ \"messages\":[ {BLOCK} ,\n{U2} ], \"n\":1e0 }}")
    );
    let developer = BLOCK.replace("system", "developer");
    assert_eq!(
        sent(&[SYSTEM, DEVELOPER, U0, A1, U2], 2, None, system),
        format!("{{ \"messages\":[ {SYSTEM} ,\n{DEVELOPER},{developer} ,\n{U2} ], \"n\":1e0 }}")
    );
}

#[test]
fn pin_and_reminder_stand_before_the_tail() {
    let system = Placement::SystemMessage;
    assert_eq!(
        sent(&[SYSTEM, U0, A1, U2, A3], 3, Some(2), system),
        format!("{{ \"messages\":[ {SYSTEM},{BLOCK},{U2} ,\n{A3} ], \"n\":1e0 }}")
    );
    assert_eq!(
        sent(&[U0, A1, U2, A3], 3, None, system),
        format!("{{ \"messages\":[ {BLOCK},{REMINDER} ,\n{A3} ], \"n\":1e0 }}")
    );
    // A later system message does not count, so the assistant behind it would be the first to speak.
    assert_eq!(
        sent(&[U0, SYSTEM, A3], 1, None, system),
        format!("{{ \"messages\":[ {BLOCK},{REMINDER} ,\n{SYSTEM} ,\n{A3} ], \"n\":1e0 }}")
    );
}

#[test]
fn a_block_can_replace_no_message_or_all_messages() {
    let system = Placement::SystemMessage;
    assert_eq!(
        sent(&[U0, A1], 0, None, system),
        format!("{{ \"messages\":[ {BLOCK},{U0} ,\n{A1} ], \"n\":1e0 }}")
    );
    assert_eq!(
        sent(&[SYSTEM, U0], 0, None, system),
        format!("{{ \"messages\":[ {SYSTEM},{BLOCK} ,\n{U0} ], \"n\":1e0 }}")
    );
    assert_eq!(
        sent(&[SYSTEM], 0, None, system),
        format!("{{ \"messages\":[ {SYSTEM},{BLOCK} ], \"n\":1e0 }}")
    );
    assert_eq!(
        sent(&[U0, A1], 2, None, system),
        format!("{{ \"messages\":[ {BLOCK} ], \"n\":1e0 }}")
    );
}

#[test]
fn a_block_with_an_impossible_cut_or_pin_is_not_inserted() {
    let messages = [SYSTEM, U0, A1];
    for (cut, pin) in [(3, None), (1, Some(1)), (0, Some(0))] {
        assert_eq!(
            sent(&messages, cut, pin, Placement::SystemMessage),
            request(&messages)
        );
    }
}

#[test]
fn each_segment_of_the_block_becomes_a_content_part() {
    let parts = r#"{"role":"system","content":[{"type":"text","text":"one\n"},{"type":"text","text":"\"two\""}]}"#;
    assert_eq!(
        sent(&[U0, A1, U2], 2, None, Placement::Segments),
        format!("{{ \"messages\":[ {parts} ,\n{U2} ], \"n\":1e0 }}")
    );
}

#[test]
fn block_is_appended_to_the_last_leading_message() {
    let append = Placement::AppendToSystem;
    for (system, with_block) in [
        (
            DEVELOPER,
            r#"{"content":"D\n\n\none\n\"two\"","role":"developer"}"#,
        ),
        (
            r#"{"role":"system","content":[{"type":"text","text":"S"} ] }"#,
            r#"{"role":"system","content":[{"type":"text","text":"S\n\none\n\"two\""} ] }"#,
        ),
        (
            r#"{"role":"system","content":[{"type":"text","text":"S"}, {"text":"T","type":"text"}]}"#,
            r#"{"role":"system","content":[{"type":"text","text":"S"}, {"text":"T\n\none\n\"two\"","type":"text"}]}"#,
        ),
        (
            r#"{"role":"system","content":[{"text":"S","annotations":null,"type":"text"}]}"#,
            r#"{"role":"system","content":[{"text":"S\n\none\n\"two\"","annotations":null,"type":"text"}]}"#,
        ),
        (
            r#"{"role":"system","content":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}} ] }"#,
            r#"{"role":"system","content":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}} ,{"type":"text","text":"\n\none\n\"two\""}] }"#,
        ),
    ] {
        assert_eq!(
            sent(&[SYSTEM, system, U0, A1, U2, A3], 3, Some(2), append),
            format!("{{ \"messages\":[ {SYSTEM} ,\n{with_block},{U2} ,\n{A3} ], \"n\":1e0 }}")
        );
    }
    assert_eq!(
        sent(&[SYSTEM, U0, A1, U2], 2, None, append),
        format!(
            "{{ \"messages\":[ {} ,\n{U2} ], \"n\":1e0 }}",
            r#"{"role":"system","content":"S\n\none\n\"two\""}"#
        )
    );
}

#[test]
fn the_block_becomes_a_message_if_no_leading_message_has_content() {
    let append = Placement::AppendToSystem;
    assert_eq!(
        sent(&[U0, A1, U2], 2, None, append),
        format!("{{ \"messages\":[ {BLOCK} ,\n{U2} ], \"n\":1e0 }}")
    );
    for system in [
        r#"{"role":"system"}"#,
        r#"{"role":"system","content":null}"#,
        r#"{"role":"system","content":[ ]}"#,
    ] {
        assert_eq!(
            sent(&[system, U0, A1, U2], 2, None, append),
            format!("{{ \"messages\":[ {system},{BLOCK} ,\n{U2} ], \"n\":1e0 }}")
        );
    }
}

#[test]
fn usage_is_requested_if_the_client_has_not_decided_it() {
    let messages = format!(r#""messages":[{U0}]"#);
    for (body, asks_usage) in [
        (
            format!("{{{messages}\n}} "),
            format!("{{{messages}\n,\"stream_options\":{{\"include_usage\":true}}}} "),
        ),
        (
            format!(r#"{{"stream_options" : null ,{messages}}}"#),
            format!(r#"{{"stream_options" : {{"include_usage":true}} ,{messages}}}"#),
        ),
        (
            format!(r#"{{{messages},"stream_options":{{ }}}}"#),
            format!(r#"{{{messages},"stream_options":{{ "include_usage":true}}}}"#),
        ),
        (
            format!(r#"{{{messages},"stream_options":{{"x":{{}} }}}}"#),
            format!(r#"{{{messages},"stream_options":{{"x":{{}} ,"include_usage":true}}}}"#),
        ),
        (
            format!(r#"{{{messages},"stream_options":{{"include_usage":null,"x":1}}}}"#),
            format!(r#"{{{messages},"stream_options":{{"include_usage":true,"x":1}}}}"#),
        ),
    ] {
        assert_eq!(send(&body, None, true), asks_usage);
        assert_eq!(send(&body, None, false), body);
    }
    for answer in ["true", "false"] {
        let body = format!(r#"{{{messages},"stream_options":{{"include_usage":{answer}}}}}"#);
        assert_eq!(send(&body, None, true), body);
    }
}

#[test]
fn each_placement_is_found_by_its_name() {
    for placement in [
        Placement::SystemMessage,
        Placement::AppendToSystem,
        Placement::Segments,
    ] {
        assert_eq!(Placement::from_name(placement.name()), Some(placement));
    }
    assert_eq!(Placement::from_name("off"), None);
}

const MARKED: &str = r#"{"role":"user","content":[{"type":"text","text":"u", "cache_control" : {"ttl":"1h"} },{"type":"text","text":"v"}]}"#;
const MARKED_LATER: &str = r#"{"role":"user","cache_control":{"type":"later"},"content":"w"}"#;
const MARK: &str = r#""cache_control" : {"ttl":"1h"}"#;

#[test]
fn the_block_takes_over_the_last_mark_that_the_cut_removes() {
    let one = format!(r#"{{"type":"text","text":"one\n\"two\"",{MARK}}}"#);
    let system = Placement::SystemMessage;
    assert_eq!(
        sent(&[SYSTEM, MARKED, A1, U2], 2, None, system),
        format!(
            "{{ \"messages\":[ {SYSTEM},{{\"role\":\"system\",\"content\":[{one}]}} ,\n{U2} ], \"n\":1e0 }}"
        )
    );
    let later = sent(&[SYSTEM, MARKED, A1, MARKED_LATER, A3, U2], 4, None, system);
    assert!(
        later.contains(r#"two\"","cache_control":{"type":"later"}}]}"#),
        "{later}"
    );
    let parts = sent(&[SYSTEM, MARKED, A1, U2], 2, None, Placement::Segments);
    let last =
        format!(r#"{{"type":"text","text":"one\n"}},{{"type":"text","text":"\"two\"",{MARK}}}]"#);
    assert!(parts.contains(&last), "{parts}");
    let append = Placement::AppendToSystem;
    let first = format!(
        r#"{{"role":"system","content":[{{"type":"text","text":"S\n\none\n\"two\"",{MARK}}}]}}"#
    );
    let appended = sent(&[SYSTEM, MARKED, A1, U2], 2, None, append);
    assert!(appended.contains(&first), "{appended}");
    let list = r#"{"role":"system","content":[{"type":"text","text":"S"}]}"#;
    let appended = sent(&[list, MARKED, A1, U2], 2, None, append);
    let last = format!(r#"[{{"type":"text","text":"S\n\none\n\"two\"",{MARK}}}]"#);
    assert!(appended.contains(&last), "{appended}");
    let empty_mark =
        r#"{"role":"system","content":[{"type":"text","text":"S","cache_control":null}]}"#;
    let appended = sent(&[empty_mark, MARKED, A1, U2], 2, None, append);
    let last = format!(r#"null}},{{"type":"text","text":"\n\none\n\"two\"",{MARK}}}]"#);
    assert!(appended.contains(&last), "no member twice: {appended}");
    let breakpoint = r#"{"role":"user","content":[{"type":"text","text":"u","prompt_cache_breakpoint":{"mode":"explicit"}}]}"#;
    let explicit = sent(&[SYSTEM, breakpoint, A1, U2], 2, None, system);
    let mark = r#","prompt_cache_breakpoint":{"mode":"explicit"}}]}"#;
    assert!(explicit.contains(mark), "{explicit}");
}

#[test]
fn the_block_gets_no_unnecessary_cache_mark() {
    let system = Placement::SystemMessage;
    let marks = |messages: &[&str], cut, pin| {
        let sent = sent(messages, cut, pin, system);
        sent.matches("\"cache_control\"").count()
    };
    assert_eq!(marks(&[SYSTEM, U0, A1, U2], 2, None), 0);
    let null = r#"{"role":"user","content":"u","cache_control":null}"#;
    assert_eq!(marks(&[SYSTEM, null, A1, U2], 2, None), 0);
    assert_eq!(marks(&[SYSTEM, MARKED, A1, MARKED_LATER], 2, None), 1);
    assert_eq!(marks(&[SYSTEM, MARKED, A1, U2, A3], 3, Some(0)), 1);
    // A mark of the leading messages does not reach to the end of the block.
    let head = r#"{"role":"system","content":[{"type":"text","text":"S","cache_control":{}}]}"#;
    assert_eq!(marks(&[head, MARKED, A1, U2], 2, None), 2);
    // Four are as many as a provider takes.
    assert_eq!(marks(&[head, head, head, MARKED, A1, U2], 2, None), 4);
    assert_eq!(marks(&[head, head, head, head, MARKED, A1, U2], 2, None), 4);
    // With this field the provider sets the mark itself.
    let body = request(&[SYSTEM, MARKED, A1, U2]).replace("\"n\"", "\"cache_control\":{},\"n\"");
    let segments = ["one".to_owned()];
    let insert = Insert {
        cut: 2,
        pin: None,
        segments: &segments,
        placement: system,
        reminder: "",
        front: &[],
        bridge: "",
    };
    let sent = send(&body, Some(&insert), false);
    assert_eq!(sent.matches("\"cache_control\"").count(), 1, "{sent}");
}

#[test]
fn a_block_gets_a_cache_key_unless_the_client_sets_one() {
    let segments = ["one".to_owned()];
    let insert = Insert {
        cut: 1,
        pin: None,
        segments: &segments,
        placement: Placement::SystemMessage,
        reminder: "go on",
        front: &[],
        bridge: "so far",
    };
    let additions = Additions {
        usage: true,
        cache_mark: true,
        cache_key: Some("k"),
        ..Additions::default()
    };
    let sent = |fields: &str, insert: Option<&Insert<'_>>| {
        let body = Bytes::from(format!(r#"{{"messages":[{U0}, {U2}]{fields} }}"#));
        let splice = parse(&body).unwrap().splice(insert, additions);
        String::from_utf8(splice.frames(&body).concat()).unwrap()
    };
    let usage = r#","stream_options":{"include_usage":true}"#;
    let key = r#","prompt_cache_key":"k""#;
    let both = [format!("{usage}{key}}}"), format!("{key}{usage}}}")];
    let with_block = sent("", Some(&insert));
    assert!(
        both.iter().any(|end| with_block.ends_with(end)),
        "{with_block}"
    );
    assert!(serde_json::from_str::<serde_json::Value>(&with_block).is_ok());
    assert!(!sent("", None).contains("prompt_cache_key"));
    for own in [
        r#","prompt_cache_key":"mine""#,
        r#","prompt_cache_key":null"#,
        r#","prompt\u005fcache_key":"mine""#,
        r#","user":"ada""#,
    ] {
        assert!(!sent(own, Some(&insert)).contains(key), "{own}");
    }
    let many: String = (0..64).map(|n| format!(",\"f{n}\":1")).collect();
    assert!(
        !sent(&many, Some(&insert)).contains(key),
        "not all of them are known"
    );
}

/// What is sent with a breakpoint of Diarist's behind the first `lasting` of three segments.
fn with_breakpoint(body: &str, placement: Placement, lasting: usize) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let segments = ["one\n", "\"two\"\n", "last"].map(str::to_owned);
    let insert = Insert {
        cut: 1,
        pin: None,
        segments: &segments,
        placement,
        reminder: "go on",
        front: &[],
        bridge: "so far",
    };
    let additions = Additions {
        cache_mark: true,
        cache_breakpoint: Some(lasting),
        ..Additions::default()
    };
    let splice = parse(&body).unwrap().splice(Some(&insert), additions);
    let sent = String::from_utf8(splice.frames(&body).concat()).unwrap();
    serde_json::from_str::<serde_json::Value>(&sent).unwrap();
    sent
}

#[test]
fn a_cache_breakpoint_stands_behind_the_lasting_segments() {
    const BREAKPOINT: &str = r#""prompt_cache_breakpoint":{"mode":"explicit"}"#;
    let part = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let marked = |text: &str| format!(r#"{{"type":"text","text":"{text}",{BREAKPOINT}}}"#);
    let log = r#"one\n\"two\"\n"#;
    let body = request(&[SYSTEM, U0, A1, U2]);
    let cases = [
        (
            Placement::SystemMessage,
            2,
            format!("[{},{}]", marked(log), part("last")),
        ),
        (
            Placement::SystemMessage,
            3,
            format!("[{}]", marked(&format!("{log}last"))),
        ),
        (
            Placement::Segments,
            2,
            format!(
                "[{},{},{}]",
                part(r"one\n"),
                marked(r#"\"two\"\n"#),
                part("last")
            ),
        ),
        (
            Placement::AppendToSystem,
            2,
            format!("[{},{}]", marked(&format!(r"S\n\n{log}")), part("last")),
        ),
    ];
    for (placement, lasting, expected) in cases {
        let sent = with_breakpoint(&body, placement, lasting);
        assert!(
            sent.contains(&expected),
            "{placement:?}\n{sent}\n{expected}"
        );
    }
    let list = r#"{"role":"system","content":[{"type":"text","text":"S"}]}"#;
    let sent = with_breakpoint(&request(&[list, U0, A1, U2]), Placement::AppendToSystem, 2);
    let expected = format!("[{},{}]", marked(&format!(r"S\n\n{log}")), part("last"));
    assert!(sent.contains(&expected), "{sent}");
    // Where the client has said anything about its cache, it decides.
    let tool =
        r#"{"type":"function","function":{"name":"f"},"cache_control":{"type":"ephemeral"}}"#;
    for own in [
        request(&[SYSTEM, MARKED, A1, U2]),
        request(&[SYSTEM, U0, A1, MARKED_LATER]),
        body.replace(
            "\"n\"",
            "\"prompt_cache_options\":{\"mode\":\"implicit\"},\"n\"",
        ),
        body.replace("\"n\"", "\"cache_control\":{},\"n\""),
        body.replace("\"n\"", &format!("\"tools\":[{tool}],\"n\"")),
    ] {
        assert_ne!(own, body);
        for placement in [Placement::SystemMessage, Placement::Segments] {
            let sent = with_breakpoint(&own, placement, 2);
            assert!(!sent.contains(BREAKPOINT), "{sent}");
        }
    }
    // Not beside a request without a block.
    let sent = send(&body, None, false);
    assert_eq!(sent, body);
}
