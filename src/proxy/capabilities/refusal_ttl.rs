//! How long what an upstream refused is remembered.

use std::time::{Duration, Instant};

/// How long a refusal is remembered: of a placement, of a block, or of any change to a signed request. Long
/// enough that the extra request does not matter, short enough to notice an upgraded upstream the same day.
pub(super) const REFUSAL_TTL: Duration = Duration::from_hours(1);

/// Whether something learned at `at` still holds.
pub(super) fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < REFUSAL_TTL
}
