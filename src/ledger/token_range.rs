//! An estimated number of tokens, with the ends between which it lies.

/// A number of tokens as it is likely, and the ends between which it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) likely: u64,
    pub(super) fewest: u64,
    pub(super) most: u64,
}
