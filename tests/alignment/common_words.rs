//! A client keeps its newest messages, and some of what it keeps also stands elsewhere: the last question and answer, earlier
//! in the conversation or in another one of the same key; or its first message, in front of each of its windows.

use serde_json::Value;

use crate::alignment::harness::{Client, conversation, roomy};
use crate::alignment::script::message;

/// Messages that the client keeps.
const WINDOW: usize = 36;

/// What many users say, and what the model answers them.
fn thanks() -> [Value; 2] {
    [
        message("user", "Thanks!"),
        message(
            "assistant",
            "You're welcome! Let me know if there is anything else I can do.",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_common_answer_at_the_end_of_a_window_ends_no_memory() {
    for (is_twice_in_one, others) in [(true, 0), (true, 1), (false, 1), (false, 2)] {
        let mut rig = roomy().await;
        let mut client = Client::new(&mut rig);
        let mut messages = conversation("alice", 80);
        messages.splice(66..68, thanks());
        if is_twice_in_one {
            messages.splice(60..62, thanks());
        }
        for other in ["bob", "carol"].into_iter().take(others) {
            let mut other = conversation(other, 7);
            other.splice(2..4, thanks());
            for count in [1, 3, 5, 7] {
                client
                    .send_with_answer(&other[..count], other.get(count))
                    .await;
            }
        }
        for count in (1..messages.len()).step_by(2) {
            let kept = &messages[count.saturating_sub(WINDOW)..count];
            let sent = client.send_with_answer(kept, messages.get(count)).await;
            assert!(
                count < 2 * WINDOW - 10 || sent.in_block.contains("alice#0"),
                "{is_twice_in_one}, {others}, {count} messages: {}",
                sent.reason
            );
            assert!(!sent.body.0.contains("bob#") && !sent.body.0.contains("carol#"));
        }
    }
}

/// Diarist is put in front of a client whose window is full. Each of its requests begins alike, and all are equally long.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_keeps_its_first_message_gets_memory_at_any_time() {
    let mut rig = roomy().await;
    let mut client = Client::new(&mut rig);
    let messages = conversation("alice", 121);
    for count in (61..messages.len()).step_by(2) {
        let mut kept = vec![messages[0].clone()];
        kept.extend_from_slice(&messages[count - WINDOW..count]);
        let sent = client.send_with_answer(&kept, messages.get(count)).await;
        assert!(
            count < 100 || sent.in_block.contains("alice#30"),
            "{count} messages: {}",
            sent.reason
        );
    }
}

/// The chain before a removal holds what the user took back. The one after it repeats the rest, and so it counts.
#[tokio::test(flavor = "multi_thread")]
async fn no_second_look_finds_what_the_user_removed() {
    let mut rig = roomy().await;
    let mut client = Client::new(&mut rig);
    let mut messages = conversation("alice", 120);
    for count in (1..70).step_by(2) {
        let answer = messages.get(count).cloned();
        let sent = client
            .send_with_answer(&messages[..count], answer.as_ref())
            .await;
        assert!(count < 60 || sent.in_block.contains("alice#4"));
    }
    let put_back: Vec<Value> = messages.drain(60..62).collect();
    messages.drain(4..6);
    let (from, until) = (68, 74);
    for count in (from - 1..until).step_by(2) {
        let answer = messages.get(count).cloned();
        client
            .send_with_answer(&messages[..count], answer.as_ref())
            .await;
    }
    // The client keeps its newest messages from now on. The user puts one exchange back, which only the old chain has.
    messages.splice(58..58, put_back);
    let kept = &messages[(until + 1 - WINDOW)..=until];
    let sent = client.send_with_answer(kept, None).await;
    let removed = ["alice#4", "alice#5"];
    assert!(!removed.iter().any(|mark| sent.in_block.contains(*mark)));
}
