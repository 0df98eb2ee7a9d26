//! The hard limit of the log, and reflections that somebody asked for.

use super::*;

/// A log at its hard limit, sent as a whole, with one more turn to come.
fn at_the_limit() -> Chain {
    let mut chain = Chain::chat(&[3_000; 11]);
    let parts: Vec<PartId> = (0..4)
        .map(|at| chain.part(PartKind::Chunk, 2 * at, 2 * at + 2, 12_500))
        .collect();
    chain.snapshots.push(SnapshotMeta {
        id: SnapshotId(0),
        to: chain.link(8),
        to_count: 8,
        eligible_from: 9,
        pin: None,
        parts,
        tokens: 50_000,
        placement: String::new(),
        others: None,
        cause: Cause::Threshold,
    });
    chain
}

fn shortened(chain: &Chain) -> Option<(Span, u32, Plan)> {
    chain.advance().into_iter().find_map(|step| match step {
        Step::Shorten {
            span, limit, plan, ..
        } => Some((span, limit, plan)),
        _ => None,
    })
}

fn reflecting(chain: &Chain, state: WorkState) -> Work {
    Work {
        kind: PartKind::Reflection,
        span: chain.span(0, 8),
        state,
    }
}

#[test]
fn code_shortens_a_log_at_its_limit_where_no_reflector_is_at_work() {
    let mut chain = at_the_limit();
    assert_eq!(
        shortened(&chain),
        None,
        "the Reflector has its chance first"
    );
    chain.work.push(reflecting(&chain, WorkState::Fresh));
    assert_eq!(shortened(&chain), None, "it is at work");
    for state in [WorkState::Retrying, WorkState::Abandoned] {
        chain.work = vec![reflecting(&chain, state)];
        let (span, limit, plan) = shortened(&chain).expect("nobody helps");
        assert_eq!((span, limit), (chain.span(0, 8), 48_000));
        assert_eq!((plan.to_count, plan.parts.len()), (8, 4));
    }
    // What it wrote is sent next, and it is not asked to write it again.
    let short = chain.part(PartKind::Reflection, 0, 8, 36_000);
    assert_eq!(shortened(&chain), None);
    let plan = chain.plan().expect("the shorter log");
    assert_eq!((plan.parts, plan.tokens), (vec![short], 36_000));
}

#[test]
fn a_log_below_its_limit_is_left_alone() {
    let mut chain = at_the_limit();
    chain.work = vec![reflecting(&chain, WorkState::Abandoned)];
    chain.parts[0].tokens = 10_000;
    assert_eq!(shortened(&chain), None);
}

#[test]
fn an_activation_that_would_pass_the_limit_shortens_first() {
    let mut chain = Chain::chat(&[3_000; 13]);
    for (from, to) in [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 12)] {
        chain.part(PartKind::Chunk, from, to, 2_900);
    }
    // 17,400 tokens of observations are below every threshold but this one.
    let mut policy = POLICY;
    (
        policy.observation_tokens,
        policy.reflect_from,
        policy.observation_limit,
    ) = (9_000, 9_000, 9_500);
    let to_count = chain.plan().expect("activates").to_count;
    chain.work = vec![Work {
        span: chain.span(0, 12),
        ..reflecting(&chain, WorkState::Abandoned)
    }];
    let path = Path {
        root: Chain::root(),
        nodes: &chain.nodes,
        parts: &chain.parts,
        snapshots: &chain.snapshots,
        work: &chain.work,
    };
    let steps = crate::memory::advance::advance(&path, &policy);
    assert!(
        steps
            .iter()
            .any(|step| matches!(step, Step::Shorten { span, .. } if span.to_count == to_count)),
        "{steps:?}"
    );
    assert!(!steps.iter().any(|step| matches!(step, Step::Snapshot(_))));
}

#[test]
fn what_was_condensed_since_clears_what_was_given_up() {
    let mut chain = Chain::chat(&[3_000; 13]);
    chain.part(PartKind::Chunk, 0, 2, 12_000);
    chain.part(PartKind::Chunk, 2, 4, 12_000);
    chain.work.push(Work {
        span: chain.span(0, 4),
        ..reflecting(&chain, WorkState::Abandoned)
    });
    let wants = |chain: &Chain| {
        let steps = chain.advance();
        steps
            .iter()
            .any(|step| matches!(step, Step::Reflect { .. }))
    };
    assert!(!wants(&chain));
    // A reflection of as much came through after all, and is sent; the log is another one now.
    let reflection = chain.part(PartKind::Reflection, 0, 4, 21_000);
    chain.part(PartKind::Chunk, 4, 6, 500);
    chain.snapshots.push(SnapshotMeta {
        id: SnapshotId(0),
        to: chain.link(4),
        to_count: 4,
        eligible_from: 5,
        pin: None,
        parts: vec![reflection],
        tokens: 21_000,
        placement: String::new(),
        others: None,
        cause: Cause::Reflection,
    });
    assert!(wants(&chain));
}

#[test]
fn a_reflection_that_was_asked_for_is_used_below_the_budget() {
    let mut chain = Chain::chat(&[3_000; 5]);
    let parts = [
        chain.part(PartKind::Chunk, 0, 2, 1_500),
        chain.part(PartKind::Chunk, 2, 4, 1_500),
    ];
    chain.snapshots.push(SnapshotMeta {
        id: SnapshotId(0),
        to: chain.link(4),
        to_count: 4,
        eligible_from: 5,
        pin: None,
        parts: parts.to_vec(),
        tokens: 3_000,
        placement: String::new(),
        others: None,
        cause: Cause::Threshold,
    });
    let reflection = chain.part(PartKind::Reflection, 0, 4, 900);
    assert_eq!(chain.plan(), None, "nobody asked, and the log is short");
    chain.parts[2].asked = true;
    let plan = chain.plan().expect("somebody asked");
    assert_eq!(
        (plan.parts, plan.cause),
        (vec![reflection], Cause::Reflection)
    );
}
