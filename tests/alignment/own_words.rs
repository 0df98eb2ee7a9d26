//! What a conversation says itself never takes its own proof away: not the first request after a restart, and not a
//! request without memory. What another conversation says does.

use serde_json::{Value, json};

use crate::alignment::harness::{Client, SentRequest, conversation, roomy, text};
use crate::memory::rig::Rig;

const OFF: (&str, &str) = ("x-diarist-memory", "off");

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

/// A request without memory may bring words that prove memory, in another place than they were said. It is looked up, in
/// this process or in the store, so that they stay words of their conversation.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_memory_spoils_no_proof_of_its_own_conversation() {
    for is_cold in [false, true] {
        let mut rig = roomy().await;
        let mut all = conversation("trip", LONG + 9);
        let ahead = all.split_off(LONG + 1);
        grow(&mut rig, &all, LONG).await;
        all.drain(..DROPPED);
        for (turn, messages) in ahead.chunks(2).enumerate() {
            let is_off = turn == 1;
            if is_off && is_cold {
                rig.restart().await;
            }
            all.push(messages[0].clone());
            let mut client = Client::new(&mut rig);
            client.headers.extend(is_off.then_some(OFF));
            let sent = client.send_with_answer(&all, messages.get(1)).await;
            let is_told = sent.in_block.contains("trip#2");
            assert_eq!(is_told, !is_off, "turn {turn}, {is_cold}: {sent:?}");
            all.extend(messages.get(1).cloned());
        }
    }
}

/// Nobody has recorded these turns, but this process has seen the answers. So what the client drops right behind them is
/// still its conversation's.
#[tokio::test(flavor = "multi_thread")]
async fn turns_without_memory_in_a_row_spoil_no_proof_of_their_own_conversation() {
    let mut rig = roomy().await;
    let all = conversation("trip", LONG + 7);
    grow(&mut rig, &all, LONG).await;
    for count in [LONG + 2, LONG + 4, LONG + 6] {
        let mut client = Client::new(&mut rig);
        client.headers.push(OFF);
        client.send_with_answer(&all[..count], all.get(count)).await;
    }
    let question = json!({"role": "user", "content": "What did we say at first?"});
    let window = [&all[DROPPED..LONG + 7], &[question]].concat();
    let sent = Client::new(&mut rig).send(&window).await;
    assert!(sent.in_block.contains("trip#2"), "{sent:?}");
}

/// Bob says what Alice says, without memory: turn by turn, or all at once behind words of his own. Then it proves neither.
#[tokio::test(flavor = "multi_thread")]
async fn the_words_of_another_conversation_without_memory_prove_nothing() {
    // From which of Bob's messages on he sends a request. The last case: he says nothing.
    for from in [3, LONG - DROPPED + 4, usize::MAX] {
        let mut rig = roomy().await;
        let alice = conversation("alice", LONG + 1);
        grow(&mut rig, &alice, LONG).await;
        let question = json!({"role": "user", "content": "Well?"});
        let window = [&alice[DROPPED..], &[question]].concat();
        let bob = [&conversation("bob", 2)[..], &window[..]].concat();
        for count in (from..=bob.len()).step_by(2) {
            let mut client = Client::new(&mut rig);
            client.headers.push(OFF);
            client.send_with_answer(&bob[..count], bob.get(count)).await;
        }
        let shorter = Client::new(&mut rig).send(&window).await;
        let is_alone = from == usize::MAX;
        assert_eq!(
            shorter.in_block.contains("alice#2"),
            is_alone,
            "{from}: {shorter:?}"
        );
    }
}

/// A client asks a model without memory for a title, and sends the summary with which the conversation goes on. That is no
/// quotation of the summary.
#[tokio::test(flavor = "multi_thread")]
async fn a_title_request_without_memory_spoils_no_summary() {
    let mut rig = roomy().await;
    let all = conversation("trip", LONG + 1);
    grow(&mut rig, &all, LONG).await;
    let ask = json!({"role": "user", "content": "Summarise it all."});
    let summary = format!("{} {}", text("trip", 900), text("trip", 901));
    let answer = json!({"role": "assistant", "content": summary});
    let asking = [&all[..], &[ask]].concat();
    Client::new(&mut rig)
        .send_with_answer(&asking, Some(&answer))
        .await;
    let head = json!({"role": "user", "content": format!("Until now:\n\n{summary}")});
    let title = [
        head.clone(),
        json!({"role": "user", "content": "Write a title of this."}),
    ];
    let mut client = Client::new(&mut rig);
    client.headers.push(OFF);
    client.system = Some("You write titles.".to_owned());
    client.send(&title).await;
    let next = json!({"role": "user", "content": "What did we say at first?"});
    let sent = Client::new(&mut rig).send(&[head, next]).await;
    assert!(sent.in_block.contains("trip#2"), "{sent:?}");
}
