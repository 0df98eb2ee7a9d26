//! The main job: a long conversation is carried by an observation block and recent raw messages.

use diarist::memory::render;
use diarist::provider::{Conversation, Part, Style};

use crate::rig::Rig;

#[tokio::test(flavor = "multi_thread")]
async fn a_long_conversation_is_carried_by_its_observations() {
    let rig = Rig::small().await;
    let conversation = Conversation::generate(7, 60, Style::Travel);
    let answers = rig.play(&conversation).await;
    let states: Vec<&str> = answers.iter().map(|a| a.memory()).collect();
    println!("{states:?}");
    let bodies = rig.forwarded();
    let last = bodies.last().unwrap();
    let sent = last["messages"].as_array().unwrap().len();
    println!("sent {sent} of {}", conversation.messages.len());
    println!("{}", last["messages"][1]["content"].as_str().unwrap_or(""));
    assert!(states.contains(&"active"));
    assert!(sent < conversation.messages.len() / 2);
    let block = last["messages"][1]["content"].as_str().unwrap();
    assert!(render::looks_like_block(&format!("\n{block}")) || render::looks_like_block(block));
    println!(
        "observer {} reflector {}",
        rig.provider.record_of(Part::Observer).len(),
        rig.provider.record_of(Part::Reflector).len()
    );
    println!(
        "{}",
        rig.metrics()
            .await
            .lines()
            .filter(|l| l.starts_with("diarist_") && !l.contains("bucket"))
            .collect::<Vec<_>>()
            .join("\n")
    );
}
