//! Memory made otherwise for the conversations of one model, read from the provider's record.

use diarist_provider::{CallerKind, Options};
use serde_json::Value;

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// The bodies of the accepted calls of `part`.
fn accepted_bodies(rig: &Rig, part: CallerKind) -> Vec<Value> {
    let record = rig.provider.record_for(part);
    let bodies = record.iter().filter(|call| call.is_accepted());
    bodies.map(|call| call.json().unwrap()).collect()
}

/// An operator closes memory for some models, or opens it for some alone.
#[tokio::test(flavor = "multi_thread")]
async fn an_override_sets_read_only_for_its_models_alone() {
    for (all, of_small) in [("false", true), ("true", false)] {
        let overrides = format!("[{{ model = \"small-*\", read_only = {of_small} }}]");
        let rig = Rig::with(
            Options::default(),
            &[
                ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
                ("MEMORY__READ_ONLY", all),
                ("MEMORY__OVERRIDES", overrides.as_str()),
            ],
        )
        .await;
        for (model, name, closed) in [("small-one", "ada", of_small), ("large", "bob", !of_small)] {
            let before = rig.number("SELECT count(*) FROM requests").await;
            let conversation = SampleConversation {
                model,
                ..SampleConversation::new(name)
            };
            rig.play_turns(&conversation, 1..=ACTIVE).await;
            let written = rig.number("SELECT count(*) FROM requests").await - before;
            assert_eq!(written == 0, closed, "{model}: {written}");
            let sent = rig.last().json().unwrap()["messages"].to_string();
            assert_eq!(!sent.contains("<diarist-log"), closed, "{model}");
        }
    }
}

/// Whatever a phase is told, an override tells it otherwise for its models alone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_model_override_changes_instruction_settings_and_hints() {
    let overrides = "[{ model = \"small-*\", \
        observation = { instruction = \"Keep recipes.\", thread_title = true, \
        continuation_hints = false, model_settings = { top_p = 0.25 }, \
        provider_options = { seed = 11 } }, \
        reflection = { instruction = \"Keep tickets.\", continuation_hints = false, \
        model_settings = { seed = 7 } } }]";
    for (model, name, own) in [("small-one", "ada", true), ("large", "bob", false)] {
        let rig = Rig::with(
            Options::default(),
            &[
                ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
                ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
                ("MEMORY__OBSERVATION__INSTRUCTION", "Keep names."),
                ("MEMORY__OVERRIDES", overrides),
            ],
        )
        .await;
        let conversation = SampleConversation {
            model,
            ..SampleConversation::new(name)
        };
        rig.play_turns(&conversation, 1..=ACTIVE).await;
        let sent = rig.last().json().unwrap()["messages"].to_string();
        assert!(sent.contains("<diarist-log"), "{model}");
        assert_eq!(!sent.contains(r"<current-task>\nPrimary"), own, "{model}");
        rig.play_turns(&conversation, ACTIVE + 1..=24).await;
        let observed = accepted_bodies(&rig, CallerKind::Observer);
        assert!(!observed.is_empty());
        for body in observed {
            let system = body["messages"][0]["content"].as_str().unwrap();
            let words = if own { "Keep recipes." } else { "Keep names." };
            assert!(system.trim_end().ends_with(words), "{model}: {system}");
            assert_eq!(system.contains("<thread-title>"), own, "{model}");
            assert_eq!(!system.contains("<current-task>"), own, "{model}");
            assert_eq!(body["top_p"] == 0.25, own, "{model}");
            assert_eq!(body["seed"] == 11, own, "{model}");
        }
        let reflected = accepted_bodies(&rig, CallerKind::Reflector);
        assert!(!reflected.is_empty());
        for body in reflected {
            let system = body["messages"][0]["content"].as_str().unwrap();
            assert_eq!(system.trim_end().ends_with("Keep tickets."), own, "{model}");
            assert_eq!(body["seed"] == 7, own, "{model}");
        }
    }
}
