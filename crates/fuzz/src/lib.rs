//! Fuzzing: what must hold for any bytes that clients, upstreams, models and operators write.
//!
//! A [`Target`] reads bytes as one kind of input and panics if an invariant is broken; that nothing else panics is
//! only the first of them. `crates/fuzz/run` searches for such bytes with libFuzzer. The test `replay` runs every
//! target with its seeds and with all inputs that have failed before (`found`), without libFuzzer.

mod seeds;
mod targets;

/// One kind of input, and what must hold for it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line and of its folder in `found`.
    pub name: &'static str,
    /// Panics if an invariant is broken for these bytes.
    pub check: fn(&[u8]),
    /// Good inputs, from which the search starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 6] = [
    Target {
        name: "body",
        check: targets::body::check,
        seeds: seeds::bodies,
    },
    Target {
        name: "stream",
        check: targets::stream::check,
        seeds: seeds::streams,
    },
    Target {
        name: "headers",
        check: targets::headers::check,
        seeds: seeds::headers,
    },
    Target {
        name: "alignment",
        check: targets::alignment::check,
        seeds: seeds::alignments,
    },
    Target {
        name: "observer",
        check: targets::observer::check,
        seeds: seeds::observer_answers,
    },
    Target {
        name: "config",
        check: targets::config::check,
        seeds: seeds::configs,
    },
];

/// The target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
