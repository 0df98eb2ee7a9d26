//! What processes have seen, in the store: how much is kept, for how long, and of whom.

use diarist::store::{
    DROPPED_TENANTS, ForgetTarget, Forgetting as _, SeenMessages, SeenMessagesStore as _,
    SqliteStore,
};

use crate::store::world::scope;

fn entries_of(owner: &str, bytes: usize) -> SeenMessages {
    SeenMessages {
        tenant: scope(owner).tenant,
        messages: vec![1; bytes],
        answers: vec![2; bytes],
        summary_answers: vec![3; bytes],
        has_lost: false,
    }
}

/// A process that began at `since_ms` stops at `at_ms`.
async fn put(store: &SqliteStore, all: Vec<SeenMessages>, since_ms: i64, at_ms: i64) {
    let stored = store.put_seen_messages(all, (since_ms, at_ms), 1_000).await;
    stored.expect("stored");
}

#[tokio::test]
async fn the_newest_is_first_and_old_ones_are_deleted() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    put(&store, vec![entries_of("a", 10), entries_of("b", 20)], 0, 1).await;
    put(&store, vec![entries_of("a", 30)], 1, 2).await;
    let kept = store.seen_messages().await.expect("read");
    assert_eq!(
        kept,
        [
            entries_of("a", 30),
            entries_of("b", 20),
            entries_of("a", 10)
        ]
    );
    store.expire_seen_messages(2).await.expect("expired");
    let kept = store.seen_messages().await.expect("read");
    assert_eq!(kept, [entries_of("a", 30)]);
}

/// A tenant that has much pushes out nothing of others, and it is noted who has lost something.
#[tokio::test]
async fn the_largest_tenant_loses_its_oldest_messages() {
    let lost = |entries: SeenMessages| SeenMessages {
        has_lost: true,
        ..entries
    };
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    put(
        &store,
        vec![entries_of("small", 20), entries_of("large", 100)],
        0,
        1,
    )
    .await;
    put(&store, vec![entries_of("large", 100)], 1, 2).await;
    put(&store, vec![entries_of("large", 120)], 2, 3).await;
    let kept = store.seen_messages().await.expect("read");
    let large = [
        lost(entries_of("large", 120)),
        lost(entries_of("large", 100)),
    ];
    assert_eq!(kept, [&large[..], &[entries_of("small", 20)]].concat());
    // One of which nothing is left.
    put(&store, vec![entries_of("huge", 400)], 3, 4).await;
    let kept = store.seen_messages().await.expect("read");
    let dropped = SeenMessages {
        tenant: DROPPED_TENANTS,
        ..lost(entries_of("", 0))
    };
    assert_eq!(
        kept,
        [&[dropped], &large[..], &[entries_of("small", 20)]].concat()
    );
}

/// Nothing of a forgotten tenant stays, and the process that ran meanwhile stores nothing of it, also if that is lifted. The
/// same if only a user is forgotten: what its users said is in one list.
#[tokio::test]
async fn a_forgotten_tenant_has_no_seen_messages() {
    for resource in [None, Some([7; 32])] {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        put(&store, vec![entries_of("a", 10), entries_of("b", 20)], 0, 1).await;
        let target = ForgetTarget::Owner {
            tenant: scope("a").tenant,
            resource,
        };
        let receipt = store.forget_target(&target, 5).await.expect("forgotten");
        let lifted = store.lift(receipt.expect("a receipt").id, 6).await;
        assert!(lifted.expect("lifted"));
        put(&store, vec![entries_of("a", 10)], 5, 7).await;
        let kept = store.seen_messages().await.expect("read");
        assert_eq!(kept, [entries_of("b", 20)], "{resource:?}");
        put(&store, vec![entries_of("a", 10)], 7, 8).await;
        let kept = store.seen_messages().await.expect("read");
        assert_eq!(
            kept,
            [entries_of("a", 10), entries_of("b", 20)],
            "{resource:?}"
        );
    }
}
