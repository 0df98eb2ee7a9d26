mod cost_aware;
mod early;
mod overlapping;
mod worth;

use super::*;
use crate::history::Link;
use crate::history::{Encoder, Role, Scope};
use crate::memory::SnapshotMeta;
use crate::memory::{SnapshotId, render};

const POLICY: Policy = Policy {
    message_tokens: 30_000,
    buffer_tokens: 6_000,
    retention_floor: 6_000,
    block_after: 36_000,
    observation_tokens: 40_000,
    reflect_from: 20_000,
    observation_limit: 48_000,
    block_overhead: 300,
    buffer_on_idle: false,
    share_token_budget: false,
    early_activation: crate::memory::EarlyTriggers::NEVER,
    early_reflection: crate::memory::EarlyTriggers::NEVER,
    costs: None,
};

/// A chain under construction: the content of the store.
#[derive(Default)]
struct Chain {
    nodes: Vec<Node>,
    parts: Vec<PartMeta>,
    snapshots: Vec<SnapshotMeta>,
    work: Vec<ChainJob>,
}

impl Chain {
    fn root() -> Link {
        Link::root(&Scope::new(b"key", None))
    }

    /// Alternating messages of these sizes, all but the last one confirmed.
    fn chat(sizes: &[u32]) -> Self {
        let mut chain = Self::default();
        for (index, size) in sizes.iter().enumerate() {
            let role = if index % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            };
            chain.push(role, *size, true, role == Role::Assistant);
        }
        if let Some(last) = chain.nodes.last_mut() {
            last.confirmed = false;
        }
        chain
    }

    fn push(&mut self, role: Role, tokens: u32, closed: bool, turn_end: bool) {
        let count = self.nodes.len() + 1;
        let mut encoder = Encoder::new();
        encoder.count("at", count);
        let link = self
            .nodes
            .last()
            .map_or_else(Self::root, |n| n.link)
            .next(&encoder.finish());
        self.nodes.push(Node {
            link,
            count,
            role,
            tokens,
            closed,
            turn_end,
            first_length: 1,
            confirmed: true,
            received_ms: 0,
            live: true,
        });
    }

    fn link(&self, count: usize) -> Link {
        if count == 0 {
            Self::root()
        } else {
            self.nodes[count - 1].link
        }
    }

    fn span(&self, from: usize, to: usize) -> Span {
        Span {
            from: self.link(from),
            from_count: from,
            to: self.link(to),
            to_count: to,
        }
    }

    fn part(&mut self, kind: PartKind, from: usize, to: usize, tokens: u32) -> PartId {
        let id = PartId(self.parts.len() as i64 + 1);
        self.parts.push(PartMeta {
            id,
            kind,
            span: self.span(from, to),
            tokens,
            message_tokens: super::node_tokens(&self.nodes[from..to]),
            requested: false,
            code_reflection: false,
        });
        id
    }

    fn snapshot(&mut self, plan: &SnapshotPlan) {
        self.snapshots.push(SnapshotMeta {
            id: SnapshotId(self.snapshots.len() as i64 + 1),
            to: plan.to,
            to_count: plan.to_count,
            eligible_from: self.nodes.len() + 1,
            pin: plan.pin,
            parts: plan.parts.clone(),
            tokens: plan.tokens,
            cause: plan.cause,
            placement: String::new(),
            peer_memory: None,
        });
    }

    /// The actions after the newest request, whose last message no other request has carried yet.
    fn advance(&self) -> Vec<Action> {
        let mut nodes = self.nodes.clone();
        if let Some(tip) = nodes.last_mut() {
            tip.confirmed = false;
        }
        self.advance_with(&nodes)
    }

    fn advance_with(&self, nodes: &[Node]) -> Vec<Action> {
        let path = ChainState {
            nodes,
            ..self.path()
        };
        super::advance(&path, &POLICY)
    }

    fn path(&self) -> ChainState<'_> {
        ChainState {
            root: Self::root(),
            nodes: &self.nodes,
            parts: &self.parts,
            snapshots: &self.snapshots,
            jobs: &self.work,
        }
    }

    fn plan(&self) -> Option<SnapshotPlan> {
        self.advance().into_iter().find_map(|step| match step {
            Action::Snapshot(plan) => Some(plan),
            _ => None,
        })
    }
}

