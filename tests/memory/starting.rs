//! A process that starts with other settings on the same database.

use std::time::Duration;

use crate::memory::process::{CONFIG, Program};
use crate::memory::tools::{SampleConversation, eventually, eventually_async};

/// A process that only reads measures its database, and deletes nothing, until it may write.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_read_only_process_measures_its_database_and_deletes_nothing() {
    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=2 {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
        program.wait_recorded(turn).await;
    }
    let listed = |program: &Program| {
        let (succeeded, output) = program.operator(&["threads", "--json"]);
        assert!(succeeded, "{output}");
        output.lines().count()
    };
    for (read_only, left) in [(true, 1), (false, 0)] {
        program.terminate().await;
        // Older than `retention`.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        program.configure(&format!(
            "[memory]\nread_only = {read_only}\n{CONFIG}[store]\nretention = \"1s\"\n"
        ));
        program.again().await;
        let size = "diarist_database_bytes{file=\"database\"}";
        let measured = async || program.metric(size).await >= 1.0;
        eventually_async("the size of the database", measured).await;
        if read_only {
            // A process that deletes does so right before or right after its first measurement. No signal says that one
            // does not.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        eventually("the housekeeping", || listed(&program) == left).await;
    }
}

/// By the clock of this machine, everything is too old. The clock may be wrong.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_first_round_after_a_start_does_not_delete_everything() {
    let mut program = Program::start().await;
    let conversations = ["ada", "bob"].map(SampleConversation::new);
    let mut recorded = 0;
    for conversation in &conversations {
        for turn in 1..=2 {
            recorded += 1;
            assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
            program.wait_recorded(recorded).await;
        }
    }
    let count = "SELECT count(*) FROM lineages";
    // One of them is old; then both are.
    for (older, left) in [(1, 1), (2, 1)] {
        program.terminate().await;
        let age = "UPDATE lineages SET last_ms = last_ms - 1000 * 86400 * 400 WHERE id <= ";
        let age = format!("{age}{older} AND last_ms > 1000 * (unixepoch() - 86400)");
        let mut database = program.database().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(age))
            .execute(&mut database)
            .await
            .unwrap();
        drop(database);
        program.configure(&format!("{CONFIG}[store]\nretention = \"90d\"\n"));
        program.again().await;
        let size = "diarist_database_bytes{file=\"database\"}";
        let measured = async || program.metric(size).await >= 1.0;
        eventually_async("the size of the database", measured).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(program.number(count).await, left, "{older} old");
    }
    assert!(program.log().contains("nobody has used Diarist"));
}
