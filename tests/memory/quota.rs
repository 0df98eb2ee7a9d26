//! The quota of bytes of an account, with the real program: the longest silent conversations of the account that holds
//! too much go, its newest keep their memory, and nobody else loses anything.

use std::path::Path;
use std::time::Duration;

use diarist::store::{Admin as _, ForgetTarget, Forgetting as _, Quota as _, SqliteStore};
use serde_json::Value;

use crate::memory::process::{CONFIG, Program};
use crate::memory::rig::{Answer, PATIENCE};
use crate::memory::tools::{ACTIVE, SampleConversation};

const ADA: &str = "Bearer sk-ada";
const BOB: &str = "Bearer sk-bob";
/// A header that the provider ignores: another tenant of the same account.
const HEADER: (&str, &str) = ("x-any-auth", "1");

impl Program {
    /// Sends these turns, and waits for each; `recorded` counts the requests of this process.
    async fn play(
        &self,
        (credential, headers): (&str, &[(&str, &str)]),
        conversation: &SampleConversation,
        turns: std::ops::RangeInclusive<usize>,
        recorded: &mut usize,
    ) -> Answer {
        let mut last = None;
        for turn in turns {
            let answer = self
                .send_with(credential, headers, &conversation.body(turn))
                .await;
            assert_eq!(answer.status, 200);
            *recorded += 1;
            self.wait_recorded(*recorded).await;
            last = Some(answer);
        }
        last.unwrap()
    }