fn observed(steps: &[Action]) -> Vec<(usize, usize)> {
    steps
        .iter()
        .filter_map(|step| match step {
            Action::Observe { span, .. } => Some((span.from_count, span.to_count)),
            _ => None,
        })
        .collect()
}

#[test]
fn ranges_end_at_turns_and_follow_without_a_gap() {
    let chain = Chain::chat(&[3_000; 9]);
    // 6,000 is reached by an answer each time; the ninth message is not confirmed.
    assert_eq!(observed(&chain.advance()), [(0, 2), (2, 4), (4, 6), (6, 8)]);
}

#[test]
fn only_confirmed_history_is_observed() {
    let mut chain = Chain::chat(&[3_000; 9]);
    for node in &mut chain.nodes[4..] {
        node.confirmed = false;
    }
    assert_eq!(observed(&chain.advance()), [(0, 2), (2, 4)]);
}

#[test]
fn a_range_with_a_job_or_an_observation_is_not_observed_again() {
    let mut chain = Chain::chat(&[3_000; 9]);
    chain.part(PartKind::Chunk, 0, 2, 500);
    chain.work.push(ChainJob {
        kind: PartKind::Chunk,
        span: chain.span(2, 4),
        state: JobState::Fresh,
    });
    assert_eq!(observed(&chain.advance()), [(4, 6), (6, 8)]);
}

#[test]
fn a_range_never_ends_inside_a_round() {
    let mut chain = Chain::default();
    chain.push(Role::User, 100, true, false);
    for _ in 0..20 {
        chain.push(Role::Assistant, 100, false, false);
        chain.push(Role::Tool, 1_000, false, false);
        chain.push(Role::Tool, 1_000, true, false);
    }
    let ranges = observed(&chain.advance());
    assert!(ranges.len() >= 4);
    assert!(
        ranges.iter().all(|(_, to)| chain.nodes[to - 1].closed),
        "{ranges:?}"
    );
}

#[test]
fn an_activation_at_the_threshold_shortens_the_tail_to_the_floor() {
    let mut chain = Chain::chat(&[3_000; 11]);
    for (from, to) in [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)] {
        // It waits for the ranges that can be observed now: what is ready does not reach the floor.
        assert_eq!(chain.plan(), None, "{from} messages are observed");
        chain.part(PartKind::Chunk, from, to, 800);
    }
    let plan = chain
        .plan()
        .expect("33,000 raw tokens are over the threshold");
    assert_eq!(
        (plan.to_count, plan.parts.len(), plan.tokens, plan.pin),
        (10, 5, 4_000, None)
    );
    chain.snapshot(&plan);
    assert_eq!(chain.plan(), None, "one activation, not one per call");
}

#[test]
fn a_repeated_older_request_prepares_no_snapshot() {
    let mut chain = Chain::chat(&[3_000; 13]);
    chain.part(PartKind::Chunk, 0, 12, 800);
    assert!(chain.plan().is_some());
    for node in &mut chain.nodes {
        node.confirmed = true;
    }
    let steps = chain.advance_with(&chain.nodes);
    assert!(!steps.iter().any(|step| matches!(step, Action::Snapshot(_))));
}

#[test]
fn below_the_threshold_nothing_is_activated() {
    let mut chain = Chain::chat(&[3_000; 9]);
    chain.part(PartKind::Chunk, 0, 2, 800);
    assert_eq!(chain.plan(), None);
}

#[test]
fn an_activation_that_would_not_shrink_the_request_does_not_happen() {
    let mut chain = Chain::chat(&[3_000; 11]);
    for (from, to) in [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)] {
        chain.part(PartKind::Chunk, from, to, 6_000);
    }
    assert_eq!(chain.plan(), None);
}

