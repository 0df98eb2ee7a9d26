//! The recorded requests of real clients, where they lie beside the project: how many extend the
//! request before them. The counts are those of the study the canonical form was drawn from, retries
//! and side calls included. Where the recordings are absent, the generated spellings stand alone, and with CI set the
//! tests fail.

use std::path::PathBuf;

use bytes::Bytes;
use diarist::history::Link;
use diarist::wire::chat::{self, ParseError};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::support::skipped::skipped;

#[derive(Deserialize)]
struct Line<'a> {
    run: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Client, pairs of requests in one run, and those where the second begins with the whole first.
const RECORDED: [(&str, usize, usize); 10] = [
    ("ai-sdk", 61, 56),
    ("aider", 54, 0),
    ("codex-via-litellm", 7, 7),
    ("continue", 28, 25),
    ("langchain", 26, 24),
    ("litellm", 34, 33),
    ("llm-cli", 8, 7),
    ("openai-agents", 20, 18),
    ("openai-python", 44, 44),
    ("opencode", 64, 49),
];

/// The recording of a client. If it cannot be read, its check is skipped.
fn recording(client: &str) -> Option<String> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shared/data/clients"
    ));
    let text = std::fs::read_to_string(folder.join(format!("{client}.jsonl"))).ok();
    if text.is_none() {
        skipped(&format!(
            "../shared/data/clients/{client}.jsonl is not beside the project; its requests are not parsed"
        ));
    }
    text
}

fn links(line: &Line<'_>) -> Result<Vec<Link>, ParseError> {
    let parsed = chat::parse(&Bytes::copy_from_slice(line.body.get().as_bytes()))?;
    let history = parsed.history(&crate::wire::scope());
    Ok(history
        .messages()
        .iter()
        .map(|chained| chained.link)
        .collect())
}

#[test]
fn requests_of_recorded_clients_extend_their_chains() {
    for (client, pairs, extensions) in RECORDED {
        let Some(text) = recording(client) else {
            continue;
        };
        let lines: Vec<Line<'_>> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let chains: Vec<Vec<Link>> = lines.iter().map(|line| links(line).unwrap()).collect();
        let same_run = |index: &usize| lines[*index].run == lines[index - 1].run;
        let extends = |index: &usize| chains[*index].starts_with(&chains[index - 1]);
        let counted: Vec<usize> = (1..lines.len()).filter(same_run).collect();
        let extended = counted.iter().filter(|index| extends(index)).count();
        assert_eq!((counted.len(), extended), (pairs, extensions), "{client}");
    }
}

/// The Responses format is another wire format; it must not be taken for this one.
#[test]
fn a_responses_request_is_not_parsed_as_chat() {
    let own =
        r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}]}"#;
    let recorded = recording("codex-responses").unwrap_or_default();
    let recorded = recorded.lines().map(|line| {
        let line: Line<'_> = serde_json::from_str(line).unwrap();
        line.body.get().to_owned()
    });
    for body in recorded.chain([own.to_owned()]) {
        let reason = chat::parse(&Bytes::from(body)).map(|_| ());
        assert_eq!(reason, Err(ParseError::MessagesMissing));
    }
}
