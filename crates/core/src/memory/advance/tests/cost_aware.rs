//! What weighing costs changes, and what it may not change. What it saves is in `crates/core/tests/policy_costs.rs`.

use super::*;
use crate::memory::{CostRules, EarlyTriggers, IdleTrigger};

const FREE: CostRules = CostRules {
    cache_read: Some(100),
    cache_write: Some(1_000),
    observer_input: 0,
    observer_output: 0,
    // Any loss is allowed, so that only prices decide.
    max_loss: 10_000,
    history_limit: 100_000,
};

const DEAR: CostRules = CostRules {
    observer_input: 1_000_000,
    observer_output: 1_000_000,
    max_loss: 100,
    ..FREE
};

fn weighing(costs: CostRules) -> Policy {
    Policy {
        costs: Some(costs),
        ..POLICY
    }
}

/// A chat of `turns` turns of 2,000 tokens; each second message came with its own request.
fn chat(turns: usize) -> Chain {
    let mut chain = Chain::chat(&vec![1_000; 2 * turns + 1]);
    for (index, node) in chain.nodes.iter_mut().enumerate() {
        node.first_length = index + 1 + index % 2;
    }
    chain
}

fn advance_by(chain: &Chain, policy: &Policy) -> Vec<Action> {
    super::super::advance(&chain.path(), policy)
}

fn plan_by(chain: &Chain, policy: &Policy) -> Option<SnapshotPlan> {
    let steps = advance_by(chain, policy);
    steps.into_iter().find_map(|step| match step {
        Action::Snapshot(plan) => Some(plan),
        _ => None,
    })
}

fn observe(chain: &mut Chain, policy: &Policy) {
    for (from, to) in observed(&advance_by(chain, policy)) {
        chain.part(PartKind::Chunk, from, to, 300);
    }
}

#[test]
fn costs_decide_whether_a_range_is_observed_but_not_where_it_ends() {
    for turns in 4..30 {
        let chain = chat(turns);
        let published = observed(&advance_by(&chain, &POLICY));
        assert!(!published.is_empty());
        assert_eq!(observed(&advance_by(&chain, &weighing(FREE))), published);
        assert_eq!(observed(&advance_by(&chain, &weighing(DEAR))), []);
    }
}

#[test]
fn at_the_limit_the_published_thresholds_hold() {
    let limit = |history_limit| {
        weighing(CostRules {
            history_limit,
            ..DEAR
        })
    };
    // 41 messages of 1,000 tokens.
    let mut chain = chat(20);
    assert_eq!(observed(&advance_by(&chain, &limit(41_001))), []);
    let published = observed(&advance_by(&chain, &POLICY));
    assert_eq!(observed(&advance_by(&chain, &limit(41_000))), published);
    observe(&mut chain, &POLICY);
    assert_eq!(plan_by(&chain, &limit(41_000)), plan_by(&chain, &POLICY));
    assert!(plan_by(&chain, &POLICY).is_some());
}

/// One chunk of 6,000 tokens is read again for 570 tokens a request; to leave it out costs the tail and the chunk.
#[test]
fn an_activation_is_due_when_repeated_reads_have_cost_as_much() {
    let policy = weighing(FREE);
    let mut chain = chat(4);
    observe(&mut chain, &policy);
    assert!(chain.parts.len() == 1 && plan_by(&chain, &policy).is_none());
    let due = (5..15).find(|turns| {
        let mut chain = chat(*turns);
        observe(&mut chain, &policy);
        plan_by(&chain, &policy).is_some()
    });
    // 2,000 tokens a turn: far from 30,000 at turn 15.
    assert!(due.is_some_and(|turns| (6..12).contains(&turns)), "{due:?}");
}

#[test]
fn an_activation_on_a_cold_cache_does_not_wait_for_its_costs() {
    let idle = EarlyTriggers {
        idle: IdleTrigger::Auto,
        model_change: false,
    };
    let policy = Policy {
        early_activation: idle,
        ..weighing(FREE)
    };
    let mut chain = chat(5);
    observe(&mut chain, &policy);
    assert_eq!(plan_by(&chain, &policy), None);
    assert!(early(&chain.path(), &policy, SnapshotCause::Idle).is_some());
}

/// What was left raw then has not been read again since.
#[test]
fn the_costs_of_repeated_reads_are_counted_anew_after_an_activation() {
    let policy = weighing(FREE);
    let mut chain = chat(12);
    observe(&mut chain, &policy);
    let plan = plan_by(&chain, &policy).expect("due for long");
    let first = chain.parts[0].clone();
    assert!(chain.parts.len() > 2 && plan.to_count > first.span.to_count);
    let newest = chain.nodes.len();
    chain.snapshot(&SnapshotPlan {
        to: first.span.to,
        to_count: first.span.to_count,
        parts: vec![first.id],
        tokens: first.tokens,
        ..plan
    });
    chain.snapshots[0].eligible_from = newest;
    assert_eq!(plan_by(&chain, &policy), None);
    chain.snapshots[0].eligible_from = 1;
    assert!(plan_by(&chain, &policy).is_some());
}

#[test]
fn about_two_turns_stay_raw_within_the_configured_floor() {
    let kept = |turn_tokens: u32| {
        let mut chain = Chain::chat(&[turn_tokens / 2; 21]);
        for (index, node) in chain.nodes.iter_mut().enumerate() {
            node.first_length = index + 1 + index % 2;
        }
        let path = chain.path();
        let due = super::super::cost_aware::thresholds(&ChainView::new(&path), &weighing(FREE));
        due.retention_floor
    };
    assert_eq!(kept(200), 2_000);
    // Eleven requests, the first of them with half a turn.
    assert_eq!(kept(2_000), 3_818);
    assert_eq!(kept(9_000), POLICY.retention_floor);
}

#[test]
fn a_lowered_threshold_does_not_move_the_ends_of_ranges() {
    let due = Policy {
        message_tokens: 7_000,
        ..POLICY
    };
    assert_eq!(
        super::super::cost_aware::range_thresholds(&POLICY, &due),
        POLICY
    );
}
