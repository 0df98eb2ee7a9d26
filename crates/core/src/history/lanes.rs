//! BLAKE3 of many short inputs at once.
//!
//! BLAKE3 is fast because it hashes the chunks of a long input side by side in the vector lanes of the
//! processor. A message has one or a few chunks. Alone, it is hashed ten times slower (1.4 ms instead
//! of 0.1 ms for a megabyte in messages of one kilobyte, on a machine with 16 lanes), which would be
//! most of the cost of a request. Here, chunks of *different* messages share the lanes. The result is
//! exactly BLAKE3; a test compares it with [`blake3::Hasher`].
//!
//! The lane function of the crate is public but not guaranteed. If an update of `blake3` removes it,
//! use [`blake3::Hasher`] for each input: the same function, only slower.

use blake3::hazmat::{self, ChainingValue, ContextKey, Mode};
use blake3::platform::Platform;
use blake3::{IncrementCounter, OUT_LEN};

/// The chunk size of BLAKE3. Inputs are whole chunks, so all lanes have the same length.
pub(super) type Chunk = [u8; blake3::CHUNK_LEN];

/// An input with this many chunks fills the lanes by itself.
const MIN_WIDE_CHUNKS: usize = 16;

/// Flags of the specification, section 2.2.
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const ROOT: u8 = 1 << 3;
const DERIVE_KEY_MATERIAL: u8 = 1 << 6;

/// The derived keys of `inputs` (each at least one chunk) in this `context`.
pub(super) fn derive_keys(context: &ContextKey, inputs: &[&[Chunk]]) -> Vec<[u8; OUT_LEN]> {
    let mut keys = vec![[0; OUT_LEN]; inputs.len()];
    let (mut single, mut several) = (Vec::new(), Vec::new());
    for (index, input) in inputs.iter().enumerate() {
        match input.len() {
            1 => single.push(index),
            2..MIN_WIDE_CHUNKS => several.push(index),
            _ => keys[index] = derive_key_alone(context, input),
        }
    }
    let first = |index: &usize| &inputs[*index][0];
    let firsts: Vec<&Chunk> = single.iter().map(first).collect();
    for (index, value) in single
        .iter()
        .zip(chunks(context, &firsts, 0, CHUNK_END | ROOT))
    {
        keys[*index] = value;
    }
    let mut values: Vec<Vec<ChainingValue>> = vec![Vec::new(); several.len()];
    let longest = several.iter().map(|index| inputs[*index].len()).max();
    for counter in 0..longest.unwrap_or(0) {
        let has_chunk = |&place: &usize| inputs[several[place]].len() > counter;
        let places: Vec<usize> = (0..several.len()).filter(has_chunk).collect();
        let lanes: Vec<&Chunk> = places
            .iter()
            .map(|place| &inputs[several[*place]][counter])
            .collect();
        for (place, value) in places
            .iter()
            .zip(chunks(context, &lanes, counter, CHUNK_END))
        {
            values[*place].push(value);
        }
    }
    let mode = Mode::DeriveKeyMaterial(context);
    for (index, values) in several.iter().zip(&values) {
        let (left, right) = halves(values, mode);
        keys[*index] = *hazmat::merge_subtrees_root(&left, &right, mode).as_bytes();
    }
    keys
}

fn derive_key_alone(context: &ContextKey, input: &[Chunk]) -> [u8; OUT_LEN] {
    use hazmat::HasherExt as _;
    let mut hasher = blake3::Hasher::new_from_context_key(context);
    hasher.update(input.as_flattened());
    *hasher.finalize().as_bytes()
}

/// The chaining values of chunks at position `counter` of their inputs.
fn chunks(context: &ContextKey, lanes: &[&Chunk], counter: usize, end: u8) -> Vec<ChainingValue> {
    let mut words = [0_u32; 8];
    for (word, bytes) in words.iter_mut().zip(context.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let mut out = vec![[0; OUT_LEN]; lanes.len()];
    Platform::detect().hash_many(
        lanes,
        &words,
        counter as u64,
        IncrementCounter::No,
        DERIVE_KEY_MATERIAL,
        CHUNK_START,
        end,
        out.as_flattened_mut(),
    );
    out
}

/// The two subtrees below the node over `values` (at least two).
fn halves(values: &[ChainingValue], mode: Mode<'_>) -> (ChainingValue, ChainingValue) {
    // The left subtree is the largest full one that leaves something for the right one.
    let left = values.len().next_power_of_two() / 2;
    (
        subtree(&values[..left], mode),
        subtree(&values[left..], mode),
    )
}

fn subtree(values: &[ChainingValue], mode: Mode<'_>) -> ChainingValue {
    if let [value] = values {
        return *value;
    }
    let (left, right) = halves(values, mode);
    hazmat::merge_subtrees_non_root(&left, &right, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length around every lane width, in all combinations with its neighbours.
    #[test]
    fn parallel_hashing_equals_blake3_for_every_count_and_length() {
        const CONTEXT: &str = "diarist test lanes";
        let context = hazmat::hash_derive_key_context(CONTEXT);
        let data: Vec<Chunk> = (0..700_u32)
            .map(|n| {
                std::array::from_fn(|at| {
                    (n.wrapping_mul(2_654_435_761) >> (at % 24)).to_le_bytes()[0]
                })
            })
            .collect();
        for count in [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 100] {
            for longest in [1, 2, 3, 5, 15, 16, 17, 40] {
                let inputs: Vec<&[Chunk]> =
                    (0..count).map(|n| &data[n..=n + n % longest]).collect();
                let expected: Vec<[u8; OUT_LEN]> = inputs
                    .iter()
                    .map(|input| blake3::derive_key(CONTEXT, input.as_flattened()))
                    .collect();
                assert_eq!(derive_keys(&context, &inputs), expected);
            }
        }
    }
}
