//! What an operator requests for one conversation uses that conversation's settings: its model's thresholds, its zone.

use diarist_provider::{CallerKind, Options};
use serde_json::Value;

use crate::memory::reflecting::threads;
use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;

/// Turns after which little enough is observed that much is left.
const TURNS: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn the_observe_command_uses_the_thresholds_of_the_model() {
    let overrides = "[{ model = \"small-*\", observation = { buffer_tokens = 500 } }]";
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "6000"),
        ("MEMORY__OVERRIDES", overrides),
    ];
    for (model, alone) in [("small-one", false), ("large", true)] {
        let rig = Rig::with(Options::default(), &settings).await;
        let conversation = SampleConversation {
            model,
            ..SampleConversation::new("ada")
        };
        rig.play_turns(&conversation, 1..=TURNS).await;
        rig.play_turns(&conversation, 4 * TURNS..=4 * TURNS).await;
        let (text, done) = threads(&rig, &["observe", "1"]);
        assert!(done, "{text}");
        rig.play_turns(&conversation, 4 * TURNS + 1..=4 * TURNS + 1)
            .await;
        let longest = "SELECT max(message_tokens) FROM parts";
        let longest = rig.number(longest).await;
        assert_eq!(longest > 2_000, alone, "{model}: {longest}");
        assert_eq!(rig.number("SELECT count(*) FROM parts").await > 2, !alone);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reflect_command_uses_the_time_zone_of_the_conversation() {
    let mut rig = Rig::with(
        Options::default(),
        &[("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000")],
    )
    .await;
    let zone = [("x-diarist-timezone", "Pacific/Auckland")];
    rig.play_turns_as(
        "Bearer sk-test",
        &zone,
        &SampleConversation::new("ada"),
        1..=9,
    )
    .await;
    rig.stop().await;
    let (text, done) = threads(&rig, &["reflect", "1"]);
    assert!(done && text.contains("is queued"), "{text}");
    let mut database = rig.database().await;
    let query = "SELECT payload FROM jobs WHERE kind = 'reflection'";
    let payload: String = sqlx::query_scalar(query)
        .fetch_one(&mut database)
        .await
        .unwrap();
    let payload: Value = serde_json::from_str(&payload).unwrap();
    assert_eq!(payload["zone"], "Pacific/Auckland");
}

/// The Observer is told what whoever asked wants looked at, in what is observed for that alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_observe_command_passes_its_focus_to_the_observer_once() {
    let settings = [("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000")];
    let rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=TURNS).await;
    let focus = "every price, and who named it";
    let (text, done) = threads(&rig, &["observe", "1", "--focus", focus]);
    assert!(done && text.contains("Your focus applies"), "{text}");
    // Asked once more without one, the focus stays.
    assert!(threads(&rig, &["observe", "1"]).1);
    let focus_by_call = |rig: &Rig| -> Vec<bool> {
        let calls = rig.provider.record_for(CallerKind::Observer);
        let bodies = calls
            .iter()
            .map(|call| String::from_utf8_lossy(&call.body).into_owned());
        bodies.map(|body| body.contains(focus)).collect()
    };
    assert_eq!(focus_by_call(&rig), [false; 0], "nothing is due by itself");
    rig.play_turns(&conversation, TURNS + 1..=TURNS + 1).await;
    assert_eq!(focus_by_call(&rig), [true]);
    let left = "SELECT count(*) FROM lineages WHERE observe_focus IS NOT NULL OR observe_asked > 0";
    assert_eq!(rig.number(left).await, 0);
    // The next wish is another one.
    assert!(threads(&rig, &["observe", "1"]).1);
    rig.play_turns(&conversation, TURNS + 2..=TURNS + 2).await;
    assert_eq!(focus_by_call(&rig), [true, false]);
}
