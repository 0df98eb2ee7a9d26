//! The policy that weighs costs, and its prices.

use diarist::memory::IdleTrigger;

use super::{ConfigInput, assert_problems};

const COST_AWARE: &str = "[memory]\npolicy = \"cost_aware\"\n";

#[test]
fn nothing_weighs_costs_unless_it_is_asked_for() {
    let prices = "[memory.cost]\nobserver_input = 0.1\nhistory_limit = 100\n";
    for text in ["", "[memory]\npolicy = \"published\"", prices] {
        let policy = ConfigInput::file(text).valid().memory.policy;
        assert_eq!(policy.costs, None, "{text}");
        assert_eq!(policy.early_activation.idle, IdleTrigger::Never);
    }
}

#[test]
fn prices_are_thousandths_of_an_uncached_token() {
    let text = format!(
        "{COST_AWARE}[memory.cost]\ncache_read = 0.025\ncache_write = 2\nobserver_input = 0.1\n\
         observer_output = 0.4\nmax_loss = 0.25\nhistory_limit = 150000\n"
    );
    let costs = ConfigInput::file(&text)
        .valid()
        .memory
        .policy
        .costs
        .unwrap();
    assert_eq!(
        (costs.cache_read, costs.cache_write),
        (Some(25), Some(2_000))
    );
    assert_eq!((costs.observer_input, costs.observer_output), (100, 400));
    assert_eq!((costs.max_loss, costs.history_limit), (250, 150_000));
    let unset = ConfigInput::file(COST_AWARE).valid().memory.policy.costs;
    let unset = unset.unwrap();
    assert_eq!((unset.cache_read, unset.cache_write), (None, None));
    // As dear as the conversation's own model.
    assert_eq!(
        (unset.observer_input, unset.observer_output),
        (1_000, 5_000)
    );
}

/// A cold cache is a chance that costs nothing, unless the operator has said something else.
#[test]
fn pauses_count_unless_they_are_turned_off() {
    let idle = |text: &str| {
        let policy = ConfigInput::file(&format!("{COST_AWARE}{text}"))
            .valid()
            .memory
            .policy;
        (policy.early_activation.idle, policy.early_reflection.idle)
    };
    assert_eq!(idle(""), (IdleTrigger::Auto, IdleTrigger::Auto));
    let off = "[memory.observation]\nactivate_after_idle = false\n";
    assert_eq!(idle(off), (IdleTrigger::Never, IdleTrigger::Auto));
}

#[test]
fn an_override_weighs_costs_too() {
    let text = format!(
        "{COST_AWARE}[[memory.overrides]]\nmodel = \"*-mini\"\nobservation.message_tokens = 9000\n"
    );
    let config = ConfigInput::file(&text).valid();
    let costs = config.memory.policy.costs;
    assert!(costs.is_some());
    assert_eq!(config.overrides[0].settings.policy.costs, costs);
}

#[test]
fn every_wrong_price_is_named() {
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
    let low = format!("{COST_AWARE}[memory.cost]\nhistory_limit = 29999\n");
    assert_problems(
        &ConfigInput::file(&low),
        &[
            "memory.cost.history_limit: 29999 tokens are less than memory.observation.message_tokens (30000)",
        ],
    );
}
