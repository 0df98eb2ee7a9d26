//! What is observed, what is condensed and when: [`advance()`] on a path that others work on too.

use diarist::history::Role;
use diarist::memory::advance::{Action, ChainJob, ChainState, JobState, SnapshotPlan, advance};
use diarist::memory::observe;
use diarist::memory::{
    Node, PartId, PartKind, PartMeta, Policy, SnapshotCause, SnapshotId, SnapshotMeta,
};

use super::Check;
use super::buffering::{chunks, nodes, policy, root, span};

pub const CHECKS: &[Check] = &[
    (&[46, 47], observed_and_waiting_ranges_are_not_queued_again),
    (&[54], a_range_ends_before_an_unanswered_tool_call),
    (
        &[70, 82, 83, 85],
        a_long_task_is_observed_and_its_question_pinned,
    ),
    (&[74], a_raw_tail_above_the_threshold_is_queued_once),
    (&[79, 123], chunks_written_during_a_reflection_follow_it),
    (
        &[120, 121],
        an_abandoned_reflection_is_tried_again_only_after_growth,
    ),
    (&[81], a_message_above_the_threshold_is_split_into_pieces),
    (&[122], only_one_reflection_is_queued_at_a_time),
    (&[126], code_shortens_the_log_at_its_limit),
];

fn thirty() -> Policy {
    policy(30_000, 6_000, 6_000)
}

#[derive(Default)]
struct Log {
    nodes: Vec<Node>,
    parts: Vec<PartMeta>,
    snapshots: Vec<SnapshotMeta>,
    work: Vec<ChainJob>,
}

impl Log {
    /// So many turns of 10,000, each observed in so many tokens.
    fn observed(turns: usize, tokens: u32) -> Self {
        let nodes = nodes(&vec![10_000; turns]);
        let mut parts = chunks(&nodes);
        for part in &mut parts {
            part.tokens = tokens;
        }
        Self {
            nodes,
            parts,
            ..Self::default()
        }
    }

    fn path(&self) -> ChainState<'_> {
        ChainState {
            root: root(),
            nodes: &self.nodes,
            parts: &self.parts,
            snapshots: &self.snapshots,
            jobs: &self.work,
        }
    }

    fn steps(&self) -> Vec<Action> {
        advance(&self.path(), &thirty())
    }

    /// Ranges that are to be observed, by how many messages stand before and up to their end.
    fn ranges(&self) -> Vec<(usize, usize)> {
        let steps = self.steps().into_iter();
        let ranges = steps.filter_map(|step| match step {
            Action::Observe { span, .. } => Some((span.from_count, span.to_count)),
            _ => None,
        });
        ranges.collect()
    }

    fn plan(&self) -> Option<SnapshotPlan> {
        self.steps().into_iter().find_map(|step| match step {
            Action::Snapshot(plan) => Some(plan),
            _ => None,
        })
    }

    /// Tokens that are to be condensed.
    fn condenses(&self) -> Option<u32> {
        self.steps().into_iter().find_map(|step| match step {
            Action::Reflect { tokens, .. } => Some(tokens),
            _ => None,
        })
    }

    fn work(&mut self, kind: PartKind, from: usize, to: usize, state: JobState) {
        let span = span(&self.nodes, from, to);
        self.work.push(ChainJob { kind, span, state });
    }

    fn reflection(&mut self, to: usize, tokens: u32) -> PartId {
        let id = PartId(99);
        self.parts.push(PartMeta {
            id,
            kind: PartKind::Reflection,
            span: span(&self.nodes, 0, to),
            tokens,
            message_tokens: 5_000 * u32::try_from(to).unwrap(),
            requested: false,
            code_reflection: false,
        });
        id
    }

    fn sent(&mut self, to_count: usize, parts: &[PartId]) {
        let tokens = |id: &PartId| {
            let mut parts = self.parts.iter();
            parts
                .find(|part| part.id == *id)
                .map_or(0, |part| part.tokens)
        };
        self.snapshots.push(SnapshotMeta {
            id: SnapshotId(i64::try_from(self.snapshots.len()).unwrap() + 1),
            to: self.nodes[to_count - 1].link,
            to_count,
            eligible_from: 1,
            pin: None,
            parts: parts.to_vec(),
            tokens: parts.iter().map(tokens).sum(),
            cause: SnapshotCause::Threshold,
            placement: String::new(),
            peer_memory: None,
        });
    }
}

