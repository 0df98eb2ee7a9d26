//! Options: their bounds and their defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use diarist::config::{self, Config, Flags};

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[1], a_fraction_of_the_threshold),
    (&[2], buffers_that_are_none),
    (&[3], what_an_activation_clears_or_keeps),
    (&[4], the_limit_as_a_multiple_or_in_tokens),
    (&[6], where_reflection_begins),
    (&[7], a_shared_budget_beside_buffering),
    (&[9, 10], which_model),
    (&[11], no_bound_on_answers),
    (&[16], each_phase_says_its_own),
    (&[57], idle_buffering_is_off),
];

/// An option of the original, and what it is by default.
pub type Default = (&'static str, fn());

/// In the order of the table.
pub const DEFAULTS: &[Default] = &[
    ("enabled", || assert!(plain().memory.enabled)),
    ("model", || {
        assert!(plain().memory.observation.phase.model.is_none());
    }),
    ("scope", || assert!(plain().memory.others.is_none())),
    ("shareTokenBudget", || {
        assert!(!plain().memory.thresholds.share_token_budget);
    }),
    ("temporalMarkers", || {
        assert!(!plain().memory.temporal_markers);
    }),
    ("activateAfterIdle", || {
        let early = plain().memory.thresholds.early_activation;
        assert_eq!(early.idle, config::Idle::Never);
    }),
    ("activateOnProviderChange", || {
        assert!(!plain().memory.thresholds.early_activation.model_change);
    }),
    ("observation.messageTokens", || {
        assert_eq!(plain().memory.thresholds.message_tokens, 30_000);
    }),
    ("observation.bufferTokens", || {
        assert_eq!(plain().memory.thresholds.buffer_tokens, 6_000);
    }),
    ("observation.bufferActivation", || {
        assert_eq!(plain().memory.thresholds.retention_floor, 6_000);
    }),
    ("observation.blockAfter", || {
        assert_eq!(plain().memory.thresholds.message_limit, 36_000);
    }),
    ("observation.bufferOnIdle", || idle_buffering_is_off()),
    ("observation.previousObserverTokens", || {
        let shown = plain().memory.observation.previous_observer_tokens;
        assert_eq!(shown, Some(2_000));
    }),
    ("observation.instruction / reflection.instruction", || {
        let memory = plain().memory;
        assert_eq!(memory.observation.instruction, None);
        assert_eq!(memory.reflection.instruction, None);
    }),
    ("observation.threadTitle", || {
        assert!(!plain().memory.observation.thread_title);
    }),
    (
        "observation.continuationHints, reflection.continuationHints",
        || {
            let memory = plain().memory;
            for hints in [
                memory.observation.continuation_hints,
                memory.reflection.continuation_hints,
            ] {
                assert!(hints.current_task && hints.suggested_response);
            }
        },
    ),
    ("observation.observeAttachments", || {
        use diarist::memory::observe::Show;
        let shown = plain().memory.observation.observe_attachments;
        assert_eq!(shown, config::Attachments::Auto);
        for (media_type, seen) in [
            ("image/png", true),
            ("application/pdf", true),
            ("audio/wav", false),
        ] {
            assert_eq!(Show::Auto.shows(media_type), seen, "{media_type}");
        }
    }),
    ("observation.modelSettings", || {
        let phase = plain().memory.observation.phase;
        assert_eq!((phase.temperature, phase.max_output_tokens), (0.3, None));
    }),
    ("observation.providerOptions / reflection", || {
        let memory = plain().memory;
        assert!(memory.observation.phase.options.is_empty());
        assert!(memory.reflection.phase.options.is_empty());
    }),
    ("reflection.observationTokens", || {
        assert_eq!(plain().memory.thresholds.observation_tokens, 40_000);
    }),
    ("reflection.bufferActivation", || {
        assert_eq!(plain().memory.thresholds.reflect_from, 20_000);
    }),
    ("reflection.blockAfter", || {
        assert_eq!(plain().memory.thresholds.observation_limit, 48_000);
    }),
    ("reflection.modelSettings", || {
        let phase = plain().memory.reflection.phase;
        assert_eq!((phase.temperature, phase.max_output_tokens), (0.0, None));
    }),
    (
        "reflection.activateAfterIdle / activateOnProviderChange",
        || {
            let early = plain().memory.thresholds.early_reflection;
            assert_eq!(
                (early.idle, early.model_change),
                (config::Idle::Never, false)
            );
        },
    ),
    ("failurePolicy, maxRetries", || {
        // No such key: memory never fails a request.
        let unknown = file("[memory.observation]\nfailure_policy = \"abort\"\n");
        assert!(unknown.is_err());
    }),
    ("observation.observeOnContextOverflow", || {
        assert_eq!(plain().memory.overflow, config::Overflow::Pass);
        for (word, meant) in [
            ("observe", config::Overflow::Observe),
            ("trim", config::Overflow::Trim),
        ] {
            assert_eq!(valid(&[("MEMORY__OVERFLOW", word)]).memory.overflow, meant);
        }
    }),
    ("tiered model", || {
        let written =
            file("[memory]\nmodel = { \"200000\" = \"large\", \"20000\" = \"small\" }\n").unwrap();
        let tiers = vec![(20_000, "small".to_owned()), (200_000, "large".to_owned())];
        let models = Some(config::Models::Tiers(tiers));
        assert_eq!(written.memory.observation.phase.model, models);
    }),
    ("per-record overrides", || {
        assert!(plain().memory.overrides.is_empty());
    }),
];

fn load(set: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let mut env: BTreeMap<String, String> = set
        .iter()
        .map(|(key, value)| {
            (
                format!("{}{key}", config::ENVIRONMENT_PREFIX),
                (*value).to_owned(),
            )
        })
        .collect();
    env.insert("HOME".to_owned(), "/home/ada".to_owned());
    read(&env, None)
}

fn file(text: &str) -> Result<Config, Vec<String>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let env = BTreeMap::from([("HOME".to_owned(), "/home/ada".to_owned())]);
    read(&env, Some(file.path()))
}

