//! Token counts, records that are not there, and refusals that say "too long".

use bytes::Bytes;
use diarist::history::{
    AttachmentKind, Detail, History, Media, MessagePiece, PlainText, Role, Scope,
};
use diarist::memory::select::{PreviousSend, select};
use diarist::memory::{message_tokens, render};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{Admin as _, Chains as _, SqliteStore};
use diarist::tokens::{Estimate, O200k, TokenCounter};
use diarist::wire;
use diarist::wire::usage::{RefusalKind, refusal};
use serde_json::{Value, json};

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[19], an_empty_text_has_no_tokens),
    (&[20, 28], images_and_files_are_counted_in_whole_tokens),
    (&[24], reasoning_text_adds_no_tokens),
    (&[25], a_large_tool_result_counts_in_full),
    (&[27], an_image_is_not_counted_as_text),
    (&[33], an_unrecorded_conversation_has_no_stored_data),
    (&[39], without_observations_no_snapshot_is_selected),
    (&[139], every_known_wording_means_a_too_long_prompt),
];

fn parsed(messages: &Value) -> wire::Request {
    let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
    wire::Request::parse_chat(&Bytes::from(body)).unwrap()
}

fn spoken(message: &Value) -> PlainText {
    parsed(&json!([message])).plain_text(0).unwrap()
}

fn weigh(message: &Value) -> u32 {
    message_tokens::count_message(&spoken(message), "gpt-4o", &O200k::new())
}

/// What a message weighs beside what it holds.
const MESSAGE: u32 = 4;

fn holds(kind: AttachmentKind, media: Media, model: &str) -> u32 {
    let label = "x".to_owned();
    let spoken = PlainText {
        role: Role::User,
        name: None,
        pieces: vec![MessagePiece::Attachment { kind, label, media }],
    };
    message_tokens::count_message(&spoken, model, &O200k::new()) - MESSAGE
}

fn images_and_files_are_counted_in_whole_tokens() {
    let picture = |width, height, detail| Media {
        pixels: Some((width, height)),
        bytes: Some(1),
        detail,
        ..Media::default()
    };
    let weigh = |model, media| holds(AttachmentKind::Image, media, model);
    for (model, base, tile) in [
        ("gpt-4o", 85, 170),
        ("gpt-5-mini", 70, 140),
        ("gpt-4o-mini", 2_833, 5_667),
        ("o1", 75, 150),
        ("o3", 75, 150),
        ("computer-use-preview", 65, 129),
    ] {
        let weight = |width, height, detail| weigh(model, picture(width, height, detail));
        assert_eq!(
            weight(4_096, 8_192, Detail::Low),
            base,
            "{model}: low is the base"
        );
        assert_eq!(
            weight(1_024, 1_024, Detail::High),
            base + 4 * tile,
            "{model}"
        );
        // Fit into 2,048, then the short side to 768: 768 x 1,536, 2 x 3 tiles.
        assert_eq!(
            weight(2_048, 4_096, Detail::High),
            base + 6 * tile,
            "{model}"
        );
        // Auto looks closely where the long edge is beyond 768.
        assert_eq!(weight(768, 768, Detail::Auto), base, "{model}");
        assert_eq!(weight(769, 100, Detail::Auto), base + 2 * tile, "{model}");
    }
    let bytes = |bytes| Media {
        bytes: Some(bytes),
        detail: Detail::High,
        ..Media::default()
    };
    for (size, tiles) in [
        (512 << 10, 1),
        (2 << 20, 4),
        (4 << 20, 6),
        ((4 << 20) + 1, 8),
    ] {
        assert_eq!(weigh("gpt-4o", bytes(size)), 85 + tiles * 170, "{size}");
    }
    let high = |width, height| picture(width, height, Detail::High);
    assert_eq!(
        weigh("gemini-3-pro", picture(9_000, 9_000, Detail::Low)),
        280
    );
    assert_eq!(weigh("gemini-3-pro", high(9_000, 9_000)), 1_120);
    assert_eq!(weigh("gemini-2.5-pro", high(1_024, 700)), 2 * 258);

    // A quarter and a twentieth of bytes that neither divides; and the least.
    let pdf = |bytes| Media {
        mime: Some("application/pdf".to_owned()),
        bytes: Some(bytes),
        ..Media::default()
    };
    for (model, tokens, least) in [("gpt-4o", 15_000, 500), ("gemini-2.5-pro", 3_000, 258)] {
        let weight = |bytes| holds(AttachmentKind::File, pdf(bytes), model);
        assert_eq!((weight(60_001), weight(30)), (tokens, least), "{model}");
    }
    let csv = Media {
        mime: Some("text/csv".to_owned()),
        ..pdf(403)
    };
    assert_eq!(holds(AttachmentKind::File, csv, "gpt-4o"), 100);
}

