//! What a request asks the store (INV-FREE): nothing where its conversation is known here, whichever way it
//! is sent.

use serde_json::Value;
use sqlx::ConnectOptions as _;

use crate::alignment::harness::{Client, conversation, roomy};
use crate::memory::rig::Rig;

async fn rename(rig: &Rig, from: &str, to: &str) {
    let file = rig.folder.path().join("diarist.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut database = options.connect().await.unwrap();
    let statement = format!("ALTER TABLE {from} RENAME TO {to}");
    sqlx::query(sqlx::AssertSqlSafe(statement))
        .execute(&mut database)
        .await
        .unwrap();
}

/// Whoever asks the store while a table is away is told so in the answer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_cached_aligned_request_makes_no_store_query() {
    let window = |sent: &[Value]| sent[sent.len().saturating_sub(25)..].to_vec();
    let clock = |sent: &[Value]| {
        let mut sent = sent.to_vec();
        let words = format!("It is {}. {}", sent.len(), sent[0]["content"]);
        sent[0]["content"] = words.into();
        sent
    };
    let all = conversation("it", 61);
    let shapes = [&window as &dyn Fn(&[Value]) -> Vec<Value>, &clock];
    for (at, shape) in shapes.into_iter().enumerate() {
        let mut rig = roomy().await;
        for turn in (1..=57).step_by(2) {
            Client::new(&mut rig)
                .send_with_answer(&shape(&all[..turn]), all.get(turn))
                .await;
        }
        rename(&rig, "snapshots", "away").await;
        let body = Client::new(&mut rig).body(&shape(&all[..59]));
        let answer = rig.send(&body).await;
        assert_eq!(answer.memory(), "active", "the shape at {at}");
        let unknown = Client::new(&mut rig).body(&conversation("unknown", 3));
        let answer = rig.send(&unknown).await;
        assert_eq!(answer.memory(), "watching", "nobody has recorded it");
        rig.restart().await;
        let answer = rig.send(&body).await;
        assert!(answer.memory().contains("rung="), "{}", answer.memory());
        rename(&rig, "away", "snapshots").await;
    }
}
