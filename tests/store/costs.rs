//! The costs of model calls for each conversation and each day, and the events of the timeline.

use diarist::memory::PartKind;
use diarist::store::{
    Admin as _, CallTotals, ClaimFilter, Cost, DailyLimits, EnqueueOutcome, Event, LineageCosts,
    MAX_EVENTS_PER_KIND, Queue as _, Spent, SqliteStore, TenantAccount, TenantBacklog,
    Tenants as _,
};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, forgotten, scope};

const NOON: i64 = 20_000 * 86_400_000 + 12 * 3_600_000;
const TOMORROW: i64 = 20_001 * 86_400_000;

fn cost(kind: PartKind, sent: u64, written: u64) -> Cost {
    Cost {
        kind,
        prompt_tokens: sent,
        cached_tokens: sent / 2,
        completion_tokens: written,
        estimated_tokens: written,
    }
}

async fn costs(store: &SqliteStore, lineage: i64) -> LineageCosts {
    let detail = store.thread(lineage).await.expect("read");
    detail.expect("a thread").row.costs
}

#[tokio::test]
async fn model_calls_are_charged_to_the_conversation_that_caused_them() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "one", 4);
    let other = TestChain::new(&scope("alice"), "two", 4);
    let lineage = chain.recorded(&store).await;
    let spared = other.recorded(&store).await;
    let pay = async |chain: &TestChain, cost| {
        let paid = store
            .record_cost(&chain.scope, chain.tip(), cost, NOON)
            .await;
        paid.expect("paid").account
    };
    assert_eq!(pay(&chain, cost(PartKind::Chunk, 100, 10)).await, 110);
    assert_eq!(pay(&chain, cost(PartKind::Chunk, 50, 5)).await, 165);
    let total = pay(&chain, cost(PartKind::Reflection, 30, 3)).await;
    assert_eq!(total, 198, "a day is the tenant's, over its conversations");
    assert_eq!(
        costs(&store, lineage).await,
        LineageCosts {
            observer: CallTotals {
                calls: 2,
                prompt_tokens: 150,
                cached_tokens: 75,
                completion_tokens: 15,
                estimated_tokens: 15
            },
            reflector: CallTotals {
                calls: 1,
                prompt_tokens: 30,
                cached_tokens: 15,
                completion_tokens: 3,
                estimated_tokens: 3
            },
        }
    );
    assert_eq!(costs(&store, spared).await, LineageCosts::default());
    let listed = store.threads(9).await.expect("listed");
    let row = listed.iter().find(|row| row.lineage == lineage);
    assert_eq!(row.expect("listed").costs.observer.calls, 2);

    forgotten(&store, lineage).await;
    assert_eq!(
        pay(&other, cost(PartKind::Chunk, 1, 1)).await,
        200,
        "forgetting does not lower the spending"
    );
    // The conversation is forgotten; its costs stay in the tenant's spending.
    assert_eq!(pay(&chain, cost(PartKind::Chunk, 1, 1)).await, 202);
}

