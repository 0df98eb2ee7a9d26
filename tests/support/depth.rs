//! How much of what is generated or recorded the tests play. A plain `cargo test` plays a sample, in about three
//! minutes; `DIARIST_TESTS=long cargo test`, as in `.ci/run`, plays more. What single suites can be asked for beyond that
//! stands in docs/testing.md.

/// Whether the long form is wanted.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no other way to be asked for more"
)]
pub fn is_long() -> bool {
    let wanted = std::env::var("DIARIST_TESTS").unwrap_or_default();
    assert!(
        ["", "long"].contains(&wanted.as_str()),
        "DIARIST_TESTS is {wanted:?}: it may be \"long\", or unset"
    );
    wanted == "long"
}

/// `long` in the long form, else `sample`.
pub fn long_or<T>(long: T, sample: T) -> T {
    if is_long() { long } else { sample }
}

/// Whether the plain form plays the item at `index` of a list: one of each `every`. The long form plays all.
pub fn is_played(index: usize, every: usize) -> bool {
    is_long() || index.is_multiple_of(every)
}
