//! One file for each target.

pub(crate) mod alignment;
pub(crate) mod body;
pub(crate) mod config;
pub(crate) mod headers;
pub(crate) mod observer;
pub(crate) mod stream;

/// The first `N` bytes of an input as numbers that choose what to do, and the rest. Missing bytes are zero.
fn choices<const N: usize>(data: &[u8]) -> ([u8; N], &[u8]) {
    let (first, rest) = data.split_at(data.len().min(N));
    let mut chosen = [0; N];
    chosen[..first.len()].copy_from_slice(first);
    (chosen, rest)
}
