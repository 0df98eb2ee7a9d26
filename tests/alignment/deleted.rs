//! What two conversations have said proves neither, also when one of them is deleted and the process knows it no more.

use diarist::store::{Admin as _, ForgetTarget, Forgetting as _, SqliteStore};
use serde_json::{Value, json};

use crate::alignment::harness::{Client, conversation, roomy, text, user};
use crate::memory::rig::Rig;

/// What both are asked and told, word for word: a question of a form, and an answer that is always the same.
fn shared() -> [Value; 2] {
    let question = "How do I set a new password for my account in the portal, step by step?";
    let answer = format!("{} {}", text("form", 1), text("form", 2));
    [
        json!({"role": "user", "content": question}),
        json!({"role": "assistant", "content": answer}),
    ]
}

/// Sends `all` in turns, as a client does.
async fn talk(rig: &mut Rig, all: &[Value]) {
    for turn in (1..=all.len()).step_by(2) {
        let mut client = Client::new(rig);
        client.send_with_answer(&all[..turn], all.get(turn)).await;
    }
}

/// Deletes the conversation that spoke first, as an operator or the housekeeping does.
async fn delete_first(rig: &Rig, is_forgotten: bool) {
    let url = format!(
        "sqlite://{}",
        rig.folder.path().join("diarist.db").display()
    );
    let store = SqliteStore::open(&url).await.unwrap();
    let threads = store.threads(10).await.unwrap();
    let first = threads.iter().map(|thread| thread.lineage).min().unwrap();
    if is_forgotten {
        let forgotten = store.forget_target(&ForgetTarget::Thread(first), 1).await;
        let receipt = forgotten.unwrap().unwrap();
        assert!(store.lift(receipt.id, 2).await.unwrap());
    } else {
        assert_eq!(store.expire_threads(i64::MAX, 1).await.unwrap(), 1);
    }
    let left = store.threads(10).await.unwrap();
    assert!(left.iter().all(|thread| thread.lineage != first) && !left.is_empty());
    store.close().await;
}

/// Bob was asked the same and told the same, and is deleted. His client drops what stood before, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_conversation_also_said_proves_nothing() {
    for (is_forgotten, ahead) in [(false, 0), (true, 0), (false, 4)] {
        let mut rig = roomy().await;
        let bob = [
            &conversation("bob", 2)[..],
            &shared(),
            &conversation("bobs", 5),
        ]
        .concat();
        talk(&mut rig, &bob).await;
        let [first, second] = [conversation("alice", 40), conversation("alices", 10)];
        let alice = [&first[..], &shared(), &second].concat();
        talk(&mut rig, &alice).await;
        rig.stop().await;
        delete_first(&rig, is_forgotten).await;
        rig.start().await;
        let drops = |all: &[Value], rest: std::ops::Range<usize>, name| {
            [&all[rest], &[user(name, 98)]].concat()
        };
        let shorter = drops(&alice, 40..52, "alice");
        let sent = Client::new(&mut rig).send(&shorter).await;
        assert!(
            sent.in_block.contains("alice#2"),
            "her own words are still hers: {sent:?}"
        );
        let shorter = drops(&bob, 2..4 + ahead, "bob");
        let sent = Client::new(&mut rig).send(&shorter).await;
        assert!(sent.in_block.is_empty(), "{is_forgotten} {ahead}: {sent:?}");
    }
}
