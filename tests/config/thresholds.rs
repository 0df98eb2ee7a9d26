//! When observations are used early, and budgets that are shared.

use std::time::Duration;

use diarist::config::Idle;

use crate::Given;

#[test]
fn early_activation_takes_a_duration_auto_or_nothing() {
    let idle = |text: &str| {
        let text = format!("[memory.observation]\nactivate_after_idle = {text}");
        Given::file(&text)
            .valid()
            .memory
            .thresholds
            .early_activation
            .idle
    };
    let after = |millis| Idle::After(Duration::from_millis(millis));
    for (text, want) in [
        ("\"5m\"", after(300_000)),
        ("\"1hr\"", after(3_600_000)),
        ("\"30 s\"", after(30_000)),
        ("\"1.5h\"", after(5_400_000)),
        ("\"2.5 minutes\"", after(150_000)),
        ("\"250ms\"", after(250)),
        ("\"10 secs\"", after(10_000)),
        ("\"auto\"", Idle::Auto),
        ("false", Idle::Never),
    ] {
        assert_eq!(idle(text), want, "{text}");
    }
    for wrong in [
        "\"5 parsecs\"",
        "\"-5m\"",
        "\"m\"",
        "\"5\"",
        "5",
        "true",
        "\"2 days\"",
    ] {
        let text = format!("[memory.observation]\nactivate_after_idle = {wrong}");
        let error = Given::file(&text).problems().join("\n");
        assert!(error.contains("activate_after_idle"), "{wrong}: {error}");
        assert!(error.contains("auto"), "{wrong}: {error}");
    }
    // From the environment all is text.
    let never = Given::default().env("DIARIST__MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "false");
    assert_eq!(
        never.valid().memory.thresholds.early_activation.idle,
        Idle::Never
    );
    // What the Observer is told says nothing to the Reflector.
    let one = "[memory.observation]\nactivate_after_idle = \"5m\"\nactivate_on_model_change = true";
    let thresholds = Given::file(one).valid().memory.thresholds;
    assert_eq!(thresholds.early_reflection.idle, Idle::Never);
    assert!(thresholds.early_activation.model_change && !thresholds.early_reflection.model_change);
}

/// A shared budget and background observation go together here.
#[test]
fn a_shared_budget_is_refused_only_where_it_would_clear_nothing() {
    let shared = |rest: &str| {
        let text = format!("[memory]\nshare_token_budget = true\n[memory.observation]\n{rest}");
        Given::file(&text)
    };
    let thresholds = shared("").valid().memory.thresholds;
    assert!(thresholds.share_token_budget);
    assert_eq!(
        (thresholds.buffer_tokens, thresholds.retention_floor),
        (6_000, 14_000)
    );
    let problems = shared("buffer_activation = 0.5").problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("keeps 35000") && problems[0].contains("larger fraction"));
}

/// Every override is judged as it changes what holds for all; the narrowest comes first.
#[test]
fn overrides_are_judged_whole_and_the_narrowest_counts() {
    let config = Given::file(
        "[memory.observation]\nmessage_tokens = 20000\n\
         [[memory.overrides]]\nupstream = \"*.openai.com\"\nobservation.message_tokens = 1000\n\
         [[memory.overrides]]\nmodel = \"*-mini\"\nshare_token_budget = true\n\
         [[memory.overrides]]\nmodel = \"gpt-5-*\"\n\
         observation = { buffer_tokens = 5000, buffer_activation = 1, activate_after_idle = \"auto\" }\n\
         reflection = { model = \"large\", observation_tokens = 9000, block_after = 2 }\n\
         [[memory.overrides]]\nmodel = \"*\"\nupstream = \"*\"\nobservation.buffer_on_idle = true",
    )
    .valid();
    let memory = config.memory;
    let whom: Vec<_> = memory
        .overrides
        .iter()
        .map(|known| (known.model.as_deref(), known.upstream.as_deref()))
        .collect();
    assert_eq!(
        whom,
        [
            (Some("*"), Some("*")),
            (Some("gpt-5-*"), None),
            (Some("*-mini"), None),
            (None, Some("*.openai.com")),
        ]
    );
    let numbers = memory.overrides[1].thresholds;
    assert_eq!(
        (numbers.message_tokens, numbers.buffer_tokens),
        (20_000, 5_000)
    );
    assert_eq!(
        (numbers.retention_floor, numbers.observation_limit),
        (0, 18_000)
    );
    assert_eq!(numbers.early_activation.idle, Idle::Auto);
    assert_eq!(numbers.early_reflection.idle, Idle::Never);
    assert!(memory.overrides[1].reflector.is_some() && memory.overrides[1].observer.is_none());
    assert!(memory.overrides[0].thresholds.buffer_on_idle && !memory.thresholds.buffer_on_idle);
    assert_eq!(memory.overrides[2].thresholds.retention_floor, 12_000);
    // Fractions follow the override's own threshold.
    assert_eq!(memory.overrides[3].thresholds.buffer_tokens, 200);
}

#[test]
fn everything_wrong_with_overrides_is_said_at_once() {
    let problems = Given::file(
        "[memory.observation]\nbuffer_tokens = 6000\n\
         [[memory.overrides]]\nmodel = \"a\"\nobservation.message_tokens = 5000\n\
         [[memory.overrides]]\nobservation.message_tokens = \"many\"\nobservaton.model = \"x\"\n\
         [[memory.overrides]]\nmodel = 7\nreflection.buffer_activation = true\n\
         [[memory.overrides]]\nmodel = \"b\"\nreflection = { block_after = 0.5 }\n\
         [[memory.overrides]]\nmodel = \"c\"\n[[memory.overrides]]\nmodel = \"C\"",
    )
    .problems();
    let all = problems.join("\n");
    for wanted in [
        "memory.overrides[1], with memory.observation.buffer_tokens: 6000 makes 6000 tokens, of 5000",
        "memory.overrides[2].observation.message_tokens: found \"many\"",
        "memory.overrides[2].observaton: there is no such key",
        "memory.overrides[2]: it names neither a model nor an upstream",
        "memory.overrides[3].model: this is no pattern",
        "memory.overrides[3].reflection.buffer_activation: found true",
        "memory.overrides[4].reflection.block_after: 0.5 lies below",
        "memory.overrides[6]: it is for the same as number",
    ] {
        assert!(all.contains(wanted), "{wanted} is not in\n{all}");
    }
    assert_eq!(problems.len(), 8, "{all}");
}