fn read(
    env: &BTreeMap<String, String>,
    file: Option<&std::path::Path>,
) -> Result<Config, Vec<String>> {
    config::load(&Flags::default(), env, file).map_err(|error| {
        let problems = error.problems().iter();
        problems
            .map(|problem| {
                assert!(!problem.remedy.is_empty(), "{}", problem.key);
                problem.key.clone()
            })
            .collect()
    })
}

fn plain() -> Config {
    load(&[]).unwrap()
}

fn valid(set: &[(&str, &str)]) -> Config {
    load(set).unwrap()
}

/// The keys that are refused, each with a remedy.
fn refused(set: &[(&str, &str)]) -> Vec<String> {
    load(set).err().unwrap_or_default()
}

const MESSAGES: &str = "MEMORY__OBSERVATION__MESSAGE_TOKENS";
const BUFFER: &str = "MEMORY__OBSERVATION__BUFFER_TOKENS";
const ACTIVATION: &str = "MEMORY__OBSERVATION__BUFFER_ACTIVATION";
const LIMIT: &str = "MEMORY__OBSERVATION__BLOCK_AFTER";

fn a_fraction_of_the_threshold() {
    let config = valid(&[(MESSAGES, "100000"), (BUFFER, "0.1")]);
    assert_eq!(config.memory.thresholds.buffer_tokens, 10_000);
}

fn buffers_that_are_none() {
    for buffer in ["0", "-1", "-0.5", "30000", "40000"] {
        let refused = refused(&[(BUFFER, buffer)]);
        assert_eq!(refused, ["memory.observation.buffer_tokens"], "{buffer}");
    }
    assert_eq!(
        valid(&[(BUFFER, "29999")]).memory.thresholds.buffer_tokens,
        29_999
    );
}

