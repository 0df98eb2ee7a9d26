//! Values as parameters of statements: numbers that fit, and lists as one JSON text. So a statement is the
//! same for every length of a list.

use serde_json::Value;

use crate::history::{Link, PositionMap, ScopedHash};
use crate::memory::alignment::{SummaryStart, Witness};
use crate::memory::record::MessageContent;
use crate::memory::{Node, PartId};
use crate::store::MessageMarks;

/// Links as a JSON array of hexadecimal strings.
pub(in crate::store) fn link_list<'a>(links: impl IntoIterator<Item = &'a Link>) -> String {
    hex_list(links.into_iter().map(Link::as_bytes))
}

/// The hash of a route, as the store keeps it; empty for none.
pub(in crate::store) fn route_bytes(hash: Option<&[u8; 32]>) -> Vec<u8> {
    hash.map(|bytes| bytes.to_vec()).unwrap_or_default()
}

/// A number of tokens for the store. A number that does not fit becomes the largest one.
pub(in crate::store) fn token_count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Pairs of 32-byte values as a JSON array of pairs of hexadecimal strings.
pub(in crate::store) fn pair_list(pairs: &[([u8; 32], [u8; 32])]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(a, b)| hex_list([a, b])).collect();
    format!("[{}]", pairs.join(","))
}

/// 32-byte values as a JSON array of hexadecimal strings.
/// A list of hashes in hexadecimal digits.
pub(in crate::store) fn hex_list<'a>(values: impl IntoIterator<Item = &'a [u8; 32]>) -> String {
    let values = values.into_iter();
    let mut out = String::with_capacity(2 + 67 * values.size_hint().0);
    out.push('[');
    for value in values {
        if out.len() > 1 {
            out.push(',');
        }
        out.push('"');
        push_hex(&mut out, value);
        out.push('"');
    }
    out.push(']');
    out
}

/// Bytes as hexadecimal text, for a JSON parameter.
pub(in crate::store) fn hex_text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    push_hex(&mut out, bytes);
    out
}

/// The bytes that `hex` stands for; `None` if it is not hexadecimal.
pub(in crate::store) fn hex_bytes(hex: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hex.as_bytes().chunks(2).map(byte).collect()
}

pub(super) fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Ids of parts as a JSON array.
pub(in crate::store) fn id_list(parts: &[PartId]) -> String {
    numbers(parts.iter().map(|part| part.0))
}

/// Numbers as a JSON array.
pub(in crate::store) fn number_list(all: &[i64]) -> String {
    numbers(all.iter().copied())
}

fn numbers(all: impl Iterator<Item = i64>) -> String {
    let mut out = String::from("[");
    for number in all {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&number.to_string());
    }
    out.push(']');
    out
}

/// New messages for `NEW_NODES`. `parent` is the link before the first; `marks` holds the marks of each
/// message, or is empty.
pub(in crate::store) fn node_list(nodes: &[Node], marks: &[MessageMarks], parent: Link) -> String {
    let mut parent = parent;
    let mut out = String::with_capacity(2 + 300 * nodes.len());
    out.push('[');
    for (index, node) in nodes.iter().enumerate() {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str("[\"");
        push_hex(&mut out, node.link.as_bytes());
        out.push_str("\",\"");
        push_hex(&mut out, parent.as_bytes());
        out.push_str("\",");
        out.push_str(&format!(
            "{},\"{}\",{},{},{},{},{},{},{},",
            node.count,
            node.role.name(),
            node.tokens,
            u8::from(node.closed),
            u8::from(node.turn_end),
            node.first_length,
            u8::from(node.confirmed),
            node.received_ms,
            u8::from(node.live),
        ));
        let node_marks = marks.get(index);
        push_mark(&mut out, node_marks.map(|marks| marks.item.content));
        out.push(',');
        push_mark(&mut out, node_marks.and_then(|marks| marks.item.ids));
        match node_marks {
            Some(marks) => out.push_str(&format!(",{},", marks.item.distinctive_bytes)),
            None => out.push_str(",null,"),
        }
        push_mark(&mut out, node_marks.and_then(|marks| marks.anchor));
        let origin_fields = node_marks.map(|marks| (marks.origin.0, u8::from(marks.from_upstream)));
        let (origin, given) = origin_fields.unwrap_or_default();
        let summary_start = node_marks.and_then(|marks| marks.summary_start);
        let summary_start = summary_start.map_or(0, SummaryStart::to_stored);
        out.push_str(&format!(",{origin},{given},{summary_start}]"));
        parent = node.link;
    }
    out.push(']');
    out
}

