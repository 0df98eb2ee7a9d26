//! When a range is observed, and how much an activation takes: [`advance()`] with the published numbers.

use diarist::history::{Encoder, Link, Role, Scope};
use diarist::memory::advance::{Action, ChainState, SnapshotPlan, advance, early};
use diarist::memory::{
    EarlyTriggers, IdleTrigger, Node, PartId, PartKind, PartMeta, Policy, SnapshotCause,
    SnapshotId, SnapshotMeta, Span,
};

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[41, 42], each_ten_thousand_new_tokens_make_one_range),
    (&[50], a_small_range_is_observed_only_with_idle_buffering),
    (&[62], an_activation_covers_half_of_four_thousand_tokens),
    (&[64], one_huge_chunk_is_activated_whole),
    (
        &[65, 66],
        an_activation_without_a_floor_takes_all_parts_in_order,
    ),
    (&[89], an_empty_history_causes_no_step),
    (
        &[125],
        an_early_reflection_waits_for_enough_newer_observations,
    ),
];

pub fn policy(message_tokens: u32, buffer_tokens: u32, retention_floor: u32) -> Policy {
    Policy {
        message_tokens,
        buffer_tokens,
        buffer_on_idle: false,
        retention_floor,
        block_after: message_tokens / 5 * 6,
        observation_tokens: 40_000,
        reflect_from: 20_000,
        observation_limit: 48_000,
        share_token_budget: false,
        block_overhead: 100,
        early_activation: EarlyTriggers::NEVER,
        early_reflection: EarlyTriggers::NEVER,
        costs: None,
    }
}

/// Turns of a question and an answer that weigh so much, and a question that nobody carried again.
pub fn nodes(turns: &[u32]) -> Vec<Node> {
    let mut link = root();
    let mut nodes = Vec::new();
    for (at, tokens) in turns
        .iter()
        .flat_map(|turn| [turn / 2, turn - turn / 2])
        .chain([0])
        .enumerate()
    {
        let mut encoder = Encoder::new();
        encoder.count("at", at);
        link = link.next(&encoder.finish());
        nodes.push(Node {
            link,
            count: at + 1,
            role: if at % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            },
            tokens,
            closed: true,
            turn_end: at % 2 == 1,
            first_length: 1,
            confirmed: at < 2 * turns.len(),
            received_ms: 0,
            live: true,
        });
    }
    nodes
}

pub fn root() -> Link {
    Link::root(&Scope::new(b"key", None))
}

pub fn span(nodes: &[Node], from: usize, to: usize) -> Span {
    Span {
        from: from.checked_sub(1).map_or_else(root, |at| nodes[at].link),
        from_count: from,
        to: nodes[to - 1].link,
        to_count: to,
    }
}

/// A chunk of a tenth of what it covers for each turn.
pub fn chunks(nodes: &[Node]) -> Vec<PartMeta> {
    (0..nodes.len() / 2)
        .map(|turn| {
            let message_tokens = nodes[2 * turn].tokens + nodes[2 * turn + 1].tokens;
            PartMeta {
                id: PartId(i64::try_from(turn).unwrap() + 1),
                kind: PartKind::Chunk,
                span: span(nodes, 2 * turn, 2 * turn + 2),
                tokens: message_tokens / 10,
                message_tokens,
                requested: false,
                code_reflection: false,
            }
        })
        .collect()
}

fn steps(nodes: &[Node], parts: &[PartMeta], policy: &Policy) -> Vec<Action> {
    let path = ChainState {
        root: root(),
        nodes,
        parts,
        snapshots: &[],
        jobs: &[],
    };
    advance(&path, policy)
}

fn observed(nodes: &[Node], parts: &[PartMeta], policy: &Policy) -> Vec<u32> {
    steps(nodes, parts, policy)
        .into_iter()
        .filter_map(|step| match step {
            Action::Observe { message_tokens, .. } => Some(message_tokens),
            _ => None,
        })
        .collect()
}

