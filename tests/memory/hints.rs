//! No hint speaks of a task that is known to be finished: not of one that its own log says is done, nor of
//! one of which that is observed already and not told yet.

use std::sync::Arc;

use diarist_provider::{Behaviour, CallerKind, Options, Reply, ScriptInput};
use tokio::sync::Semaphore;

use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;

const TURNS: usize = 20;

/// Turns that nothing of is observed.
const LATE: usize = 14;

/// The messages that a text shows, first and last.
fn message_range(text: &str) -> (usize, usize) {
    let digits = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    let numbers_after = |phrase: &'static str, at: fn(usize) -> usize| {
        let ends = text.match_indices(phrase).map(|(at, it)| at + it.len());
        let turns = ends.filter_map(move |end| digits(&text[end..]).parse().ok());
        turns.map(at)
    };
    let messages = numbers_after(" in turn ", |turn| 2 * turn - 1)
        .chain(numbers_after("Answer ", |turn| 2 * turn));
    let messages: Vec<usize> = messages.collect();
    (
        *messages.iter().min().unwrap(),
        *messages.iter().max().unwrap(),
    )
}

/// What is under way once so many messages are said. No two are alike.
fn task(count: usize) -> String {
    format!("Weigh q{count:03}x and z{count:03}y")
}

/// Says what is under way at the end of each range, and, if `honest`, at the beginning of the next that it
/// is done.
fn observer(honest: bool) -> impl Fn(&ScriptInput<'_>) -> Reply {
    move |ask| {
        let prompt = ask.texts_by_role("user").join("\n");
        let history = prompt.split("<history-").nth(1).unwrap();
        let (first, last) = message_range(history.split("</history-").next().unwrap());
        let before = task(first - 1);
        let done = if honest { "✅" } else { "🟡" };
        Reply::text(format!(
            "<observations>\n* {done} {before}: finished\n* 🟡 [[{last}]]\n</observations>\n\
             <current-task>\n{}\n</current-task>\n\
             <suggested-response>\nSay that it is being weighed.\n</suggested-response>",
            task(last)
        ))
    }
}

async fn rig(honest: bool) -> Rig {
    let rig = Rig::with(
        Options::default(),
        &[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "3500"),
            ("MEMORY__OBSERVATION__BUFFER_TOKENS", "600"),
            ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "2000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "40000"),
        ],
    )
    .await;
    rig.provider.script(CallerKind::Observer, observer(honest));
    rig
}

/// What a request was sent with: where its observations end, and its hint.
struct Sent {
    covered: usize,
    hint: Option<String>,
    suggests: bool,
}

fn sent(rig: &Rig) -> Vec<Sent> {
    let blocks = rig.forwarded().into_iter().filter_map(|body| {
        let block = body["messages"][1]["content"].as_str()?;
        let covered = block.rsplit_once("[[")?.1.split_once("]]")?.0;
        let section = |name: &str| {
            let text = block.rsplit_once(&format!("\n<{name}>\n"))?.1;
            Some(text.split_once('\n')?.0.to_owned())
        };
        Some(Sent {
            covered: covered.parse().unwrap(),
            hint: section("current-task"),
            suggests: section("suggested-response").is_some(),
        })
    });
    blocks.collect()
}

/// How far the conversation was observed when the first snapshot was prepared.
async fn observed(rig: &Rig) -> usize {
    let query = "SELECT max(p.to_count) FROM parts p
                 WHERE p.at_ms < (SELECT min(s.at_ms) FROM snapshots s)";
    usize::try_from(rig.number(query).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_finished_task_is_not_sent_as_a_hint() {
    for (honest, hinted) in [(true, false), (false, true)] {
        let rig = rig(honest).await;
        rig.play_turns(&SampleConversation::new("ada"), 1..=TURNS)
            .await;
        let sent = sent(&rig);
        let first = sent.first().expect("a block");
        let observed = observed(&rig).await;
        assert!(
            first.covered < observed,
            "nothing is observed behind {} messages",
            first.covered
        );
        let wanted = hinted.then(|| task(first.covered));
        assert_eq!(first.hint, wanted, "observed up to {observed}");
        assert_eq!(first.suggests, hinted);
    }
}

/// The Observer is late: what it says comes after so many turns, and several chunks are first told at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_several_chunks_has_the_hints_of_its_last_chunk() {
    // With an honest one it depends on the moment whether a hint is left.
    let rig = rig(false).await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, Behaviour::gated(&gate));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=LATE {
        let recorded = rig.number("SELECT count(*) FROM requests").await;
        assert_eq!(
            rig.send(&conversation.body(turn)).await.memory(),
            "watching"
        );
        // The first request waits for the second.
        if turn > 1 {
            let requests = "SELECT count(*) FROM requests";
            rig.until(requests, |now| now != recorded).await;
        }
    }
    gate.add_permits(1_000);
    rig.quiet().await;
    rig.play_turns(&conversation, LATE + 1..=LATE + 2).await;
    let sent = sent(&rig);
    let last = sent.last().expect("a block");
    let held = "SELECT max(json_array_length(parts)) FROM snapshots";
    assert!(rig.number(held).await > 2, "{}", last.covered);
    for sent in sent {
        let wanted = task(sent.covered);
        assert_eq!(sent.hint, Some(wanted), "{} messages", sent.covered);
    }
}
