//! The pepper: a secret of the operator that keys every hash of something that can be guessed.
//!
//! Credentials, names of users and texts of messages are stored as hashes. Without the pepper, somebody who
//! has only the database cannot check a guess against it. A database from before there was a pepper has none:
//! then every hash is what it always was. The pepper is a value that the caller hands in; it is never stored,
//! printed or compared with anything but [`Pepper::check_value`].

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt as _};

use super::HashPurpose;

/// The secret, or none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Pepper(Option<[u8; 32]>);

impl std::fmt::Debug for Pepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Pepper(set)"
        } else {
            "Pepper(none)"
        })
    }
}

impl Pepper {
    /// No pepper: hashes have no secret key.
    pub const NONE: Self = Self(None);

    /// The pepper of `secret`, which must be long and random.
    pub fn new(secret: &[u8]) -> Self {
        Self(Some(blake3::derive_key("diarist 2026-11 pepper", secret)))
    }

    /// Computes hashes for one `purpose`.
    pub fn hasher(&self, purpose: &HashPurpose) -> Hasher {
        Hasher::new_from_context_key(&self.context_key(purpose))
    }

    /// The hash of `input` for one `purpose`.
    pub fn hash(&self, purpose: &HashPurpose, input: &[u8]) -> [u8; 32] {
        *self.hasher(purpose).update(input).finalize().as_bytes()
    }

    /// What a database may hold to recognise its pepper; `None` without one. It does not lead back to it.
    pub fn check_value(&self) -> Option<[u8; 32]> {
        let pepper = self.0.as_ref()?;
        Some(*blake3::keyed_hash(pepper, b"check value").as_bytes())
    }

    pub(super) fn context_key(&self, purpose: &HashPurpose) -> ContextKey {
        self.key(*purpose.key())
    }

    /// `key` itself without a pepper.
    pub(super) fn key(&self, key: [u8; 32]) -> [u8; 32] {
        match &self.0 {
            None => key,
            Some(pepper) => *blake3::keyed_hash(pepper, &key).as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Batch, Encoder, Link, Scope, ScopedHash};

    /// The hashes of a database from before there was a pepper. A change here loses its memory.
    #[test]
    fn hashes_without_a_pepper_stay_compatible_with_older_databases() {
        assert_eq!(
            Pepper::NONE.hash(&HashPurpose::new("a purpose"), b"input"),
            blake3::derive_key("a purpose", b"input")
        );
        assert_eq!(
            Scope::hash_tenant(&Pepper::NONE, b"k"),
            blake3::derive_key("diarist 2026-11 tenant", b"k")
        );
        let root = Link::root(&Scope::new(b"k", None));
        let mut input = b"text".to_vec();
        input.extend_from_slice(&2_u64.to_be_bytes());
        input.extend_from_slice(b"hi");
        let keyed = blake3::keyed_hash(root.as_bytes(), &input);
        let hash = ScopedHash::from_text(&Pepper::NONE, &root, "hi");
        assert_eq!(hash.as_bytes(), &keyed.as_bytes()[..16]);
        assert_eq!(Pepper::NONE.check_value(), None);
    }

    #[test]
    fn another_pepper_changes_every_hash() {
        let (one, two) = (Pepper::new(&[1; 32]), Pepper::new(&[2; 32]));
        let root = Link::root(&Scope::new(b"k", None));
        let fingerprint = |pepper: &Pepper| {
            let mut batch = Batch::new(pepper);
            batch.encoder().text("content", "hi");
            batch.next_message();
            batch.finish()
        };
        let mut encoder = Encoder::new();
        encoder.text("content", "hi");
        assert_eq!(fingerprint(&Pepper::NONE), [encoder.finish()]);
        let peppers = [Pepper::NONE, one, two];
        for (index, pepper) in peppers.iter().enumerate() {
            for other in &peppers[index + 1..] {
                let tenant = |pepper| Scope::hash_tenant(pepper, b"k");
                let text = |pepper| ScopedHash::from_text(pepper, &root, "hi");
                assert_ne!(tenant(pepper), tenant(other));
                assert_ne!(text(pepper), text(other));
                assert_ne!(fingerprint(pepper), fingerprint(other));
                assert_ne!(pepper.check_value(), other.check_value());
            }
        }
    }

    #[test]
    fn the_debug_output_of_a_pepper_hides_the_secret() {
        assert_eq!(format!("{:?}", Pepper::new(b"secret")), "Pepper(set)");
    }
}
