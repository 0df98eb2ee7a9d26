//! When a conversation is first sent with observations, and how often it is observed, as two options say.

use diarist_provider::{CallerKind, Options};

use crate::memory::rig::Rig;
use crate::memory::tools::SampleConversation;

const TURNS: usize = 30;

async fn rig(option: (&str, &str)) -> Rig {
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__OBSERVATION__BUFFER_TOKENS", "700"),
        ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "1500"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1500"),
        option,
    ];
    Rig::with(Options::default(), &settings).await
}

/// The first turn whose request goes out with observations, and what the largest one without them came to.
async fn first(rig: &Rig) -> (usize, u64) {
    let conversation = SampleConversation::new("ada");
    let mut largest = 0;
    for turn in 1..=TURNS {
        let answer = rig.play_turns(&conversation, turn..=turn).await;
        if answer.memory() == "active" {
            return (turn, largest);
        }
        largest = u64::from(rig.last().prompt_usage.unwrap().prompt_tokens);
    }
    panic!("never");
}

/// While there are no observations, raw messages may use their budget as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_budget_lets_raw_messages_use_the_free_observation_tokens() {
    let option = "MEMORY__SHARE_TOKEN_BUDGET";
    let (apart, smaller) = first(&rig((option, "false")).await).await;
    let (shared, larger) = first(&rig((option, "true")).await).await;
    assert!(
        shared > apart,
        "turn {shared}, {apart} where it is not shared"
    );
    // By how much: the budget of the observations, but for what a turn weighs.
    assert!((2_000..3_000).contains(&smaller), "{smaller}");
    assert!((3_000..4_500).contains(&larger), "{larger}");
}

/// Each turn is observed once it has ended, which the next request says; without, a range of them at once.
#[tokio::test(flavor = "multi_thread")]
async fn with_buffer_on_idle_each_turn_is_observed() {
    let option = "MEMORY__OBSERVATION__BUFFER_ON_IDLE";
    for (wanted, calls) in [("true", 5..=6), ("false", 1..=2)] {
        let rig = rig((option, wanted)).await;
        let conversation = SampleConversation::new("ada");
        rig.play_turns(&conversation, 1..=7).await;
        let made = rig.provider.record_for(CallerKind::Observer).len();
        assert!(calls.contains(&made), "{wanted}: {made} calls");
    }
}
