//! Options: their bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use diarist::config::{self, Config, Flags};
use diarist::llm::Models;
use diarist::memory::IdleTrigger;

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[1], buffer_tokens_can_be_a_fraction_of_the_threshold),
    (&[2], buffer_tokens_outside_the_threshold_are_refused),
    (&[3], buffer_activation_accepts_a_fraction_or_tokens),
    (&[4], block_after_accepts_a_multiple_or_tokens),
    (
        &[6],
        reflection_buffer_activation_accepts_only_fractions_up_to_one,
    ),
    (&[7], a_shared_budget_works_together_with_buffering),
    (&[9, 10], one_model_setting_serves_both_phases),
    (&[11], answers_have_no_token_limit_by_default),
    (&[14], idle_durations_and_automatic_cache_lifetimes_are_read),
    (
        &[16],
        early_activation_settings_do_not_apply_to_the_reflector,
    ),
    (
        &[17],
        the_narrowest_override_comes_first_and_unsafe_ones_are_refused,
    ),
    (&[57], idle_buffering_is_off),
];

pub fn load(set: &[(&str, &str)]) -> Result<Config, Vec<String>> {
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

pub fn file(text: &str) -> Result<Config, Vec<String>> {
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

pub fn plain() -> Config {
    load(&[]).unwrap()
}

pub fn valid(set: &[(&str, &str)]) -> Config {
    load(set).unwrap()
}

/// The keys that are refused, each with a remedy.
pub fn refused(set: &[(&str, &str)]) -> Vec<String> {
    load(set).err().unwrap_or_default()
}

const MESSAGES: &str = "MEMORY__OBSERVATION__MESSAGE_TOKENS";
pub const BUFFER: &str = "MEMORY__OBSERVATION__BUFFER_TOKENS";
const ACTIVATION: &str = "MEMORY__OBSERVATION__BUFFER_ACTIVATION";
const LIMIT: &str = "MEMORY__OBSERVATION__BLOCK_AFTER";

fn buffer_tokens_can_be_a_fraction_of_the_threshold() {
    let config = valid(&[(MESSAGES, "100000"), (BUFFER, "0.1")]);
    assert_eq!(config.memory.policy.buffer_tokens, 10_000);
}

fn buffer_tokens_outside_the_threshold_are_refused() {
    for buffer in ["0", "-1", "-0.5", "30000", "40000"] {
        let refused = refused(&[(BUFFER, buffer)]);
        assert_eq!(refused, ["memory.observation.buffer_tokens"], "{buffer}");
    }
    assert_eq!(
        valid(&[(BUFFER, "29999")]).memory.policy.buffer_tokens,
        29_999
    );
}

fn buffer_activation_accepts_a_fraction_or_tokens() {
    for kept in ["0", "1.5", "999", "30000"] {
        let refused = refused(&[(ACTIVATION, kept)]);
        assert_eq!(refused, ["memory.observation.buffer_activation"], "{kept}");
    }
    let floor = |kept| valid(&[(ACTIVATION, kept)]).memory.policy.retention_floor;
    assert_eq!((floor("1"), floor("1000")), (0, 1_000));
    // Exact: as a product of doubles it would be 5999.99...
    assert_eq!(floor("0.8"), 6_000);
}

fn block_after_accepts_a_multiple_or_tokens() {
    let limit = |messages, after| {
        valid(&[(MESSAGES, messages), (BUFFER, "10"), (LIMIT, after)])
            .memory
            .policy
            .block_after
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

fn reflection_buffer_activation_accepts_only_fractions_up_to_one() {
    for point in ["0", "-0.1", "1.1"] {
        let refused = refused(&[("MEMORY__REFLECTION__BUFFER_ACTIVATION", point)]);
        assert_eq!(refused, ["memory.reflection.buffer_activation"], "{point}");
    }
    let all = valid(&[("MEMORY__REFLECTION__BUFFER_ACTIVATION", "1")]);
    assert_eq!(all.memory.policy.reflect_from, 40_000);
}

fn a_shared_budget_works_together_with_buffering() {
    let config = valid(&[("MEMORY__SHARE_TOKEN_BUDGET", "true")]);
    let thresholds = &config.memory.policy;
    assert!(thresholds.share_token_budget && thresholds.buffer_tokens == 6_000);
    // 30,000 + 40,000: 70,000 beside nothing, 60,000 beside 10,000, 30,000 beside 40,000 and more.
    let policy = config.memory.policy;
    for (observed, raw) in [
        (0, 70_000),
        (10_000, 60_000),
        (40_000, 30_000),
        (50_000, 30_000),
    ] {
        assert_eq!(
            policy.with_observations(observed).message_tokens,
            raw,
            "{observed}"
        );
    }
}

fn one_model_setting_serves_both_phases() {
    let both = [
        ("MEMORY__MODEL", "one"),
        ("MEMORY__OBSERVATION__MODEL", "two"),
    ];
    assert_eq!(refused(&both), ["memory.observation.model"]);
    let model = |name: &str| Some(Models::One(name.to_owned()));
    for key in ["MEMORY__OBSERVATION__MODEL", "MEMORY__REFLECTION__MODEL"] {
        let memory = valid(&[(key, "one")]).memory;
        assert_eq!(memory.observation.model, model("one"), "{key}");
        assert_eq!(memory.reflection.model, model("one"), "{key}");
    }
}

fn answers_have_no_token_limit_by_default() {
    let memory = plain().memory;
    assert_eq!(memory.observation.max_output_tokens, None);
    assert_eq!(memory.reflection.max_output_tokens, None);
}

fn early_activation_settings_do_not_apply_to_the_reflector() {
    let idle = valid(&[
        ("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "5m"),
        ("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true"),
    ]);
    let thresholds = idle.memory.policy;
    let five = IdleTrigger::After(Duration::from_mins(5));
    assert_eq!(thresholds.early_activation.idle, five);
    assert_eq!(thresholds.early_reflection.idle, IdleTrigger::Never);
    assert!(!thresholds.early_reflection.model_change);
}

fn idle_durations_and_automatic_cache_lifetimes_are_read() {
    let idle = |text: &str| {
        let text = format!("[memory.observation]\nactivate_after_idle = {text}\n");
        file(&text).map(|config| config.memory.policy.early_activation.idle)
    };
    let after = |millis| Ok(IdleTrigger::After(Duration::from_millis(millis)));
    for (text, meant) in [
        ("\"5m\"", after(300_000)),
        ("\"1hr\"", after(3_600_000)),
        ("\"30 s\"", after(30_000)),
        ("\"1.5h\"", after(5_400_000)),
        ("\"250ms\"", after(250)),
        ("300000", after(300_000)),
        ("\"auto\"", Ok(IdleTrigger::Auto)),
        ("false", Ok(IdleTrigger::Never)),
    ] {
        assert_eq!(idle(text), meant, "{text}");
    }
    // Neither a unit of ours, nor one at all, nor a time that can pass.
    for wrong in [
        "\"5 parsecs\"",
        "\"-5m\"",
        "\"m\"",
        "5",
        "\"5\"",
        "true",
        "-300000",
    ] {
        assert_eq!(
            idle(wrong),
            Err(vec!["memory.observation.activate_after_idle".to_owned()]),
            "{wrong}"
        );
    }
    // What `auto` is, in minutes.
    for (host, model, retention, minutes) in [
        ("api.openai.com", "o3", Some("24h"), 60),
        ("api.openai.com", "o3", Some("in_memory"), 5),
        ("api.openai.com", "gpt-4.1-mini", None, 5),
        ("api.openai.com", "gpt-5", None, 5),
        ("api.openai.com", "gpt-5-mini", None, 5),
        ("api.openai.com", "gpt-5.1", None, 5),
        ("api.openai.com", "gpt-5.4-codex", None, 5),
        ("api.openai.com", "gpt-5.5", None, 60),
        ("api.openai.com", "o3", None, 60),
        (
            "generativelanguage.googleapis.com",
            "gemini-3-pro",
            None,
            24 * 60,
        ),
        ("api.deepseek.com", "deepseek-chat", None, 60),
        ("api.groq.com", "llama", None, 120),
        ("api.anthropic.com", "anything", None, 5),
        ("api.x.ai", "grok", None, 5),
        ("openrouter.ai", "openai/o3", None, 5),
        ("models.example.com", "anything", None, 5),
    ] {
        let lives = diarist::memory::policy::cache_lifetime(host, model, retention);
        assert_eq!(
            lives,
            Duration::from_mins(minutes),
            "{host} {model} {retention:?}"
        );
    }
}

/// Published, an override that is not above `bufferTokens`, or not above what is kept, is passed over.
fn the_narrowest_override_comes_first_and_unsafe_ones_are_refused() {
    let config = file(
        "[[memory.overrides]]\nupstream = \"*.openai.com\"\nobservation.message_tokens = 15000\n\
         [[memory.overrides]]\nmodel = \"gpt-5*\"\nobservation.message_tokens = 20000\n\
         [[memory.overrides]]\nmodel = \"gpt-5-mini\"\nobservation.message_tokens = 25000\n\
         reflection.observation_tokens = 30000\n",
    )
    .unwrap();
    let all = &config.overrides;
    let numbers: Vec<u32> = all
        .iter()
        .map(|one| one.settings.policy.message_tokens)
        .collect();
    assert_eq!(numbers, [25_000, 20_000, 15_000]);
    assert_eq!(all[0].settings.policy.observation_tokens, 30_000);
    assert_eq!(
        config.memory.policy.message_tokens, 30_000,
        "for all others"
    );
    for (unsafe_one, key) in [
        ("buffer_tokens = 6000", "buffer_tokens"),
        ("buffer_activation = 6000", "buffer_activation"),
    ] {
        let text = format!(
            "[memory.observation]\n{unsafe_one}\n\
             [[memory.overrides]]\nmodel = \"small\"\nobservation.message_tokens = 6000\n"
        );
        let wrong = file(&text).err().unwrap_or_default();
        assert!(
            wrong.len() == 1 && wrong[0].contains(key),
            "{unsafe_one}: {wrong:?}"
        );
    }
}

pub fn idle_buffering_is_off() {
    assert!(!plain().memory.policy.buffer_on_idle);
}
