//! Fingerprints: a keyed BLAKE3 of an injective encoding of what a message means.
//!
//! The encoding is a sequence of fields, each length-prefixed, so no two different sequences of
//! fields share their bytes. What enters is decided by the wire format; this file only guarantees
//! that different input gives different fingerprints and equal input equal ones.

use super::chain::hex;

/// What a message means, as 256 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// As hashed into a link.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({})", hex(&self.0[..6]))
    }
}

/// Collects the fields of one message.
#[derive(Debug)]
pub struct Encoder {
    hasher: blake3::Hasher,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An empty message.
    pub fn new() -> Self {
        Self {
            hasher: blake3::Hasher::new_derive_key("diarist 2026-11 fingerprint"),
        }
    }

    /// A named text field.
    pub fn text(&mut self, name: &str, value: &str) {
        self.bytes(b'T', name, value.as_bytes());
    }

    /// A named number, by its bits.
    pub fn number(&mut self, name: &str, value: f64) {
        self.bytes(b'N', name, &value.to_bits().to_be_bytes());
    }

    /// A named small count (positions, lengths).
    pub fn count(&mut self, name: &str, value: usize) {
        self.bytes(b'C', name, &(value as u64).to_be_bytes());
    }

    /// A named marker without a value.
    pub fn mark(&mut self, name: &str) {
        self.bytes(b'M', name, &[]);
    }

    fn bytes(&mut self, kind: u8, name: &str, value: &[u8]) {
        let mut head = [0_u8; 9];
        head[0] = kind;
        head[1..].copy_from_slice(&(name.len() as u64).to_be_bytes());
        self.hasher.update(&head);
        self.hasher.update(name.as_bytes());
        self.hasher.update(&(value.len() as u64).to_be_bytes());
        self.hasher.update(value);
    }

    /// The fingerprint of everything given so far.
    pub fn finish(self) -> Fingerprint {
        Fingerprint(*self.hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_into_each_other() {
        let mut one = Encoder::new();
        one.text("a", "bc");
        one.text("d", "");
        let mut two = Encoder::new();
        two.text("a", "b");
        two.text("c", "d");
        assert_ne!(one.finish(), two.finish());
    }

    #[test]
    fn kinds_differ() {
        let mut text = Encoder::new();
        text.text("x", "");
        let mut mark = Encoder::new();
        mark.mark("x");
        assert_ne!(text.finish(), mark.finish());
    }
}