fn an_empty_text_has_no_tokens() {
    let counts: [u32; 2] = [O200k::new().count(""), Estimate.count("")];
    assert_eq!(counts, [0, 0]);
    // A block without observations: it has a preamble, which is no part of the log.
    let block = render::segments(&[], None);
    let counter = O200k::new();
    assert!(counter.count(&block.concat()) > 0);
    assert_eq!(
        render::log_tokens(&block, 0, |segment| counter.count(segment)),
        0
    );
}

fn reasoning_text_adds_no_tokens() {
    let plain = json!({"role": "assistant", "content": "Yes."});
    let mut thought = plain.clone();
    thought["reasoning_content"] = "word ".repeat(5_000).into();
    assert_eq!(weigh(&thought), weigh(&plain));
}

fn a_large_tool_result_counts_in_full() {
    let words = "one two three four five six seven eight ".repeat(4_000);
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": words});
    // The Observer's cap on one result is 5,000.
    assert!(weigh(&result) >= 32_000, "{}", weigh(&result));
}

fn an_image_is_not_counted_as_text() {
    let url = format!("data:image/png;base64,{}", "iVBORw0K".repeat(100_000));
    let picture = json!({"role": "user", "content": [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]});
    // 800,000 characters would be 200,000 tokens; eight tiles of OpenAI's are 85 + 8 x 170.
    assert!(weigh(&picture) < 1_500 + 20, "{}", weigh(&picture));
}

fn scope() -> Scope {
    Scope::new(b"key", None)
}

fn history() -> History {
    parsed(&json!([{"role": "user", "content": "hi"}])).history(&scope())
}

fn an_unrecorded_conversation_has_no_stored_data() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        let chain: Vec<_> = history()
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect();
        let found = store.find_on_chain(&scope(), &chain).await.unwrap();
        assert!(found.snapshots.is_empty() && found.sent_with.is_none() && found.depth == 0);
        let known = store.load_chain(&scope(), &chain).await.unwrap();
        assert!(known.nodes.is_empty() && known.parts.is_empty() && known.lineage.is_none());
        assert!(store.thread(1).await.unwrap().is_none());
    });
}

fn without_observations_no_snapshot_is_selected() {
    assert_eq!(
        select(&history(), &[], PreviousSend::NotSent).snapshot,
        None
    );
}

fn every_known_wording_means_a_too_long_prompt() {
    let kind =
        |status: u16, error: Value| refusal(status, json!({"error": error}).to_string().as_bytes());
    let too_long = Some(RefusalKind::TooLong);
    assert_eq!(
        kind(
            400,
            json!({"code": "context_length_exceeded", "message": "no"})
        ),
        too_long
    );
    for wording in [
        "This model's maximum context length is 8192 tokens",
        "This model's maximum prompt length is 131072 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model",
        "Your request exceeds the context window of this model",
        "The prompt exceeds the maximum context length",
        "Your input exceeds the context limit of the model",
        "The request exceeds the available context size",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)",
        "Please reduce the length of the messages or completion",
    ] {
        assert_eq!(
            kind(400, json!({"message": wording})),
            too_long,
            "{wording}"
        );
        // Whoever says it: the credential, the rate, the upstream itself.
        for other in [401, 403, 429, 500, 502, 503] {
            assert_eq!(
                kind(other, json!({"message": wording})),
                None,
                "{other}: {wording}"
            );
        }
        // A 429 anywhere in the chain is none either, nor is a network that failed.
        let limited = json!({"message": "no", "cause": {"status": 429, "message": wording}});
        assert_ne!(kind(400, limited), too_long, "429: {wording}");
        let nested = json!({"error": {"cause": {"error": {"message": wording}}}});
        assert_eq!(kind(400, nested), too_long, "nested: {wording}");
    }
    for network in [
        "fetch failed",
        "read ECONNRESET",
        "socket hang up",
        "UND_ERR_CONNECT_TIMEOUT",
    ] {
        assert_ne!(
            kind(400, json!({"message": network})),
            too_long,
            "{network}"
        );
    }
}
