//! A panic whose message quotes a request: the real binary writes where it was, and no word of the message.

use crate::memory::process::{Program, found};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const KEY: &str = "sk-SECRET-of-a-panic";

/// The functions are asked for too: they are written behind the place.
const FAULTS: &str = "export RUST_BACKTRACE=1 DIARIST_PLANTED_FAULTS=request,job,request,job";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_panic_that_quotes_a_conversation_leaves_no_word_of_it() {
    let mut program = Program::within(Some(FAULTS)).await;
    let conversation = SampleConversation::new("ada");
    let credential = format!("Bearer {KEY}");
    let mut unread = 0;
    for turn in 1..=ACTIVE {
        let answer = program.send_as(&credential, &conversation.body(turn)).await;
        assert_eq!(answer.status, 200);
        unread += usize::from(answer.memory() == "bypass; reason=fault");
    }
    assert_eq!(unread, 2, "two requests panicked while they were read");
    let panics = || program.log().matches("it panicked").count();
    eventually("two jobs to panic as well", || panics() >= 4).await;
    let metrics = program.metrics().await;
    program.terminate().await;

    let log = program.log();
    assert!(log.contains("src/tasks.rs:"), "the place is said");
    assert!(log.contains("fault_point_quoting"), "and the functions");
    assert!(!log.contains("a planted fault"), "and not the message");
    for secret in [KEY, &conversation.canary()] {
        assert!(!metrics.contains(secret));
        for name in ["log-1.jsonl", "audit.jsonl"] {
            assert_eq!(found(&program.path(name), secret), None);
        }
    }
    assert!(
        found(&program.path("diarist.db"), &conversation.canary()).is_some(),
        "the conversation has the words that were looked for"
    );
}
