//! When observations are used early, and budgets that are shared.

use std::time::Duration;

use diarist::jobs::Phase;
use diarist::llm::Models;
use diarist::memory::IdleTrigger;
use diarist::memory::observe::AttachmentFilter;

use crate::config::ConfigInput;

#[test]
fn early_activation_accepts_a_duration_auto_or_false() {
    let idle = |text: &str| {
        let text = format!("[memory.observation]\nactivate_after_idle = {text}");
        ConfigInput::file(&text)
            .valid()
            .memory
            .policy
            .early_activation
            .idle
    };
    let after = |millis| IdleTrigger::After(Duration::from_millis(millis));
    for (text, want) in [
        ("\"5m\"", after(300_000)),
        ("\"1hr\"", after(3_600_000)),
        ("\"30 s\"", after(30_000)),
        ("\"1.5h\"", after(5_400_000)),
        ("\"2.5 minutes\"", after(150_000)),
        ("\"250ms\"", after(250)),
        ("\"10 secs\"", after(10_000)),
        // Milliseconds, as published.
        ("300000", after(300_000)),
        ("\"300000\"", after(300_000)),
        ("1000", after(1_000)),
        ("\"auto\"", IdleTrigger::Auto),
        ("false", IdleTrigger::Never),
    ] {
        assert_eq!(idle(text), want, "{text}");
    }
    for wrong in [
        "\"5 parsecs\"",
        "\"-5m\"",
        "\"m\"",
        "\"5\"",
        "5",
        "999",
        "\"999\"",
        "-300000",
        "300000.5",
        "true",
        "\"2 days\"",
    ] {
        let text = format!("[memory.observation]\nactivate_after_idle = {wrong}");
        let error = ConfigInput::file(&text).problems().join("\n");
        assert!(error.contains("activate_after_idle"), "{wrong}: {error}");
        assert!(error.contains("auto"), "{wrong}: {error}");
    }
    // From the environment all is text.
    let never =
        ConfigInput::default().env("DIARIST__MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "false");
    assert_eq!(
        never.valid().memory.policy.early_activation.idle,
        IdleTrigger::Never
    );
    // What the Observer is told says nothing to the Reflector.
    let one = "[memory.observation]\nactivate_after_idle = \"5m\"\nactivate_on_model_change = true";
    let thresholds = ConfigInput::file(one).valid().memory.policy;
    assert_eq!(thresholds.early_reflection.idle, IdleTrigger::Never);
    assert!(thresholds.early_activation.model_change && !thresholds.early_reflection.model_change);
}

/// A shared budget and background observation go together here.
#[test]
fn a_shared_budget_is_refused_only_where_it_would_clear_nothing() {
    let shared = |rest: &str| {
        let text = format!("[memory]\nshare_token_budget = true\n[memory.observation]\n{rest}");
        ConfigInput::file(&text)
    };
    let thresholds = shared("").valid().memory.policy;
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
fn overrides_inherit_global_values_and_the_narrowest_comes_first() {
    let config = ConfigInput::file(
        "[memory.observation]\nmessage_tokens = 20000\n\
         [[memory.overrides]]\nupstream = \"*.openai.com\"\nobservation.message_tokens = 1000\n\
         [[memory.overrides]]\nmodel = \"*-mini\"\nshare_token_budget = true\nread_only = true\n\
         [[memory.overrides]]\nmodel = \"gpt-5-*\"\n\
         observation = { buffer_tokens = 5000, buffer_activation = 1, activate_after_idle = \"auto\" }\n\
         reflection = { model = \"large\", observation_tokens = 9000, block_after = 2 }\n\
         [[memory.overrides]]\nmodel = \"*\"\nupstream = \"*\"\nobservation.buffer_on_idle = true",
    )
    .valid();
    let overrides = &config.overrides;
    let whom: Vec<_> = overrides
        .iter()
        .map(|known| (known.model.as_deref(), known.upstream.as_deref()))
        .collect();
    assert_eq!(
        whom,
        [
            (Some("gpt-5-*"), None),
            (Some("*-mini"), None),
            (None, Some("*.openai.com")),
            // It names nobody, in two fields.
            (Some("*"), Some("*")),
        ]
    );
    let read_only = overrides.iter().map(|known| known.read_only);
    assert_eq!(read_only.collect::<Vec<_>>(), [false, true, false, false]);
    let numbers = overrides[0].settings.policy;
    assert_eq!(
        (numbers.message_tokens, numbers.buffer_tokens),
        (20_000, 5_000)
    );
    assert_eq!(
        (numbers.retention_floor, numbers.observation_limit),
        (0, 18_000)
    );
    assert_eq!(numbers.early_activation.idle, IdleTrigger::Auto);
    assert_eq!(numbers.early_reflection.idle, IdleTrigger::Never);
    let named = |phase: &Phase| phase.model.is_some();
    assert!(named(&overrides[0].settings.reflection));
    assert!(!named(&overrides[0].settings.observation));
    assert!(overrides[3].settings.policy.buffer_on_idle && !config.memory.policy.buffer_on_idle);
    assert_eq!(overrides[1].settings.policy.retention_floor, 12_000);
    // Fractions follow the override's own threshold.
    assert_eq!(overrides[2].settings.policy.buffer_tokens, 200);
}

/// Whatever a phase is told may be told otherwise; what is not said is what holds for all.
#[test]
fn overrides_replace_every_key_of_a_phase_and_inherit_the_others() {
    let config = ConfigInput::file(
        "[memory]\nmodel = \"all\"\n\
         [memory.observation]\ntemperature = 0.7\nmax_output_tokens = 900\ninstruction = \"Brief.\"\n\
         model_settings = { top_p = 0.5 }\nprevious_observer_tokens = 10\n\
         [memory.reflection]\nmodel_settings = { temperature = 0.9, seed = 7 }\n\
         [[memory.overrides]]\nmodel = \"a\"\n\
         observation = { model = \"own\", instruction = \"Long.\", timeout = \"7s\", \
         model_settings = { temperature = 1.5, max_output_tokens = 80 }, provider_options = { x = 1 }, \
         continuation_hints = false, observe_attachments = [\"image/*\"], omit_blocks = [\"env\"], thread_title = true, \
         observe_system = true, max_input_tokens = 2000, previous_observer_tokens = false }\n\
         reflection = { temperature = 0.1, instruction = \"All of it.\", max_loss = 0.5, \
         continuation_hints = \"current_task\" }\n\
         [[memory.overrides]]\nmodel = \"b\"\nobservation.temperature = 0.2",
    )
    .valid();
    let [a, b] = &config.overrides[..] else {
        panic!("two");
    };
    let call_parameters = |phase: &Phase| {
        let model = match &phase.model {
            Some(Models::One(name)) => name.clone(),
            other => panic!("{other:?}"),
        };
        let temperature = phase.temperature.unwrap();
        (model, temperature, phase.max_output_tokens)
    };
    // What an override says goes before what it inherits under another name.
    let (call, observer) = (&a.settings.observation, &a.settings.observer);
    assert_eq!(call_parameters(call), ("own".into(), 1.5, Some(80)));
    assert!(call.parameters.is_empty());
    assert_eq!(call.options["x"], 1);
    assert_eq!(call.deadline, Duration::from_secs(7));
    assert_eq!(call.instruction.as_deref(), Some("Long."));
    assert!(!observer.hints.current_task && observer.title);
    assert!(observer.application && observer.max_input_tokens == 2_000);
    assert_eq!(observer.previous_tokens, None);
    let images = AttachmentFilter::Only(vec!["image/*".to_owned()]);
    assert_eq!(observer.attachments, images);
    assert_eq!(observer.omit_blocks, ["env"]);
    let reflector = &a.settings.reflection;
    assert_eq!(call_parameters(reflector), ("all".into(), 0.1, None));
    assert_eq!(reflector.parameters["seed"], 7);
    assert_eq!(reflector.instruction.as_deref(), Some("All of it."));
    assert!((a.settings.max_loss - 0.5).abs() < f64::EPSILON);
    // Hints are sent if either phase writes them.
    assert!(a.settings.hints.current_task && !a.settings.hints.suggested_response);
    let (call, observer) = (&b.settings.observation, &b.settings.observer);
    assert_eq!(call_parameters(call), ("all".into(), 0.2, Some(900)));
    assert_eq!(call.instruction.as_deref(), Some("Brief."));
    assert_eq!(observer.previous_tokens, Some(10));
    assert_eq!(observer.omit_blocks, ["reminderInstructions"]);
    assert_eq!(
        call_parameters(&b.settings.reflection),
        ("all".into(), 0.9, None)
    );
}

#[test]
fn every_problem_of_the_overrides_is_reported_at_once() {
    let problems = ConfigInput::file(
        "[memory.observation]\nbuffer_tokens = 6000\n\
         [[memory.overrides]]\nmodel = \"a\"\nobservation.message_tokens = 5000\n\
         [[memory.overrides]]\nobservation.message_tokens = \"many\"\nobservaton.model = \"x\"\n\
         [[memory.overrides]]\nmodel = 7\nreflection.buffer_activation = true\n\
         [[memory.overrides]]\nmodel = \"b\"\nreflection = { block_after = 0.5 }\n\
         [[memory.overrides]]\nmodel = \"c\"\n[[memory.overrides]]\nmodel = \"C\"\n\
         [[memory.overrides]]\nmodel = \"d\"\nobservation.base_url = \"http://x\"\n\
         [[memory.overrides]]\nmodel = \"e\"\nobservation.temperature = 3\n\
         observation.model_settings = { top_q = 1 }\nreflection.instruction = \" \"",
    )
    .problems();
    let all = problems.join("\n");
    for wanted in [
        "memory.overrides[1], with memory.observation.buffer_tokens: 6000 makes 6000 tokens, but it must be above 0 and below message_tokens (5000)",
        "memory.overrides[2].observation.message_tokens: found \"many\"",
        "memory.overrides[2].observaton: there is no such key",
        "memory.overrides[2]: it has neither model nor upstream",
        "memory.overrides[3].model: this is not a pattern",
        "memory.overrides[3].reflection.buffer_activation: found true",
        "memory.overrides[4].reflection.block_after: 0.5 is below 1",
        "memory.overrides[6]: it has the same model and upstream as number",
        "memory.overrides[7].observation.base_url: there is no such key",
        "memory.overrides[8].observation.temperature: 3 is out of range",
        "memory.overrides[8].observation.model_settings: \"top_q\" is not a common setting",
        "memory.overrides[8].reflection.instruction: the text is empty",
    ] {
        assert!(all.contains(wanted), "{wanted} is not in\n{all}");
    }
    assert_eq!(problems.len(), 12, "{all}");
}
