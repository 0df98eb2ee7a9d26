//! The body parser: three bytes choose an insert, the rest is a request body.

use bytes::Bytes;
use diarist::history::Scope;
use diarist::wire::chat::FieldValue;
use diarist::wire::{Additions, Insert, Placement, Request, Splice};

use super::choices;

pub(crate) fn check(data: &[u8]) {
    let ([cut, pin, form], body) = choices(data);
    let body = Bytes::copy_from_slice(body);
    let Ok(request) = Request::parse_chat(&body) else {
        return;
    };
    spans_follow_each_other(&request);
    an_empty_splice_changes_nothing(&request);
    spelling_changes_no_meaning(&request);
    grown_is_read_alike(&request, cut);
    raw_messages_keep_every_byte(&request, cut, pin, form);
}

/// Each message is one JSON object of the body, in order.
fn spans_follow_each_other(request: &Request) {
    let messages = [request.leading_messages().messages(), request.messages()].concat();
    assert_eq!(messages.len(), request.message_count());
    let mut at = 0;
    for (index, message) in messages.iter().enumerate() {
        assert!(at <= message.span.start, "message {index} overlaps");
        at = message.span.end;
        let json = &request.body()[message.span.clone()];
        assert!(
            json.starts_with(b"{") && json.ends_with(b"}"),
            "message {index} is no object"
        );
    }
    for index in 0..request.messages().len() {
        assert!(
            request.plain_text(index).is_some(),
            "message {index} cannot be read again"
        );
    }
}

/// A request without memory is sent as it came.
fn an_empty_splice_changes_nothing(request: &Request) {
    let splice = request.splice(None, Additions::default());
    assert!(splice.is_identity(request.body()));
    assert_eq!(sent(request, &splice), *request.body());
}

/// White space between the tokens of JSON has no meaning: every link is the same.
fn spelling_changes_no_meaning(request: &Request) {
    let spaced = Bytes::from(spaced(request.body()));
    let again = Request::parse_chat(&spaced).expect("white space makes no request bad");
    let scope = Scope::new(b"fuzz", None);
    assert_eq!(request.history(&scope).tip(), again.history(&scope).tip());
    assert_eq!(request.model(), again.model());
    assert_eq!(
        request.prompt_fields().is_some(),
        again.prompt_fields().is_some()
    );
}

/// Behind a beginning that was read before, the rest of the body is read as at once.
fn grown_is_read_alike(request: &Request, cut: u8) {
    let most = request.body().len() * (usize::from(cut) + 1) / 256;
    let Some(prefix) = request.prefix(most) else {
        return;
    };
    let grown = Request::parse_grown(request.body(), &prefix).expect("it was read at once");
    let leading = |request: &Request| {
        let leading = request.leading_messages();
        (leading.messages().to_vec(), leading.role())
    };
    assert_eq!(grown.messages(), request.messages());
    assert_eq!(leading(&grown), leading(request));
    assert_eq!(grown.model(), request.model());
    assert_eq!(grown.stream(), request.stream());
    assert_eq!(grown.requested_usage(), request.requested_usage());
    assert_eq!(grown.cache_retention(), request.cache_retention());
    assert_eq!(grown.prompt_fields(), request.prompt_fields());
    let additions = Additions {
        usage: true,
        ..Additions::default()
    };
    let out = |request: &Request| sent(request, &request.splice(None, additions));
    assert_eq!(out(&grown), out(request));
}

/// Whatever is inserted: the result is a request, and the head (if nothing is appended to it), the pin and the tail
/// are the client's bytes.
fn raw_messages_keep_every_byte(request: &Request, cut: u8, pin: u8, form: u8) {
    let count = request.messages().len();
    let cut = usize::from(cut) % (count + 1);
    let pin = usize::from(pin).checked_sub(1).filter(|pin| *pin < cut);
    let placements = [
        Placement::SystemMessage,
        Placement::AppendToSystem,
        Placement::Segments,
    ];
    let placement = placements[usize::from(form) % placements.len()];
    let segments = ["Notes \"1\"\n".to_owned(), "- 2\u{1}".to_owned()];
    let insert = Insert {
        cut,
        front: &[],
        pin,
        segments: &segments,
        placement,
        reminder: "a reminder",
        bridge: "a bridge",
    };
    let additions = Additions {
        usage: form >= 128,
        cache_mark: form >= 128,
        cache_key: (form >= 128).then_some("a-key"),
        cache_breakpoint: (form >= 128).then_some(1),
    };
    let splice = request.splice(Some(&insert), additions);
    let out = sent(request, &splice);
    assert_eq!(out.len(), splice.len());
    let after = Request::parse_chat(&out).expect("a changed request is a request");
    // A tail that begins with a system message counts as leading once nothing stands before it.
    let (before, now) = (all_messages(request), all_messages(&after));
    let tail = count - cut;
    assert!(tail <= now.len(), "the tail is cut");
    assert_eq!(
        before[before.len() - tail..],
        now[now.len() - tail..],
        "the tail changed"
    );
    if let Some(pin) = pin {
        let pinned = &before[before.len() - count + pin];
        assert!(now.contains(pinned), "the pin is missing");
    }
    let head = before.len() - count;
    let unchanged = if placement == Placement::AppendToSystem {
        head.saturating_sub(1)
    } else {
        head
    };
    assert_eq!(before[..unchanged], now[..unchanged], "the head changed");
    if form >= 128 {
        assert!(after.requested_usage().is_some(), "usage is not asked for");
        if request.takes_cache_key() {
            let key = after.field("prompt_cache_key");
            assert_eq!(key, Some(FieldValue::Text("a-key".to_owned())));
        }
    }
    assert_eq!(
        (request.model(), request.stream()),
        (after.model(), after.stream())
    );
}

/// The bytes of all messages in order, the leading ones first.
fn all_messages(request: &Request) -> Vec<Bytes> {
    let leading = request.leading_messages().messages().iter();
    leading
        .chain(request.messages())
        .map(|message| request.body().slice(message.span.clone()))
        .collect()
}

fn sent(request: &Request, splice: &Splice) -> Bytes {
    splice.frames(request.body()).concat().into()
}

/// The same JSON with white space around each mark that is not part of a string.
fn spaced(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json {
        let is_mark = !in_string && b"{}[],:".contains(byte);
        if is_mark {
            out.extend_from_slice(b" \n");
        }
        out.push(*byte);
        if is_mark {
            out.extend_from_slice(b"\t\r");
        }
        if *byte == b'"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && *byte == b'\\' && !escaped;
    }
    out
}
