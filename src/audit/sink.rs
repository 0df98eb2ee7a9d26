//! Writes audit lines to standard output or a file, one write per line, in the background.
//!
//! A request never waits for the disk: the queue is bounded, and a record that does not fit is dropped and counted.
//! Records in the queue are written before the process ends. At a stop all open requests end at once: their records
//! always fit, and the writer ends after every task that may still have one.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::dropped::Dropped;
use super::file::{AuditError, AuditFile, Rotation};
#[cfg(feature = "otel")]
use super::otlp::{Otlp, SpanStart};
#[cfg(feature = "otel")]
use super::otlp_settings::{OtlpError, OtlpSettings};
use super::reader::RecordReader;
use super::span::{RequestKind, RequestSpan};
use super::stored::{LineStore, Record, StoreQueue, StoreStatus};
use super::{AuditRecord, CallRecord, ForgottenRecord, PartRecord, PassRecord};
use crate::tasks::Tasks;

/// Records that may wait for the writer: some seconds of a very busy proxy, about 2 MB.
const QUEUE: usize = 4096;
/// Records written at once on a blocking thread.
const BATCH: usize = 256;
/// How long the writer lets records gather before it writes them. To wake a thread costs more than to write a line, so
/// a busy proxy wakes it a hundred times a second and not for each line. A process that is killed loses what waits.
const GATHERING: Duration = Duration::from_millis(10);

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
    #[cfg(feature = "otel")]
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
    #[cfg(feature = "otel")]
    otlp: Option<Otlp>,
    #[cfg(feature = "otel")]
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
    #[cfg(feature = "otel")]
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

#[derive(Debug)]
enum Message {
    Record(Box<(AuditRecord, RequestSpan)>),
    Part(Box<PartRecord>),
    Call(Box<CallRecord>),
    Pass(Box<(PassRecord, RequestSpan)>),
    Forgotten(Box<ForgottenRecord>),
    Reopen,
    Flush(oneshot::Sender<()>),
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
    #[cfg(feature = "otel")]
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

    /// Nothing: this build exports no spans.
    #[cfg(not(feature = "otel"))]
    pub fn begin_span(
        _audit: Option<&Self>,
        _headers: &mut HeaderMap,
        _kind: RequestKind,
    ) -> RequestSpan {
        RequestSpan::default()
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

    /// Logs what was lost and not yet said. Called when the tasks have ended.
    pub fn report_losses(&self) {
        self.dropped.losses.tell_rest();
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
        stored.dropped.losses.tell_rest();
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
            torn: false,
            waiting: Arc::clone(&waiting),
            dropped: dropped.clone(),
            store,
            reader: exporter.reader,
            #[cfg(feature = "otel")]
            otlp: exporter.otlp,
        };
        let last = tasks.outlasting();
        let urgent = Arc::<Notify>::default();
        let gathering = Gathering {
            urgent: Arc::clone(&urgent),
            ended: last.token(),
        };
        last.spawn("audit-writer", run(writer, messages, gathering));
        Self {
            queue,
            waiting,
            urgent,
            stopped: tasks.token(),
            dropped,
            stored,
            #[cfg(feature = "otel")]
            spans: exporter.spans,
        }
    }
}

/// What ends the time in which records gather.
#[derive(Debug)]
struct Gathering {
    urgent: Arc<Notify>,
    /// All other tasks have ended.
    ended: CancellationToken,
}

impl Gathering {
    async fn wait(&self) {
        tokio::select! {
            () = tokio::time::sleep(GATHERING) => {}
            () = self.urgent.notified() => {}
            () = self.ended.cancelled() => {}
        }
    }
}

/// Writes until all other tasks have ended, then writes the rest of the queue.
async fn run(writer: Writer, mut messages: mpsc::UnboundedReceiver<Message>, gathering: Gathering) {
    let mut writer = Some(writer);
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        let received = tokio::select! {
            taken = messages.recv_many(&mut batch, BATCH) => taken,
            () = gathering.ended.cancelled(), if !messages.is_closed() => {
                messages.close();
                continue;
            }
        };
        // Without a writer, it has panicked.
        let Some(mut active) = writer.take() else {
            return;
        };
        // Without messages, no more can come.
        if received == 0 {
            #[cfg(feature = "otel")]
            active.end().await;
            return;
        }
        if received < BATCH {
            gathering.wait().await;
            while batch.len() < BATCH
                && let Ok(message) = messages.try_recv()
            {
                batch.push(message);
            }
        }
        let write_batch = tokio::task::spawn_blocking(move || {
            for message in batch {
                active.handle(message);
            }
            active
        });
        writer = write_batch.await.ok();
    }
}