fn observed_and_waiting_ranges_are_not_queued_again() {
    let mut log = Log {
        nodes: nodes(&[6_000; 4]),
        ..Log::default()
    };
    assert_eq!(log.ranges(), [(0, 2), (2, 4), (4, 6), (6, 8)]);
    log.parts = chunks(&log.nodes)[..1].to_vec();
    log.work(PartKind::Chunk, 2, 4, JobState::Fresh);
    assert_eq!(
        log.ranges(),
        [(4, 6), (6, 8)],
        "observed, waiting, and what is left"
    );
    // It is not sent: the model goes on seeing it.
    assert_eq!(log.plan(), None);
}

/// A question and rounds of a call and its result of 1,000 each; the newest message is new.
fn task(rounds: usize, last_is_open: bool) -> Log {
    let mut nodes = nodes(&vec![2_000; rounds]);
    nodes.truncate(2 * rounds + usize::from(last_is_open));
    let last = nodes.len() - 1;
    for (at, node) in nodes.iter_mut().enumerate() {
        node.role = match at {
            0 => Role::User,
            _ if at % 2 == 1 => Role::Assistant,
            _ => Role::Tool,
        };
        node.tokens = 1_000;
        node.closed = at % 2 == 0;
        node.turn_end = false;
        node.confirmed = at < last;
    }
    Log {
        nodes,
        ..Log::default()
    }
}

fn a_range_ends_before_an_unanswered_tool_call() {
    // User, call, result, call, result, call, result, and a call of 9,000 without its result.
    let mut log = task(4, false);
    assert_eq!(log.nodes.len(), 8);
    for node in &mut log.nodes {
        node.confirmed = true;
    }
    assert!(!log.nodes[7].closed);
    log.nodes[7].tokens = 9_000;
    assert_eq!(log.ranges(), [(0, 7)], "what stands before it");
    // A range is never cut between a call and its result, however large they are.
    for node in &mut log.nodes {
        node.tokens = 4_000;
    }
    for (_, to) in log.ranges() {
        assert!(log.nodes[to - 1].closed, "{to}");
    }
}

fn a_long_task_is_observed_and_its_question_pinned() {
    // 15 rounds: 31 messages of 1,000, over the threshold, and nobody said anything but the first.
    let mut log = task(15, true);
    assert_eq!(log.nodes.len(), 31);
    let ranges = log.ranges();
    assert_eq!(
        ranges,
        [(0, 7), (7, 13), (13, 19), (19, 25)],
        "while it runs"
    );
    let commit = |log: &mut Log| {
        for (from, to) in log.ranges() {
            let id = PartId(i64::try_from(to).unwrap());
            log.parts.push(PartMeta {
                id,
                kind: PartKind::Chunk,
                span: span(&log.nodes, from, to),
                tokens: 800,
                message_tokens: u32::try_from(1_000 * (to - from)).unwrap(),
                requested: false,
                code_reflection: false,
            });
        }
    };
    commit(&mut log);
    assert_eq!(log.ranges(), [], "nothing again in the next step");
    let plan = log.plan().unwrap();
    // In the middle of the task, at once, and its question stands in every step.
    assert_eq!((plan.to_count, plan.pin), (25, Some(0)));
}

/// After an activation 36,000 are raw, of which nobody observed anything.
fn a_raw_tail_above_the_threshold_is_queued_once() {
    let mut log = Log {
        nodes: nodes(&[6_000; 10]),
        ..Log::default()
    };
    log.parts = chunks(&log.nodes)[..4].to_vec();
    log.sent(8, &[1, 2, 3, 4].map(PartId));
    let all = [(8, 10), (10, 12), (12, 14), (14, 16), (16, 18), (18, 20)];
    assert_eq!(log.ranges(), all);
    for (from, to) in all {
        log.work(PartKind::Chunk, from, to, JobState::Fresh);
    }
    assert_eq!(log.ranges(), [], "once");
    assert_eq!(log.plan(), None, "and the model sees it raw until then");
    log.work.clear();
    log.parts = chunks(&log.nodes);
    assert_eq!(log.ranges(), []);
    // Of 36,000 four fifths go, behind what is sent.
    let plan = log.plan().unwrap();
    assert_eq!(plan.parts, (1..=9).map(PartId).collect::<Vec<_>>());
}

