//! What the Observer is shown of a conversation.

use bytes::Bytes;
use diarist::history::{PlainText, Role, Scope};
use diarist::memory::observe::{self, AttachmentFilter, PreviousHints};
use diarist::memory::redact::Redactor;
use diarist::memory::transcript::{
    ARGUMENT_TOKENS, RESULT_TOKENS, TranscriptMessage, TranscriptStyle, format_transcript,
    system_messages,
};
use diarist::memory::{Node, dates};
use diarist::tokens::{O200k, TokenCounter as _};
use diarist::wire;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::Check;
use super::buffering::root;
use super::prompts::INPUT;

pub const CHECKS: &[Check] = &[
    (
        &[49, 113],
        the_prompt_contains_the_newest_earlier_observations,
    ),
    (&[58], system_messages_are_not_part_of_the_transcript),
    (&[96], the_prompt_contains_the_previous_hints_shortened),
    (
        &[97],
        attachments_have_numbered_placeholders_in_the_transcript,
    ),
    (&[98, 101], the_transcript_shows_how_each_tool_call_ended),
    (
        &[99],
        the_transcript_states_a_day_or_minute_only_when_it_changes,
    ),
    (&[100], a_repeated_call_and_result_appear_once),
    (&[102], a_long_result_is_cut_between_characters),
    (&[137], a_pause_is_shown_from_ten_minutes_on),
];

/// 2026-03-04T14:05:00Z
const START: i64 = 1_772_633_100_000;
const MINUTE: i64 = 60_000;

fn plain_texts(messages: &Value) -> Vec<PlainText> {
    let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
    let parsed = wire::Request::parse_chat(&Bytes::from(body)).unwrap();
    (0..parsed.messages().len())
        .map(|index| parsed.plain_text(index).unwrap())
        .collect()
}

/// The transcript of messages that came so many milliseconds after the first.
fn shown_at(messages: &Value, after: &[i64]) -> String {
    let spoken = plain_texts(messages);
    assert_eq!(spoken.len(), after.len());
    let node = |at: usize| Node {
        link: root(),
        count: at + 1,
        role: Role::User,
        tokens: 1,
        closed: true,
        turn_end: false,
        first_length: 1,
        confirmed: true,
        received_ms: START + after[at],
        live: true,
    };
    let entries: Vec<TranscriptMessage<'_>> = (0..spoken.len())
        .map(|at| match at {
            0 => TranscriptMessage::from_node(&node(at), &spoken[at]),
            _ => {
                TranscriptMessage::from_node(&node(at), &spoken[at]).with_pause_after(&node(at - 1))
            }
        })
        .collect();
    let style = TranscriptStyle {
        zone: &TimeZone::UTC,
        counter: &O200k::new(),
        redactor: &Redactor::default(),
        omit_blocks: &[],
    };
    format_transcript(&entries, &style).0
}

fn shown(messages: &Value) -> String {
    let count = messages.as_array().unwrap().len();
    shown_at(messages, &vec![0; count])
}

fn the_prompt_contains_the_newest_earlier_observations() {
    let budget = |log: &str, tokens| observe::earlier(log, tokens, |text| text.len().div_ceil(4));
    let user_prompt =
        |earlier: &str| observe::prompt(&observe::ObserveInput { earlier, ..INPUT }).user;
    // None; what is sent; and what is not sent yet behind it.
    let (sent, waiting) = ("* 🔴 (09:00) sent already", "* 🔴 (09:30) not sent yet");
    assert!(user_prompt("").contains("no earlier observations"));
    assert!(user_prompt(sent).contains(sent) && !user_prompt(sent).contains(waiting));
    let both = observe::join_pieces(&[sent.to_owned(), waiting.to_owned()]);
    let prompt = user_prompt(&both);
    assert!(prompt.contains(sent) && prompt.find(sent) < prompt.find(waiting));
    // The budget is for both, the newest first.
    assert_eq!(budget(&both, usize::MAX), both);
    let older: String = (0..30)
        .map(|at| format!("* 🟡 (09:{at:02}) sent as number {at}\n"))
        .collect();
    let both = observe::join_pieces(&[older, waiting.to_owned()]);
    let short = budget(&both, 60);
    assert!(
        short.contains("not sent yet") && !short.contains("number 0"),
        "{short}"
    );
    assert_eq!(budget(&both, 0), "");
}

