//! Audit lines in the store: their order, how they are found, how they expire; and the figures of token counts.

use diarist::history::Scope;
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    AuditLines as _, ForgetTarget, Forgetting as _, NewAuditLine, SqliteStore, StoredTokenRatio,
};

use crate::store::world::{TestChain, scope};

fn line(number: i64, owner: &str, thread: Option<&str>) -> NewAuditLine {
    NewAuditLine {
        time_ms: number,
        request_id: Some(format!("r{}", number % 10)),
        owner: Some(scope(owner)),
        thread: thread.map(str::to_owned),
        line: format!("{{\"number\":{number},\"text\":\"é \\\\n \\\"q\\\"\"}}"),
    }
}

async fn all(store: &SqliteStore, limit: u32) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), 0);
    while let Some(page) = store.audit_page(after, limit).await.expect("read") {
        found.extend(page.lines.split('\n').map(str::to_owned));
        after = page.last;
    }
    found
}

#[tokio::test]
async fn audit_lines_are_read_in_order_and_byte_for_byte() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    assert_eq!(store.audit_range().await.expect("read"), (0, 0));
    let lines: Vec<_> = (0..25).map(|number| line(number, "a", None)).collect();
    for batch in lines.chunks(10) {
        let appended = store.append_audit_lines(batch.to_vec()).await;
        appended.expect("appended");
    }
    let expected: Vec<_> = lines.into_iter().map(|line| line.line).collect();
    for limit in [1, 10, 100] {
        assert_eq!(all(&store, limit).await, expected, "{limit}");
    }
    assert_eq!(store.audit_range().await.expect("read"), (1, 25));
}

#[tokio::test]
async fn a_request_is_found_with_the_others_of_its_conversation() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let lines = vec![
        line(1, "a", Some("trip")),
        line(2, "b", Some("trip")),
        line(3, "a", Some("other")),
        line(11, "a", Some("trip")),
        NewAuditLine {
            owner: None,
            ..line(4, "a", Some("trip"))
        },
    ];
    store.append_audit_lines(lines).await.expect("appended");
    let found = store.audit_request("r1").await.expect("read");
    let found = found.expect("a line");
    assert!(found.line.contains("\"number\":11,"), "the last one");
    let page = store.audit_page_of(&found, 0, 10).await.expect("read");
    let page = page.expect("lines").lines;
    let numbers: Vec<_> = page.lines().map(|line| &line[..12]).collect();
    assert_eq!(numbers, ["{\"number\":1,", "{\"number\":11"]);
    assert_eq!(store.audit_request("r9").await.expect("read"), None);
}

#[tokio::test]
async fn old_audit_lines_expire_in_bounded_batches() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let lines = [5, 1, 9, 3].map(|number| line(number, "a", None));
    store
        .append_audit_lines(lines.to_vec())
        .await
        .expect("appended");
    let expire = async |limit| store.expire_audit_lines(9, limit).await.expect("expired");
    assert_eq!(expire(2).await, 2);
    let left = all(&store, 10).await;
    assert!(left[0].contains("\"number\":5,") && left[1].contains("\"number\":9,"));
    assert_eq!((expire(2).await, expire(2).await), (1, 0));
}

/// Offers lines of these owners, names and times. Returns the name and the time of those that are stored.
async fn kept_of(store: &SqliteStore, offered: &[(&Scope, &str, i64)]) -> Vec<String> {
    let before = all(store, 100).await.len();
    let lines = offered.iter().map(|(owner, thread, number)| NewAuditLine {
        owner: Some((*owner).clone()),
        line: format!("{thread} {number}"),
        ..line(*number, "", Some(thread))
    });
    let appended = store.append_audit_lines(lines.collect()).await;
    appended.expect("appended");
    all(store, 100).await.split_off(before)
}

#[tokio::test]
async fn late_audit_lines_of_a_forgotten_conversation_are_not_stored() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let chain = TestChain::new(&scope("alice"), "secret", 4);
    let mut record = chain.record(None, 0);
    record.thread_key = Some("trip".to_owned());
    let lineage = store.record(&chain.scope, &record).await.expect("recorded");
    let target = ForgetTarget::Thread(lineage);
    store.forget_target(&target, 50).await.expect("forgotten");
    let (alice, bob, label) = (scope("alice"), scope("bob"), chain.links[0].label());
    let offered = [
        (&alice, "trip", 49),
        (&alice, "trip", 50),
        (&alice, "trip", 51),
        (&alice, label.as_str(), 50),
        (&alice, "other", 50),
        (&bob, "trip", 50),
    ];
    let kept = kept_of(&store, &offered).await;
    assert_eq!(kept, ["trip 51", "other 50", "trip 50"]);
}

#[tokio::test]
async fn late_audit_lines_of_a_forgotten_owner_are_not_stored() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let user = |tenant: &str, name: &str| Scope {
        resource: Some(scope(name).tenant),
        ..scope(tenant)
    };
    let (ada, ben, bob) = (user("a", "ada"), user("a", "ben"), scope("bob"));
    let forget = async |owner: &Scope, at_ms| {
        let (tenant, resource) = (owner.tenant, owner.resource);
        let target = ForgetTarget::Owner { tenant, resource };
        store
            .forget_target(&target, at_ms)
            .await
            .expect("forgotten");
    };
    forget(&ada, 50).await;
    let offered = [(&ada, "t", 50), (&ada, "t", 51), (&ben, "t", 50)];
    assert_eq!(kept_of(&store, &offered).await, ["t 51", "t 50"]);
    forget(&scope("a"), 70).await;
    let offered = [
        (&ada, "t", 70),
        (&ben, "t", 70),
        (&ben, "t", 71),
        (&bob, "t", 70),
    ];
    assert_eq!(kept_of(&store, &offered).await, ["t 71", "t 70"]);
}

#[tokio::test]
async fn token_ratios_are_replaced_and_the_oldest_are_deleted() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let ratio = |model: &str, counted| StoredTokenRatio {
        model: model.to_owned(),
        counted,
        reported: counted + 1,
    };
    for (at_ms, ratios) in [
        (1, vec![ratio("a", 10), ratio("b", 20)]),
        (2, vec![ratio("a", 11)]),
        (3, vec![ratio("c", 30)]),
    ] {
        let put = store.put_token_ratios(ratios, at_ms, 2).await;
        put.expect("put");
    }
    let mut kept = store.token_ratios().await.expect("read");
    kept.sort_by(|one, other| one.model.cmp(&other.model));
    assert_eq!(kept, [ratio("a", 11), ratio("c", 30)]);
}
