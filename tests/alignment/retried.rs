//! A request that is a view of a chain comes again: as it went out, whatever was observed meanwhile and
//! whoever asks.

use diarist_provider::{Behaviour, CallerKind, Cut};
use serde_json::Value;

use crate::alignment::harness::{Client, conversation, roomy, set_answer};
use crate::memory::rig::Rig;

/// The body as the provider got it.
async fn sent(rig: &mut Rig, messages: &[Value]) -> String {
    Client::new(rig).send(messages).await.body.0
}

/// Sends `messages` and reads the answer; waits for nothing else. `false` if the answer broke off.
async fn post(rig: &mut Rig, messages: &[Value]) -> bool {
    let body = Client::new(rig).body(messages).to_string();
    let request = rig
        .client
        .post(rig.url("/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", "Bearer sk-test")
        .body(body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.is_ok()
}

/// Sends `messages`; the answer breaks off midway, so that nothing is recorded of it.
async fn send_with_cut_answer(rig: &mut Rig, messages: &[Value]) -> String {
    let cut = Behaviour::cutting(Cut::AfterBytes(40));
    rig.provider.inject_next(CallerKind::Actor, 1, &cut);
    assert!(!post(rig, messages).await, "the answer was whole");
    rig.quiet().await;
    let got = rig.provider.record_for(CallerKind::Actor).pop().unwrap();
    String::from_utf8(got.body.to_vec()).unwrap()
}

/// Sends the growing beginnings of `all`, from `from` messages to `to`.
async fn grow(rig: &mut Rig, all: &[Value], from: usize, to: usize) {
    for turn in (from..=to).step_by(2) {
        Client::new(rig)
            .send_with_answer(&all[..turn], all.get(turn))
            .await;
    }
}

/// What is observed decides which of the messages that the client no longer sends are on the chain. A
/// repetition does not ask for that again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_repeated_request_keeps_its_bytes_after_more_observations() {
    for length in [19, 21, 23, 25] {
        let mut rig = roomy().await;
        let all = conversation("late", 45);
        grow(&mut rig, &all, 1, length).await;
        let mut window = all[length - 4..length].to_vec();
        window.extend(conversation("new", 3).split_off(1));
        let first = send_with_cut_answer(&mut rig, &window).await;
        grow(&mut rig, &all, length + 2, length + 16).await;
        let again = sent(&mut rig, &window).await;
        assert!(again == first, "a chain of {length}");
        // It is recorded now, and found so by a process that was not there.
        rig.restart().await;
        assert!(
            sent(&mut rig, &window).await == first,
            "a chain of {length}"
        );
    }
}

/// The same where the conversation was not known yet when the request first came.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_sent_on_its_own_chain_stays_on_it() {
    let mut rig = roomy().await;
    let all = conversation("early", 45);
    let mut window = all[18..24].to_vec();
    window.extend(conversation("new", 1));
    let first = send_with_cut_answer(&mut rig, &window).await;
    grow(&mut rig, &all, 1, 41).await;
    assert!(sent(&mut rig, &window).await == first);
    rig.restart().await;
    assert!(sent(&mut rig, &window).await == first);
}

/// A window that ends where another request ended, seen first by a process that knows neither.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_window_with_the_same_end_leaves_the_whole_request_unchanged() {
    let all = conversation("tip", 61);
    // The last request that still went out raw, while its snapshot waits for the next.
    let mut rig = roomy().await;
    let mut length = 1;
    while Client::new(&mut rig)
        .send(&all[..length])
        .await
        .in_block
        .is_empty()
    {
        length += 2;
    }
    let length = length - 2;

    let mut rig = roomy().await;
    grow(&mut rig, &all, 1, length - 2).await;
    let whole = sent(&mut rig, &all[..length]).await;
    rig.restart().await;
    let window = &all[length - 8..length];
    let first = sent(&mut rig, window).await;
    assert!(sent(&mut rig, &all[..length]).await == whole);
    for _ in 0..2 {
        rig.restart().await;
        assert!(sent(&mut rig, window).await == first);
        assert!(sent(&mut rig, &all[..length]).await == whole);
    }
}

/// The client has dropped its beginning. Its next request breaks off before the first one is recorded, and comes again
/// after that: what proved it then is not looked for any more, and it is still its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_request_cut_before_its_predecessor_is_recorded_keeps_its_memory() {
    let mut rig = roomy().await;
    for name in ["one", "two", "three"] {
        let all = conversation(name, 49);
        grow(&mut rig, &all, 1, 41).await;
        set_answer(&rig, all.get(43));
        assert!(post(&mut rig, &all[20..43]).await);
        let first = send_with_cut_answer(&mut rig, &all[20..45]).await;
        let first_mark = format!("{name}#0");
        for length in [45, 47, 49] {
            let sent_request = Client::new(&mut rig)
                .send_with_answer(&all[20..length], all.get(length))
                .await;
            assert!(length > 45 || sent_request.body.0 == first);
            assert!(
                sent_request.in_block.contains(&first_mark),
                "{name}: {length}"
            );
        }
    }
}
