//! What processes have seen, in the store: how much is kept, for how long, and of whom.

use diarist::store::{
    ForgetTarget, Forgetting as _, SeenMessages, SeenMessagesStore as _, SqliteStore,
};

use crate::store::world::scope;

fn seen(owner: &str, bytes: usize) -> SeenMessages {
    SeenMessages {
        tenant: scope(owner).tenant,
        messages: vec![1; bytes],
        answers: vec![2; bytes],
        summary_answers: vec![3; bytes],
    }
}

async fn put(store: &SqliteStore, all: Vec<SeenMessages>, at_ms: i64) {
    let stored = store.put_seen_messages(all, at_ms, 1_000).await;
    stored.expect("stored");
}

#[tokio::test]
async fn the_newest_is_first_and_the_oldest_is_deleted() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    put(&store, vec![seen("a", 10), seen("b", 20)], 1).await;
    put(&store, vec![seen("a", 30)], 2).await;
    let kept = store.seen_messages().await.expect("read");
    assert_eq!(kept, [seen("a", 30), seen("b", 20), seen("a", 10)]);
    // 900 bytes of 1,000 leave room for 90 more.
    put(&store, vec![seen("c", 300)], 3).await;
    let kept = store.seen_messages().await.expect("read");
    assert_eq!(kept, [seen("c", 300), seen("a", 30)]);
    store.expire_seen_messages(3).await.expect("expired");
    let kept = store.seen_messages().await.expect("read");
    assert_eq!(kept, [seen("c", 300)]);
}

/// Nothing of a forgotten tenant stays, and nothing comes back until that is lifted. The same if only a user is forgotten:
/// what its users said is in one list.
#[tokio::test]
async fn a_forgotten_tenant_has_no_seen_messages() {
    for resource in [None, Some([7; 32])] {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        put(&store, vec![seen("a", 10), seen("b", 20)], 1).await;
        let target = ForgetTarget::Owner {
            tenant: scope("a").tenant,
            resource,
        };
        let receipt = store.forget_target(&target, 2).await.expect("forgotten");
        put(&store, vec![seen("a", 10)], 3).await;
        let kept = store.seen_messages().await.expect("read");
        assert_eq!(kept, [seen("b", 20)], "{resource:?}");
        let lifted = store.lift(receipt.expect("a receipt").id, 4).await;
        assert!(lifted.expect("lifted"));
        put(&store, vec![seen("a", 10)], 5).await;
        let kept = store.seen_messages().await.expect("read");
        assert_eq!(kept, [seen("a", 10), seen("b", 20)], "{resource:?}");
    }
}
