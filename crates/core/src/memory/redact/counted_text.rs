//! A text that counts how many of its bytes are looked at, and a secret in it.
//!
//! The counts are for the test that the pass over a text is linear. Called by the shapes.

/// A secret in the text, by byte offsets.
pub(super) struct SecretMatch {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: &'static str,
}

/// The most bytes of a key, a quoted value or a token that are followed.
pub(super) const MAX_SECRET_BYTES: usize = 4096;

/// A text, and how many of its bytes were looked at.
pub(super) struct CountedText<'a> {
    pub(super) text: &'a str,
    pub(super) work: usize,
}

impl CountedText<'_> {
    /// Length of the run of bytes that satisfy `keep`, from `from`.
    pub(super) fn run_length(&mut self, from: usize, keep: impl Fn(u8) -> bool) -> usize {
        let bytes = self.text.as_bytes();
        let length = bytes[from.min(bytes.len())..]
            .iter()
            .take(MAX_SECRET_BYTES)
            .take_while(|byte| keep(**byte))
            .count();
        self.work += length;
        length
    }
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}
