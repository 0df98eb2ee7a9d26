//! The recordings of real clients, where they lie beside the project, in the order in which they were
//! made and with texts long enough that memory comes into use. Each request is judged by what the
//! provider got; a table tells the rest. Where a client gets no memory, the table says why. A recording that is
//! not there is skipped, and with CI set the test fails.

use diarist_provider::CallerKind;

use crate::alignment::replayed::{PlayOptions, RecordedRequest, Row, play};
use crate::memory::rig::Rig;
use crate::support::depth;
use crate::support::skipped::skipped;

/// A client, how many of its requests have memory at least, and the runs that have none, each with the
/// reason.
type Expected = (&'static str, usize, &'static [(&'static str, &'static str)]);

const CLIENTS: [Expected; 10] = [
    ("ai-sdk", 40, &[("num-aisdk", "two requests")]),
    (
        "aider",
        7,
        &[
            (
                "aider",
                "what it puts in moves, and proves nothing where nothing was observed",
            ),
            (
                "aider-cache",
                "four turns, the files behind the first edited in each",
            ),
            (
                "aider-gpt4o-restore",
                "two requests, of a history read from a file",
            ),
            (
                "aider-restore",
                "two requests, of a history read from a file",
            ),
            (
                "aider-restore-summarize",
                "a history read from a file, summarised as one text",
            ),
        ],
    ),
    ("codex-via-litellm", 4, &[]),
    ("continue", 19, &[]),
    ("langchain", 12, &[("num-langchain", "two requests")]),
    ("litellm", 21, &[]),
    ("llm-cli", 5, &[]),
    ("openai-agents", 13, &[]),
    ("openai-python", 30, &[]),
    (
        "opencode",
        34,
        &[(
            "opencode-edit",
            "five requests, of one to seven short messages",
        )],
    ),
];

/// Requests that their client made wrong: a call without its result.
const BROKEN: [(&str, usize); 1] = [("langchain", 5)];

/// The recording of a client. If it cannot be read, its check is skipped.
fn recording(client: &str) -> Option<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/clients");
    let text = std::fs::read_to_string(format!("{folder}/{client}.jsonl")).ok();
    if text.is_none() {
        skipped(&format!(
            "../shared/data/clients/{client}.jsonl is not beside the project; its requests are not played"
        ));
    }
    text
}

#[expect(clippy::print_stdout, reason = "the table is worth reading")]
async fn all(how: PlayOptions) -> Vec<(Expected, Row)> {
    println!("{how:?}\n{}", Row::TITLES);
    let mut rows = Vec::new();
    // Played in four modes; the plain form plays one client of two in the first mode, and one of four in the others.
    let every = if how == PlayOptions::default() { 2 } else { 4 };
    for expected in depth::sample(CLIENTS, every) {
        let Some(text) = recording(expected.0) else {
            continue;
        };
        let row = play(&RecordedRequest::read_all(&text), how).await;
        println!("{}", row.format_row(expected.0));
        rows.push((expected, row));
    }
    rows
}

/// Clients to whom more than 1.5 times what is new is shown, in hundredths. Each of aider's requests that
/// proves nothing begins a conversation, and one that begins with few words has an account of its own.
const SHOWN: [(&str, usize); 1] = [("aider", 160)];

