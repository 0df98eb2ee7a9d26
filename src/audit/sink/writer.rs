//! The audit's writer: lets records gather, and writes them on a thread that may wait for the disk. It drops
//! nothing for want of room: that is decided before. Started by [`super`].

use std::fmt;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::message::Message;
use super::unwritten_lines::{UnwrittenLines, WriteFailure};
use crate::audit::dropped::Dropped;
use crate::audit::file::AuditFile;
use crate::audit::otlp::Otlp;
use crate::audit::reader::RecordReader;
use crate::audit::stored::{Record, StoreQueue};

/// Records written at once on a blocking thread.
pub(super) const BATCH: usize = 256;
/// How long the writer lets records gather before it writes them. To wake a thread costs more than to write a line, so
/// a busy proxy wakes it a hundred times a second and not for each line. A process that is killed loses what waits.
const GATHERING: Duration = Duration::from_millis(10);

/// What ends the time in which records gather.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) urgent: Arc<Notify>,
    /// All other tasks have ended.
    pub(super) ended: CancellationToken,
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
pub(super) async fn run(
    writer: Writer,
    mut messages: mpsc::UnboundedReceiver<Message>,
    gathering: Gathering,
) {
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
                active.handle_or_count(message);
            }
            active.write_rest();
            active
        });
        writer = write_batch.await.ok();
    }
}

/// Where lines go.
pub(super) enum Output {
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
pub(super) struct Writer {
    pub(super) output: Output,
    /// The last line, of which only the room is kept.
    pub(super) line: Vec<u8>,
    pub(super) unwritten: UnwrittenLines,
    /// How many lines are being written.
    pub(super) writing: usize,
    /// Whether the last write failed, which may have left half a line.
    pub(super) torn: bool,
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) dropped: Dropped,
    pub(super) store: Option<StoreQueue>,
    pub(super) reader: Option<Box<dyn RecordReader>>,
    pub(super) otlp: Option<Otlp>,
}

impl Writer {
    /// Handles a message. A fault in what reads it loses this line, and not the audit.
    fn handle_or_count(&mut self, message: Message) {
        let is_line = !matches!(message, Message::Reopen | Message::Flush(_));
        let handled = panic::catch_unwind(AssertUnwindSafe(|| self.handle(message)));
        if handled.is_err() {
            self.count_fault(usize::from(is_line));
        }
    }

    /// Writes the lines that are left. A fault loses them, and not the audit.
    fn write_rest(&mut self) {
        let written = panic::catch_unwind(AssertUnwindSafe(|| self.write_lines()));
        if written.is_err() {
            self.count_fault(0);
        }
    }

    /// Counts `lost` lines, and those that were being written.
    fn count_fault(&mut self, lost: usize) {
        let lost = lost + std::mem::take(&mut self.writing);
        self.torn = true;
        for _ in 0..lost {
            self.dropped.add(
                "fault",
                "a fault in the program kept audit lines from being written, and lines are lost",
            );
        }
        self.waiting.fetch_sub(lost, Ordering::Relaxed);
    }

    fn handle(&mut self, message: Message) {
        self.export(&message);
        match message {
            Message::Record(mut record) => {
                if let Some(reader) = &mut self.reader {
                    reader.request(&mut record.0);
                }
                self.add(&record.0);
            }
            Message::Part(record) => self.add(&*record),
            Message::Call(record) => {
                if let Some(reader) = &mut self.reader {
                    reader.call(&record);
                }
                self.add(&*record);
            }
            Message::Pass(record) => self.add(&record.0),
            Message::Forgotten(record) => self.add(&*record),
            Message::Reopen => {
                self.write_rest();
                self.reopen();
            }
            Message::Flush(written) => {
                self.write_rest();
                match &self.store {
                    Some(store) => store.flush(written),
                    None => {
                        // The caller may have stopped waiting.
                        let _ = written.send(());
                    }
                }
            }
        }
    }

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
    async fn end(self) {
        if let Some(otlp) = self.otlp {
            // The SDK waits for its threads.
            let ended = tokio::task::spawn_blocking(move || otlp.shut_down()).await;
            if ended.is_err() {
                tracing::warn!("the export over OTLP did not end in order");
            }
        }
    }

    /// Adds a line to those that are written together, and writes these if they are enough.
    fn add(&mut self, record: &impl Record) {
        self.line.clear();
        if let Err(error) = serde_json::to_writer(&mut self.line, record) {
            self.count_failure(&WriteFailure {
                error: error.into(),
                lost: 1,
            });
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        if let Some(store) = &mut self.store {
            store.offer(record, &self.line);
        }
        self.line.push(b'\n');
        if !self.unwritten.has_room(self.line.len()) {
            self.write_lines();
        }
        self.unwritten.push(&self.line);
    }

    /// Writes the lines that were added. Those that cannot be written are lost, and counted.
    fn write_lines(&mut self) {
        self.writing = self.unwritten.count();
        if self.writing == 0 {
            return;
        }
        let mut lines = std::mem::take(&mut self.unwritten);
        match self.write(&mut lines) {
            Ok(()) => {
                if std::mem::replace(&mut self.torn, false) {
                    self.dropped.losses.recovered();
                } else {
                    self.dropped.losses.expire();
                }
            }
            Err(failure) => self.count_failure(&failure),
        }
        self.waiting.fetch_sub(self.writing, Ordering::Relaxed);
        self.writing = 0;
        lines.clear();
        self.unwritten = lines;
    }

    fn count_failure(&mut self, failure: &WriteFailure) {
        self.torn = true;
        let error = &failure.error;
        let error = format!("the audit cannot be written, and lines are lost: {error}");
        for _ in 0..failure.lost {
            self.dropped.add("write", &error);
        }
    }

    fn write(&mut self, lines: &mut UnwrittenLines) -> Result<(), WriteFailure> {
        let mut begins_new_line = self.torn;
        let output: &mut dyn Write = match &mut self.output {
            Output::Nowhere => return Ok(()),
            Output::Stream(output) => output,
            Output::File(file) => {
                if let Err(error) = file.rotate_for(lines.bytes(), Timestamp::now()) {
                    tracing::warn!(%error, "the audit file cannot be rotated, or opened again; lines go to the old one");
                }
                begins_new_line |= std::mem::take(&mut file.was_torn);
                file
            }
        };
        if begins_new_line {
            lines.begin_new_line();
        }
        lines.write_to(output)
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
