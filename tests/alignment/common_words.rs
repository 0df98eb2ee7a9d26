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
    for is_twice_in_one in [true, false] {
        let mut rig = roomy().await;
        let mut client = Client::new(&mut rig);
        let mut messages = conversation("alice", 80);
        messages.splice(66..68, thanks());
        if is_twice_in_one {
            messages.splice(60..62, thanks());
        } else {
            let mut other = conversation("bob", 7);
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
                "{is_twice_in_one}, {count} messages: {}",
                sent.reason
            );
            assert!(!sent.body.0.contains("bob#"));
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
