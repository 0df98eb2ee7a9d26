//! Decides how many of the ready chunks an activation takes, counted from the oldest.
//!
//! The order of preference is the published one, with two differences. First, if the result would be
//! far above the floor because the next chunk is a little too large, the activation waits a turn: the
//! raw history will then have grown enough to take that chunk, and the cache is lost once instead of
//! twice. Second, an early activation never goes below the floor and the minimum, because nothing
//! presses.

use crate::memory::Policy;

/// At least this many tokens stay raw after an activation, unless the floor itself is smaller. With
/// less, a model loses the thread of the conversation (the published bound of 1,000 tokens).
const MIN_RAW: u32 = 1_000;

/// How many chunks a due activation takes; `None` if a later one will do better. `sums` are the tokens
/// of the first chunk, of the first two, and so on; `more_coming` says that the next request will allow
/// more to be observed.
pub(super) fn chunks_when_due(
    sums: &[u32],
    pending: u32,
    policy: &Policy,
    more_coming: bool,
) -> Option<usize> {
    let last_chunk = preferred_index(sums, pending, policy)?;
    let floor = policy.retention_floor;
    let remaining = pending.saturating_sub(sums[last_chunk]);
    let far_short = remaining > floor.saturating_add(min_raw(floor));
    let better_later = more_coming || last_chunk + 1 < sums.len();
    if far_short && better_later && pending < policy.max_pending_tokens() {
        return None;
    }
    Some(last_chunk + 1)
}

/// How many chunks an early activation takes; `None` for none.
pub(super) fn chunks_when_early(sums: &[u32], pending: u32, policy: &Policy) -> Option<usize> {
    let floor = policy.retention_floor;
    if pending <= floor {
        return None;
    }
    let last_chunk = preferred_index(sums, pending, policy)?;
    let min_remaining = min_raw(floor);
    (0..=last_chunk)
        .rev()
        .find(|at| pending.saturating_sub(sums[*at]) >= min_remaining)
        .map(|at| at + 1)
}

/// What an activation leaves at least.
pub(super) fn min_raw(floor: u32) -> u32 {
    MIN_RAW.min(floor)
}

/// The index of the last chunk to take. In order of preference: past the floor if the history is
/// overdue or the overshoot is small; short of the floor; past it, whatever remains; one chunk.
fn preferred_index(sums: &[u32], pending: u32, policy: &Policy) -> Option<usize> {
    let floor = policy.retention_floor;
    let target = pending.saturating_sub(floor);
    let leaves_enough = |sum: u32| pending.saturating_sub(sum) >= min_raw(floor);
    let first_over = sums.iter().position(|sum| *sum >= target);
    let last_under = sums.iter().rposition(|sum| *sum < target);
    let small_overshoot = |sum: u32| u64::from(sum - target) * 100 <= u64::from(floor) * 95;
    match (first_over, last_under) {
        (Some(over), _)
            if leaves_enough(sums[over])
                && (pending >= policy.block_after || small_overshoot(sums[over])) =>
        {
            Some(over)
        }
        // A history that is still above the threshold would be activated again at once, so the
        // minimum does not count.
        (Some(over), Some(under)) if pending - sums[under] >= policy.message_tokens => Some(over),
        (_, Some(under)) if leaves_enough(sums[under]) => Some(under),
        (Some(over), _) => Some(over),
        _ => (!sums.is_empty()).then_some(0),
    }
}

#[cfg(test)]
mod tests;