#[tokio::test]
async fn a_spent_daily_budget_survives_a_restart_until_the_next_day() {
    let disk = Disk::new();
    let spender = TestChain::new(&scope("alice"), "one", 4);
    let other = TestChain::new(&scope("bob"), "two", 4);
    let resource = TestChain::new(
        &diarist::history::Scope::new(b"alice", Some(b"home")),
        "three",
        4,
    );
    let filter = ClaimFilter {
        daily: DailyLimits {
            account: Some(100),
            all: None,
        },
        ..ANYBODY
    };
    {
        let store = disk.open().await;
        for chain in [&spender, &other, &resource] {
            chain.recorded(&store).await;
            let job = chain.job(PartKind::Chunk, 0, 2);
            let offered = store.enqueue(&chain.scope, &job, 0).await;
            assert_eq!(offered.expect("offered"), EnqueueOutcome::Queued);
        }
        // Spent under two resources of one tenant; neither alone exceeds the budget.
        for chain in [&spender, &resource] {
            let half = cost(PartKind::Chunk, 45, 5);
            let paid = store
                .record_cost(&chain.scope, chain.tip(), half, NOON)
                .await;
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
    let mut waiting = store.tenant_backlogs(NOON).await.expect("asked");
    waiting.sort_by_key(|waiting| waiting.spent_tokens);
    let backlog = |chain: &TestChain, open_jobs, spent_tokens| TenantBacklog {
        tenant: chain.scope.tenant_label(),
        open_jobs,
        spent_tokens,
    };
    assert_eq!(waiting, [backlog(&other, 1, 0), backlog(&spender, 2, 100)]);
    // A process with costs that it has not recorded yet reads this sum.
    let spent = async |chain: &TestChain, at_ms| {
        let spent = store
            .spent_tokens(&chain.scope, at_ms)
            .await
            .expect("asked");
        assert_eq!(spent.all, if at_ms == NOON { 100 } else { 0 });
        spent.account
    };
    assert_eq!(spent(&spender, NOON).await, 100);
    assert_eq!(spent(&other, NOON).await, 0);
    assert_eq!(spent(&spender, TOMORROW).await, 0);
    assert!(claim(TOMORROW).await.is_some());
    assert!(claim(TOMORROW).await.is_some());
}

#[tokio::test]
async fn daily_budgets_limit_each_account_and_all_accounts_together() {
    let disk = Disk::new();
    let [key, with_header, other] =
        ["key", "key and header", "other"].map(|name| TestChain::new(&scope(name), name, 4));
    let member = TenantAccount {
        tenant: with_header.scope.tenant,
        account: key.scope.tenant,
    };
    {
        let store = disk.open().await;
        for chain in [&key, &with_header, &other] {
            chain.recorded(&store).await;
            let job = chain.job(PartKind::Chunk, 0, 2);
            store.enqueue(&chain.scope, &job, 0).await.expect("offered");
        }
        store.set_account(member).await.expect("stored");
        for chain in [&key, &with_header, &other] {
            let cost = cost(PartKind::Chunk, 40, 10);
            let paid = store
                .record_cost(&chain.scope, chain.tip(), cost, NOON)
                .await;
            paid.expect("paid");
        }
        store.close().await;
    }
    let store = disk.open().await;
    assert_eq!(store.tenant_accounts().await.expect("read"), [member]);
    let spent =
        async |chain: &TestChain| store.spent_tokens(&chain.scope, NOON).await.expect("asked");
    for (chain, account) in [(&key, 100), (&with_header, 100), (&other, 50)] {
        assert_eq!(spent(chain).await, Spent { account, all: 150 });
    }
    let claim = async |account, all, now| {
        let daily = DailyLimits { account, all };
        let filter = ClaimFilter { daily, ..ANYBODY };
        let job = store.claim(&filter, now, LEASE).await.expect("claimed");
        job.map(|job| job.scope)
    };
    assert_eq!(claim(None, Some(150), NOON).await, None, "all is spent");
    let found = claim(Some(100), Some(151), NOON).await;
    assert_eq!(found, Some(other.scope.clone()));
    assert_eq!(claim(Some(100), Some(151), NOON).await, None);
    assert!(claim(Some(100), Some(150), TOMORROW).await.is_some());
}

fn event(number: i64, kind: &str) -> Event {
    Event {
        kind: kind.to_owned(),
        at_ms: number,
        body: format!("{{\"n\":{number}}}"),
    }
}

/// The event as it is on the timeline of a conversation without a thread key.
fn noted(number: i64, kind: &str, lineage: i64) -> Event {
    Event {
        body: format!("{{\"n\":{number},\"threadId\":\"{lineage}\",\"recordId\":\"{lineage}\"}}"),
        ..event(number, kind)
    }
}

#[tokio::test]
async fn a_timeline_is_limited_per_event_kind_and_deleted_with_its_conversation() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "one", 4);
    let other = TestChain::new(&scope("alice"), "two", 4);
    let lineage = chain.recorded(&store).await;
    let spared = other.recorded(&store).await;
    let kept = i64::from(MAX_EVENTS_PER_KIND);
    let mut many = vec![event(0, "rare")];
    many.extend((1..=kept + 20).map(|number| event(number, "often")));
    for chain in [&chain, &other] {
        let noted = store.append_events(&chain.scope, chain.tip(), &many).await;
        noted.expect("noted");
    }
    let events = async |lineage| {
        let detail = store.thread(lineage).await.expect("read");
        detail.expect("a thread").events
    };
    let kept_events = events(lineage).await;
    assert_eq!(kept_events.len(), MAX_EVENTS_PER_KIND as usize + 1);
    let rare = noted(0, "rare", lineage);
    assert_eq!(
        kept_events[0], rare,
        "many events of one kind do not remove another kind"
    );
    assert_eq!(kept_events[1], noted(21, "often", lineage));
    assert_eq!(
        kept_events.last(),
        Some(&noted(kept + 20, "often", lineage))
    );

    forgotten(&store, lineage).await;
    let late = store.append_events(&chain.scope, chain.tip(), &many).await;
    assert_eq!(late.expect("asked"), [], "nothing to write on");
    assert_eq!(events(spared).await.len(), MAX_EVENTS_PER_KIND as usize + 1);
    assert!(store.thread(lineage).await.expect("read").is_none());
}
