//! Writes audit lines to standard output or a file, several at once, in the background.
//!
//! A request never waits for the disk: the queue is bounded, and a record that does not fit is dropped and counted.
//! Records in the queue are written before the process ends. At a stop all open requests end at once: their records
//! always fit, and the writer ends after every task that may still have one.

mod message;
mod unwritten_lines;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderMap;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::message::Message;
use self::unwritten_lines::UnwrittenLines;
use self::writer::{Gathering, Output, Writer};
use super::dropped::Dropped;
use super::file::{AuditError, AuditFile, Rotation};
use super::otlp::{Otlp, SpanStart};
use super::otlp_settings::{OtlpError, OtlpSettings};
use super::reader::RecordReader;
use super::span::{RequestKind, RequestSpan};
use super::stored::{LineStore, StoreQueue, StoreStatus};
use super::{AuditRecord, CallRecord, ForgottenRecord, PartRecord, PassRecord};
use crate::tasks::Tasks;

/// Records that may wait for the writer: some seconds of a very busy proxy, about 2 MB.
const QUEUE: usize = 4096;

/// A cheap handle on the audit. Its writer ends with the process, not with the last handle.
#[derive(Clone, Debug)]
pub struct Audit {
    queue: mpsc::UnboundedSender<Message>,
    /// Records that are not written yet.
    waiting: Arc<AtomicUsize>,
    /// Somebody waits for the writer.
    urgent: Arc<Notify>,
    /// The process gives up its open requests.
    stopped: CancellationToken,
    dropped: Dropped,
    /// Lines that the database does not have yet, and those that it will not get.
    stored: Option<Arc<StoreStatus>>,
    /// What requests need if spans are exported.
    pub(super) spans: Option<SpanStart>,
}

/// Where lines go.
#[derive(Clone, Debug)]
pub enum AuditOutput<'a> {
    /// Standard output.
    Stdout,
    /// A file, which is created if it does not exist.
    File(&'a Path, &'a Rotation),
    /// Nowhere: they are only exported.
    Nowhere,
}

/// What the lines become besides, if anything: spans and metrics, rows of a database, and what a reader makes of them.
#[derive(Debug, Default)]
pub struct Exporter {
    store: Option<Arc<dyn LineStore>>,
    reader: Option<Box<dyn RecordReader>>,
    otlp: Option<Otlp>,
    spans: Option<SpanStart>,
}

impl Exporter {
    /// The same, and every line goes to this store.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn LineStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// The same, and this reader takes every request and every call.
    #[must_use]
    pub fn with_reader(mut self, reader: Box<dyn RecordReader>) -> Self {
        self.reader = Some(reader);
        self
    }

    /// An exporter with these settings.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn start(settings: &OtlpSettings, tasks: &Tasks) -> Result<Self, OtlpError> {
        let otlp = Otlp::start(settings, tasks)?;
        Ok(Self {
            spans: otlp.span_start(settings),
            otlp: Some(otlp),
            store: None,
            reader: None,
        })
    }
}

impl Audit {
    /// Writes to `target`, and exports with `exporter`.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for appending.
    pub fn open(
        target: &AuditOutput<'_>,
        exporter: Exporter,
        tasks: &Tasks,
    ) -> Result<Self, AuditError> {
        let output = match target {
            AuditOutput::Stdout => Output::Stream(Box::new(io::stdout())),
            AuditOutput::File(path, rotation) => Output::File(AuditFile::open(path, rotation)?),
            AuditOutput::Nowhere => Output::Nowhere,
        };
        Ok(Self::start(output, exporter, tasks))
    }

    /// The place in its trace of a request with these headers. If the operator wants it, the headers name this place
    /// from then on. Nothing without `audit`, or if no spans are exported.
    pub fn begin_span(
        audit: Option<&Self>,
        headers: &mut HeaderMap,
        kind: RequestKind,
    ) -> RequestSpan {
        let spans = audit.and_then(|audit| audit.spans.as_ref());
        let ids = spans.and_then(|spans| spans.begin(headers, kind));
        RequestSpan {
            ids: ids.map(Box::new),
        }
    }

