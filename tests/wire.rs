//! Laws of the wire format, over generated conversations in generated spellings.
//!
//! A message is generated as what it *means*, then written down in one of many spellings real
//! clients use. Messages that mean the same have one fingerprint, others another; what is spliced
//! holds every raw message byte for byte (INV-TAIL).

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod messages;
mod recorded;
mod spelling;

use bytes::Bytes;
use diarist::history::{MessagePiece, Role, Scope};
use diarist::wire::chat::{self, ChatRequest};
use diarist::wire::{Additions, Insert, Placement};
use messages::{Message, conversation, message};
use proptest::prelude::*;
use spelling::Spelling;

fn body(messages: &[Message], spelling: &mut Spelling) -> Bytes {
    let messages: Vec<String> = messages
        .iter()
        .map(|message| message.write(spelling))
        .collect();
    let list = spelling.list(&messages);
    let mut members = vec![
        ("messages".to_owned(), list),
        ("model".to_owned(), r#""m""#.to_owned()),
        ("unknown".to_owned(), r#"{"\u0061":[1e0,{}]}"#.to_owned()),
    ];
    let options = [
        "",
        "null",
        "{}",
        "{ \n}",
        r#"{"x":{}}"#,
        r#"{"include_usage":null}"#,
    ];
    let options = spelling.pick(&options).to_owned();
    if !options.is_empty() {
        members.push(("stream_options".to_owned(), options));
    }
    spelling.shuffle(&mut members);
    Bytes::from(spelling.object(&members))
}

fn parsed(messages: &[Message], spelling: &mut Spelling) -> ChatRequest {
    let body = body(messages, spelling);
    chat::parse(&body)
        .unwrap_or_else(|reason| panic!("{reason}: {}", String::from_utf8_lossy(&body)))
}

fn scope() -> Scope {
    Scope::new(b"key", None)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the spelling, the chain is the same, and so are the words.
    #[test]
    fn every_spelling_of_a_conversation_has_the_same_chain(messages in conversation(), one: u64, two: u64) {
        let one = parsed(&messages, &mut Spelling::seeded(one));
        let two = parsed(&messages, &mut Spelling::seeded(two));
        let scope = scope();
        let (a, b) = (one.history(&scope), two.history(&scope));
        for (index, (x, y)) in a.messages().iter().zip(b.messages()).enumerate() {
            prop_assert_eq!(x.message.fingerprint, y.message.fingerprint, "message {}", index);
            prop_assert_eq!(x.message.role, y.message.role);
        }
        prop_assert_eq!(a.tip(), b.tip());
        for index in 0..one.messages().len() {
            prop_assert_eq!(words(&one, index), words(&two, index));
        }
        prop_assert_eq!(one.message_count(), messages.len());
    }

    /// Other meanings are other fingerprints, however either is spelled.
    #[test]
    fn two_fingerprints_are_equal_exactly_if_the_meanings_are_equal(a in message(), b in message(), one: u64, two: u64) {
        let print = |message: &Message, seed| {
            let messages = [Message::user("first"), message.clone()];
            let parsed = parsed(&messages, &mut Spelling::seeded(seed));
            parsed.messages()[1].fingerprint
        };
        prop_assert_eq!(a.meaning() == b.meaning(), print(&a, one) == print(&b, two));
    }

    /// One change to a message is seen.
    #[test]
    fn a_changed_message_has_another_fingerprint(message in message(), how: u64, one: u64, two: u64) {
        let changed = message.changed(how);
        prop_assert_ne!(message.meaning(), changed.meaning());
        let print = |message: &Message, seed| {
            let messages = [Message::user("first"), message.clone()];
            parsed(&messages, &mut Spelling::seeded(seed)).messages()[1].fingerprint
        };
        prop_assert_ne!(print(&message, one), print(&changed, two));
    }

    /// Asked for nothing, the splice is the body; spans are the messages.
    #[test]
    fn an_empty_splice_changes_nothing(messages in conversation(), seed: u64) {
        let mut spelling = Spelling::seeded(seed);
        let body = body(&messages, &mut spelling);
        let parsed = chat::parse(&body).unwrap();
        let splice = parsed.splice(None, Additions::default());
        prop_assert!(splice.is_identity(&body));
        prop_assert_eq!(splice.frames(&body), vec![body.clone()]);
        for (index, message) in parsed.messages().iter().enumerate() {
            let raw = &body[message.span.clone()];
            let ends = (raw.first(), raw.last());
            prop_assert_eq!(ends, (Some(&0x7b), Some(&0x7d)), "message {}", index);
            prop_assert!(parsed.plain_text(index).is_some());
        }
    }

    /// Whatever is inserted, the result is JSON, the block stands where it must, and every other
    /// byte is the client's.
    #[test]
    fn raw_messages_keep_every_byte(
        received in conversation(),
        seed: u64,
        cut: prop::sample::Index,
        pin: Option<prop::sample::Index>,
        segments in prop::collection::vec("\\PC{0,12}", 1..4),
        placement in prop::sample::select(vec![
            Placement::SystemMessage, Placement::AppendToSystem, Placement::Segments,
        ]),
        ask_usage: bool,
    ) {
        let body = body(&received, &mut Spelling::seeded(seed));
        let parsed = chat::parse(&body).unwrap();
        let count = parsed.messages().len();
        let cut = cut.index(count + 1);
        let users: Vec<usize> = (0..cut).filter(|i| parsed.messages()[*i].role == Role::User).collect();
        let pin = pin.filter(|_| !users.is_empty()).map(|pin| *pin.get(&users));
        let insert = Insert { cut, pin, segments: &segments, placement, reminder: "go on", front: &[], bridge: "so far" };
        let splice = parsed.splice(Some(&insert), Additions { usage: ask_usage, ..Additions::default() });
        let sent = splice.frames(&body).concat();
        prop_assert_eq!(sent.len(), splice.len());

        // The client's messages that are sent, in order, byte for byte.
        let leading = parsed.leading_messages().messages();
        let kept_leading = match placement {
            Placement::AppendToSystem => &leading[..leading.len().saturating_sub(1)],
            _ => leading,
        };
        let pinned = pin.map(|pin| &parsed.messages()[pin]);
        let mut from = 0;
        for message in kept_leading.iter().chain(pinned).chain(&parsed.messages()[cut..]) {
            let raw = &body[message.span.clone()];
            let at = memchr::memmem::find(&sent[from..], raw);
            prop_assert!(at.is_some(), "raw message lost");
            from += at.unwrap() + raw.len();
        }

        // All of it is a request again, with the parts in their places.
        let value: serde_json::Value = serde_json::from_slice(&sent).unwrap();
        let before: serde_json::Value = serde_json::from_slice(&body).unwrap();
        prop_assert_eq!(&value["unknown"], &before["unknown"]);
        prop_assert_eq!(value["stream_options"]["include_usage"] == true, ask_usage);
        let appended = placement == Placement::AppendToSystem
            && leading.len().checked_sub(1).is_some_and(|last| match &before["messages"][last]["content"] {
                serde_json::Value::String(_) => true,
                content => content.as_array().is_some_and(|parts| !parts.is_empty()),
            });
        let speaker = pinned.into_iter().chain(&parsed.messages()[cut..])
            .map(|message| message.role).find(|role| *role != Role::System);
        // Where nothing was taken out, the client's first message is its own.
        let reminded = cut > 0 && matches!(speaker, Some(Role::Assistant | Role::Tool));
        let messages = value["messages"].as_array().unwrap();
        prop_assert_eq!(
            messages.len(),
            leading.len() + usize::from(!appended) + usize::from(pin.is_some()) + usize::from(reminded) + count - cut
        );
        let block = &messages[leading.len() - usize::from(appended)];
        prop_assert!(content_text(&block["content"]).ends_with(&segments.concat()));
        let role = match leading.len().checked_sub(1) {
            Some(last) => &before["messages"][last]["role"],
            None => &serde_json::Value::from("system"),
        };
        prop_assert_eq!(&block["role"], role);
        let first = messages.iter().find(|m| m["role"] != "system" && m["role"] != "developer");
        prop_assert!(cut == 0 || first.is_none_or(|m| m["role"] == "user"));
    }

    /// Damage anywhere is refused or read; it never panics.
    #[test]
    fn a_damaged_body_never_causes_a_panic(messages in conversation(), seed: u64, at: prop::sample::Index, byte: u8) {
        let mut damaged = body(&messages, &mut Spelling::seeded(seed)).to_vec();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        let valid = serde_json::from_slice::<serde::de::IgnoredAny>(&damaged).is_ok();
        let body = Bytes::from(damaged);
        match chat::parse(&body) {
            Ok(parsed) => {
                prop_assert!(valid);
                prop_assert!(parsed.splice(None, Additions::default()).is_identity(&body));
            }
            Err(reason) => prop_assert!(!reason.to_string().is_empty()),
        }
        prop_assert!(chat::parse(&body.slice(..at)).is_err());
    }
}

/// What a message says, without calls: their ids and arguments stay as they were written.
fn words(parsed: &ChatRequest, index: usize) -> Vec<MessagePiece> {
    let pieces = parsed.plain_text(index).unwrap().pieces;
    let is_content = |piece: &MessagePiece| {
        !matches!(
            piece,
            MessagePiece::Call { .. } | MessagePiece::Result { .. }
        )
    };
    pieces.into_iter().filter(is_content).collect()
}

fn content_text(content: &serde_json::Value) -> String {
    match content {
        serde_json::Value::String(text) => text.clone(),
        parts => parts
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
    }
}
