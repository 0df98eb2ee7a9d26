//! One JSON line per memory request: what was received, what was sent, what the provider said of its
//! cache. And one per observation and reflection: what it was made of, and what it kept of that.
//!
//! [`AuditRecord`] and [`PartRecord`] are the lines, their fields in a fixed order; [`Audit`] takes records
//! without ever waiting and writes them in the background. Never decides anything, never holds message text or
//! credentials. Records are made by the proxy when an answer has ended, whichever way, and by the jobs when a part
//! was stored.

mod part;
mod record;
mod sink;

pub use part::{PartKind, PartRecord};
pub use record::{AuditRecord, EndReason, MemoryState};
pub use sink::{Audit, AuditError};