fn system_messages_are_not_part_of_the_transcript() {
    let chain = |system: &str, more: &Value| {
        let mut messages = vec![json!({"role": "system", "content": system})];
        messages.extend(more.as_array().unwrap().clone());
        let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
        let parsed = wire::Request::parse_chat(&Bytes::from(body)).unwrap();
        let history = parsed.history(&Scope::new(b"key", None));
        history
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect::<Vec<_>>()
    };
    let messages =
        json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]);
    // Neither counted as history nor shown: what the application says for this one request.
    let now = chain("It is 14:05.", &messages);
    assert_eq!(now.len(), 2);
    assert_eq!(
        now,
        chain("It is 14:06, and the user sits in Oslo.", &messages)
    );
    let mixed = json!([
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "Only for this request."},
        {"role": "user", "content": "and?"},
    ]);
    let transcript = shown(&mixed);
    assert!(
        transcript.contains("hi")
            && transcript.contains("and?")
            && !transcript.contains("Only for"),
        "{transcript}"
    );
    let spoken = plain_texts(&mixed);
    let entries: Vec<TranscriptMessage<'_>> = spoken
        .iter()
        .enumerate()
        .map(|(at, spoken)| TranscriptMessage {
            count: at + 1,
            received_ms: START,
            live: true,
            pause_ms: 0,
            content: spoken,
        })
        .collect();
    assert_eq!(
        system_messages(&entries),
        [(2, "Only for this request.".to_owned())]
    );
}

fn the_prompt_contains_the_previous_hints_shortened() {
    let plain = observe::prompt(&INPUT).user;
    let long = "a".repeat(599) + "bcd";
    let prompt = observe::prompt(&observe::ObserveInput {
        previous_hints: PreviousHints {
            task: Some("Primary: book the hut"),
            response: Some(&long),
        },
        ..INPUT
    })
    .user;
    assert!(prompt.contains("Primary: book the hut") && !plain.contains("Primary: book the hut"));
    assert!(
        prompt.contains(&("a".repeat(599) + "b")) && !prompt.contains(&("a".repeat(599) + "bc")),
        "600 characters"
    );
}