/// Where lines go.
enum Output {
    Stream(Box<dyn Write + Send>),
    File(AuditFile),
    Nowhere,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(_) => f.write_str("Stream"),
            Self::File(file) => file.fmt(f),
            Self::Nowhere => f.write_str("Nowhere"),
        }
    }
}

#[derive(Debug)]
struct Writer {
    output: Output,
    line: Vec<u8>,
    /// Whether the last write failed, which may have left half a line.
    torn: bool,
    waiting: Arc<AtomicUsize>,
    dropped: Dropped,
    store: Option<StoreQueue>,
    reader: Option<Box<dyn RecordReader>>,
    #[cfg(feature = "otel")]
    otlp: Option<Otlp>,
}

impl Writer {
    fn handle(&mut self, message: Message) {
        #[cfg(feature = "otel")]
        self.export(&message);
        match message {
            Message::Record(mut record) => {
                if let Some(reader) = &mut self.reader {
                    reader.request(&mut record.0);
                }
                self.write_or_count(&record.0);
            }
            Message::Part(record) => self.write_or_count(&*record),
            Message::Call(record) => {
                if let Some(reader) = &mut self.reader {
                    reader.call(&record);
                }
                self.write_or_count(&*record);
            }
            Message::Pass(record) => self.write_or_count(&record.0),
            Message::Forgotten(record) => self.write_or_count(&*record),
            Message::Reopen => self.reopen(),
            Message::Flush(written) => match &self.store {
                Some(store) => store.flush(written),
                None => {
                    // The caller may have stopped waiting.
                    let _ = written.send(());
                }
            },
        }
    }

    #[cfg(feature = "otel")]
    fn export(&self, message: &Message) {
        let Some(otlp) = &self.otlp else { return };
        match message {
            Message::Record(record) => otlp.request(&record.0, record.1.ids.as_deref()),
            Message::Pass(record) => otlp.pass(&record.0, record.1.ids.as_deref()),
            Message::Call(record) => otlp.call(record),
            Message::Part(_) | Message::Forgotten(_) | Message::Reopen | Message::Flush(_) => {}
        }
    }

    /// No more records come: what was exported and not sent is sent.
    #[cfg(feature = "otel")]
    async fn end(self) {
        if let Some(otlp) = self.otlp {
            // The SDK waits for its threads.
            let ended = tokio::task::spawn_blocking(move || otlp.shut_down()).await;
            if ended.is_err() {
                tracing::warn!("the export over OTLP did not end in order");
            }
        }
    }

    fn write_or_count(&mut self, record: &impl Record) {
        match self.write(record) {
            Ok(()) => {
                if std::mem::replace(&mut self.torn, false) {
                    self.dropped.losses.recovered();
                } else {
                    self.dropped.losses.expire();
                }
            }
            Err(error) => {
                self.torn = true;
                let error = format!("the audit cannot be written, and lines are lost: {error}");
                self.dropped.add("write", &error);
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// One write per line, so that lines of several processes never mix.
    fn write(&mut self, record: &impl Record) -> io::Result<()> {
        self.line.clear();
        if self.torn {
            // A reader skips an empty line, and finds this one whole.
            self.line.push(b'\n');
        }
        let start = self.line.len();
        serde_json::to_writer(&mut self.line, record)?;
        if let Some(store) = &mut self.store {
            store.offer(record, &self.line[start..]);
        }
        self.line.push(b'\n');
        let output: &mut dyn Write = match &mut self.output {
            Output::Nowhere => return Ok(()),
            Output::Stream(output) => output,
            Output::File(file) => {
                if let Err(error) = file.rotate_for(self.line.len(), Timestamp::now()) {
                    tracing::warn!(%error, "the audit file cannot be rotated and grows on");
                }
                file
            }
        };
        output.write_all(&self.line)?;
        output.flush()
    }

    fn reopen(&mut self) {
        let Output::File(file) = &mut self.output else {
            return;
        };
        match file.reopen() {
            Ok(()) => {
                self.torn = false;
                self.dropped.losses.expire();
            }
            Err(error) => {
                tracing::error!(%error, "the audit file cannot be opened again; lines go to the old file");
            }
        }
    }
}

#[cfg(test)]
mod tests;