fn push_mark(out: &mut String, mark: Option<ScopedHash>) {
    let Some(mark) = mark else {
        return out.push_str("null");
    };
    out.push('"');
    push_hex(out, mark.as_bytes());
    out.push('"');
}

/// Answers, their positions, and the contents of their messages, for `FIND`.
pub(in crate::store) fn answer_list(
    answers: &[(ScopedHash, usize)],
    contents: &[Option<ScopedHash>],
) -> String {
    let contents = contents.iter().copied().chain(std::iter::repeat(None));
    let mut out = String::with_capacity(2 + 86 * answers.len());
    out.push('[');
    for ((answer, place), content) in answers.iter().zip(contents) {
        if out.len() > 1 {
            out.push(',');
        }
        out.push('[');
        push_mark(&mut out, Some(*answer));
        out.push_str(&format!(",{place},"));
        push_mark(&mut out, content);
        out.push(']');
    }
    out.push(']');
    out
}

/// Pairs of a hash and a position, for `FIND`.
pub(in crate::store) fn mark_list(marks: &[(ScopedHash, usize)]) -> String {
    let mut out = String::with_capacity(2 + 50 * marks.len());
    out.push('[');
    for (mark, place) in marks {
        if out.len() > 1 {
            out.push(',');
        }
        out.push('[');
        push_mark(&mut out, Some(*mark));
        out.push_str(&format!(",{place}]"));
    }
    out.push(']');
    out
}

/// The runs of an alignment, as JSON.
pub(in crate::store) fn run_list(view: &PositionMap) -> String {
    let runs: Vec<String> = view
        .runs()
        .iter()
        .map(|run| format!("[{},{},{}]", run.client, run.path, run.len))
        .collect();
    format!("[{}]", runs.join(","))
}

/// The proof of an alignment, as JSON.
pub(in crate::store) fn proof_list(proof: &[Witness]) -> String {
    let mut out = String::from("[");
    for witness in proof {
        if out.len() > 1 {
            out.push(',');
        }
        out.push('[');
        push_mark(&mut out, Some(witness.hash));
        out.push_str(&format!(",{}]", witness.origin.0));
    }
    out.push(']');
    out
}

/// Pairs of a link and a kept text, as JSON.
pub(in crate::store) fn message_list(messages: &[(Link, String)]) -> String {
    let pairs: Vec<Value> = messages
        .iter()
        .map(|(link, text)| {
            let mut hex = String::with_capacity(64);
            push_hex(&mut hex, link.as_bytes());
            Value::from(vec![hex, text.clone()])
        })
        .collect();
    Value::from(pairs).to_string()
}

/// Pairs of a content and its tokens, for `CREDIT` and `NEW_CONTENTS`.
pub(in crate::store) fn content_list(contents: &[MessageContent]) -> String {
    let mut out = String::with_capacity(2 + 80 * contents.len());
    out.push('[');
    for content in contents {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str("[\"");
        push_hex(&mut out, content.key.as_bytes());
        out.push_str(&format!("\",{}]", content.tokens));
    }
    out.push(']');
    out
}

/// A number of messages for the store. Histories are far shorter than `i64::MAX`.
pub(in crate::store) fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
