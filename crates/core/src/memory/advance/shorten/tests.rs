//! The hard limit of the log, and reflections that an operator requested.

use super::*;
use crate::memory::SnapshotMeta;

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
        peer_memory: None,
        cause: SnapshotCause::Threshold,
    });
    chain
}

fn shortened(chain: &Chain) -> Option<(Span, u32, SnapshotPlan)> {
    chain.advance().into_iter().find_map(|step| match step {
        Action::Shorten {
            span, limit, plan, ..
        } => Some((span, limit, plan)),
        _ => None,
    })
}

fn reflecting(chain: &Chain, state: JobState) -> ChainJob {
    ChainJob {
        kind: PartKind::Reflection,
        span: chain.span(0, 8),
        state,
    }
}

/// The code-written reflection of the log up to `to`.
fn add_code_reflection(chain: &mut Chain, to: usize, tokens: u32) -> PartId {
    let id = chain.part(PartKind::Reflection, 0, to, tokens);
    chain.parts.last_mut().expect("it").code_reflection = true;
    id
}

fn reflects(chain: &Chain) -> Option<Vec<PartId>> {
    let steps = chain.advance().into_iter();
    let mut sources = steps.filter_map(|step| match step {
        Action::Reflect { sources, .. } => Some(sources),
        _ => None,
    });
    sources.next()
}

#[test]
fn code_shortens_a_log_at_its_limit_whatever_the_reflector_does() {
    let mut chain = at_the_limit();
    let chunks: Vec<PartId> = chain.parts.iter().map(|part| part.id).collect();
    assert_eq!(reflects(&chain), Some(chunks), "of what code leaves out of");
    let states = [JobState::Fresh, JobState::Retrying, JobState::Abandoned];
    for state in states.map(Some).into_iter().chain([None]) {
        chain.work = state.map(|s| reflecting(&chain, s)).into_iter().collect();
        let (span, limit, plan) = shortened(&chain).expect("a hard limit");
        assert_eq!((span, limit), (chain.span(0, 8), 48_000));
        assert_eq!((plan.to_count, plan.parts.len()), (8, 4));
    }
    // The code-written reflection is sent next, and code does not write it again.
    let short = add_code_reflection(&mut chain, 8, 36_000);
    assert_eq!(shortened(&chain), None);
    let plan = chain.plan().expect("the shorter log");
    assert_eq!((plan.parts, plan.tokens), (vec![short], 36_000));
}

/// A log that code shortened is sent, while the Reflector works on the original.
fn shortened_by_code() -> (Chain, PartId) {
    let mut chain = at_the_limit();
    chain.work = vec![reflecting(&chain, JobState::Fresh)];
    let short = add_code_reflection(&mut chain, 8, 36_000);
    let plan = chain.plan().expect("the shorter log");
    chain.snapshot(&plan);
    chain.snapshots[1].eligible_from = 9;
    (chain, short)
}

/// More messages are sent and observed, until an activation is due.
fn grown(mut chain: Chain) -> Chain {
    for at in 0..5 {
        for who in [Role::Assistant, Role::User] {
            chain.push(who, 3_000, true, who == Role::Assistant);
        }
        chain.part(PartKind::Chunk, 8 + 2 * at, 10 + 2 * at, 100);
    }
    chain
}

#[test]
fn a_late_reflection_replaces_the_log_that_code_shortened() {
    // With the same span, and with a smaller one because the Reflector was asked earlier.
    for reaches in [8, 6] {
        let (mut chain, short) = shortened_by_code();
        chain.work.clear();
        let late = chain.part(PartKind::Reflection, 0, reaches, 33_000);
        if reaches == 6 {
            chain.parts[3].tokens = 4_000;
            assert_eq!(
                chain.plan(),
                None,
                "it keeps more, and waits for an activation"
            );
        }
        let chain = grown(chain);
        let plan = chain.plan().expect("an activation is due");
        let first = (reaches == 6).then_some(chain.parts[3].id);
        let behind = chain.parts[6..].iter().map(|part| part.id);
        let log: Vec<PartId> = [late].into_iter().chain(first).chain(behind).collect();
        assert_eq!(plan.parts, log[..plan.parts.len()], "{reaches}");
        assert!(plan.to_count > 8 && !plan.parts.contains(&short));
        assert_eq!(plan.cause, SnapshotCause::Reflection);
        assert_eq!(shortened(&chain), None);
    }
}

