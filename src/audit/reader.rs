//! Something that reads records before they are written. `app` implements it, counts dollars, and estimates what no
//! provider reported.

use std::fmt;

use super::{AuditRecord, CallRecord};

/// Reads records on the thread that writes their lines, so it must be quick and must not wait. Takes them also if the
/// disk then refuses the line.
pub trait RecordReader: Send + fmt::Debug {
    /// Takes a request of a client, and may add what it knows from earlier ones.
    fn request(&mut self, record: &mut AuditRecord);

    /// Takes a model call of memory.
    fn call(&mut self, record: &CallRecord);
}
