//! The main job: a long conversation is carried by an observation block and recent raw messages.

use diarist::memory::render;
use diarist_provider::{CallerKind, Conversation, Style};

use crate::memory::rig::{Answer, Rig};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_conversation_is_sent_as_a_block_and_recent_messages() {
    let rig = Rig::small().await;
    let conversation = Conversation::generate(7, 60, Style::Travel);
    let answers = rig.play(&conversation).await;
    let states: Vec<&str> = answers.iter().map(Answer::memory).collect();
    let first = states.iter().position(|state| *state == "active").unwrap();
    let all = |states: &[&str], expected| states.iter().all(|state| *state == expected);
    assert!(all(&states[..first], "watching"), "{states:?}");
    assert!(all(&states[first..], "active"), "{states:?}");

    let bodies = rig.forwarded();
    let last = bodies.last().unwrap()["messages"].as_array().unwrap();
    let block = last[1]["content"].as_str().unwrap();
    assert!(render::looks_like_block(block), "{block}");
    assert_eq!(
        last[0], conversation.messages[0],
        "the client's own system message leads"
    );
    // The request that asked for the last message: everything but it, the newest of it raw.
    let messages = &conversation.messages[..conversation.messages.len() - 1];
    let raw = last.len() - 2;
    assert!(
        raw * 2 < messages.len(),
        "{raw} of {} messages are raw",
        messages.len()
    );
    assert_eq!(last[2..], messages[messages.len() - raw..]);

    assert!(rig.provider.record_for(CallerKind::Observer).len() > 1);
    assert!(!rig.provider.record_for(CallerKind::Reflector).is_empty());
    assert!(
        rig.got().iter().all(|entry| entry.is_accepted()),
        "nothing was refused"
    );
}