/// What holds however it is played.
fn check(client: &str, row: &Row) {
    assert!(row.wrong.is_empty(), "{client}: {:#?}", row.wrong);
    let most = SHOWN.iter().find(|(name, _)| *name == client);
    let most = most.map_or(150, |(_, most)| *most);
    assert!(row.ratio() <= most, "{client}: {}", row.format_row(client));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn every_recorded_client_gets_memory_and_loses_no_message() {
    for ((client, least, without), row) in all(PlayOptions::default()).await {
        check(client, &row);
        assert!(
            row.active() >= least,
            "{client}: {}",
            row.format_row(client)
        );
        let expected = BROKEN.iter().find(|(name, _)| *name == client);
        assert_eq!(
            row.refused,
            expected.map_or(0, |(_, count)| *count),
            "{client}"
        );
        for (run, active) in row.runs() {
            let why = without.iter().find(|(name, _)| *name == run);
            assert_eq!(
                active == 0,
                why.is_some(),
                "{run}: {active} with memory, {why:?}"
            );
        }
        compacted(client, &row);
    }
}

/// Where a client put a summary in the place of what was said: the run, how many requests of it came
/// before the first one that holds the summary and something new, in how many from there the log goes on,
/// and why it does no more.
const COMPACTED: [(&str, &str, usize, usize, &str); 3] = [
    (
        "continue",
        "continue-compact",
        5,
        4,
        "then it is answered with the words of its summary once more, which prove nothing any more",
    ),
    (
        "opencode",
        "opencode-compact2",
        7,
        0,
        "asked for with the history as one text; what was kept behind it stood in no request",
    ),
    (
        "aider",
        "aider-restore-summarize",
        1,
        0,
        "asked for by another process, with a history read from a file, as one text",
    ),
];

/// Behind a summary the log goes on: what was said before it, and is not sent any more, is told.
fn compacted(client: &str, row: &Row) {
    for (_, run, before, count, why) in COMPACTED.iter().filter(|(name, ..)| *name == client) {
        let outcomes: Vec<_> = row
            .outcomes
            .iter()
            .filter(|outcome| outcome.run == *run)
            .collect();
        let (old, new) = outcomes.split_at(*before);
        for (at, request) in new.iter().enumerate() {
            let mut gone = request.noted.difference(&request.sent);
            let goes_on = gone.any(|mark| old.iter().any(|old| old.sent.contains(mark)));
            assert_eq!(
                goes_on,
                at < *count,
                "{run}: {at} behind it, {why}, {request:?}"
            );
        }
    }
}

/// The strictest provider refuses many recordings as they are; none for what was made of it. From the
/// middle on another process answers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn recorded_clients_get_memory_with_a_strict_provider_and_a_restart() {
    for ((client, ..), row) in all(PlayOptions {
        strict: true,
        restart: true,
        ..PlayOptions::default()
    })
    .await
    {
        check(client, &row);
        // aider says two things in a row, and has system messages everywhere.
        assert!(
            row.active() > 0 || row.outcomes.len() < 12,
            "{client}: {}",
            row.format_row(client)
        );
    }
}

/// The same with a Reflector at work.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn reflections_cover_the_same_messages_as_their_observations() {
    let rows = all(PlayOptions {
        reflect: true,
        ..PlayOptions::default()
    })
    .await;
    for ((client, ..), row) in &rows {
        check(client, row);
    }
    // Without a reflection the check proves nothing.
    let reflections: usize = rows.iter().map(|(_, row)| row.reflections).sum();
    assert!(reflections > 0 || rows.is_empty());
}

/// The same where the words of messages are kept, so that what is dropped before it was observed is
/// remembered.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_block_is_correct_where_message_text_is_kept() {
    for ((client, least, _), row) in all(PlayOptions {
        keep: true,
        restart: true,
        ..PlayOptions::default()
    })
    .await
    {
        check(client, &row);
        assert!(
            row.active() >= least,
            "{client}: {}",
            row.format_row(client)
        );
    }
}

/// Codex by itself speaks another protocol: no memory, and every byte as it came.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_no_chat_passes_unchanged() {
    let Some(text) = recording("codex-responses") else {
        return;
    };
    let rig = Rig::small().await;
    for line in RecordedRequest::read_all(&text) {
        let body = line.body.to_string();
        let mut request = rig.client.post(rig.url("/v1/responses")).body(body.clone());
        for (name, value) in &line.headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.unwrap();
        assert!(
            answer
                .headers()
                .get("x-diarist-memory")
                .is_none_or(|m| m == "off")
        );
        let got = rig.provider.record_for(CallerKind::Other).pop().unwrap();
        assert_eq!(got.body, body);
        assert_eq!(
            got.headers["session-id"],
            line.body["prompt_cache_key"].as_str().unwrap()
        );
    }
    rig.quiet().await;
    assert!(rig.provider.record_for(CallerKind::Observer).is_empty());
}
