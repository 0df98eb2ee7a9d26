//! What one request costs before it is forwarded: parse and fingerprint, chain, select, splice.
//!
//! `cargo bench --bench hot_path`. The aim is under one millisecond of processor time for each
//! megabyte of body, linear in the body. Throughput is printed; compare lines of one run only.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::fmt;

use bytes::Bytes;
use diarist::history::{History, Scope};
use diarist::memory::select::{PreviousSend, select};
use diarist::memory::{SnapshotCause, SnapshotId, SnapshotMeta};
use diarist::wire::chat;
use diarist::wire::{Additions, Insert, Placement};
use divan::Bencher;
use divan::counter::BytesCount;

fn main() {
    divan::main();
}

#[derive(Clone, Copy)]
enum Text {
    Prose,
    Code,
    Chinese,
}

/// A request of `size` bytes of `text` in messages of 2,000 characters and their tool rounds.
#[derive(Clone, Copy)]
struct Shape {
    text: Text,
    size: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.text {
            Text::Prose => "prose",
            Text::Code => "code",
            Text::Chinese => "chinese",
        };
        write!(f, "{text} {} kB", self.size / 1000)
    }
}

const SIZES: [usize; 3] = [100_000, 1_000_000, 8_000_000];

fn shapes() -> impl Iterator<Item = Shape> {
    let texts = [Text::Prose, Text::Code, Text::Chinese];
    texts
        .into_iter()
        .flat_map(|text| SIZES.map(|size| Shape { text, size }))
}

fn body(shape: Shape) -> Bytes {
    let unit = match shape.text {
        Text::Prose => {
            "The log is written while nobody waits; what was said stays as it was said, to the letter. "
        }
        Text::Code => {
            "    let found = map.get(\"key\").copied();\n    if found > 10 {\n        return Err(Error::TooBig);\n    }\n\n"
        }
        Text::Chinese => "今天天气很好，我们去公园散步吧。明天再说，不用着急。",
    };
    let text: String = unit.chars().cycle().take(2000).collect();
    let text = serde_json::Value::from(text).to_string();
    let mut body = String::from(
        r#"{"model":"m","stream":true,"messages":[{"role":"system","content":"Be brief."}"#,
    );
    let mut round = 0;
    while body.len() < shape.size {
        body.push_str(&format!(
            r#",{{"role":"user","content":{text}}},{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_{round}","type":"function","function":{{"name":"read","arguments":"{{\"path\":\"src/{round}.rs\"}}"}}}}]}},{{"role":"tool","tool_call_id":"call_{round}","content":{text}}},{{"role":"assistant","content":{text}}}"#
        ));
        round += 1;
    }
    body.push_str("]}");
    Bytes::from(body)
}

fn scope() -> Scope {
    Scope::new(b"Bearer key", None)
}

/// A snapshot that covers four fifths of `history`, among 32 others.
fn snapshots(history: &History) -> Vec<SnapshotMeta> {
    let messages = history.messages();
    (1..=32_u8)
        .map(|n| {
            // Rounds are four messages long; a cut falls between them.
            let to_count = messages.len() / 40 * usize::from(n) / 4 * 4 + 4;
            SnapshotMeta {
                id: SnapshotId(i64::from(n)),
                to: messages[to_count - 1].link,
                to_count,
                eligible_from: to_count + 1,
                pin: None,
                parts: Vec::new(),
                tokens: 1000,
                cause: SnapshotCause::Threshold,
                placement: String::new(),
                peer_memory: None,
            }
        })
        .collect()
}

fn segments() -> Vec<String> {
    vec!["- 10:15 The user prefers short answers.\n".repeat(250); 4]
}

#[divan::bench(args = shapes())]
fn parse(bencher: Bencher<'_, '_>, shape: &Shape) {
    let body = body(*shape);
    bencher
        .counter(BytesCount::new(body.len()))
        .bench_local(|| chat::parse(&body).unwrap());
}

#[divan::bench(args = shapes())]
fn chain(bencher: Bencher<'_, '_>, shape: &Shape) {
    let parsed = chat::parse(&body(*shape)).unwrap();
    bencher
        .counter(BytesCount::new(parsed.body().len()))
        .bench_local(|| parsed.history(&scope()));
}

#[divan::bench(args = SIZES)]
fn choose(bencher: Bencher<'_, '_>, size: usize) {
    let parsed = chat::parse(&body(Shape {
        text: Text::Prose,
        size,
    }))
    .unwrap();
    let history = parsed.history(&scope());
    let snapshots = snapshots(&history);
    bencher.bench_local(|| select(&history, &snapshots, PreviousSend::NotSent));
}

#[divan::bench(args = SIZES)]
fn splice(bencher: Bencher<'_, '_>, size: usize) {
    let body = body(Shape {
        text: Text::Prose,
        size,
    });
    let parsed = chat::parse(&body).unwrap();
    let segments = segments();
    let insert = Insert {
        cut: parsed.messages().len() * 4 / 5,
        pin: None,
        segments: &segments,
        placement: Placement::SystemMessage,
        reminder: "Go on.",
        front: &[],
        bridge: "so far",
    };
    bencher.bench_local(|| parsed.splice(Some(&insert), additions()).frames(&body));
}

/// All of it, as a request goes.
#[divan::bench(args = shapes())]
fn whole(bencher: Bencher<'_, '_>, shape: &Shape) {
    let body = body(*shape);
    let scope = scope();
    let snapshots = snapshots(&chat::parse(&body).unwrap().history(&scope));
    let segments = segments();
    bencher
        .counter(BytesCount::new(body.len()))
        .bench_local(|| {
            let parsed = chat::parse(&body).unwrap();
            let history = parsed.history(&scope);
            let selection = select(&history, &snapshots, PreviousSend::NotSent);
            let insert = Insert {
                cut: selection.cut(),
                pin: selection.pin(),
                segments: &segments,
                placement: Placement::SystemMessage,
                reminder: "Go on.",
                front: &[],
                bridge: "so far",
            };
            assert!(insert.cut > 0);
            parsed.splice(Some(&insert), additions()).frames(&body)
        });
}

/// Yardsticks of the same run: what any proxy that looks into the body pays.
mod yardstick {
    use super::{BytesCount, SIZES, Shape, Text, body};
    use divan::Bencher;

    #[divan::bench(args = SIZES)]
    fn copy(bencher: Bencher<'_, '_>, size: usize) {
        let body = body(Shape {
            text: Text::Code,
            size,
        });
        bencher
            .counter(BytesCount::new(body.len()))
            .bench_local(|| body.to_vec());
    }

    #[divan::bench(args = SIZES)]
    fn value(bencher: Bencher<'_, '_>, size: usize) {
        let body = body(Shape {
            text: Text::Code,
            size,
        });
        bencher
            .counter(BytesCount::new(body.len()))
            .bench_local(|| serde_json::from_slice::<serde_json::Value>(&body).unwrap());
    }
}

/// What most streams are sent with besides the block.
fn additions() -> Additions<'static> {
    Additions {
        usage: true,
        ..Additions::default()
    }
}
