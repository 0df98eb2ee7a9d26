//! What is tokenised, counted by the program itself: it has one set of metrics for each process.

use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind};

use crate::memory::process::Program;
use crate::memory::tools::{Caller, SampleConversation};
use crate::support::depth;

/// Bytes of the messages' words that this turn adds to the one before.
fn new_bytes(conversation: &SampleConversation, turns: std::ops::RangeInclusive<usize>) -> f64 {
    let words = |turn: usize| -> usize {
        let messages = conversation.messages(turn);
        messages
            .iter()
            .map(|m| m["content"].as_str().unwrap().len())
            .sum()
    };
    let before = match turns.start() {
        1 => 0,
        start => words(start - 1),
    };
    #[expect(clippy::cast_precision_loss, reason = "a few hundred kilobytes")]
    let bytes = (words(*turns.end()) - before) as f64;
    bytes
}

const TOKENIZED: &str = "diarist_tokenized_bytes_total";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn each_message_is_tokenised_once_and_after_the_response_head() {
    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    let half = depth::long_or(100, 24);
    for turn in 1..=half {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
        // A recorder that a busy machine holds up would drop what its queue has no room for.
        program.wait_recorded(turn).await;
    }
    let first = program.metric(TOKENIZED).await;
    let new = new_bytes(&conversation, 1..=half);
    println!("{first} bytes tokenised of {new} new ones");
    assert!(first > 0.0 && first <= 1.2 * new, "{first} of {new}");

    program.terminate().await;
    program.again().await;
    for turn in half + 1..=2 * half {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
        program.wait_recorded(turn - half).await;
    }
    let second = program.metric(TOKENIZED).await;
    let new = new_bytes(&conversation, half + 1..=2 * half);
    println!("{second} bytes tokenised of {new} new ones after a restart");
    assert!(second > 0.0 && second <= 1.2 * new, "{second} of {new}");

    // The provider has the request and holds its answer back.
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    program.provider.inject(CallerKind::Actor, silent);
    let mut caller = Caller::connect(program.address()).await;
    caller.ask(&conversation.body(2 * half + 1)).await;
    let held = |record: &[std::sync::Arc<diarist_provider::RecordedRequest>]| {
        let open = diarist_provider::Ending::Open;
        record
            .iter()
            .any(|entry| entry.messages > 0 && entry.ending == open)
    };
    program.provider.wait_until(held).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before_the_head = program.metric(TOKENIZED).await;
    assert!((before_the_head - second).abs() < f64::EPSILON);
}
