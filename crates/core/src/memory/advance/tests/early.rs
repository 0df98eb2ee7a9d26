//! A table of conditions for activations before the threshold.

use std::time::Duration;

use super::*;
use crate::memory::{EarlyTriggers, IdleTrigger};

const IDLE: EarlyTriggers = EarlyTriggers {
    idle: IdleTrigger::Auto,
    model_change: false,
};
const AFTER: EarlyTriggers = EarlyTriggers {
    idle: IdleTrigger::After(Duration::from_mins(5)),
    model_change: false,
};
const CHANGE: EarlyTriggers = EarlyTriggers {
    idle: IdleTrigger::Never,
    model_change: true,
};

/// Ten turns of 2,000 tokens, far below every threshold; chunks of two turns cover `observed` messages.
fn chat(observed: usize) -> Chain {
    let mut chain = Chain::chat(&[1_000; 21]);
    for from in (0..observed).step_by(4) {
        chain.part(PartKind::Chunk, from, from + 4, 500);
    }
    chain
}

/// How many messages are covered early, if any.
fn covered(
    chain: &Chain,
    activation: EarlyTriggers,
    reflection: EarlyTriggers,
    cause: SnapshotCause,
) -> Option<usize> {
    let policy = Policy {
        early_activation: activation,
        early_reflection: reflection,
        ..POLICY
    };
    early(&chain.path(), &policy, cause).map(|plan| plan.to_count)
}

#[test]
fn an_early_activation_happens_only_for_its_configured_cause() {
    use SnapshotCause::{Dropped, Idle as Idled, ModelChange, Overflow, Reflection, Threshold};
    let chain = chat(16);
    let rows = [
        (EarlyTriggers::NEVER, Idled, None),
        (EarlyTriggers::NEVER, ModelChange, None),
        (IDLE, Idled, Some(16)),
        (AFTER, Idled, Some(16)),
        (IDLE, ModelChange, None),
        (CHANGE, ModelChange, Some(16)),
        (CHANGE, Idled, None),
        (IDLE, Threshold, None),
        (IDLE, Reflection, None),
        (IDLE, Overflow, None),
        (IDLE, Dropped, None),
    ];
    for (triggers, cause, expected) in rows {
        let got = covered(&chain, triggers, EarlyTriggers::NEVER, cause);
        assert_eq!(got, expected, "{triggers:?} {cause:?}");
        // Early reflection moves no messages.
        let got = covered(&chain, EarlyTriggers::NEVER, triggers, cause);
        assert_eq!(got, None, "{triggers:?} {cause:?} of the Reflector");
    }
}

#[test]
fn an_idle_conversation_is_activated_only_if_it_is_worth_it() {
    let idle = |chain: &Chain| covered(chain, IDLE, IDLE, SnapshotCause::Idle);
    assert_eq!(idle(&chat(0)), None, "nothing is observed");
    assert_eq!(idle(&chat(4)), Some(4), "one chunk is enough");

    let mut older = chat(16);
    for node in &mut older.nodes {
        node.confirmed = true;
    }
    assert_eq!(idle(&older), None, "a longer request went on from here");

    let mut used = chat(16);
    let plan = early(
        &used.path(),
        &Policy {
            early_activation: IDLE,
            ..POLICY
        },
        SnapshotCause::Idle,
    );
    used.snapshot(&plan.unwrap());
    assert_eq!(idle(&used), None, "what is left is about the floor");

    let mut short = Chain::chat(&[500; 13]);
    short.part(PartKind::Chunk, 0, 4, 100);
    let floor = POLICY.retention_floor;
    assert!(node_tokens(&short.nodes) > floor, "6,500 of 6,000");
    assert_eq!(idle(&short), Some(4));
    let mut short = Chain::chat(&[500; 12]);
    short.part(PartKind::Chunk, 0, 4, 100);
    assert_eq!(idle(&short), None, "no more than the floor is raw");

    let mut dear = Chain::chat(&[1_000; 21]);
    dear.part(PartKind::Chunk, 0, 4, 3_701);
    assert_eq!(idle(&dear), None, "it would not make the request smaller");
    dear.parts[0].tokens = 3_500;
    assert_eq!(idle(&dear), Some(4));
}

/// Four chunks for a log that has room for three.
#[test]
fn an_early_activation_stays_below_the_hard_limit_of_the_log() {
    let mut chain = Chain::chat(&[10_000; 21]);
    for from in (0..16).step_by(4) {
        chain.part(PartKind::Chunk, from, from + 4, 13_000);
    }
    // Another model may never be asked, so no log is shortened for it.
    let reaches = covered(
        &chain,
        CHANGE,
        EarlyTriggers::NEVER,
        SnapshotCause::ModelChange,
    );
    assert_eq!(reaches, Some(12));
    // An idle conversation is shortened, because nobody waits for it.
    let policy = Policy {
        early_activation: IDLE,
        ..POLICY
    };
    let plan = early(&chain.path(), &policy, SnapshotCause::Idle).expect("four chunks");
    assert_eq!((plan.to_count, plan.tokens), (16, 52_000));
    let step = bounded_snapshot(&chain.path(), &policy, plan);
    assert!(
        matches!(&step, Action::Shorten { span, limit: 48_000, .. } if span.to_count == 16),
        "{step:?}"
    );
    // No part of a log that is too long by itself is taken.
    chain.parts[0].tokens = 48_000;
    let reaches = covered(
        &chain,
        CHANGE,
        EarlyTriggers::NEVER,
        SnapshotCause::ModelChange,
    );
    assert_eq!(reaches, None);
}
