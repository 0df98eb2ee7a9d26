//! Chunks of one chain that were cut with two values of `buffer_tokens`. The log continues without a
//! gap, nothing is observed twice without need, and the sent text only grows.

use super::*;

fn work(chain: &Chain, from: usize, to: usize, state: JobState) -> ChainJob {
    ChainJob {
        kind: PartKind::Chunk,
        span: chain.span(from, to),
        state,
    }
}

#[test]
fn a_range_in_the_queue_is_not_cut_again() {
    // Six thousand tokens are three turns; the job was cut when the limit was four turns.
    let mut chain = Chain::chat(&[1_000; 21]);
    assert_eq!(observed(&chain.advance()), [(0, 6), (6, 12), (12, 18)]);
    chain.work.push(work(&chain, 0, 8, JobState::Fresh));
    assert_eq!(observed(&chain.advance()), [(8, 14), (14, 20)]);
    chain.work[0].state = JobState::Retrying;
    assert_eq!(observed(&chain.advance()), [(8, 14), (14, 20)]);
    // A range that was given up leads nowhere.
    chain.work[0].state = JobState::Abandoned;
    assert_eq!(observed(&chain.advance()), [(0, 6), (6, 12), (12, 18)]);
}

#[test]
fn the_log_uses_the_overlapping_chunks_that_reach_furthest() {
    let mut chain = Chain::chat(&[1_000; 41]);
    chain.part(PartKind::Chunk, 0, 8, 500);
    for from in [0, 6, 12, 18, 24] {
        chain.part(PartKind::Chunk, from, from + 6, 500);
    }
    // Nothing was observed behind the longer chunk, so it must not end the log.
    assert_eq!(observed(&chain.advance()), [(30, 36)]);
    let steps = chain.advance();
    let plan = steps.iter().find_map(|step| match step {
        Action::Snapshot(plan) => Some(plan),
        _ => None,
    });
    let plan = plan.expect("forty thousand tokens are due");
    assert_eq!(plan.to_count, 30);
    assert_eq!(plan.parts, [2, 3, 4, 5, 6].map(PartId));
}

#[test]
fn the_sent_log_is_continued_although_other_chunks_reach_further() {
    let mut chain = Chain::chat(&[1_000; 41]);
    chain.part(PartKind::Chunk, 0, 8, 500);
    let sent = SnapshotPlan {
        to: chain.link(8),
        to_count: 8,
        pin: None,
        parts: vec![PartId(1)],
        later_chunks: Vec::new(),
        tokens: 500,
        saved_tokens: 7_000,
        cause: SnapshotCause::Threshold,
    };
    chain.snapshot(&sent);
    chain.snapshots[0].eligible_from = 9;
    for from in [0, 6, 12, 18, 24] {
        chain.part(PartKind::Chunk, from, from + 6, 500);
    }
    assert_eq!(observed(&chain.advance())[0], (8, 14));
    chain.part(PartKind::Chunk, 8, 36, 900);
    let steps = chain.advance();
    let parts = steps.iter().find_map(|step| match step {
        Action::Snapshot(plan) => Some(plan.parts.clone()),
        _ => None,
    });
    assert_eq!(parts, Some(vec![PartId(1), PartId(7)]));
}

#[test]
fn a_reflection_that_no_chunk_follows_does_not_end_the_log() {
    let mut chain = Chain::chat(&[1_000; 41]);
    for from in [0, 6, 12, 18] {
        chain.part(PartKind::Chunk, from, from + 6, 500);
    }
    // From the log of another process, with other boundaries.
    chain.part(PartKind::Chunk, 0, 8, 500);
    chain.part(PartKind::Reflection, 0, 8, 300);
    let nodes = chain.nodes.clone();
    let path = ChainState {
        root: Chain::root(),
        nodes: &nodes,
        parts: &chain.parts,
        snapshots: &[],
        jobs: &[],
    };
    let view = ChainView::new(&path);
    let log = view.log(24).expect("chunks lead there");
    let ids: Vec<i64> = log.iter().map(|part| part.id.0).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    let ids: Vec<i64> = view
        .log(8)
        .expect("whole")
        .iter()
        .map(|part| part.id.0)
        .collect();
    assert_eq!(ids, [6]);
}

#[test]
fn all_later_chunks_of_a_plan_are_listed_despite_overlaps() {
    let mut chain = Chain::chat(&[1_000; 41]);
    for (from, to) in [(0, 8), (8, 16), (16, 24), (4, 12), (24, 32), (0, 6)] {
        chain.part(PartKind::Chunk, from, to, 500);
    }
    chain.part(PartKind::Reflection, 0, 32, 400);
    let path = ChainState {
        root: Chain::root(),
        nodes: &chain.nodes,
        parts: &chain.parts,
        snapshots: &[],
        jobs: &[],
    };
    let view = ChainView::new(&path);
    assert_eq!(view.later_chunks(8), [4, 2, 3, 5].map(PartId));
    assert_eq!(view.later_chunks(32), []);
}
