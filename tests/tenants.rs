//! A thousand owners who say the same under the same names, all at once, through the real program: then
//! every byte it leaves anywhere is searched for what was only one's own.
//!
//! Each owner puts marks into everything a request can hold. Their shape says whose they are and where they
//! stood, plainly and however JSON escapes them. Marks of credentials and of headers may stand nowhere;
//! marks of words in the rows of their owner and in no log, audit line or metric; and the provider may see
//! none in a request of somebody else.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

mod marks;
mod program;
mod search;
mod strangers;

use std::collections::BTreeSet;
use std::time::Instant;

use diarist_provider::{CallerKind, Options, Provider};
use futures_util::StreamExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use marks::{Kind, Owner};
use program::Program;

use crate::support::collector::Collector;

/// Owners of a plain run: half of them tenants, half users of tenants that have ten each.
const PLAIN: usize = 40;

/// The same in the slow test.
const SLOW: usize = 1_000;
const TURNS: usize = 3;

/// Requests at once.
const AT_ONCE: usize = 48;

/// What one owner sends in this turn (from 1): a task with a tool, then talk. Word for word what everybody
/// sends, but for the marks.
fn body(owner: Owner, turn: usize) -> Value {
    let mark = |kind, place| owner.mark(kind, place);
    let filler = "what came up was weighed, written down and kept for the next time. ".repeat(24);
    let call = json!({"query": mark(Kind::Argument, 0), "limit": 3});
    let mut messages = vec![
        json!({"role": "system", "content": format!("You are patient. {}", mark(Kind::System, 0))}),
        json!({"role": "user", "content": format!("My name is {}. {filler}", mark(Kind::Word, 0))}),
        json!({"role": "assistant", "content": null, "tool_calls": [{
            "id": "call_1", "type": "function",
            "function": {"name": "look_up", "arguments": call.to_string()},
        }]}),
        json!({"role": "tool", "tool_call_id": "call_1",
               "content": json!({"found": mark(Kind::Result, 0), "text": filler}).to_string()}),
        json!({"role": "assistant", "content": format!("Noted. {filler}")}),
    ];
    for number in 1..=turn {
        let question = format!("I live at {} street. {filler}", mark(Kind::Word, number));
        messages.push(json!({"role": "user", "content": question}));
        if number < turn {
            let answer = format!("Answer {number}. {filler}");
            messages.push(json!({"role": "assistant", "content": answer}));
        }
    }
    json!({
        "model": "gpt-test", "messages": messages, "user": mark(Kind::User, 0),
        "metadata": {"note": mark(Kind::User, 1)},
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
    })
}

/// One turn of an owner: a client that may lose patience, and comes again if it did.
async fn turn(client: reqwest::Client, url: String, owner: Owner, number: usize, hang_up: bool) {
    let send = async |body: Value| {
        let mut request = client
            .post(&url)
            .header("authorization", owner.credential())
            .header("x-diarist-thread", "the-same-for-all")
            .header("x-session-note", owner.plain_mark(Kind::Header, 0));
        if let Some(resource) = owner.resource() {
            request = request.header("x-diarist-resource", resource);
        }
        request.json(&body).send().await.unwrap()
    };
    if hang_up {
        let mut body = body(owner, number);
        body["stream"] = true.into();
        let mut answer = send(body).await;
        drop(answer.chunk().await);
    }
    let answer = send(body(owner, number)).await;
    let status = answer.status();
    let text = answer.text().await.unwrap();
    assert_eq!(status, 200, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_texts_and_credentials_never_leak() {
    play(PLAIN).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn texts_and_credentials_of_a_thousand_tenants_never_leak() {
    play(SLOW).await;
}

async fn play(all: usize) {
    let began = Instant::now();
    let provider = Provider::start(Options::default()).await.unwrap();
    let collector = Collector::start(200).await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())];
    let program = Program::start_with(&provider, "trace", &variables).await;
    let client = reqwest::Client::new();
    let mut random = StdRng::seed_from_u64(7);
    for number in 1..=TURNS {
        let mut owners: Vec<Owner> = (0..all).map(Owner).collect();
        owners.shuffle(&mut random);
        let turns = owners.into_iter().map(|owner| {
            let hang_up = random.random_bool(0.1);
            turn(client.clone(), program.chat(), owner, number, hang_up)
        });
        let turns: Vec<_> = turns.collect();
        futures_util::stream::iter(turns)
            .for_each_concurrent(AT_ONCE, |turn| turn)
            .await;
        program.rest().await;
        if number == TURNS - 1 {
            let most = i64::try_from(all * 9 / 10).unwrap();
            program.wait_for_snapshots(most).await;
        }
        println!("turn {number}: {:?}", began.elapsed());
    }
    let metrics = program.metrics().await;
    let left = program.stop().await;
    println!("stopped: {:?}", began.elapsed());

    assert_eq!(
        marks::found(metrics.as_bytes()),
        BTreeSet::new(),
        "in /metrics"
    );
    for (name, bytes) in [("the audit", &left.audit), ("the logs", &left.logs)] {
        let found = marks::found(bytes);
        assert!(
            found.is_empty(),
            "{} marks in {name}: {:?}",
            found.len(),
            found.first()
        );
    }
    {
        let exported = collector.exports();
        let requests = collector.spans().len() / 2;
        assert!(requests > all * TURNS / 2, "{requests} requests have spans");
        for export in exported {
            let found = marks::found(&export.body);
            assert!(found.is_empty(), "{:?} in {}", found.first(), export.path);
        }
    }
    assert!(left.logs.len() > all * 1_000, "the logs were not at TRACE");
    assert!(
        left.audit.len() > all * TURNS * 100,
        "the audit was written"
    );

    // The database: as bytes, whatever they mean, and as rows.
    for (name, bytes) in &left.database {
        let kinds: BTreeSet<Kind> = marks::found(bytes)
            .into_iter()
            .map(|(kind, _)| kind)
            .collect();
        let allowed = [Kind::Word, Kind::Argument, Kind::Result];
        assert!(
            kinds.iter().all(|kind| allowed.contains(kind)),
            "{name}: {kinds:?}"
        );
    }
    let rows = search::rows(&left.file).await;
    rows.judge();
    println!(
        "{} owners have observations: {:?}",
        rows.owners().len(),
        began.elapsed()
    );
    assert!(
        rows.owners().len() > all * 9 / 10,
        "memory was active for nearly all"
    );
    let by_secret = rows.shapes();
    assert!(
        by_secret.len() > 3,
        "marks that JSON escapes were among them: {by_secret:?}"
    );

    // What went to the provider.
    let record = provider.record();
    let mut with_block = 0;
    for entry in &record {
        let owners = marks::owners(&entry.body);
        assert!(owners.len() <= 1, "request {}: {owners:?}", entry.number);
        let Some(owner) = owners.first() else {
            continue;
        };
        let expected = owner.credential();
        assert_eq!(
            entry.credential.reveal(),
            expected,
            "request {}",
            entry.number
        );
        with_block += usize::from(
            entry.caller == CallerKind::Actor && search::contains(&entry.body, b"<diarist-log "),
        );
    }
    let observed = provider.record_for(CallerKind::Observer).len();
    println!(
        "{} requests, {with_block} with a block, {observed} of the Observer",
        record.len()
    );
    assert!(with_block > all / 2, "observations were sent");
    assert!(observed >= all, "the Observer was asked");
}
