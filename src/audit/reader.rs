//! Something that reads the lines while they are written. `app` implements it, and counts dollars.

use std::fmt;

/// Reads lines on the thread that writes them, so it must be quick and must not wait.
pub trait LineReader: Send + fmt::Debug {
    /// Takes a line without its line break, also one that the disk then refuses.
    fn read(&mut self, line: &[u8]);
}