#[test]
fn no_range_behind_an_abandoned_range_is_observed() {
    let mut chain = Chain::chat(&[3_000; 9]);
    let wanted = observed(&chain.advance());
    assert!(wanted.len() > 2, "{wanted:?}");
    let after = |state, chain: &mut Chain| {
        chain.work = vec![ChainJob {
            kind: PartKind::Chunk,
            span: chain.span(wanted[1].0, wanted[1].1),
            state,
        }];
        observed(&chain.advance())
    };
    let but_one: Vec<_> = [&wanted[..1], &wanted[2..]].concat();
    assert_eq!(after(JobState::Retrying, &mut chain), but_one);
    assert_eq!(after(JobState::Abandoned, &mut chain), wanted[..1]);
}

#[test]
fn the_smaller_of_two_logs_with_equal_coverage_is_sent() {
    let mut chain = Chain::chat(&[3_000; 7]);
    let (one, two) = (
        chain.part(PartKind::Chunk, 0, 2, 900),
        chain.part(PartKind::Chunk, 2, 4, 900),
    );
    let reflection = chain.part(PartKind::Reflection, 0, 4, 400);
    let link = chain.link(4);
    let mut prepare = |parts: Vec<PartId>, tokens, eligible_from| {
        let plan = SnapshotPlan {
            to: link,
            to_count: 4,
            pin: None,
            parts,
            later_chunks: Vec::new(),
            tokens,
            saved_tokens: 1,
            cause: SnapshotCause::Threshold,
        };
        chain.snapshot(&plan);
        chain.snapshots.last_mut().expect("one").eligible_from = eligible_from;
    };
    prepare(vec![reflection], 400, 6);
    // A longer fork got a snapshot after that; the reflection came too late for it.
    prepare(vec![one, two], 1_800, 8);
    let path = ChainState {
        root: Chain::root(),
        nodes: &chain.nodes,
        parts: &chain.parts,
        snapshots: &chain.snapshots,
        jobs: &chain.work,
    };
    let current = ChainView::new(&path).current.expect("one of them");
    assert_eq!(current.parts, [reflection]);
}

#[test]
fn one_long_task_pins_its_question() {
    let mut chain = Chain::default();
    chain.push(Role::User, 200, true, false);
    for _ in 0..16 {
        chain.push(Role::Assistant, 100, false, false);
        chain.push(Role::Tool, 2_000, true, false);
    }
    for range in observed(&chain.advance()) {
        chain.part(PartKind::Chunk, range.0, range.1, 700);
    }
    let plan = chain.plan().expect("over the threshold");
    assert_eq!(plan.pin, Some(0));
    assert!(plan.to_count > 1);
}

/// A request comes again, and a longer one had all of it observed.
#[test]
fn a_too_long_request_keeps_its_newest_message_raw() {
    let mut chain = Chain::chat(&[2_000; 9]);
    chain.part(PartKind::Chunk, 0, 4, 300);
    chain.part(PartKind::Chunk, 4, 8, 300);
    let reach = |nodes: &[Node]| {
        let path = ChainState {
            nodes,
            ..chain.path()
        };
        overflow(&path, &POLICY).map(|plan| plan.to_count)
    };
    assert_eq!(reach(&chain.nodes), Some(8));
    assert_eq!(reach(&chain.nodes[..8]), Some(4));
    assert_eq!(reach(&chain.nodes[..4]), None);
}

#[test]
fn a_backlog_is_not_activated_chunk_by_chunk() {
    let mut chain = Chain::chat(&[3_000; 41]);
    let ranges = observed(&chain.advance());
    assert_eq!(ranges.len(), 20);
    let mut activations = 0;
    for (index, (from, to)) in ranges.iter().enumerate() {
        chain.part(PartKind::Chunk, *from, *to, 700);
        chain.work = ranges[index + 1..]
            .iter()
            .map(|(from, to)| ChainJob {
                kind: PartKind::Chunk,
                span: chain.span(*from, *to),
                state: JobState::Fresh,
            })
            .collect();
        if let Some(plan) = chain.plan() {
            chain.snapshot(&plan);
            activations += 1;
        }
    }
    assert!(
        (1..=4).contains(&activations),
        "{activations} activations for one backlog"
    );
    let covered = chain.snapshots.last().map_or(0, |s| s.to_count);
    assert!(super::node_tokens(&chain.nodes[covered..]) < POLICY.message_tokens);
}

