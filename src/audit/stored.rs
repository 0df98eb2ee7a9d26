//! Gives audit lines to a database, in batches, beside the file.
//!
//! Nobody waits for the database: the queue is bounded, and a line that does not fit is dropped and counted. A batch that
//! cannot be stored is tried again for some seconds. The lines are those of the file, byte for byte, but for requests of
//! strangers: of a tenant of which the upstream has accepted no chat completion since the start, neither a refused
//! request nor one that passes is stored. Otherwise anybody could fill the database (INV-OWN). Called by
//! [`super::sink`]; `app` implements [`LineStore`].

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dropped::Dropped;
use super::{AuditRecord, CallRecord, ForgottenRecord, PartRecord, PassRecord};
use crate::history::Scope;
use crate::tasks::Tasks;

/// Lines that may wait for the database: some seconds of a very busy proxy, about 5 MB.
const QUEUE: usize = 4_096;
/// Lines of one transaction. The recorder waits while it is written: some milliseconds.
const BATCH: usize = 256;
/// How long lines gather. A transaction waits for the disk, so there are at most four a second unless lines are many.
const GATHERING: Duration = Duration::from_millis(250);
/// How often a batch is tried.
const TRIES: u32 = 10;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_secs(1);

const LOST: &str = "the database does not take audit lines fast enough, and lines are lost in it (the file has them)";

/// Where lines are stored.
#[async_trait]
pub trait LineStore: Send + Sync + fmt::Debug {
    /// Stores lines in this order: all of them, or none.
    ///
    /// # Errors
    /// Why they are not stored, for the log.
    async fn append(&self, lines: &[StoredLine]) -> Result<(), String>;
}

/// A line, and what it is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLine {
    /// The time in it.
    pub time: Timestamp,
    /// The id in it, if it is the line of a request.
    pub request_id: Option<String>,
    /// Whose it is, if that was decided.
    pub owner: Option<Scope>,
    /// The name of the conversation in it.
    pub thread: Option<String>,
    /// Without a line break.
    pub line: String,
}

/// The most tenants that are known as accepted. With one more, all others are forgotten until their next request.
const MAX_TENANTS: usize = 65_536;

/// A record of the audit.
pub(super) trait Record: Serialize {
    /// Its line with an empty text.
    fn key(&self) -> StoredLine;

    /// Whether the upstream accepted the chat completion; `None` if the line is not of a client's request.
    fn accepted(&self) -> Option<bool> {
        None
    }
}

impl Record for AuditRecord {
    fn accepted(&self) -> Option<bool> {
        let is_good = |status| status < 400;
        Some(self.error.is_none() && self.status.is_some_and(is_good))
    }

    fn key(&self) -> StoredLine {
        StoredLine {
            request_id: Some(self.request_id.clone()),
            owner: self.owner.clone(),
            thread: self.thread.clone(),
            ..nameless(self.time)
        }
    }
}

impl Record for PartRecord {
    fn key(&self) -> StoredLine {
        of_memory(self.time, &self.owner, self.thread.as_ref())
    }
}

impl Record for CallRecord {
    fn key(&self) -> StoredLine {
        of_memory(self.time, &self.owner, self.thread.as_ref())
    }
}

impl Record for PassRecord {
    /// Never: many upstreams give a list of models to anybody.
    fn accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn key(&self) -> StoredLine {
        StoredLine {
            owner: self.owner.clone(),
            ..nameless(self.time)
        }
    }
}

/// It stays when the memory that it tells of is deleted, so it has no owner.
impl Record for ForgottenRecord {
    fn key(&self) -> StoredLine {
        nameless(self.time)
    }
}

/// Of a line about work of memory.
fn of_memory(time: Timestamp, owner: &Scope, thread: Option<&String>) -> StoredLine {
    StoredLine {
        owner: Some(owner.clone()),
        thread: thread.cloned(),
        ..nameless(time)
    }
}

fn nameless(time: Timestamp) -> StoredLine {
    StoredLine {
        time,
        request_id: None,
        owner: None,
        thread: None,
        line: String::new(),
    }
}

#[derive(Debug)]
enum Message {
    Line(Box<StoredLine>),
    Flush(oneshot::Sender<()>),
}

/// What is not in the database.
#[derive(Debug)]
pub(super) struct StoreStatus {
    /// Lines that are not stored yet.
    pub(super) waiting: AtomicUsize,
    /// Lines that will not be.
    pub(super) dropped: Dropped,
}