    /// Takes a record. Never waits: if the writer is too far behind, the record is dropped.
    pub fn record(&self, record: AuditRecord, span: RequestSpan) {
        self.enqueue(Message::Record(Box::new((record, span))));
    }

    /// Takes a record of an observation or a reflection. Never waits.
    pub fn part(&self, record: PartRecord) {
        self.enqueue(Message::Part(Box::new(record)));
    }

    /// Takes a record of a model call of memory. Never waits.
    pub fn call(&self, record: CallRecord) {
        self.enqueue(Message::Call(Box::new(record)));
    }

    /// Takes a record of a request that passed through unread. Never waits.
    pub fn pass(&self, record: PassRecord, span: RequestSpan) {
        self.enqueue(Message::Pass(Box::new((record, span))));
    }

    /// Takes a record of a deletion. Never waits.
    pub fn forgotten(&self, record: ForgottenRecord) {
        self.enqueue(Message::Forgotten(Box::new(record)));
    }

    fn enqueue(&self, message: Message) {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let (reason, error) = if waiting >= QUEUE && !self.stopped.is_cancelled() {
            let error = "the audit cannot be written fast enough, and lines are lost";
            ("full", error)
        } else if self.queue.send(message).is_err() {
            let error = "the audit's writer has ended, and lines come too late and are lost";
            ("closed", error)
        } else {
            return;
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.dropped.add(reason, error);
    }

    /// Opens the file again by its name, after a rotation has moved it away.
    pub fn reopen(&self) {
        // If the writer has ended, there is nothing to open again.
        let _ = self.queue.send(Message::Reopen);
        self.urgent.notify_one();
    }

    /// Returns once all earlier records are written.
    pub async fn flush(&self) {
        let (written, done) = oneshot::channel();
        if self.queue.send(Message::Flush(written)).is_ok() {
            self.urgent.notify_one();
            // The writer answers, or it has ended and written everything.
            let _ = done.await;
        }
    }

    /// Whether a database gets the lines too.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// Records that were not written since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let stored = self.stored.as_ref();
        self.dropped.count() + stored.map_or(0, |stored| stored.dropped.count())
    }

    /// Logs what was lost and is in no log line yet. Called when the tasks have ended.
    pub fn report_losses(&self) {
        self.dropped.losses.log_rest();
        let unwritten = self.waiting.load(Ordering::Relaxed);
        if unwritten > 0 {
            tracing::warn!(
                lost = unwritten,
                "the audit's writer did not end in time: the lines that wait for it are lost"
            );
        }
        let Some(stored) = &self.stored else {
            return;
        };
        stored.dropped.losses.log_rest();
        let unstored = stored.waiting.load(Ordering::Relaxed);
        if unstored > 0 {
            tracing::warn!(
                lost = unstored,
                "the database did not take the last audit lines in time: it does not have them"
            );
        }
    }

    fn start(output: Output, exporter: Exporter, tasks: &Tasks) -> Self {
        let (queue, messages) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let dropped = Dropped::new("audit", tasks);
        let store = exporter.store;
        let store = store.map(|store| StoreQueue::start(store, tasks));
        let stored = store.as_ref().map(|store| Arc::clone(&store.status));
        let writer = Writer {
            output,
            line: Vec::new(),
            unwritten: UnwrittenLines::default(),
            writing: 0,
            torn: false,
            waiting: Arc::clone(&waiting),
            dropped: dropped.clone(),
            store,
            reader: exporter.reader,
            otlp: exporter.otlp,
        };
        let last = tasks.outlasting();
        let urgent = Arc::<Notify>::default();
        let gathering = Gathering {
            urgent: Arc::clone(&urgent),
            ended: last.token(),
        };
        last.spawn("audit-writer", writer::run(writer, messages, gathering));
        Self {
            queue,
            waiting,
            urgent,
            stopped: tasks.token(),
            dropped,
            stored,
            spans: exporter.spans,
        }
    }
}

#[cfg(test)]
mod tests;