#[test]
fn a_failing_observer_does_not_delay_finished_observations() {
    let mut chain = Chain::chat(&[3_000; 13]);
    chain.part(PartKind::Chunk, 0, 2, 700);
    chain.work.push(ChainJob {
        kind: PartKind::Chunk,
        span: chain.span(2, 4),
        state: JobState::Retrying,
    });
    for (from, to) in [(4, 6), (6, 8), (8, 10), (10, 12)] {
        chain.work.push(ChainJob {
            kind: PartKind::Chunk,
            span: chain.span(from, to),
            state: JobState::Retrying,
        });
    }
    assert_eq!(chain.plan().map(|plan| plan.to_count), Some(2));
}

#[test]
fn a_reflection_starts_at_half_budget_and_is_used_at_full_budget() {
    let mut chain = Chain::chat(&[3_000; 31]);
    let ranges: Vec<_> = (0..15).map(|i| (2 * i, 2 * i + 2)).collect();
    chain.nodes[10..]
        .iter_mut()
        .for_each(|node| node.confirmed = false);
    for (from, to) in &ranges[..5] {
        chain.part(PartKind::Chunk, *from, *to, 4_500);
    }
    let plan = chain.plan().expect("activates");
    chain.snapshot(&plan);
    let sources = chain
        .advance()
        .into_iter()
        .find_map(|step| match step {
            Action::Reflect {
                sources,
                span,
                tokens,
                ..
            } => Some((sources, span, tokens)),
            _ => None,
        })
        .expect("22,500 tokens of observations are over half of the budget");
    assert_eq!(
        (sources.0.len(), sources.1.from_count, sources.2),
        (5, 0, 22_500)
    );
    let reflection = chain.part(PartKind::Reflection, 0, 10, 9_000);
    chain.nodes[10..30]
        .iter_mut()
        .for_each(|node| node.confirmed = true);
    for (from, to) in &ranges[5..] {
        chain.part(PartKind::Chunk, *from, *to, 2_500);
    }
    let plan = chain.plan().expect("activates");
    assert_eq!(
        (plan.parts[0], plan.cause),
        (reflection, SnapshotCause::Reflection)
    );
    assert!(plan.tokens < POLICY.observation_tokens, "{}", plan.tokens);
    // Chunks that came meanwhile follow it; none is lost.
    assert_eq!(plan.parts.len() - 1, (plan.to_count - 10) / 2);
}

/// It is used together with the chunks that came meanwhile. If code had to shorten these, it would leave out what a model
/// could have condensed.
#[test]
fn an_unused_reflection_that_chunks_outgrow_is_condensed_with_them() {
    let mut chain = Chain::chat(&[3_000; 31]);
    for at in 0..5 {
        chain.part(PartKind::Chunk, 2 * at, 2 * at + 2, 4_500);
    }
    let reflection = chain.part(PartKind::Reflection, 0, 10, 9_000);
    let condensed = |chain: &Chain| {
        chain.advance().into_iter().find_map(|step| match step {
            Action::Reflect { sources, span, .. } => Some((sources, span.to_count)),
            _ => None,
        })
    };
    for at in 5..12 {
        chain.part(PartKind::Chunk, 2 * at, 2 * at + 2, 4_000);
        assert_eq!(condensed(&chain), None, "there is room for it");
    }
    chain.part(PartKind::Chunk, 24, 26, 4_000);
    let (sources, to_count) = condensed(&chain).expect("41,000 tokens do not fit the budget");
    assert_eq!((sources[0], sources.len(), to_count), (reflection, 9, 26));
}

