//! `memory.policy`, and the prices that decide where costs do.

use diarist::memory::{CostRules, IdleTrigger, Policy};

use super::{ConfigInput, assert_problems};

const COST_AWARE: &str = "[memory]\npolicy = \"cost_aware\"\n";
const OPENAI: &str = "[upstream]\nbase_url = \"https://api.openai.com/v1\"\n";

fn policy(text: &str, model: &str) -> Policy {
    ConfigInput::file(text).valid().memory.policy_for(model)
}

fn costs(text: &str, model: &str) -> Option<CostRules> {
    policy(text, model).costs
}

/// What the Observer costs by `text`: a prompt token and one of an answer.
fn observer(text: &str, model: &str) -> Option<(u32, u32)> {
    costs(text, model).map(|rules| (rules.observer_input, rules.observer_output))
}

/// Prices count in thousandths of what an uncached token of the conversation's model costs.
#[test]
fn costs_decide_by_default_where_the_prices_of_both_models_are_known() {
    for (memory_model, model, expected) in [
        // The conversation's own model writes memory.
        ("", "gpt-5", Some((1_000, 8_000))),
        ("", "openai/gpt-5-2026-08-07", Some((1_000, 8_000))),
        ("", "local-model", None),
        ("model = \"gpt-5-nano\"", "gpt-5", Some((40, 320))),
        // The dearest one that may be called.
        (
            "model = { \"20000\" = \"gpt-5-nano\", \"200000\" = \"gpt-5-mini\" }",
            "gpt-5",
            Some((200, 1_600)),
        ),
        (
            "observation.model = \"gpt-5-nano\"",
            "gpt-5",
            Some((40, 320)),
        ),
        ("model = \"local-model\"", "gpt-5", None),
        ("model = \"gpt-5-nano\"", "local-model", None),
        // An operator's price is one.
        ("cost.observer_input = 0.1", "local-model", Some((100, 500))),
        (
            "model = \"local-model\"\ncost.observer_input = 0\ncost.observer_output = 0",
            "gpt-5",
            Some((0, 0)),
        ),
        ("cost.observer_output = 3", "gpt-5", Some((1_000, 3_000))),
    ] {
        let text = format!("{OPENAI}[memory]\n{memory_model}\n");
        assert_eq!(observer(&text, model), expected, "{memory_model} {model}");
    }
}

#[test]
fn a_configured_price_is_used_unless_it_is_zero() {
    let table = |price: &str| format!("[audit]\nprices = [\"local-model={price}\"]\n");
    let rules = costs(&table("2,0.5,10,3"), "local-model").unwrap();
    assert_eq!(
        (rules.cache_read, rules.cache_write),
        (Some(250), Some(1_500))
    );
    assert_eq!(
        (rules.observer_input, rules.observer_output),
        (1_000, 5_000)
    );
    assert_eq!(costs(&table("0,0,0"), "local-model"), None);
    assert_eq!(costs(&table("2,0.5,10"), "other-model"), None);
}

/// Who changes a threshold means it.
#[test]
fn a_changed_threshold_disables_costs_unless_cost_aware_is_set() {
    for threshold in [
        "observation.message_tokens = 20000",
        "observation.block_after = 1.5",
        "share_token_budget = true\nobservation.buffer_tokens = 6000",
    ] {
        let text = format!("[memory]\n{threshold}\n");
        assert_eq!(costs(&text, "gpt-5"), None, "{threshold}");
        let text = format!("[memory]\npolicy = \"cost_aware\"\n{threshold}\n");
        assert!(costs(&text, "gpt-5").is_some(), "{threshold}");
    }
    let others =
        "[memory]\nobservation.buffer_tokens = 5000\nreflection.observation_tokens = 30000\n";
    assert!(costs(others, "gpt-5").is_some());
    // An override has its own.
    let text = "[[memory.overrides]]\nmodel = \"*-mini\"\nobservation.message_tokens = 9000\n";
    assert_eq!(costs(text, "gpt-5-mini"), None);
    assert!(costs(text, "gpt-5").is_some());
    let limit = "[memory]\nobservation.message_tokens = 200000\n";
    assert_eq!(costs(limit, "gpt-5"), None);
}

