//! A fault in the program: a panic in a task is survived and said, and no request suffers from it.

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// The recorder, the workers and the writer of events are started again, and memory goes on.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_task_that_panics_is_started_again() {
    for task in ["recorder", "workers", "events"] {
        let rig = Rig::small().await;
        assert_eq!(rig.part(task).await["status"], "up");
        rig.tasks().plant_fault(task);
        let conversation = SampleConversation::new("ada");
        for turn in 1..=4 {
            assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
        }
        let part = rig.wait_part(task, "degraded").await;
        let error = part["error"].as_str().unwrap();
        assert!(error.contains("started again"), "{error}");
        rig.play_turns(&conversation, 5..=ACTIVE + 2).await;
        let answer = rig.send(&conversation.body(ACTIVE + 3)).await;
        assert_eq!(answer.memory(), "active", "{task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_forwarded_unchanged_if_its_parsing_panics() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.tasks().plant_fault("request");
    let body = conversation.body(ACTIVE + 1);
    let answer = rig.send(&body).await;
    assert_eq!(
        (answer.status, answer.memory()),
        (200, "bypass; reason=fault")
    );
    assert_eq!(rig.last().body, body.to_string());
    assert_eq!(rig.audit_entry(&answer).await["reason"], "fault");
    let answer = rig.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_job_that_panics_is_tried_again_and_not_for_ever() {
    let mut rig = Rig::small().await;
    rig.tasks().plant_fault("job");
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=4).await;
    assert!(!rig.tasks().is_fault_planted("job"), "it has panicked");
    assert!(
        rig.number("SELECT count(*) FROM parts").await > 0,
        "and was done"
    );

    // As a database holds it whose process died with this job again and again.
    for turn in 5..=6 {
        rig.tasks().plant_fault("job");
        assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
    }
    let faulty = "SELECT count(*) FROM jobs WHERE unsettled > 0 AND leased = 0";
    rig.until_at_least(1, faulty).await;
    rig.stop().await;
    let mut database = rig.database().await;
    let died = "UPDATE jobs SET unsettled = 5 WHERE state = 'open'";
    sqlx::query(died).execute(&mut database).await.unwrap();
    drop(database);
    rig.start().await;
    assert_eq!(rig.send(&conversation.body(7)).await.status, 200);
    rig.quiet().await;
    let abandoned = "SELECT count(*) FROM jobs WHERE state = 'abandoned'";
    assert!(rig.number(abandoned).await > 0);
    assert_eq!(
        rig.number("SELECT count(*) FROM jobs WHERE unsettled > 6")
            .await,
        0
    );
}
