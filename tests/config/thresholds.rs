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
