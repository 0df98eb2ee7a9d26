//! Writes one JSON line per chat completion (what was received, what was sent, what the provider reported about its
//! cache), one per observation and reflection (its source, and how much it kept), one per deletion, one per model call of
//! memory, and a short one per request that passes through unread.
//!
//! [`AuditRecord`], [`PartRecord`], [`ForgottenRecord`], [`CallRecord`] and [`PassRecord`] are the lines, with their
//! fields in a fixed order. [`Audit`] takes records without waiting and writes them in the background. Decides nothing,
//! and never holds text of messages or credentials. `proxy` makes a record when an answer has ended, in whatever way;
//! `jobs` makes one when a part is stored and when a model call has ended. The same records can become
//! spans and metrics ([`OtlpSettings`]). If the operator wants it, a database gets the same lines ([`LineStore`]).
//! A [`RecordReader`] sees requests and calls while their lines are written.

mod call;
mod dropped;
mod file;
mod forgotten;
mod otlp;
mod otlp_settings;
mod part;
mod pass;
mod reader;
mod record;
mod sink;
mod span;
mod stored;

pub use call::{CallKind, CallOutcome, CallRecord};
pub use file::{AuditError, Rotation, check_place, with_rotated};
pub use forgotten::ForgottenRecord;
pub use otlp_settings::{OtlpError, OtlpSettings};
pub use part::{PartKind, PartRecord};
pub use pass::PassRecord;
pub use reader::RecordReader;
pub use record::{AuditRecord, EndReason, MemoryState, SegmentSizes};
pub use sink::{Audit, AuditOutput, Exporter};
pub use span::{RequestKind, RequestSpan};
pub use stored::{LineStore, StoredLine};