/// 40,000 of 30,000, in one message: observed as soon as a request has carried it again.
fn a_message_above_the_threshold_is_split_into_pieces() {
    let mut nodes = nodes(&[200]);
    nodes[0].tokens = 40_000;
    let mut log = Log {
        nodes,
        ..Log::default()
    };
    assert_eq!(log.ranges(), [(0, 1)], "by itself");
    for node in &mut log.nodes {
        node.confirmed = false;
    }
    assert_eq!(log.ranges(), []);
    // By a model that takes 6,000 at a time: every line once, in order, none left out.
    let line = |at: usize| format!("  {at:04} of what the book says on its pages");
    let lines: Vec<String> = (0..2_000).map(line).collect();
    let transcript = format!(
        "Date: Mar 4, 2026\nUser (14:05): the book\n{}\n",
        lines.join("\n")
    );
    let count = |text: &str| u32::try_from(text.len() / 4).unwrap();
    let pieces = observe::split_pieces(&transcript, 6_000, count);
    assert!(pieces.len() > 3, "{}", pieces.len());
    for piece in &pieces {
        assert!(count(piece) <= 6_000, "{}", count(piece));
    }
    let shown_lines = pieces.iter().flat_map(|piece| piece.lines());
    let shown_lines: Vec<&str> = shown_lines
        .filter(|line| line.contains("of what the book"))
        .collect();
    assert_eq!(shown_lines, lines);
}

fn chunks_written_during_a_reflection_follow_it() {
    // Ten chunks of 4,000 are sent. While the first five were condensed, three more came, and the
    // raw history is full again.
    let mut log = Log::observed(13, 4_000);
    log.nodes[26].tokens = 3_500;
    log.sent(20, &(1..=10).map(PartId).collect::<Vec<_>>());
    log.reflection(10, 6_000);
    let plan = log.plan().unwrap();
    let parts = [99, 6, 7, 8, 9, 10, 11, 12, 13].map(PartId);
    assert_eq!(plan.parts, parts, "and what came meanwhile behind it");
    assert_eq!((plan.to_count, plan.cause), (26, SnapshotCause::Reflection));
}

fn only_one_reflection_is_queued_at_a_time() {
    // Half of 40,000.
    assert_eq!(Log::observed(10, 1_999).condenses(), None);
    let mut log = Log::observed(10, 2_000);
    assert_eq!(log.condenses(), Some(20_000));
    for state in [JobState::Fresh, JobState::Retrying] {
        log.work.clear();
        log.work(PartKind::Reflection, 0, 20, state);
        assert_eq!(log.condenses(), None, "{state:?}");
    }
    // One that is there and not used yet.
    log.work.clear();
    log.reflection(20, 8_000);
    assert_eq!(log.condenses(), None);
}

fn an_abandoned_reflection_is_tried_again_only_after_growth() {
    // 24,000 that no model could make smaller: 24,000 again, 29,999 and 30,000.
    let grown = |tokens: u32| {
        let mut log = Log::observed(11, 2_400);
        log.parts[10].tokens = tokens - 24_000;
        log.work(PartKind::Reflection, 0, 20, JobState::Abandoned);
        log
    };
    for (tokens, tried) in [
        (24_000, None),
        (24_001, None),
        (29_999, None),
        (30_000, Some(30_000)),
    ] {
        assert_eq!(grown(tokens).condenses(), tried, "{tokens}");
    }
    // Another conversation was not given up.
    let mut other = grown(24_001);
    other.work.clear();
    assert_eq!(other.condenses(), Some(24_001));
    // A success clears it: what is condensed is another log, and 20,000 are enough again.
    let mut after = Log::observed(16, 2_400);
    after.work(PartKind::Reflection, 0, 18, JobState::Abandoned);
    let id = after.reflection(20, 8_000);
    let mut sent = vec![id];
    sent.extend((11..=16).map(PartId));
    after.sent(32, &sent);
    assert_eq!(after.condenses(), Some(8_000 + 6 * 2_400));
}

/// 1.2 times 40,000: no request waits for a model there.
fn code_shortens_the_log_at_its_limit() {
    let shortens = |log: &Log| {
        let mut steps = log.steps().into_iter();
        steps.find_map(|step| match step {
            Action::Shorten { limit, .. } => Some(limit),
            _ => None,
        })
    };
    let log = |tokens, state: Option<JobState>| {
        let mut log = Log::observed(10, tokens);
        let parts: Vec<PartId> = (1..=10).map(PartId).collect();
        log.sent(20, &parts);
        if let Some(state) = state {
            log.work(PartKind::Reflection, 0, 20, state);
        }
        log
    };
    assert_eq!(shortens(&log(4_799, Some(JobState::Retrying))), None);
    assert_eq!(
        shortens(&log(4_800, Some(JobState::Retrying))),
        Some(48_000)
    );
    assert_eq!(
        shortens(&log(4_800, Some(JobState::Abandoned))),
        Some(48_000)
    );
    // Nor for one that is at work for the first time: what it writes is preferred when it comes.
    assert_eq!(shortens(&log(4_799, Some(JobState::Fresh))), None);
    assert_eq!(shortens(&log(4_800, Some(JobState::Fresh))), Some(48_000));
}
