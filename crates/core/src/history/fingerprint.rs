//! Fingerprints: a keyed BLAKE3 hash of an unambiguous encoding of what a message means.
//!
//! The encoding is a sequence of length-prefixed fields, so two different sequences never have the same
//! bytes. The wire format decides which fields enter. This file only guarantees that equal input gives
//! equal fingerprints and different input different ones.

use blake3::CHUNK_LEN;
use blake3::hazmat::ContextKey;

use super::hex::hex;
use super::lanes;
use super::{HashPurpose, Pepper};

/// The meaning of a message, in 256 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The bytes that are hashed into a link.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({})", hex(&self.0[..6]))
    }
}

static FINGERPRINT: HashPurpose = HashPurpose::new("diarist 2026-11 fingerprint");

/// Collects the fields of one message.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
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
        if value.len() >= WINDOW {
            // A vector that grows by itself would take twice the size of a very long text.
            self.bytes.reserve_exact(value.len() + 2 * CHUNK_LEN);
        }
        self.bytes.push(kind);
        for bytes in [name.as_bytes(), value] {
            self.bytes
                .extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Ends the message with zeros up to a whole chunk. No field begins with a zero.
    fn close(&mut self) {
        let chunks = self.bytes.len().div_ceil(CHUNK_LEN).max(1);
        self.bytes.resize(chunks * CHUNK_LEN, 0);
    }

    /// The fingerprint of all fields so far, without a pepper. For what is not stored, and for tests.
    pub fn finish(mut self) -> Fingerprint {
        self.close();
        let hash = FINGERPRINT.hasher().update(&self.bytes).finalize();
        Fingerprint(*hash.as_bytes())
    }
}

/// Computes the fingerprints of many messages, ten times faster than one by one.
#[derive(Debug)]
pub struct Batch {
    context: ContextKey,
    encoder: Encoder,
    /// Where the messages in the encoder end.
    ends: Vec<usize>,
    fingerprints: Vec<Fingerprint>,
}

/// Bytes that are collected before they are hashed: enough messages to fill the lanes, and few enough
/// to stay in the cache of a core.
const WINDOW: usize = 256 * 1024;

impl Batch {
    /// No messages.
    pub fn new(pepper: &Pepper) -> Self {
        Self {
            context: pepper.context_key(&FINGERPRINT),
            encoder: Encoder::new(),
            ends: Vec::new(),
            fingerprints: Vec::new(),
        }
    }

    /// The encoder for the fields of the next message.
    pub fn encoder(&mut self) -> &mut Encoder {
        &mut self.encoder
    }

    /// Ends a message and begins the next one.
    pub fn next_message(&mut self) {
        self.encoder.close();
        self.ends.push(self.encoder.bytes.len());
        if self.encoder.bytes.len() >= WINDOW {
            self.flush();
        }
    }

    /// The fingerprints of all ended messages, in order.
    pub fn finish(mut self) -> Vec<Fingerprint> {
        self.flush();
        self.fingerprints
    }

    fn flush(&mut self) {
        let (chunks, _) = self.encoder.bytes.as_chunks::<CHUNK_LEN>();
        let mut start = 0;
        let messages: Vec<&[lanes::Chunk]> = self
            .ends
            .drain(..)
            .map(|end| &chunks[std::mem::replace(&mut start, end / CHUNK_LEN)..end / CHUNK_LEN])
            .collect();
        let keys = lanes::derive_keys(&self.context, &messages);
        self.fingerprints.extend(keys.into_iter().map(Fingerprint));
        self.encoder.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_moved_between_fields_changes_the_fingerprint() {
        let mut one = Encoder::new();
        one.text("a", "bc");
        one.text("d", "");
        let mut two = Encoder::new();
        two.text("a", "b");
        two.text("c", "d");
        assert_ne!(one.finish(), two.finish());
    }

    #[test]
    fn a_batch_computes_the_same_fingerprints_as_single_messages() {
        for length in [0, 1, 900, 1024, 5000, 20_000, 300_000] {
            let texts: Vec<String> = (0..40).map(|n| "x".repeat(length / (n % 5 + 1))).collect();
            let mut batch = Batch::new(&Pepper::NONE);
            for text in &texts {
                batch.encoder().text("a", text);
                batch.next_message();
            }
            let one_by_one = texts.iter().map(|text| {
                let mut encoder = Encoder::new();
                encoder.text("a", text);
                encoder.finish()
            });
            assert_eq!(batch.finish(), one_by_one.collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_empty_text_and_a_mark_have_different_fingerprints() {
        let mut text = Encoder::new();
        text.text("x", "");
        let mut mark = Encoder::new();
        mark.mark("x");
        assert_ne!(text.finish(), mark.finish());
    }
}