#[test]
fn new_observations_are_appended_to_the_log_that_code_shortened() {
    let (chain, short) = shortened_by_code();
    let chain = grown(chain);
    let plan = chain.plan().expect("an activation is due");
    assert_eq!(
        (plan.parts[0], plan.cause),
        (short, SnapshotCause::Threshold)
    );
}

/// The reflection came so late that the newer observations do not fit beside it.
#[test]
fn a_too_late_reflection_is_condensed_together_with_newer_observations() {
    let (mut chain, short) = shortened_by_code();
    chain.work.clear();
    let late = chain.part(PartKind::Reflection, 0, 2, 12_000);
    let sources: Vec<PartId> = [late].into_iter().chain((2..5).map(PartId)).collect();
    assert_eq!(
        reflects(&chain),
        Some(sources),
        "with all that code left out of"
    );
    let chain = grown(chain);
    let plan = chain.plan().expect("an activation is due");
    assert_eq!(plan.parts[0], short, "49,500 tokens are too many");
    // The next reflection is there.
    let mut chain = chain;
    let next = chain.part(PartKind::Reflection, 0, 8, 20_000);
    assert_eq!(chain.plan().expect("due").parts[0], next);
}

/// With the next chunk, the log is too long again, whatever a Reflector made of it. So it is not asked
/// with every chunk.
#[test]
fn an_unused_reflection_is_condensed_after_the_log_has_grown() {
    let (mut chain, short) = shortened_by_code();
    chain.work.clear();
    let late = chain.part(PartKind::Reflection, 0, 8, 47_000);
    let chunk = chain.part(PartKind::Chunk, 8, 10, 1_500);
    let grows = |chain: &mut Chain, tokens| {
        let last = chain.parts.iter_mut().find(|part| part.id == chunk);
        last.expect("it").tokens = tokens;
        reflects(chain)
    };
    assert_eq!(
        ChainView::new(&chain.path())
            .log_within(10, 48_000)
            .expect("a log")[0]
            .id,
        short
    );
    assert_eq!(grows(&mut chain, 1_500), None);
    assert_eq!(grows(&mut chain, 11_700), None, "less than a quarter");
    assert_eq!(grows(&mut chain, 11_750), Some(vec![late, chunk]));
}

/// When the reflection was written, no better one was possible.
#[test]
fn a_reflection_over_the_budget_is_condensed_after_enough_growth() {
    for (reflected, limit, next, too_little, enough) in [
        // Half the distance to the limit, if that is less than a quarter.
        (41_000, 48_000, 500, 3_499, 3_500),
        (47_900, 48_000, 40, 49, 50),
        (48_500, 48_000, 0, 0, 100),
        (41_000, 100_000, 500, 10_200, 10_250),
        // Below the budget, it is condensed ahead of need as always.
        (39_000, 48_000, 0, 0, 500),
    ] {
        let mut chain = at_the_limit();
        chain.snapshots.clear();
        let reflection = chain.part(PartKind::Reflection, 0, 8, reflected);
        chain.snapshots.push(SnapshotMeta {
            id: SnapshotId(0),
            to: chain.link(8),
            to_count: 8,
            eligible_from: 9,
            pin: None,
            parts: vec![reflection],
            tokens: reflected,
            placement: String::new(),
            peer_memory: None,
            cause: SnapshotCause::Reflection,
        });
        let policy = Policy {
            observation_limit: limit,
            ..POLICY
        };
        let decide = |tokens| {
            let mut chain = Chain {
                nodes: chain.nodes.clone(),
                parts: chain.parts.clone(),
                snapshots: chain.snapshots.clone(),
                work: Vec::new(),
            };
            if tokens > 0 {
                chain.part(PartKind::Chunk, 8, 10, tokens);
            }
            let steps = super::super::advance(&chain.path(), &policy).into_iter();
            steps
                .filter(|step| matches!(step, Action::Reflect { .. }))
                .count()
        };
        let decisions = [next, too_little, enough].map(decide);
        assert_eq!(decisions, [0, 0, 1], "{reflected} of {limit}");
    }
}

