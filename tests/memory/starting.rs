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