#[test]
fn the_published_policy_ignores_costs() {
    let text = "[memory]\npolicy = \"published\"\n[memory.cost]\nobserver_input = 0.1\nhistory_limit = 100\n";
    let policy = policy(text, "gpt-5");
    assert_eq!(policy.costs, None);
    assert_eq!(policy.early_activation.idle, IdleTrigger::Never);
}

#[test]
fn prices_in_memory_cost_override_known_prices() {
    let text = format!(
        "{COST_AWARE}[memory.cost]\ncache_read = 0.025\ncache_write = 2\nobserver_input = 0.1\n\
         observer_output = 0.4\nmax_loss = 0.25\nhistory_limit = 150000\n"
    );
    let costs = costs(&text, "gpt-5").unwrap();
    assert_eq!(
        (costs.cache_read, costs.cache_write),
        (Some(25), Some(2_000))
    );
    assert_eq!((costs.observer_input, costs.observer_output), (100, 400));
    assert_eq!((costs.max_loss, costs.history_limit), (250, 150_000));
}

/// Who asks for it gets it, also where a price must be assumed: that of the conversation's model, and of most caches.
#[test]
fn unknown_prices_are_assumed_if_cost_aware_is_set() {
    let rules = costs(COST_AWARE, "local-model").unwrap();
    assert_eq!(
        (rules.cache_read, rules.cache_write),
        (Some(100), Some(1_000))
    );
    assert_eq!(
        (rules.observer_input, rules.observer_output),
        (1_000, 5_000)
    );
    // What is published of the provider's cache is known without a price.
    let groq = format!("[upstream]\nbase_url = \"https://api.groq.com/openai/v1\"\n{COST_AWARE}");
    assert_eq!(costs(&groq, "llama").unwrap().cache_read, Some(500));
}

/// A cold cache is a chance that costs nothing, unless the operator has said something else.
#[test]
fn the_cost_aware_policy_activates_after_pauses_unless_turned_off() {
    let idle = |text: &str, model: &str| {
        let policy = policy(&format!("{COST_AWARE}{text}"), model);
        (policy.early_activation.idle, policy.early_reflection.idle)
    };
    assert_eq!(idle("", "m"), (IdleTrigger::Auto, IdleTrigger::Auto));
    let off = "[memory.observation]\nactivate_after_idle = false\n";
    assert_eq!(idle(off, "m"), (IdleTrigger::Never, IdleTrigger::Auto));
    // By default they count where costs decide.
    assert_eq!(policy("", "gpt-5").early_activation.idle, IdleTrigger::Auto);
    assert_eq!(
        policy("", "local-model").early_activation.idle,
        IdleTrigger::Never
    );
}

#[test]
fn an_override_keeps_the_cost_aware_policy() {
    let text = format!(
        "{COST_AWARE}[[memory.overrides]]\nmodel = \"*-mini\"\nobservation.message_tokens = 9000\n"
    );
    let mini = policy(&text, "gpt-5-mini");
    assert!(mini.costs.is_some());
    assert_eq!(mini.message_tokens, 9_000);
}

#[test]
fn every_wrong_cost_setting_is_reported() {
    let text = "[memory]\npolicy = \"cheap\"\n[memory.cost]\ncache_read = 1.5\ncache_write = -1\n\
                observer_input = 1001\nobserver_output = -0.1\nmax_loss = 11\nhistory_limit = 0\n";
    assert_problems(
        &ConfigInput::file(text),
        &[
            "memory.policy: \"cheap\" is not a known value",
            "memory.cost.cache_read: 1.5 is out of range",
            "memory.cost.cache_write: -1 is out of range",
            "memory.cost.observer_input: 1001 is out of range",
            "memory.cost.observer_output: -0.1 is out of range",
            "memory.cost.max_loss: 11 is out of range",
            "memory.cost.history_limit: the number of tokens must be greater than 0",
        ],
    );
    for policy in ["", COST_AWARE] {
        let low = format!("{policy}[memory.cost]\nhistory_limit = 29999\n");
        assert_problems(
            &ConfigInput::file(&low),
            &[
                "memory.cost.history_limit: 29999 tokens are less than memory.observation.message_tokens (30000)",
            ],
        );
    }
}
