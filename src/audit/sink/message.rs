//! What the audit's writer is sent.

use tokio::sync::oneshot;

use crate::audit::span::RequestSpan;
use crate::audit::{AuditRecord, CallRecord, ForgottenRecord, PartRecord, PassRecord};

/// A record to write, or an order.
#[derive(Debug)]
pub(super) enum Message {
    Record(Box<(AuditRecord, RequestSpan)>),
    Part(Box<PartRecord>),
    Call(Box<CallRecord>),
    Pass(Box<(PassRecord, RequestSpan)>),
    Forgotten(Box<ForgottenRecord>),
    Reopen,
    Flush(oneshot::Sender<()>),
}
