//! What calls cost, by conversation and by day; what happened, for the timeline.

use diarist::memory::PartKind;
use diarist::store::{
    ClaimFilter, Cost, Costs, EVENTS_KEPT, Event, Offered, Spent, SqliteStore, Store, Waiting,
};

use crate::world::{ANYBODY, Disk, LEASE, Talk, scope};

const NOON: i64 = 20_000 * 86_400_000 + 12 * 3_600_000;
const TOMORROW: i64 = 20_001 * 86_400_000;

fn cost(kind: PartKind, sent: u64, written: u64) -> Cost {
    Cost {
        kind,
        sent,
        cached: sent / 2,
        written,
        guessed: written,
    }
}

async fn costs(store: &SqliteStore, lineage: i64) -> Costs {
    let detail = store.thread(lineage).await.expect("read");
    detail.expect("a thread").row.costs
}

#[tokio::test]
async fn calls_are_counted_for_the_conversation_that_made_them_due() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let talk = Talk::new(&scope("alice"), "one", 4);
    let other = Talk::new(&scope("alice"), "two", 4);
    let lineage = talk.recorded(&store).await;
    let spared = other.recorded(&store).await;
    let pay = async |talk: &Talk, cost| {
        let paid = store.pay(&talk.scope, talk.tip(), cost, NOON).await;
        paid.expect("paid")
    };
    assert_eq!(pay(&talk, cost(PartKind::Chunk, 100, 10)).await, 110);
    assert_eq!(pay(&talk, cost(PartKind::Chunk, 50, 5)).await, 165);
    let total = pay(&talk, cost(PartKind::Reflection, 30, 3)).await;
    assert_eq!(total, 198, "a day is the tenant's, over its conversations");
    assert_eq!(
        costs(&store, lineage).await,
        Costs {
            observing: Spent {
                calls: 2,
                sent: 150,
                cached: 75,
                written: 15,
                guessed: 15
            },
            reflecting: Spent {
                calls: 1,
                sent: 30,
                cached: 15,
                written: 3,
                guessed: 3
            },
        }
    );
    assert_eq!(costs(&store, spared).await, Costs::default());
    let listed = store.threads(9).await.expect("listed");
    let row = listed.iter().find(|row| row.lineage == lineage);
    assert_eq!(row.expect("listed").costs.observing.calls, 2);

    store.forget(&talk.scope, lineage).await.expect("forgotten");
    assert_eq!(
        pay(&other, cost(PartKind::Chunk, 1, 1)).await,
        200,
        "what was paid for stays paid for"
    );
    // The conversation is gone; the money as well.
    assert_eq!(pay(&talk, cost(PartKind::Chunk, 1, 1)).await, 202);
}

#[tokio::test]
async fn a_spent_budget_holds_until_the_next_day_and_over_restarts() {
    let disk = Disk::new();
    let spender = Talk::new(&scope("alice"), "one", 4);
    let other = Talk::new(&scope("bob"), "two", 4);
    let resource = Talk::new(
        &diarist::history::Scope::of(b"alice", Some(b"home")),
        "three",
        4,
    );
    let filter = ClaimFilter {
        daily_tokens: Some(100),
        ..ANYBODY
    };
    {
        let store = disk.open().await;
        for talk in [&spender, &other, &resource] {
            talk.recorded(&store).await;
            let job = talk.job(PartKind::Chunk, 0, 2);
            let offered = store.offer(&talk.scope, &job, 0).await;
            assert_eq!(offered.expect("offered"), Offered::New);
        }
        // Spent in two scopes of one tenant, of which neither alone is beyond it.
        for talk in [&spender, &resource] {
            let half = cost(PartKind::Chunk, 45, 5);
            let paid = store.pay(&talk.scope, talk.tip(), half, NOON).await;
            paid.expect("paid");
        }
        store.close().await;
    }
    let store = disk.open().await;
    let claim = async |now| {
        let job = store.claim(&filter, now, LEASE).await.expect("claimed");
        job.map(|job| job.scope)
    };
    assert_eq!(claim(NOON).await, Some(other.scope.clone()));
    assert_eq!(claim(NOON).await, None);
    let mut waiting = store.waiting(NOON).await.expect("asked");
    waiting.sort_by_key(|waiting| waiting.tokens);
    let told = |talk: &Talk, jobs, tokens| Waiting {
        tenant: talk.scope.tenant_label(),
        jobs,
        tokens,
    };
    assert_eq!(waiting, [told(&other, 1, 0), told(&spender, 2, 100)]);
    // So it is told to whoever has yet to book what is owed.
    let spent = async |talk: &Talk, at_ms| store.spent(&talk.scope, at_ms).await.expect("asked");
    assert_eq!(spent(&spender, NOON).await, 100);
    assert_eq!(spent(&other, NOON).await, 0);
    assert_eq!(spent(&spender, TOMORROW).await, 0);
    assert!(claim(TOMORROW).await.is_some());
    assert!(claim(TOMORROW).await.is_some());
}

fn event(number: i64, kind: &str) -> Event {
    Event {
        kind: kind.to_owned(),
        at_ms: number,
        body: format!("{{\"n\":{number}}}"),
    }
}

/// As it is on the timeline of a conversation without a key.
fn noted(number: i64, kind: &str, lineage: i64) -> Event {
    Event {
        body: format!("{{\"n\":{number},\"threadId\":\"{lineage}\",\"recordId\":\"{lineage}\"}}"),
        ..event(number, kind)
    }
}

#[tokio::test]
async fn a_timeline_is_bounded_by_kind_and_goes_with_its_conversation() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let talk = Talk::new(&scope("alice"), "one", 4);
    let other = Talk::new(&scope("alice"), "two", 4);
    let lineage = talk.recorded(&store).await;
    let spared = other.recorded(&store).await;
    let kept = i64::from(EVENTS_KEPT);
    let mut many = vec![event(0, "rare")];
    many.extend((1..=kept + 20).map(|number| event(number, "often")));
    for talk in [&talk, &other] {
        let noted = store.note(&talk.scope, talk.tip(), &many).await;
        noted.expect("noted");
    }
    let events = async |lineage| {
        let detail = store.thread(lineage).await.expect("read");
        detail.expect("a thread").events
    };
    let seen = events(lineage).await;
    assert_eq!(seen.len(), EVENTS_KEPT as usize + 1);
    let rare = noted(0, "rare", lineage);
    assert_eq!(seen[0], rare, "a rare kind is not driven out");
    assert_eq!(seen[1], noted(21, "often", lineage));
    assert_eq!(seen.last(), Some(&noted(kept + 20, "often", lineage)));

    store.forget(&talk.scope, lineage).await.expect("forgotten");
    let late = store.note(&talk.scope, talk.tip(), &many).await;
    assert_eq!(late.expect("asked"), [], "nothing to write on");
    assert_eq!(events(spared).await.len(), EVENTS_KEPT as usize + 1);
    assert!(store.thread(lineage).await.expect("read").is_none());
}