fn plan(turns: &[u32], policy: &Policy) -> SnapshotPlan {
    let nodes = nodes(turns);
    let plans = steps(&nodes, &chunks(&nodes), policy).into_iter();
    let mut plans = plans.filter_map(|step| match step {
        Action::Snapshot(plan) => Some(plan),
        _ => None,
    });
    plans.next().unwrap()
}

fn each_ten_thousand_new_tokens_make_one_range() {
    let policy = policy(100_000, 10_000, 20_000);
    assert_eq!(observed(&nodes(&[5_000]), &[], &policy), [0; 0]);
    assert_eq!(observed(&nodes(&[10_000]), &[], &policy), [10_000]);
    // 12,000 in all behind a chunk of 10,000, then 20,000.
    for (more, wanted) in [(2_000, vec![]), (10_000, vec![10_000])] {
        let nodes = nodes(&[10_000, more]);
        let written = chunks(&nodes)[..1].to_vec();
        assert_eq!(observed(&nodes, &written, &policy), wanted, "{more}");
    }
}

fn a_small_range_is_observed_only_with_idle_buffering() {
    let waiting = policy(30_000, 6_000, 6_000);
    let nodes = nodes(&[2_900]);
    assert_eq!(observed(&nodes, &[], &waiting), [0; 0]);
    let idle = Policy {
        buffer_on_idle: true,
        ..waiting
    };
    assert_eq!(observed(&nodes, &[], &idle), [2_900]);
}

fn an_activation_covers_half_of_four_thousand_tokens() {
    let plan = plan(&[1_000; 4], &policy(4_000, 1_000, 2_000));
    assert_eq!((plan.parts.len(), plan.to_count), (2, 4));
}

fn one_huge_chunk_is_activated_whole() {
    let plan = plan(&[40_000], &policy(30_000, 6_000, 6_000));
    assert_eq!(plan.to_count, 2);
}

fn an_activation_without_a_floor_takes_all_parts_in_order() {
    let plan = plan(&[10_000; 3], &policy(30_000, 10_000, 0));
    assert_eq!(plan.parts, [PartId(1), PartId(2), PartId(3)]);
}

fn an_empty_history_causes_no_step() {
    let policy = policy(30_000, 6_000, 6_000);
    assert_eq!(steps(&nodes(&[]), &[], &policy), []);
}

/// Ten chunks are sent, and a reflection of the first five is ready: is it used while the cache is lost?
fn used_early(reflection: u32, tail: u32) -> bool {
    let policy = Policy {
        early_reflection: EarlyTriggers {
            idle: IdleTrigger::Auto,
            model_change: false,
        },
        ..policy(30_000, 6_000, 6_000)
    };
    let nodes = nodes(&[10_000; 10]);
    let mut parts = chunks(&nodes);
    for chunk in &mut parts[..5] {
        chunk.tokens = 4_000;
    }
    for (at, chunk) in parts[5..].iter_mut().enumerate() {
        chunk.tokens = if at == 0 { tail - 4_000 } else { 1_000 };
    }
    let current = SnapshotMeta {
        id: SnapshotId(1),
        to: nodes[19].link,
        to_count: 20,
        eligible_from: 1,
        pin: None,
        parts: parts.iter().map(|part| part.id).collect(),
        tokens: parts.iter().map(|part| part.tokens).sum(),
        cause: SnapshotCause::Threshold,
        placement: String::new(),
        peer_memory: None,
    };
    parts.push(PartMeta {
        id: PartId(99),
        kind: PartKind::Reflection,
        span: span(&nodes, 0, 10),
        tokens: reflection,
        message_tokens: 50_000,
        requested: false,
        code_reflection: false,
    });
    let path = ChainState {
        root: root(),
        nodes: &nodes,
        parts: &parts,
        snapshots: &[current],
        jobs: &[],
    };
    early(&path, &policy, SnapshotCause::Idle).is_some()
}

fn an_early_reflection_waits_for_enough_newer_observations() {
    // Three quarters of the 20,000 between 20,000 and 40,000.
    assert!(used_early(7_000, 8_000));
    assert!(!used_early(7_000, 7_999));
    // What follows weighs less than the reflection itself.
    assert!(!used_early(9_000, 8_000));
}
