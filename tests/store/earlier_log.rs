//! The log before a message, as the Observer reads it.

use diarist::memory::{NewPart, PartKind};
use diarist::store::{EarlierLog, LogBounds, Queue as _, Snapshots as _, SqliteStore};

use super::world::{TestChain, scope};

const ALL: LogBounds = LogBounds {
    tokens: u32::MAX,
    chunks: None,
};

fn chunks(most: usize) -> LogBounds {
    LogBounds {
        chunks: Some(most),
        ..ALL
    }
}

/// Chunks of two messages each, and a reflection of the first two. A chunk has 7 tokens, the reflection too.
async fn observed(store: &SqliteStore) -> TestChain {
    let chain = TestChain::new(&scope("alice"), "the log", 10);
    chain.recorded(store).await;
    for from in [0, 2, 4, 6] {
        chain.observed(store, from, from + 2).await;
    }
    let reflection = NewPart {
        kind: PartKind::Reflection,
        text: "condensed".to_owned(),
        current_task: None,
        ..chain.chunk(0, 4)
    };
    let stored = store.commit_code_reflection(&chain.scope, &reflection, 3);
    stored.await.expect("committed").expect("a new part");
    chain
}

#[tokio::test]
async fn the_earlier_log_is_cut_to_its_bounds_from_the_end() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = observed(&store).await;
    let tokens = |tokens| LogBounds { tokens, ..ALL };
    let cases: [(usize, LogBounds, &[&str]); 9] = [
        // A reflection stands for its chunks, where it ends.
        (8, ALL, &["condensed", "observed 4 to 6", "observed 6 to 8"]),
        (4, ALL, &["condensed"]),
        (2, ALL, &["observed 0 to 2"]),
        // Nothing ends there.
        (3, ALL, &[]),
        (0, ALL, &[]),
        // The part that reaches the bound is the last one.
        (8, tokens(0), &[]),
        (8, tokens(8), &["observed 4 to 6", "observed 6 to 8"]),
        // Chunks alone.
        (
            8,
            chunks(3),
            &["observed 2 to 4", "observed 4 to 6", "observed 6 to 8"],
        ),
        (4, chunks(9), &["observed 0 to 2", "observed 2 to 4"]),
    ];
    for (to, bounds, expected) in cases {
        let end = chain.first(to).tip();
        let log = store.log_before(&chain.scope, end, bounds).await;
        let log = log.expect("a log");
        assert_eq!(log.texts, expected, "before {to}, {bounds:?}");
        // The hints are those of the newest chunk, also where a reflection stands for it.
        let task = (!expected.is_empty()).then(|| "testing".to_owned());
        assert_eq!(log.current_task, task, "before {to}, {bounds:?}");
    }
}

#[tokio::test]
async fn an_owner_cannot_read_the_log_of_another_owner() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = observed(&store).await;
    let (bob, end) = (scope("bob"), chain.first(8).tip());
    let log = store.log_before(&bob, end, ALL).await;
    assert_eq!(log.expect("a log"), EarlierLog::default());
}