fn what_an_activation_clears_or_keeps() {
    for kept in ["0", "1.5", "999", "30000"] {
        let refused = refused(&[(ACTIVATION, kept)]);
        assert_eq!(refused, ["memory.observation.buffer_activation"], "{kept}");
    }
    let floor = |kept| {
        valid(&[(ACTIVATION, kept)])
            .memory
            .thresholds
            .retention_floor
    };
    assert_eq!((floor("1"), floor("1000")), (0, 1_000));
    // Exact: as a product of doubles it would be 5999.99...
    assert_eq!(floor("0.8"), 6_000);
}

fn the_limit_as_a_multiple_or_in_tokens() {
    let limit = |messages, after| {
        valid(&[(MESSAGES, messages), (BUFFER, "10"), (LIMIT, after)])
            .memory
            .thresholds
            .message_limit
    };
    assert_eq!(limit("1000", "1"), 1_000);
    assert_eq!(limit("1000", "1.5"), 1_500);
    assert_eq!(limit("1000", "99"), 99_000);
    assert_eq!(limit("80", "100"), 100);
    assert_eq!(
        refused(&[(LIMIT, "29999")]),
        ["memory.observation.block_after"]
    );
    assert_eq!(
        refused(&[(LIMIT, "0.9")]),
        ["memory.observation.block_after"]
    );
}

fn where_reflection_begins() {
    for point in ["0", "-0.1", "1.1"] {
        let refused = refused(&[("MEMORY__REFLECTION__BUFFER_ACTIVATION", point)]);
        assert_eq!(refused, ["memory.reflection.buffer_activation"], "{point}");
    }
    let all = valid(&[("MEMORY__REFLECTION__BUFFER_ACTIVATION", "1")]);
    assert_eq!(all.memory.thresholds.reflect_from, 40_000);
}

fn a_shared_budget_beside_buffering() {
    let config = valid(&[("MEMORY__SHARE_TOKEN_BUDGET", "true")]);
    let thresholds = &config.memory.thresholds;
    assert!(thresholds.share_token_budget && thresholds.buffer_tokens == 6_000);
    // 30,000 + 40,000: 70,000 beside nothing, 60,000 beside 10,000, 30,000 beside 40,000 and more.
    let policy = diarist::app::memory_settings(&config).policy;
    for (observed, raw) in [
        (0, 70_000),
        (10_000, 60_000),
        (40_000, 30_000),
        (50_000, 30_000),
    ] {
        assert_eq!(policy.beside(observed).message_tokens, raw, "{observed}");
    }
}

fn which_model() {
    let both = [
        ("MEMORY__MODEL", "one"),
        ("MEMORY__OBSERVATION__MODEL", "two"),
    ];
    assert_eq!(refused(&both), ["memory.observation.model"]);
    let model = |name: &str| Some(config::Models::One(name.to_owned()));
    for key in ["MEMORY__OBSERVATION__MODEL", "MEMORY__REFLECTION__MODEL"] {
        let memory = valid(&[(key, "one")]).memory;
        assert_eq!(memory.observation.phase.model, model("one"), "{key}");
        assert_eq!(memory.reflection.phase.model, model("one"), "{key}");
    }
}

fn no_bound_on_answers() {
    let memory = plain().memory;
    assert_eq!(memory.observation.phase.max_output_tokens, None);
    assert_eq!(memory.reflection.phase.max_output_tokens, None);
}

fn each_phase_says_its_own() {
    let idle = valid(&[
        ("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "5m"),
        ("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true"),
    ]);
    let thresholds = idle.memory.thresholds;
    let five = config::Idle::After(Duration::from_mins(5));
    assert_eq!(thresholds.early_activation.idle, five);
    assert_eq!(thresholds.early_reflection.idle, config::Idle::Never);
    assert!(!thresholds.early_reflection.model_change);
}

fn idle_buffering_is_off() {
    assert!(!plain().memory.thresholds.buffer_on_idle);
}
