use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::tasks::Condition;

/// Keeps the batches, unless it is broken.
#[derive(Debug, Default)]
struct Shelf {
    batches: Mutex<Vec<Vec<String>>>,
    broken: AtomicBool,
    tries: AtomicUsize,
}

#[async_trait]
impl LineStore for Shelf {
    async fn append(&self, lines: &[StoredLine]) -> Result<(), String> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err("the disk is full".to_owned());
        }
        let batch = lines.iter().map(|line| line.line.clone()).collect();
        self.batches.lock().unwrap().push(batch);
        Ok(())
    }
}

fn queue(shelf: &Arc<Shelf>, tasks: &Tasks) -> StoreQueue {
    let store = Arc::clone(shelf) as Arc<dyn LineStore>;
    StoreQueue::start(store, tasks)
}

/// Gives so many lines to the queue, of a kind that is always stored.
fn offer(queue: &mut StoreQueue, numbers: std::ops::Range<usize>) {
    let record = ForgottenRecord {
        time: Timestamp::UNIX_EPOCH,
        forgot: "thread".to_owned(),
        receipt: 1,
        subject: String::new(),
        tenant: String::new(),
        deleted: std::collections::BTreeMap::new(),
        lifted: false,
    };
    for number in numbers {
        queue.offer(&record, number.to_string().as_bytes());
    }
}

async fn flush(queue: &StoreQueue) {
    let (stored, done) = oneshot::channel();
    queue.flush(stored);
    let _ = done.await;
}

#[tokio::test(start_paused = true)]
async fn lines_are_stored_in_order_and_in_batches() {
    let (shelf, tasks) = (Arc::<Shelf>::default(), Tasks::new());
    let mut queue = queue(&shelf, &tasks);
    offer(&mut queue, 0..600);
    flush(&queue).await;
    let batches = std::mem::take(&mut *shelf.batches.lock().unwrap());
    let lengths: Vec<_> = batches.iter().map(Vec::len).collect();
    assert_eq!(lengths, [BATCH, BATCH, 600 - 2 * BATCH]);
    let expected: Vec<_> = (0..600).map(|number| number.to_string()).collect();
    assert_eq!(batches.concat(), expected);
    // The last ones are stored when no more can come.
    offer(&mut queue, 0..3);
    drop(queue);
    tasks.stop(Duration::ZERO).await;
    assert_eq!(shelf.batches.lock().unwrap().concat(), ["0", "1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_append_is_retried_and_a_final_loss_is_counted() {
    let (shelf, tasks) = (Arc::<Shelf>::default(), Tasks::new());
    let mut queue = queue(&shelf, &tasks);
    shelf.broken.store(true, Ordering::Relaxed);
    offer(&mut queue, 0..2);
    tokio::time::sleep(PAUSE * 3).await;
    assert!(shelf.tries.load(Ordering::Relaxed) > 1);
    shelf.broken.store(false, Ordering::Relaxed);
    flush(&queue).await;
    assert_eq!(shelf.batches.lock().unwrap().concat(), ["0", "1"]);
    assert_eq!(queue.status.dropped.count(), 0);

    shelf.broken.store(true, Ordering::Relaxed);
    offer(&mut queue, 2..5);
    flush(&queue).await;
    assert_eq!(queue.status.dropped.count(), 3);
    let condition = || tasks.readiness().condition("audit_store");
    let Some(Condition::Degraded(reason)) = condition() else {
        panic!("{:?}", condition());
    };
    assert!(reason.contains("the disk is full"), "{reason}");
    shelf.broken.store(false, Ordering::Relaxed);
    offer(&mut queue, 5..6);
    flush(&queue).await;
    assert_eq!(condition(), Some(Condition::Up));
    assert_eq!(shelf.batches.lock().unwrap().concat(), ["0", "1", "5"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_counts_dropped_lines_and_never_blocks() {
    let (shelf, tasks) = (Arc::<Shelf>::default(), Tasks::new());
    let mut queue = queue(&shelf, &tasks);
    // The task has not run yet.
    offer(&mut queue, 0..QUEUE + 7);
    assert_eq!(queue.status.dropped.count(), 7);
    flush(&queue).await;
    // The flush did not fit either, so it answered at once.
    drop(queue);
    tasks.stop(Duration::ZERO).await;
    assert_eq!(shelf.batches.lock().unwrap().concat().len(), QUEUE);
}

#[tokio::test(start_paused = true)]
async fn audit_lines_of_unaccepted_tenants_are_not_stored() {
    let (shelf, tasks) = (Arc::<Shelf>::default(), Tasks::new());
    let mut queue = queue(&shelf, &tasks);
    let mut ask = |line: &str, name: Option<&str>, status, error: Option<&'static str>| {
        let (id, tenant) = (line.to_owned(), String::new());
        let mut record = AuditRecord::new(Timestamp::UNIX_EPOCH, id, tenant);
        record.owner = name.map(|name| Scope::new(name.as_bytes(), None));
        (record.status, record.error) = (status, error.map(Into::into));
        queue.offer(&record, line.as_bytes());
    };
    ask("stranger", Some("eve"), Some(401), None);
    ask("gone", Some("eve"), None, None);
    ask("error at once", Some("eve"), Some(200), Some("error"));
    ask("nobody", None, Some(401), None);
    ask("open", None, Some(200), None);
    ask("accepted", Some("ada"), Some(200), None);
    ask("known", Some("ada"), Some(429), None);
    ask("still a stranger", Some("eve"), Some(429), None);
    let mut pass = |line: &str, name: Option<&str>, status| {
        let record = PassRecord {
            time: Timestamp::UNIX_EPOCH,
            method: "GET".to_owned(),
            path: "/v1/models".to_owned(),
            status,
            bytes_received: None,
            bytes_answered: 0,
            ttfb_ms: None,
            total_ms: 0,
            ended: crate::audit::EndReason::Complete,
            refused: None,
            unlisted: None,
            model: None,
            owner: name.map(|name| Scope::new(name.as_bytes(), None)),
        };
        queue.offer(&record, line.as_bytes());
    };
    pass("a stranger's list", Some("eve"), Some(200));
    pass("nobody's list", None, Some(200));
    pass("a known one's list", Some("ada"), Some(200));
    pass("a known one's error", Some("ada"), Some(404));
    pass("a stranger's list again", Some("eve"), Some(200));
    flush(&queue).await;
    let stored = shelf.batches.lock().unwrap().concat();
    let of_ada = ["a known one's list", "a known one's error"];
    assert_eq!(
        stored,
        [&["open", "accepted", "known"][..], &of_ada].concat()
    );
    assert_eq!(queue.status.dropped.count(), 0);
}
