//! What a request goes out with after something failed, its name in the audit (`rung`), and its counter. Decided by
//! `select_memory` and `retry`.

use std::sync::LazyLock;

use metrics::Counter;

use crate::telemetry::{self, kept};

/// What the request goes out with after something failed (INV-OPEN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// Nothing went wrong.
    NotNeeded,
    /// The store failed; the cache of this process had a snapshot.
    ProcessCache,
    /// The store failed and nothing in the cache fits; the original went out.
    Original,
    /// The changed request was refused; the original went out after it.
    Refused,
    /// A content filter refused the text of the block twice in a row; the original went out at once.
    Blocked,
    /// The request was refused as too long; it went out again with everything observed so far.
    Observed,
    /// The place of the block was refused, or what was added beside it, and the request is too long without the block.
    /// It went out again with the block one placement lower, or without the addition.
    LowerPlacement,
    /// The request did not fit its model; a model observed more of it while the client waited.
    OverflowObserved,
    /// The request did not fit its model; its oldest raw rounds were left out, with a note.
    Trimmed,
}

/// How many requests went out with each fallback.
static FALLBACKS: LazyLock<[Counter; Fallback::ALL.len()]> = LazyLock::new(|| {
    kept(|| {
        Fallback::ALL.map(
            |fallback| metrics::counter!(telemetry::MEMORY_REQUESTS, "rung" => fallback.name()),
        )
    })
});

/// The counter of a fallback is found by its number.
const _: () = {
    let mut number = 0;
    while number < Fallback::ALL.len() {
        assert!(Fallback::ALL[number] as usize == number);
        number += 1;
    }
};

impl Fallback {
    /// Lets every series exist before its first event.
    pub(super) fn register_metrics() {
        LazyLock::force(&FALLBACKS);
    }

    /// Counts a request that went out with it.
    pub(super) fn count(self) {
        FALLBACKS[self as usize].increment(1);
    }

    /// In the order of their numbers.
    pub(super) const ALL: [Self; 9] = [
        Self::NotNeeded,
        Self::ProcessCache,
        Self::Original,
        Self::Refused,
        Self::Blocked,
        Self::Observed,
        Self::LowerPlacement,
        Self::OverflowObserved,
        Self::Trimmed,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NotNeeded => "whole",
            Self::ProcessCache => "process",
            Self::Original => "original",
            Self::Refused => "refused",
            Self::Blocked => "passed_over",
            Self::Observed => "observed",
            Self::LowerPlacement => "lowered",
            Self::OverflowObserved => "awaited",
            Self::Trimmed => "trimmed",
        }
    }
}
