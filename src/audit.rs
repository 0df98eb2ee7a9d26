//! One JSON line per memory request: what was received, what was sent, what the provider said of its
//! cache.
//!
//! [`AuditRecord`] is the line, its fields in a fixed order; [`Audit`] takes records without ever
//! waiting and writes them in the background. Never decides anything, never holds message text or
//! credentials. Records are made by the proxy when an answer has ended, whichever way.

mod record;
mod sink;

pub use record::{AuditRecord, Ended, MemoryState};
pub use sink::{Audit, AuditError};
