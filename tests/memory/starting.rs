//! A process that starts with other settings on the same database.

use std::time::Duration;

use crate::memory::process::{CONFIG, Program};
use crate::memory::tools::{SampleConversation, eventually};

/// A process that only reads measures its database, and deletes nothing, until it may write.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn what_is_only_read_is_measured_and_not_deleted() {
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
        while program.metric(size).await < 1.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        eventually("the housekeeping", || listed(&program) == left).await;
    }
}
