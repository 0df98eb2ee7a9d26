//! Whether an activation makes the request smaller (INV-WORTH), and which tokens count.

use super::super::chain_view::ChainView;
use super::*;

#[test]
fn the_tokens_of_the_reminder_count_against_an_activation() {
    let chunk_of = |tokens: u32| {
        let mut chain = Chain::default();
        chain.push(Role::User, 3_000, true, false);
        chain.push(Role::Assistant, 100, false, false);
        chain.push(Role::Tool, 3_000, true, false);
        chain.push(Role::Assistant, 3_000, true, true);
        // Overdue, so it does not wait for the observation of this message.
        chain.push(Role::User, 27_000, true, false);
        chain.part(PartKind::Chunk, 0, 3, tokens);
        for range in observed(&chain.advance()) {
            chain.work.push(ChainJob {
                kind: PartKind::Chunk,
                span: chain.span(range.0, range.1),
                state: JobState::Abandoned,
            });
        }
        chain.plan()
    };
    // The covered tokens minus the tokens of the block itself.
    let gain = 6_100 - POLICY.block_overhead;
    assert_eq!(chunk_of(gain - 1), None, "the tail begins with an answer");
    assert!(chunk_of(gain - 1 - render::reminder_tokens()).is_some());
}

/// A part that is sent already has all its relations, so its maximum no longer counts.
#[test]
fn a_part_already_sent_counts_its_real_tokens_and_not_its_maximum() {
    let mut chain = Chain::chat(&[6_000; 7]);
    let first = chain.part(PartKind::Chunk, 0, 2, 1_000);
    let link = chain.link(2);
    chain.snapshot(&SnapshotPlan {
        to: link,
        to_count: 2,
        pin: None,
        parts: vec![first],
        later_chunks: Vec::new(),
        tokens: 600,
        saved_tokens: 1,
        cause: SnapshotCause::Threshold,
    });
    chain.snapshots[0].eligible_from = 3;
    chain.part(PartKind::Chunk, 2, 4, 500);
    chain.part(PartKind::Reflection, 0, 2, 900);
    let parts: Vec<&PartMeta> = chain.parts.iter().collect();
    let path = chain.path();
    let view = ChainView::new(&path);
    assert_eq!(view.max_log_tokens(&parts[..2]), 600 + 500);
    assert_eq!(view.max_log_tokens(&[parts[2], parts[1]]), 900 + 500);
    assert_eq!(view.max_log_tokens(&[]), 0);
}