#[test]
fn a_log_shortened_by_code_is_preferred_to_a_reflection_of_less() {
    let mut chain = at_the_limit();
    chain.part(PartKind::Reflection, 0, 2, 12_000);
    let short = add_code_reflection(&mut chain, 8, 36_000);
    assert_eq!(chain.plan().expect("the shorter log").parts, [short]);
}

#[test]
fn a_log_below_its_limit_is_left_alone() {
    let mut chain = at_the_limit();
    chain.work = vec![reflecting(&chain, JobState::Abandoned)];
    chain.parts[0].tokens = 10_000;
    assert_eq!(shortened(&chain), None);
}

#[test]
fn an_activation_that_would_exceed_the_limit_shortens_the_log_first() {
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
    chain.work = vec![ChainJob {
        span: chain.span(0, 12),
        ..reflecting(&chain, JobState::Abandoned)
    }];
    let path = ChainState {
        root: Chain::root(),
        nodes: &chain.nodes,
        parts: &chain.parts,
        snapshots: &chain.snapshots,
        jobs: &chain.work,
    };
    let steps = crate::memory::advance::advance(&path, &policy);
    assert!(
        steps
            .iter()
            .any(|step| matches!(step, Action::Shorten { span, .. } if span.to_count == to_count)),
        "{steps:?}"
    );
    assert!(!steps.iter().any(|step| matches!(step, Action::Snapshot(_))));
}

/// Only at the limit may more be lost than is allowed, so a reflection that failed below it is tried
/// once more, in addition to code.
#[test]
fn an_abandoned_reflection_is_tried_again_at_the_limit_of_the_log() {
    let mut chain = at_the_limit();
    let given_up = ChainJob {
        span: chain.span(0, 6),
        ..reflecting(&chain, JobState::Abandoned)
    };
    chain.work.push(given_up);
    let last = chain.parts.last_mut().expect("four");
    last.tokens = 9_000;
    assert_eq!(
        reflects(&chain),
        None,
        "37,500 were given up, 46,500 are no quarter more"
    );
    chain.parts.last_mut().expect("four").tokens = 9_300;
    assert_eq!(reflects(&chain), None);
    chain.work[0].span = chain.span(0, 8);
    chain.parts.last_mut().expect("four").tokens = 12_500;
    assert!(shortened(&chain).is_some() && reflects(&chain).is_some());
}

#[test]
fn a_later_reflection_allows_another_attempt_after_an_abandoned_one() {
    let mut chain = Chain::chat(&[3_000; 13]);
    chain.part(PartKind::Chunk, 0, 2, 12_000);
    chain.part(PartKind::Chunk, 2, 4, 12_000);
    chain.work.push(ChainJob {
        span: chain.span(0, 4),
        ..reflecting(&chain, JobState::Abandoned)
    });
    let wants = |chain: &Chain| {
        let steps = chain.advance();
        steps
            .iter()
            .any(|step| matches!(step, Action::Reflect { .. }))
    };
    assert!(!wants(&chain));
    // A reflection of that span came after all and is sent, so the log is another one now.
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
        peer_memory: None,
        cause: SnapshotCause::Reflection,
    });
    assert!(wants(&chain));
}

#[test]
fn a_requested_reflection_is_used_below_the_budget() {
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
        peer_memory: None,
        cause: SnapshotCause::Threshold,
    });
    let reflection = chain.part(PartKind::Reflection, 0, 4, 900);
    assert_eq!(chain.plan(), None, "nobody asked, and the log is short");
    chain.parts[2].requested = true;
    let plan = chain.plan().expect("somebody asked");
    assert_eq!(
        (plan.parts, plan.cause),
        (vec![reflection], SnapshotCause::Reflection)
    );
}
