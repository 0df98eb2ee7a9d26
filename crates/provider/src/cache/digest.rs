//! Hashes of prefixes of prompts.

/// The hash of a prefix.
pub(super) type Digest = [u8; 16];

/// Half a BLAKE3 digest over length-prefixed fields, so `("ab", "c")` differs from `("a", "bc")`.
pub(super) fn link(fields: &[&[u8]]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for field in fields {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}
