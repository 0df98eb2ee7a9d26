//! What a conversation says itself never takes its own proof away: not the first request after a restart, and not a
//! request without memory. What another conversation says does.

use serde_json::{Value, json};

use crate::alignment::harness::{Client, SentRequest, conversation, roomy};
use crate::memory::rig::Rig;

/// Messages until the block covers more than the client drops.
const LONG: usize = 45;

/// How many the client drops.
const DROPPED: usize = 20;

/// Sends the growing beginnings of `all`, to `count` messages.
async fn grow(rig: &mut Rig, all: &[Value], count: usize) -> SentRequest {
    let mut last = None;
    for turn in (1..=count).step_by(2) {
        let mut client = Client::new(rig);
        last = Some(client.send_with_answer(&all[..turn], all.get(turn)).await);
    }
    last.unwrap()
}

/// A short turn: neither question nor answer proves anything.
async fn send_short_turn(rig: &mut Rig, all: &mut Vec<Value>) {
    let answer = json!({"role": "assistant", "content": "Done."});
    all.push(json!({"role": "user", "content": "continue"}));
    Client::new(rig).send_with_answer(all, Some(&answer)).await;
    all.push(answer);
}

/// The first request of a tenant after a start is that of a stranger, and is noted anew when it is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_after_a_restart_spoils_no_proof() {
    let mut rig = roomy().await;
    let mut all = conversation("trip", LONG + 1);
    let before = grow(&mut rig, &all, LONG).await;
    assert!(before.in_block.contains("trip#2"), "{before:?}");
    rig.restart().await;
    send_short_turn(&mut rig, &mut all).await;
    all.push(json!({"role": "user", "content": "What did we say at first?"}));
    let shorter = Client::new(&mut rig).send(&all[DROPPED..]).await;
    assert_eq!(shorter.reason, "aligned");
    assert!(
        shorter.in_block.is_superset(&before.in_block),
        "{shorter:?}"
    );
}
