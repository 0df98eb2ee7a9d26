//! Answers that a client may send back in place of the messages that they summarise.

use std::sync::Arc;

use diarist::history::{AnswerHash, History, Link, MessageKey, Pepper, Role, ScopedHash};
use diarist::memory::alignment::Origin;
use diarist::store::testing::SingleRequest as _;
use diarist::store::{Chains as _, LookupKeys, MessageMarks};

use crate::store::world::{Disk, TestChain, scope};

/// A summary comes back in place of what it summarises. An answer that any chain has as an answer of the model came
/// back in its turn: a window may begin with it, and what stood in front of it may have been rewritten.
#[tokio::test]
async fn an_answer_sent_back_as_assistant_message_is_no_summary() {
    let disk = Disk::new();
    let store = disk.open().await;
    let alice = scope("alice");
    let root = Link::root(&alice);
    let answer = AnswerHash::from_text(&Pepper::NONE, &root, "an answer");
    let content = ScopedHash::from_text(&Pepper::NONE, &root, "its content");
    let chain = TestChain::new(&alice, "talk", 2);
    let mut record = chain.record(None, 0);
    let history = Arc::new(History::chain(&alice, Vec::new()));
    record.lookup_entries.answer = Some((answer, history));
    store.record(&alice, &record).await.expect("recorded");

    let unknown = TestChain::new(&alice, "a window", 3);
    let is_summary = async |content: Option<ScopedHash>| {
        let keys = LookupKeys {
            answers: vec![(answer.text, 1)],
            answer_contents: vec![content],
            ..LookupKeys::default()
        };
        let found = store.find_candidates(&alice, &unknown.links, &keys).await;
        found.expect("found").answered.is_some()
    };
    assert!(is_summary(Some(content)).await);

    // The next request has a rewritten message in front of the answer, so it begins another chain.
    let rewritten = TestChain::new(&alice, "rewritten", 2);
    let mut record = rewritten.record(None, 0);
    record.new_nodes[1].role = Role::Assistant;
    let marks = |content| MessageMarks {
        item: MessageKey {
            role: Role::Assistant,
            content,
            ids: None,
            distinctive_bytes: 300,
        },
        anchor: None,
        origin: Origin::default(),
        from_upstream: true,
        summary_start: None,
    };
    let other = ScopedHash::from_text(&Pepper::NONE, &root, "another content");
    record.lookup_entries.marks = vec![marks(other), marks(content)];
    store.record(&alice, &record).await.expect("recorded");
    assert!(!is_summary(Some(content)).await);
    assert!(is_summary(None).await, "as a message of the user");
}
