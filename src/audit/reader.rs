//! Something that reads records while they are written. `app` implements it, and counts dollars.

use std::fmt;

use super::{AuditRecord, CallRecord};

/// Reads records on the thread that writes their lines, so it must be quick and must not wait. Takes them also if the
/// disk then refuses the line.
pub trait RecordReader: Send + fmt::Debug {
    /// Takes a request of a client.
    fn request(&mut self, record: &AuditRecord);

    /// Takes a model call of memory.
    fn call(&mut self, record: &CallRecord);
}