    /// The ids that `diarist threads` lists.
    fn listed(&self) -> Vec<i64> {
        let (listed, text) = self.operator(&["threads", "--json"]);
        assert!(listed, "{text}");
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut ids: Vec<i64> = lines
            .map(|line: Value| line["id"].as_i64().unwrap())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Starts it with this quota.
    async fn again_within(&mut self, quota: i64) {
        self.configure(&format!("[store]\nmax_account_bytes = {quota}\n{CONFIG}"));
        self.again().await;
    }

    async fn wait_deleted(&self, threads: f64) {
        let deleted = async {
            while self.metric("diarist_quota_deleted_total").await < threads {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let deleted = tokio::time::timeout(PATIENCE, deleted).await;
        assert!(deleted.is_ok(), "{:?} are left", self.listed());
    }

    /// The one line of the log that says what was deleted. It is written after the metric has counted.
    async fn warning(&self) -> String {
        let is_warning = |line: &&str| line.contains("store.max_account_bytes");
        let written = async {
            loop {
                let log = self.log();
                let warnings: Vec<&str> = log.lines().filter(is_warning).collect();
                assert!(warnings.len() <= 1, "{warnings:?}");
                if let [warning] = warnings[..] {
                    return warning.to_owned();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let warning = tokio::time::timeout(PATIENCE, written).await;
        warning.unwrap_or_else(|_| panic!("no line says what was deleted"))
    }

    fn last_body(&self) -> bytes::Bytes {
        let sent = self
            .provider
            .record_for(diarist_provider::CallerKind::Actor);
        sent.last().unwrap().body.clone()
    }
}

/// What each tenant of a database holds, after this conversation was deleted from it.
async fn held(file: &Path, without: Option<i64>) -> Vec<i64> {
    let url = format!("sqlite://{}", file.display());
    let store = SqliteStore::open(&url).await.unwrap();
    if let Some(lineage) = without {
        let target = ForgetTarget::Thread(lineage);
        store.forget_target(&target, 1).await.unwrap();
    }
    let held = store.bytes_of_tenants().await.unwrap();
    store.close().await;
    held.into_iter().map(|(_, bytes)| bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_account_above_its_quota_loses_its_longest_silent_conversations() {
    let mut program = Program::start().await;
    let counter = "\ndiarist_quota_deleted_total";
    let metrics = program.metrics().await;
    assert!(metrics.contains(&format!("{counter} 0\n")), "{metrics}");
    let conversations = ["bob", "silent", "beside", "newer", "newest"].map(SampleConversation::new);
    let [bob, silent, beside, newer, newest] = &conversations;
    let mut recorded = 0;
    for (who, conversation) in [
        ((BOB, &[][..]), bob),
        ((ADA, &[]), silent),
        ((ADA, &[HEADER]), beside),
        ((ADA, &[]), newer),
        ((ADA, &[]), newest),
    ] {
        let answer = program
            .play(who, conversation, 1..=ACTIVE, &mut recorded)
            .await;
        assert_eq!(answer.memory(), "active");
    }
    let sent = program.last_body();
    program.terminate().await;
    assert_eq!(program.listed(), [1, 2, 3, 4, 5]);
    let age = "UPDATE lineages SET last_ms = last_ms - (10 - id) * 24 * 3600 * 1000 WHERE id < 5";
    let mut database = program.database().await;
    sqlx::query(age).execute(&mut database).await.unwrap();
    drop(database);

    // Four conversations of one account: there is room for a bit more than two.
    let held = held(&program.path("diarist.db"), None).await;
    assert_eq!(held.len(), 3, "ada has two tenants");
    let one = held.iter().sum::<i64>() / 5;
    let quota = one * 5 / 2;
    program.again_within(quota).await;
    program.wait_deleted(2.0).await;
    assert_eq!(program.listed(), [1, 4, 5]);
    let warning = program.warning().await;
    assert!(
        warning.contains("2 conversations") && warning.contains("of 1 accounts"),
        "{warning}"
    );
    let receipts = program.number("SELECT count(*) FROM receipts");
    assert_eq!(receipts.await, 0);

    // What stays goes out as before, and what is gone begins anew.
    let mut recorded = 0;
    let answer = program.play((ADA, &[]), newest, ACTIVE..=ACTIVE, &mut recorded);
    assert_eq!(answer.await.memory(), "active");
    assert_eq!(program.last_body(), sent, "the same bytes");
    let next = ACTIVE + 1;
    for (credential, conversation) in [(BOB, bob), (ADA, newer)] {
        let answer = program.play((credential, &[]), conversation, next..=next, &mut recorded);
        assert_eq!(answer.await.memory(), "active", "{}", conversation.name);
    }
    for (headers, conversation) in [(&[][..], silent), (&[HEADER], beside)] {
        let answer = program.play((ADA, headers), conversation, next..=next + 1, &mut recorded);
        assert_eq!(answer.await.memory(), "watching", "{}", conversation.name);
    }
    assert_eq!(program.listed(), [1, 4, 5, 6, 7]);
}

/// A tenth is made free, but not at the cost of conversations in use. These go if there is no other way.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn conversations_in_use_are_deleted_only_if_the_quota_requires_it() {
    let mut program = Program::start().await;
    let mut recorded = 0;
    for conversation in ["silent", "used", "newest"].map(SampleConversation::new) {
        let turns = program.play((ADA, &[]), &conversation, 1..=ACTIVE, &mut recorded);
        assert_eq!(turns.await.memory(), "active");
    }
    program.terminate().await;
    let age = "UPDATE lineages SET last_ms = last_ms - 24 * 3600 * 1000 WHERE id = 1";
    let mut database = program.database().await;
    sqlx::query(age).execute(&mut database).await.unwrap();
    sqlx::Connection::close(database).await.unwrap();

    let copy = program.path("copy.db");
    std::fs::copy(program.path("diarist.db"), &copy).unwrap();
    let left: i64 = held(&copy, Some(1)).await.iter().sum();
    program.again_within(left * 100 / 95).await;
    program.wait_deleted(1.0).await;
    assert!(program.warning().await.contains("0 of them were in use"));
    assert_eq!(program.listed(), [2, 3]);

    program.terminate().await;
    let left: i64 = held(&program.path("diarist.db"), None).await.iter().sum();
    program.again_within(left - 1).await;
    program.wait_deleted(1.0).await;
    assert!(program.warning().await.contains("1 of them were in use"));
    assert_eq!(program.listed(), [3]);
}
