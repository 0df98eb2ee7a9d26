//! Alignment: the first bytes choose what is known, the others a recorded conversation and what its client makes of
//! it.

use std::sync::Arc;

use bytes::Bytes;
use diarist::history::align::MessageOrigin;
use diarist::history::{History, Link, MessageKey, PathMessage, Scope};
use diarist::memory::alignment::{
    Alignment, EvidenceLevel, KnownChains, LineageName, Origin, PathEntry, SummaryStart,
    find_alignment,
};
use diarist::wire::Request;
use serde_json::{Value, json};

use super::choices;

/// The lineage of the recorded conversation.
const LINEAGE: i64 = 1;

pub(crate) fn check(data: &[u8]) {
    let ([level, known, length, names], rest) = choices(data);
    let (recorded, changes) = rest.split_at(usize::from(length).min(rest.len()));
    let messages: Vec<Value> = recorded
        .iter()
        .zip(0..)
        .map(|(byte, at)| message(*byte, at))
        .collect();
    let (Some(path), Some(client)) = (history(&messages), history(&changed(&messages, changes)))
    else {
        return;
    };
    let entries = path_entries(&path, known);
    let known_chains = KnownChains {
        path: entries.clone(),
        key: (names & 1 != 0).then(|| "one".to_owned()),
        lineage_names: [(
            LINEAGE,
            LineageName {
                key: (names & 2 != 0)
                    .then(|| if names & 4 != 0 { "one" } else { "two" }.to_owned()),
                is_unique: names & 8 != 0,
            },
        )]
        .into(),
        level: [
            EvidenceLevel::Content,
            EvidenceLevel::Names,
            EvidenceLevel::Strict,
        ][usize::from(level) % 3],
        stored_holds: true,
        ..KnownChains::default()
    };
    let client = Arc::new(client);
    let Some(alignment) = find_alignment(&client, &known_chains) else {
        return;
    };
    places_are_right(&alignment, &entries, &client);
    nothing_is_told_without_proof(&alignment, &entries, &client);
    let other_name = names & 3 == 3 && names & 4 == 0;
    let unproven = known & 3 != 3;
    if other_name || unproven || known_chains.level == EvidenceLevel::Strict {
        assert!(alignment.proof.is_empty(), "proof where none can be");
    }
}

/// What a message may say: short words, long ones, equal ones.
fn message(byte: u8, place: usize) -> Value {
    let word = byte >> 3;
    let text = match word % 4 {
        0 => "ok".to_owned(),
        1 => format!(
            "a long text that only conversation {word} can hold, because it says {word} twice"
        ),
        2 => format!(
            "place {place}: nobody else says this, and nobody says it anywhere else than here"
        ),
        _ => "a template that each conversation holds, and that is long enough to seem to be proof"
            .to_owned(),
    };
    let id = format!("call_{place}_abcdef{place}");
    match byte % 8 {
        0..=2 => json!({"role": "user", "content": text}),
        3..=5 => json!({"role": "assistant", "content": text}),
        6 => json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}]}),
        _ => {
            let call = place.saturating_sub(1);
            json!({"role": "tool", "tool_call_id": format!("call_{call}_abcdef{call}"), "content": text})
        }
    }
}

/// What a client sends of what was said: each byte keeps, drops, rewrites, repeats or inserts a message.
fn changed(messages: &[Value], changes: &[u8]) -> Vec<Value> {
    let mut sent = Vec::new();
    let mut left = messages.iter();
    for byte in changes {
        match byte % 8 {
            0..=2 => sent.extend(left.by_ref().take(usize::from(byte >> 3) + 1).cloned()),
            3 => drop(left.by_ref().nth(usize::from(byte >> 3))),
            4 => {
                if let Some(one) = left.next() {
                    let mut one = one.clone();
                    one["content"] = format!("[left out] {byte}").into();
                    sent.push(one);
                }
            }
            5 => sent.extend(messages.get(usize::from(byte >> 3)).cloned()),
            6 => sent.push(message(*byte, 300)),
            _ => sent.push(message(byte >> 3, 400)),
        }
    }
    sent.push(json!({"role": "user", "content": "and now?"}));
    sent
}

/// The messages as a history; `None` for none.
fn history(messages: &[Value]) -> Option<History> {
    let body = Bytes::from(json!({"model": "m", "messages": messages}).to_string());
    let request = Request::parse_chat(&body).ok()?;
    Some(request.history(&Scope::new(b"fuzz", None)))
}

/// A recorded path. The bits of `known` say what is known of its messages.
fn path_entries(path: &History, known: u8) -> Vec<PathEntry> {
    let mut parent: Link = path.root();
    let mut entries = Vec::with_capacity(path.len());
    for (chained, at) in path.messages().iter().zip(1..) {
        let has = |bit: u8| known & (1 << bit) != 0;
        entries.push(PathEntry {
            message: PathMessage {
                link: chained.link,
                role: chained.message.role,
            },
            parent,
            message_key: Some(MessageKey::from_message(&path.root(), &chained.message)),
            anchor: None,
            range_end: has(2) && (at % 2 == 0 || has(3)),
            live: has(4),
            text_kept: has(5),
            lineage: LINEAGE,
            origin: Origin::for_link(&chained.link),
            message_origin: MessageOrigin {
                from_upstream: has(0),
                unshared: has(1),
            },
            summary_start: SummaryStart::from_stored(i64::from(has(7))),
            pending: has(6) && at == path.len(),
        });
        parent = chained.link;
    }
    entries
}

/// Whether the message of the request says what stands on the path: in the same words, or as the result of the same
/// tool call, which clients shorten.
fn is_same(entry: &PathEntry, client: &History, index: usize) -> bool {
    let sent = MessageKey::from_message(&client.root(), &client.messages()[index].message);
    let Some(known) = entry.message_key else {
        return false;
    };
    known.role == sent.role
        && (known.content == sent.content || (known.ids.is_some() && known.ids == sent.ids))
}

/// Each message of a run says what stands at its place, and the chain has the links of the path.
fn places_are_right(alignment: &Alignment, path: &[PathEntry], client: &History) {
    let positions = &alignment.positions;
    for run in positions.runs() {
        for offset in 0..run.len {
            let entry = &path[run.path + offset];
            assert!(
                is_same(entry, client, run.client + offset),
                "a message at a wrong place"
            );
        }
    }
    let (open_client, open_path) = positions.open_start();
    let messages = alignment.history.messages();
    assert_eq!(messages.len(), open_path + client.len() - open_client);
    for (chained, entry) in messages.iter().zip(path).take(open_path) {
        assert_eq!(chained.link, entry.message.link, "the chain left the path");
    }
    for index in 0..client.len() {
        if let Some(place) = positions.chain_index(index) {
            assert_eq!(
                positions.request_index(place),
                Some(index),
                "two places for one message"
            );
        }
    }
    let messages = client.messages().iter().map(|chained| &chained.message);
    assert!(
        positions.keeps_rounds_whole(messages),
        "a tool round is split"
    );
}

/// Without proof, whatever the chain covers stands somewhere in the request itself.
fn nothing_is_told_without_proof(alignment: &Alignment, path: &[PathEntry], client: &History) {
    if !alignment.proof.is_empty() {
        assert_eq!(alignment.lineage, Some(LINEAGE));
        return;
    }
    let (_, open_path) = alignment.positions.open_start();
    for entry in &path[..open_path] {
        let is_held = (0..client.len()).any(|index| is_same(entry, client, index));
        assert!(
            is_held,
            "a message is covered that the request does not hold"
        );
    }
}