#[test]
fn an_abandoned_reflection_is_tried_again_after_a_quarter_more_observations() {
    let mut chain = Chain::chat(&[3_000; 13]);
    chain.part(PartKind::Chunk, 0, 2, 12_000);
    chain.part(PartKind::Chunk, 2, 4, 12_000);
    let wants = |chain: &Chain| {
        chain
            .advance()
            .iter()
            .any(|s| matches!(s, Action::Reflect { .. }))
    };
    assert!(wants(&chain));
    chain.work.push(ChainJob {
        kind: PartKind::Reflection,
        span: chain.span(0, 4),
        state: JobState::Abandoned,
    });
    assert!(!wants(&chain));
    chain.part(PartKind::Chunk, 4, 6, 5_000);
    assert!(!wants(&chain), "21 % more");
    chain.part(PartKind::Chunk, 6, 8, 1_000);
    assert!(wants(&chain), "25 % more");
}

#[test]
fn a_branch_does_not_wait_for_the_snapshot_of_a_longer_branch() {
    // A snapshot made for a longer branch is not yet eligible here; this branch gets its own.
    let mut chain = Chain::chat(&[3_000; 11]);
    for (from, to) in [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)] {
        chain.part(PartKind::Chunk, from, to, 800);
    }
    let plan = chain.plan().expect("activates");
    chain.snapshot(&plan);
    chain.snapshots[0].eligible_from = 101;
    assert_eq!(chain.plan(), Some(plan));
}

#[test]
fn a_reflection_beyond_the_sent_log_is_not_used_yet() {
    let mut chain = Chain::default();
    chain.push(Role::User, 200, true, false);
    for _ in 0..20 {
        chain.push(Role::Assistant, 100, false, false);
        chain.push(Role::Tool, 2_000, true, false);
    }
    for (from, to) in observed(&chain.advance()) {
        chain.part(PartKind::Chunk, from, to, 14_000 / 4);
    }
    let mut plan = chain.plan().expect("over the threshold");
    assert_eq!(plan.pin, Some(0));
    // The log that is sent is over its budget, and the only reflection covers more than the log.
    plan.tokens = 41_000;
    let parts = chain.parts.len();
    for part in &mut chain.parts {
        part.tokens = 41_000 / u32::try_from(parts - 1).expect("small") + 1;
    }
    let end = chain.parts[parts - 1].span.to_count;
    plan.parts.truncate(parts - 1);
    let last = &chain.parts[parts - 2].span;
    (plan.to, plan.to_count) = (last.to, last.to_count);
    chain.snapshot(&plan);
    chain.part(PartKind::Reflection, 0, end, 9_000);
    // A new question comes: the pin is no longer needed.
    chain.push(Role::Assistant, 10, true, true);
    chain.push(Role::User, 10, true, false);
    chain.snapshots[0].eligible_from = chain.nodes.len();
    assert!(
        chain
            .plan()
            .is_none_or(|plan| plan.cause != SnapshotCause::Reflection)
    );
}

/// The log of the fork is older. Sent after the reflection, it would undo it.
#[test]
fn a_reflection_plan_covers_as_much_as_a_fork_has_prepared() {
    let mut chain = Chain::chat(&[3_000; 9]);
    let parts = [
        chain.part(PartKind::Chunk, 0, 2, 20_500),
        chain.part(PartKind::Chunk, 2, 4, 20_500),
        chain.part(PartKind::Chunk, 4, 6, 500),
    ];
    let reflection = chain.part(PartKind::Reflection, 0, 4, 9_000);
    for (id, (to_count, eligible_from)) in [(4, 9), (6, 40)].into_iter().enumerate() {
        chain.snapshots.push(SnapshotMeta {
            id: SnapshotId(id as i64),
            to: chain.link(to_count),
            to_count,
            eligible_from,
            pin: None,
            parts: parts[..to_count / 2].to_vec(),
            tokens: 41_000,
            cause: SnapshotCause::Threshold,
            placement: String::new(),
            peer_memory: None,
        });
    }
    let plan = chain.plan().expect("the log is over its budget");
    assert_eq!(plan.to_count, 6);
    assert_eq!(plan.parts, [reflection, parts[2]]);
    // Without the fork there is no reason to.
    chain.snapshots.pop();
    let plan = chain.plan().expect("the log is over its budget");
    assert_eq!((plan.to_count, plan.parts), (4, vec![reflection]));
}

#[path = "shorten/tests.rs"]
mod shorten;
