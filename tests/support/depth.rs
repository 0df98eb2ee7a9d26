//! How much of what is generated or recorded the tests play. `cargo test` plays a sample; `DIARIST_TESTS=long cargo test`
//! plays more. What single suites can be asked for beyond that stands in docs/testing.md.

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

/// What is played of `all`: everything in the long form, else one of each `every`. `DIARIST_PART` says which one, so that
/// each commit in `.ci/run` plays others than the one before.
pub fn sample<T>(all: impl IntoIterator<Item = T>, every: usize) -> impl Iterator<Item = T> {
    let every = long_or(1, every);
    all.into_iter().skip(part() % every).step_by(every)
}

/// The number of the part that is played; 0 if it is not set.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no other way to be asked for another part"
)]
pub fn part() -> usize {
    let wanted = std::env::var("DIARIST_PART").unwrap_or_default();
    if wanted.is_empty() {
        return 0;
    }
    let part = wanted.parse();
    part.unwrap_or_else(|_| {
        panic!("DIARIST_PART is {wanted:?}: it may be a whole number, or unset")
    })
}
