//! The table of expectations: for each habit of a client, what is still applied of what was
//! observed, what it costs, what goes out raw, and why. Each row is played twice, once with restarts on
//! the way; whatever a row does, what is true of every request is checked with each ([`Client::send`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use diarist_provider::{CallerKind, DefaultScript, Reply};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::alignment::harness::{Client, SentRequest, marks, roomy};
use crate::alignment::rows::ROWS;
use crate::alignment::script::{Applied, Ask, Row, SUMMARY, grow};
use crate::memory::rig::Rig;
use crate::support::depth;

/// What a row came to.
struct RowResult {
    sent_requests: Vec<SentRequest>,
    plain: usize,
    broken: Vec<String>,
}

/// Everything the messages say that can be told apart.
fn all_marks(messages: &[Value]) -> BTreeSet<String> {
    messages
        .iter()
        .flat_map(|m| marks(&m.to_string()))
        .collect()
}

/// The words of the summary, as they stand inside a JSON string.
fn filled(message: &Value, summary: &str) -> Value {
    let spelled = Value::from(summary).to_string();
    let text = message.to_string();
    serde_json::from_str(&text.replace(SUMMARY, &spelled[1..spelled.len() - 1])).unwrap()
}

/// As long as what a model makes of a conversation.
fn summary_text(number: usize) -> String {
    let each = "The user asked for something, and it was done as was asked. ".repeat(5);
    format!("Summary number {number}. {}", each.trim())
}

/// What `ask` is answered: what the next request that goes on from it holds behind it.
fn recorded_answer<'a>(ask: &Ask, later: &'a [Ask]) -> Option<&'a Value> {
    let length = ask.logical.len();
    let goes_on = |later: &&Ask| later.logical.get(..length) == Some(&ask.logical);
    let answer = later.iter().find(goes_on)?.logical.get(length)?;
    (answer["role"] == "assistant").then_some(answer)
}

/// Plays `asks`; with `restart`, a process ends in the middle and before the last request.
async fn play(rig: &mut Rig, asks: &[Ask], restart: bool) -> Result<Vec<SentRequest>, String> {
    let mut sent_requests: Vec<SentRequest> = Vec::new();
    let mut before: HashMap<String, String> = HashMap::new();
    let mut summary = String::new();
    for (index, ask) in asks.iter().enumerate() {
        if restart && (index == asks.len() / 2 || index + 1 == asks.len()) {
            rig.restart().await;
        }
        let sent: Vec<Value> = ask.sent.iter().map(|m| filled(m, &summary)).collect();
        let mut client = Client::new(rig);
        client.credential = ask.credential;
        client.headers.clone_from(&ask.headers);
        client.system = Some(ask.system.replace(SUMMARY, &summary));
        client.fields = ask.fields.clone();
        let body = client.body(&sent);
        let reply = if ask.summarises {
            Some(Reply::text(summary_text(index)))
        } else {
            recorded_answer(ask, &asks[index + 1..]).map(Reply::recorded)
        };
        if let Some(reply) = reply {
            let say = move |_: &diarist_provider::ScriptInput<'_>| reply.clone();
            client.rig.provider.script(CallerKind::Actor, say);
        }
        if ask.times > 1 {
            let at_once =
                (0..ask.times).map(|_| client.rig.send_as(ask.credential, &ask.headers, &body));
            let refused = join_all(at_once)
                .await
                .iter()
                .any(|answer| answer.status != 200);
            if refused {
                return Err(format!("{index}: one of the same requests was refused"));
            }
            client.rig.quiet().await;
        }
        let got = client.send(&sent).await;
        rig.provider
            .script(CallerKind::Actor, DefaultScript::default());
        if ask.summarises {
            summary.clone_from(&got.answer);
        }
        // INV-SAME: whatever was sent meanwhile, and by whatever process.
        let key = format!("{} {:?} {body}", ask.credential, ask.headers);
        let first = before.entry(key).or_insert_with(|| got.body.0.clone());
        if *first != got.body.0 {
            return Err(format!("{index}: the same request went out as other bytes"));
        }
        let allowed = &all_marks(&ask.logical) | &all_marks(&ask.beside);
        if let Some(strange) = got.in_block.iter().find(|mark| !allowed.contains(*mark)) {
            return Err(format!(
                "{index}: told of {strange}, which is of another conversation"
            ));
        }
        sent_requests.push(got);
    }
    Ok(sent_requests)
}

