//! How many chunks are due, in tokens; the published tables are in `tests/checklist`.

use super::*;
use crate::memory::EarlyTriggers;

/// A policy with `message_tokens` and what stays of them: a percentage to clear, or tokens to keep.
fn policy(message_tokens: u32, floor: u32) -> Policy {
    Policy {
        message_tokens,
        buffer_tokens: message_tokens / 5,
        buffer_on_idle: false,
        retention_floor: floor,
        block_after: message_tokens / 5 * 6,
        observation_tokens: 40_000,
        reflect_from: 20_000,
        observation_limit: 48_000,
        share_token_budget: false,
        block_overhead: 300,
        early_activation: EarlyTriggers::NEVER,
        early_reflection: EarlyTriggers::NEVER,
        costs: None,
    }
}

fn cleared(message_tokens: u32, hundredths: u32) -> Policy {
    policy(message_tokens, message_tokens / 100 * (100 - hundredths))
}

fn sums(chunks: &[u32]) -> Vec<u32> {
    let mut sum = 0;
    chunks
        .iter()
        .map(|chunk| {
            sum += chunk;
            sum
        })
        .collect()
}

/// Chunks taken and tokens that stay raw.
fn chosen(chunks: &[u32], pending: u32, policy: &Policy) -> Option<(usize, u32)> {
    let sums = sums(chunks);
    let count = chunks_when_due(&sums, pending, policy, false)?;
    Some((count, pending - sums[count - 1]))
}

/// Cases besides the published table, which is tested through `advance` with its other rules.
#[test]
fn the_number_of_activated_chunks_is_chosen_by_the_floor() {
    let thirty = cleared(30_000, 80);
    let rows: &[(&[u32], Policy, u32, usize, u32)] = &[
        (&[1_000; 4], cleared(4_000, 50), 4_000, 2, 2_000),
        (&[29_700], thirty, 30_000, 1, 300),
        (&[10_000; 3], cleared(30_000, 100), 30_000, 3, 0),
        (&[6_300, 5_800, 6_300, 5_800], thirty, 30_400, 4, 6_200),
        // Tokens to keep instead of a fraction to clear.
        (&[6_000; 5], policy(30_000, 1_000), 31_000, 5, 1_000),
        (&[6_000; 5], policy(30_000, 20_000), 30_500, 2, 18_500),
    ];
    for (chunks, policy, pending, count, stays) in rows {
        let got = chosen(chunks, *pending, policy);
        assert_eq!(got, Some((*count, *stays)), "{chunks:?} of {pending}");
    }
}

/// Published: with 5,000 and 24,800 of 30,000 tokens, 5,000 are activated and 25,000 stay raw. The next
/// tokens make room for both, and then at most 7,000 stay.
#[test]
fn an_activation_waits_for_a_chunk_that_is_slightly_too_large() {
    let policy = cleared(30_000, 80);
    let chunks = [5_000, 24_800];
    for pending in [30_000, 30_500, 30_799] {
        assert_eq!(chosen(&chunks, pending, &policy), None, "{pending}");
    }
    for pending in (30_800..=36_800).step_by(500) {
        let (count, stays) = chosen(&chunks, pending, &policy).expect("now");
        assert_eq!(count, 2);
        assert!((1_000..=7_000).contains(&stays), "{stays} of {pending}");
    }
    // A message that fills the history by itself must not hold it back for ever.
    assert_eq!(chosen(&[5_000, 35_500], 41_000, &policy), Some((2, 500)));
    assert_eq!(chosen(&[12_000, 29_500], 42_000, &policy), Some((2, 500)));
    // Nothing more will come, so the chunk that is there is taken.
    assert_eq!(chosen(&[5_000], 30_000, &policy), Some((1, 25_000)));
    assert_eq!(chunks_when_due(&[5_000], 30_000, &policy, true), None);
}

/// Our chunks have one to one and a half times the size, because they end where turns do.
#[test]
fn chunks_that_end_with_turns_leave_about_the_floor() {
    let policy = cleared(30_000, 80);
    let mut seed = 7_u32;
    let mut waited = 0;
    for _ in 0..20_000 {
        let mut next = |least: u32, most: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            least + (seed >> 8) % (most - least)
        };
        let mut chunks = Vec::new();
        let mut sum = 0;
        while sum < 30_000 - 9_000 {
            chunks.push(next(6_000, 9_000));
            sum += chunks[chunks.len() - 1];
        }
        let pending = 30_000 + next(0, 2_000);
        let Some((_, stays)) = chosen(&chunks, pending, &policy) else {
            waited += 1;
            continue;
        };
        // The floor and the part that is not observed yet, plus the last chunk that did not fit.
        assert!(
            (1_000..=7_000).contains(&stays) || pending - sum >= stays,
            "{chunks:?} of {pending} leave {stays}"
        );
    }
    println!("{waited} of 20,000 waited a turn");
    assert!(waited < 2_000);
}

#[test]
fn a_chunk_that_leaves_exactly_the_floor_is_activated() {
    let policy = policy(30_000, 6_000);
    assert_eq!(chosen(&[24_000, 6_000], 30_000, &policy), Some((1, 6_000)));
}

#[test]
fn an_early_activation_never_takes_too_many_chunks() {
    let policy = cleared(30_000, 80);
    for (chunks, pending, count) in [
        // Below the threshold; raw history comes down to the floor.
        (&[6_000, 6_000][..], 14_000, Some(2)),
        (&[6_000, 6_000], 18_500, Some(2)),
        (&[6_000, 6_000, 6_000], 18_500, Some(2)),
        (&[6_000], 10_000, Some(1)),
        // It would leave less than the minimum, or there is no more than the floor.
        (&[6_000], 6_900, None),
        (&[6_000], 7_000, Some(1)),
        (&[2_000, 2_000], 6_000, None),
        (&[2_000, 2_000], 6_001, Some(1)),
        (&[], 20_000, None),
    ] {
        let got = chunks_when_early(&sums(chunks), pending, &policy);
        assert_eq!(got, count, "{chunks:?} of {pending}");
    }
}