/// The way to the database. Its task ends when this is dropped and everything is stored.
#[derive(Debug)]
pub(super) struct StoreQueue {
    queue: mpsc::Sender<Message>,
    pub(super) status: Arc<StoreStatus>,
    /// Tenants with an accepted request.
    accepted: HashSet<[u8; 32]>,
}

impl StoreQueue {
    pub(super) fn start(store: Arc<dyn LineStore>, tasks: &Tasks) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        let status = Arc::new(StoreStatus {
            waiting: AtomicUsize::default(),
            dropped: Dropped::new("audit_store", tasks),
        });
        let last = tasks.outlasting();
        let task = StoreTask {
            store,
            messages,
            status: Arc::clone(&status),
            ended: last.token(),
        };
        last.spawn("audit-store", task.run());
        Self {
            queue,
            status,
            accepted: HashSet::new(),
        }
    }

    /// Takes the line of a record. Never waits.
    pub(super) fn offer(&mut self, record: &impl Record, line: &[u8]) {
        let key = record.key();
        if !self.is_known(&key, record.accepted()) {
            return;
        }
        // Lines are JSON, so this changes nothing.
        let line = String::from_utf8_lossy(line).into_owned();
        let StoreStatus { waiting, dropped } = &*self.status;
        waiting.fetch_add(1, Ordering::Relaxed);
        let message = Message::Line(Box::new(StoredLine { line, ..key }));
        if self.queue.try_send(message).is_err() {
            waiting.fetch_sub(1, Ordering::Relaxed);
            dropped.add("store", LOST);
        }
    }

    /// Whether a line may be stored. Learns from it.
    fn is_known(&mut self, key: &StoredLine, accepted: Option<bool>) -> bool {
        let Some(accepted) = accepted else {
            return true;
        };
        let Some(owner) = &key.owner else {
            return accepted;
        };
        if accepted {
            if self.accepted.len() >= MAX_TENANTS && !self.accepted.contains(&owner.tenant) {
                self.accepted.clear();
            }
            self.accepted.insert(owner.tenant);
        }
        accepted || self.accepted.contains(&owner.tenant)
    }

    /// Answers when all earlier lines are stored, or at once if there are too many.
    pub(super) fn flush(&self, stored: oneshot::Sender<()>) {
        // If this fails, the sender is dropped, which answers too.
        let _ = self.queue.try_send(Message::Flush(stored));
    }
}

struct StoreTask {
    store: Arc<dyn LineStore>,
    messages: mpsc::Receiver<Message>,
    status: Arc<StoreStatus>,
    /// All other tasks of the process have ended.
    ended: CancellationToken,
}

#[derive(Default)]
struct Batch {
    lines: Vec<StoredLine>,
    flushes: Vec<oneshot::Sender<()>>,
    is_last: bool,
}

impl StoreTask {
    async fn run(mut self) {
        loop {
            let batch = self.gather().await;
            if !batch.lines.is_empty() {
                self.store_or_count(&batch.lines).await;
                let waiting = &self.status.waiting;
                waiting.fetch_sub(batch.lines.len(), Ordering::Relaxed);
            }
            for stored in batch.flushes {
                // The caller may have stopped waiting.
                let _ = stored.send(());
            }
            if batch.is_last {
                return;
            }
        }
    }

    /// Lines until they are enough, somebody waits for them, or the time is over.
    async fn gather(&mut self) -> Batch {
        let mut batch = Batch::default();
        let mut end: Option<Instant> = None;
        while batch.lines.len() < BATCH {
            let over = tokio::time::sleep_until(end.unwrap_or_else(Instant::now));
            let message = tokio::select! {
                message = self.messages.recv() => message,
                () = over, if end.is_some() => break,
            };
            match message {
                Some(Message::Line(line)) => batch.lines.push(*line),
                Some(Message::Flush(stored)) => {
                    batch.flushes.push(stored);
                    break;
                }
                None => {
                    batch.is_last = true;
                    break;
                }
            }
            end.get_or_insert_with(|| Instant::now() + GATHERING);
        }
        batch
    }

    async fn store_or_count(&self, lines: &[StoredLine]) {
        let (mut tries, dropped) = (0, &self.status.dropped);
        let error = loop {
            let Err(error) = self.store.append(lines).await else {
                dropped.losses.recovered();
                return;
            };
            tries += 1;
            if tries >= TRIES || self.ended.is_cancelled() {
                break error;
            }
            // At the end of the process there is one more try, at once.
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = self.ended.cancelled() => {}
            }
        };
        let error =
            format!("audit lines cannot be stored in the database, and are lost in it: {error}");
        for _ in lines {
            dropped.add("store", &error);
        }
    }
}

#[cfg(test)]
mod tests;