/// What the last request was to be, and is not.
fn check_last(row: &Row, sent_requests: &[SentRequest], ask: &Ask, plain: usize) -> Vec<String> {
    let (last, mut broken) = (&sent_requests[sent_requests.len() - 1], Vec::new());
    let raw = marks(&last.body.0);
    let missing = |messages: &[Value]| -> Vec<String> {
        let untold = all_marks(messages);
        let untold = untold
            .into_iter()
            .filter(|mark| !last.in_block.contains(mark) && !raw.contains(mark));
        untold.collect()
    };
    match row.applied {
        Applied::Nothing if !last.in_block.is_empty() => {
            broken.push(format!("told of {:?}", last.in_block));
        }
        Applied::Nothing => {}
        Applied::All | Applied::UpTo(_) => {
            let count = match row.applied {
                Applied::UpTo(count) => count,
                _ => ask.logical.len(),
            };
            let missing = missing(&ask.logical[..count]);
            if last.in_block.is_empty() || !missing.is_empty() {
                broken.push(format!("neither raw nor told of: {missing:?}"));
            }
        }
    }
    if last.calls > plain + row.extra {
        broken.push(format!(
            "{} calls, {plain} where nothing is changed",
            last.calls
        ));
    }
    if last.raw > row.raw {
        broken.push(format!("{} raw messages", last.raw));
    }
    if !row.reason.contains(&&*last.reason) {
        broken.push(format!("the audit says {}", last.reason));
    }
    broken
}

/// Observer calls for a conversation whose client changes nothing, by the conversation.
#[derive(Default)]
struct Plain(Mutex<HashMap<String, Arc<OnceCell<usize>>>>);

impl Plain {
    async fn calls(&self, all: &[Value]) -> usize {
        let key = Value::from(all).to_string();
        let cell = Arc::clone(self.0.lock().unwrap().entry(key).or_default());
        let played = cell.get_or_init(|| async {
            let mut rig = roomy().await;
            let sent_requests = play(&mut rig, &grow(all, 1, all.len()), false).await;
            sent_requests.unwrap().last().map_or(0, |last| last.calls)
        });
        *played.await
    }
}

async fn outcome(row: &Row, restart: bool, plain: &Plain) -> RowResult {
    let plain = plain.calls(&(row.plain)()).await;
    let mut rig = roomy().await;
    let asks = (row.asks)();
    match play(&mut rig, &asks, restart).await {
        Err(broken) => RowResult {
            sent_requests: Vec::new(),
            plain,
            broken: vec![broken],
        },
        Ok(sent_requests) => {
            let broken = check_last(row, &sent_requests, &asks[asks.len() - 1], plain);
            RowResult {
                sent_requests,
                plain,
                broken,
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a switch of this test alone")]
fn expected_table() -> String {
    std::env::var("DIARIST_ROW").unwrap_or_default()
}

fn line(row: &Row, restart: bool, outcome: &RowResult) -> String {
    let aligned =
        |request: &&SentRequest| matches!(&*request.reason, "aligned" | "compaction_link");
    let aligned = outcome.sent_requests.iter().filter(aligned).count();
    let start = if restart { "restart" } else { "" };
    let mut line = format!(
        "{:4} {:58} {start:7} {:4} {aligned:7}",
        row.item,
        row.what,
        outcome.sent_requests.len()
    );
    if let Some(last) = outcome.sent_requests.last() {
        let SentRequest {
            raw,
            left_out,
            in_block,
            calls,
            reason,
            ..
        } = last;
        line += &format!(
            " {raw:4} {left_out:8} {:4} {calls:5} {:5}  {reason}",
            in_block.len(),
            outcome.plain
        );
    }
    if !expected_table().is_empty() {
        for sent_request in &outcome.sent_requests {
            let SentRequest {
                reason,
                raw,
                left_out,
                in_block,
                calls,
                ..
            } = sent_request;
            line += &format!(
                "\n     {reason:16} raw {raw:3} left out {left_out:3} told {:3} calls {calls:3}",
                in_block.len()
            );
        }
    }
    for broken in &outcome.broken {
        line += &format!("\n     BROKEN: {broken}");
    }
    line
}

/// `DIARIST_ROW=text` plays the rows whose name holds it, and says what came of each request.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn every_row_of_the_expectation_table_holds() {
    let wanted = expected_table();
    let rows = ROWS
        .iter()
        .copied()
        .flatten()
        .filter(|row| row.what.contains(&wanted));
    // Each row with a restart and without one; the plain form plays one of five of these.
    let plays: Vec<_> = rows
        .flat_map(|row| [false, true].map(|restart| (row, restart)))
        .collect();
    let every = if wanted.is_empty() { 5 } else { 1 };
    let plays = depth::sample(plays, every);
    let plain = &Plain::default();
    let lines = stream::iter(plays).map(|(row, restart)| async move {
        let outcome = outcome(row, restart, plain).await;
        (line(row, restart, &outcome), outcome.broken.is_empty())
    });
    println!(
        "item {:58} {:7} {:4} {:7} {:4} {:8} {:4} {:5} {:5}  reason",
        "what the client does", "", "reqs", "aligned", "raw", "left out", "told", "calls", "plain"
    );
    let mut broken = 0;
    let mut lines = lines.buffered(3);
    while let Some((line, whole)) = lines.next().await {
        println!("{line}");
        broken += usize::from(!whole);
    }
    assert_eq!(broken, 0, "rows that are not as expected");
}
