//! A caller may be dropped at any moment. The next query still gets its own rows, and no transaction stays
//! open. (The known bug: the next user of a connection reads the rows of a cancelled query.)

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use diarist::store::testing::SingleRequest as _;
use diarist::store::{Admin as _, Chains as _, Snapshots as _};

use crate::store::world::{Disk, TestChain, scope};

/// Polls `future` at most `times` times with other work in between, then drops it.
async fn hang_up_after<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        // The connections work on their own threads; this gives them time to be in the middle of a query.
        std::thread::sleep(std::time::Duration::from_micros(50));
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_after_a_cancelled_query_gets_its_own_rows() {
    let disk = Disk::new();
    let store = disk.open().await;
    let chains = ["alice", "bob"].map(|name| TestChain::new(&scope(name), "hello", 8));
    let mut own = Vec::new();
    for chain in &chains {
        chain.recorded(&store).await;
        let chunk = chain.observed(&store, 0, 4).await;
        let new = chain.snapshot(4, &[chunk]);
        own.push(
            store
                .commit_snapshot(&chain.scope, &new)
                .await
                .expect("committed")
                .meta
                .id,
        );
    }
    let mut dropped = 0;
    for round in 0..300 {
        let (gone, here) = (&chains[round % 2], &chains[(round + 1) % 2]);
        let mine = own[(round + 1) % 2];
        let times = round % 7;
        let cut = match round % 3 {
            0 => hang_up_after(times, store.find_on_chain(&gone.scope, &gone.links))
                .await
                .is_none(),
            1 => hang_up_after(times, store.snapshot(&gone.scope, own[round % 2]))
                .await
                .is_none(),
            _ => hang_up_after(times, store.load_chain(&gone.scope, &gone.links))
                .await
                .is_none(),
        };
        dropped += usize::from(cut);
        let found = store
            .find_on_chain(&here.scope, &here.links)
            .await
            .expect("found");
        assert_eq!(
            found.snapshots.iter().map(|s| s.id).collect::<Vec<_>>(),
            [mine]
        );
        let snapshot = store
            .snapshot(&here.scope, mine)
            .await
            .expect("read")
            .expect("there");
        assert_eq!(snapshot.meta.to, here.first(4).tip());
        let known = store
            .load_chain(&here.scope, &here.links)
            .await
            .expect("known");
        assert_eq!(known.nodes[0].link, here.links[0]);
    }
    assert!(dropped > 100, "{dropped} queries were cut off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_write_completes_although_its_caller_is_dropped() {
    let disk = Disk::new();
    let store = disk.open().await;
    let owner = scope("alice");
    let mut dropped = Vec::new();
    for round in 0..60 {
        let chain = TestChain::new(&owner, &format!("talk {round}"), 5);
        let record = chain.record(None, 0);
        if hang_up_after(round % 6, store.record(&owner, &record))
            .await
            .is_none()
            && round % 6 > 0
        {
            dropped.push(chain);
        }
    }
    let last = TestChain::new(&owner, "the last", 5);
    last.recorded(&store).await;
    store.close().await;
    let store = disk.open().await;
    assert!(!dropped.is_empty());
    for chain in dropped {
        let known = store.load_chain(&owner, &chain.links).await.expect("known");
        assert_eq!(
            known.nodes.len(),
            5,
            "a started write ends before the store closes"
        );
        let found = store
            .find_on_chain(&owner, &chain.links)
            .await
            .expect("found");
        assert!(found.sent_with.is_some(), "with its request");
    }
}