fn attachments_have_numbered_placeholders_in_the_transcript() {
    let url = "data:image/png;base64,iVBORw0KGgo=";
    let transcript = shown(&json!([
        {"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "https://example.com/maps/pass.png?x=1"}},
            {"type": "file", "file": {"filename": "plan.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
            {"type": "image_url", "image_url": {"url": url}},
        ]},
        {"role": "user", "content": [{"type": "file", "file": {"filename": "b.csv", "file_data": "data:text/csv;base64,YQ=="}}]},
    ]));
    for placeholder in [
        "[Image #1: pass.png]",
        "[File #1: plan.pdf]",
        "[Image #2",
        "[File #2: b.csv]",
    ] {
        assert!(
            transcript.contains(placeholder),
            "{placeholder}: {transcript}"
        );
    }
    assert!(
        !transcript.contains("iVBOR") && !transcript.contains("JVBERi0"),
        "{transcript}"
    );
    // Parts for models that take them.
    let only = AttachmentFilter::Only(vec!["image/*".to_owned()]);
    for (media_type, auto, images) in [
        ("image/jpeg", true, true),
        ("application/pdf", true, false),
        ("text/csv", false, false),
    ] {
        assert_eq!(
            AttachmentFilter::Auto.accepts(media_type),
            auto,
            "{media_type}"
        );
        assert_eq!(only.accepts(media_type), images, "{media_type}");
    }
    assert!(!AttachmentFilter::Only(Vec::new()).accepts("image/png"));
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({"name": name, "arguments": arguments});
    json!({"id": id, "type": "function", "function": function})
}

fn asks(calls: &[Value]) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn result(id: &str, words: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": words})
}

fn the_transcript_shows_how_each_tool_call_ended() {
    let transcript = shown(&json!([
        asks(&[call("c1", "load", "{\"rows\": 10}"), call("c2", "save", ""), call("c3", "wipe", "{}")]),
        result("c1", "Error: ENOENT: no such file 'orders.csv'"),
        result("c2", ""),
        result("c3", "{\"denied\": true, \"reason\": \"not on a Friday\"}"),
        {"role": "assistant", "content": "It is in data/orders.csv: that mends it."},
    ]));
    for line in [
        "Tool error load: Error: ENOENT: no such file 'orders.csv'",
        "[empty result]",
        "[no arguments]",
        "Tool denied wipe: {\"denied\": true, \"reason\": \"not on a Friday\"}",
        "It is in data/orders.csv: that mends it.",
    ] {
        assert!(transcript.contains(line), "{line}: {transcript}");
    }
}

fn the_transcript_states_a_day_or_minute_only_when_it_changes() {
    let messages = json!([
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"},
    ]);
    let transcript = shown_at(&messages, &[0, 59_999, MINUTE, 600 * MINUTE]);
    assert_eq!(
        transcript,
        "Date: Mar 4, 2026\nUser (14:05): one\nAssistant: two\nUser (14:06): three\n\
         Date: Mar 5, 2026\nAssistant (00:05): four\n"
    );
}

fn a_repeated_call_and_result_appear_once() {
    // Clients repeat a call they did not hear of; the result stands in another message.
    let transcript = shown(&json!([
        asks(&[call("c1", "search", "{\"query\": \"pass\"}")]),
        asks(&[call("c1", "search", "{\"query\": \"pass\"}")]),
        result("c1", "open until Friday"),
        result("c1", "open until Friday"),
    ]));
    assert_eq!(
        transcript.matches("Tool call search").count(),
        1,
        "{transcript}"
    );
    assert_eq!(
        transcript.matches("{\"query\": \"pass\"}").count(),
        1,
        "{transcript}"
    );
    assert_eq!(
        transcript.matches("open until Friday").count(),
        1,
        "{transcript}"
    );
}

fn a_long_result_is_cut_between_characters() {
    assert_eq!((RESULT_TOKENS, ARGUMENT_TOKENS), (5_000, 2_000));
    let long = "漢👍🏽é".repeat(20_000);
    let transcript = shown(&json!([
        asks(&[call("c1", "read", "{}")]),
        result("c1", &long)
    ]));
    let (_, result) = transcript.split_once("Tool result read: ").unwrap();
    let tokens = O200k::new().count(result);
    assert!((4_900..=5_000).contains(&tokens), "{tokens}");
    assert!(result.starts_with("漢👍") && result.contains("tokens left out"));
    assert!(!transcript.contains('\u{fffd}'));
}

fn a_pause_is_shown_from_ten_minutes_on() {
    assert_eq!(dates::pause(10 * MINUTE - 1), None);
    assert_eq!(dates::pause(10 * MINUTE).as_deref(), Some("10 minutes"));
    let two = dates::pause((2 * 60 + 5) * MINUTE + 59_000);
    assert_eq!(two.as_deref(), Some("2 hours 5 minutes"));
    // Three units: the two largest.
    let days = dates::pause((26 * 60 + 5) * MINUTE);
    assert_eq!(days.as_deref(), Some("1 day 2 hours"));
    // Once, before what ended it; an answer that took long is no pause.
    let messages = json!([
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "user", "content": "four"},
    ]);
    let transcript = shown_at(&messages, &[0, 20 * MINUTE, 145 * MINUTE, 145 * MINUTE]);
    assert_eq!(transcript.matches(" later]").count(), 1, "{transcript}");
    assert!(
        transcript.contains("[2 hours 5 minutes later]\nUser (16:30): three\n"),
        "{transcript}"
    );
}
