//! Clients that do everything at once, over one conversation with short messages that repeat: what is
//! left out was observed, what is sent is the client's in its order, nothing of another conversation is
//! told of ([`Client::send`] judges each request), and the same request goes out as the same bytes.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::stage::{Client, roomy, text, work};

#[derive(Clone, Debug)]
struct Manners {
    window: Option<usize>,
    keep_first: bool,
    clock: bool,
    clear_behind: Option<usize>,
    floating: Option<usize>,
    edit: Option<usize>,
    restart: usize,
    short: usize,
}

fn manners() -> impl Strategy<Value = Manners> {
    let half = proptest::bool::ANY;
    (
        proptest::option::of(8..24_usize),
        half,
        half,
        proptest::option::of(4..20_usize),
        proptest::option::of(2..8_usize),
        proptest::option::of(1..12_usize),
        2..20_usize,
        2..6_usize,
    )
        .prop_map(
            |(window, keep_first, clock, clear_behind, floating, edit, restart, short)| Manners {
                window,
                keep_first,
                clock,
                clear_behind,
                floating,
                edit,
                restart,
                short,
            },
        )
}

/// Every so often a message is one of those that everybody says.
fn conversation(short: usize) -> Vec<Value> {
    let mut all = work("random", 57);
    for (number, message) in all.iter_mut().enumerate() {
        if number % 4 == 3 && number / 4 % short == 0 {
            message["content"] = json!("Ok.");
        } else if number % 4 == 0 && number / 4 % short == 1 {
            message["content"] = json!("go on");
        }
    }
    all
}

impl Manners {
    fn shape(&self, sent: &[Value]) -> Vec<Value> {
        let turn = sent.len();
        let mut sent = sent.to_vec();
        if self.clock {
            sent[0] =
                json!({"role": "user", "content": format!("Turn {turn}. {}", text("random", 0))});
        }
        if let Some(edit) = self.edit.filter(|edit| edit * 4 < turn / 2) {
            sent[edit * 4] = json!({"role": "user", "content": text("edited", edit * 4)});
        }
        let clear = turn.saturating_sub(self.clear_behind.unwrap_or(turn));
        for message in &mut sent[..clear] {
            if message["role"] == "tool" {
                message["content"] = json!("[cleared]");
            }
        }
        if let Some(window) = self.window.filter(|window| *window < turn) {
            // Clients drop whole rounds.
            let from = (turn - window).div_ceil(4) * 4;
            let first = sent[0].clone();
            sent.drain(..from.min(turn - 1));
            if self.keep_first {
                sent.insert(0, first);
            }
        }
        if let Some(every) = self.floating {
            let at = sent.len() - 1;
            let files = format!("I have *added these files to the chat*: {}", turn / every);
            let pair = [
                json!({"role": "user", "content": files}),
                json!({"role": "assistant", "content": "Ok, any changes I propose will be to those files."}),
            ];
            sent.splice(at..at, pair);
        }
        sent
    }
}

async fn play(manners: &Manners) {
    let all = conversation(manners.short);
    let mut rig = roomy().await;
    let turns: Vec<usize> = (1..=all.len()).step_by(4).collect();
    for (index, turn) in turns.iter().enumerate() {
        if index == manners.restart {
            rig.restart().await;
        }
        let sent = manners.shape(&all[..*turn]);
        let first = Client::new(&mut rig).send(&sent).await;
        if index % 5 == 2 {
            rig.restart().await;
        }
        let again = Client::new(&mut rig).send(&sent).await;
        assert!(
            first.body.0 == again.body.0,
            "{manners:?} at {turn}: not the same bytes"
        );
        assert!(
            first
                .told
                .iter()
                .all(|mark| !mark.starts_with("edited#") || manners.edit.is_some()),
            "{first:?}"
        );
    }
}

#[test]
fn whatever_a_client_does() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut runner = TestRunner::new(Config {
        cases: 12,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    });
    runner
        .run(&manners(), |manners| {
            runtime.block_on(play(&manners));
            Ok(())
        })
        .unwrap();
}
