use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use jiff::Timestamp;

use super::writer::{BATCH, Output};
use super::{Audit, AuditOutput, Exporter, QUEUE};
use crate::audit::{
    AuditError, AuditRecord, CallRecord, EndReason, MemoryState, RecordReader, RequestSpan,
    Rotation,
};
use crate::tasks::{Condition, Tasks};
use crate::wire::usage::Usage;

fn record(request_id: &str) -> AuditRecord {
    let time: Timestamp = "2026-03-04T05:06:07.089Z".parse().unwrap();
    AuditRecord::new(time, request_id.to_owned(), "t-1".to_owned())
}

fn open(path: &Path, tasks: &Tasks) -> Result<Audit, AuditError> {
    let output = AuditOutput::File(path, &Rotation::default());
    Audit::open(&output, Exporter::default(), tasks)
}

fn ids(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["request_id"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[test]
fn an_audit_line_has_its_fields_in_a_fixed_order() {
    let mut record = record("r-1");
    record.thread = Some("th".to_owned());
    record.model = Some("m".to_owned());
    record.stream = true;
    record.status = Some(200);
    record.messages_received = Some(9);
    record.messages_sent = Some(4);
    record.bytes_received = 900;
    record.bytes_sent = 400;
    record.snapshot = Some("s".to_owned());
    record.cut = Some(6);
    record.pin = Some(0);
    record.cause = Some("activation".into());
    record.rung = Some("original".into());
    record.memory = MemoryState::Active;
    record.reason = Some("why".into());
    record.set_usage(Some(Usage {
        prompt: Some(4),
        cached: Some(3),
        cache_write: Some(2),
        completion: Some(1),
        reasoning: Some(0),
        ..Usage::default()
    }));
    record.ttfb_ms = Some(5);
    record.total_ms = 6;
    record.ended = EndReason::HungUp;
    let line = concat!(
        r#"{"time":"2026-03-04T05:06:07.089Z","request_id":"r-1","tenant":"t-1","thread":"th","model":"m","#,
        r#""stream":true,"status":200,"messages_received":9,"messages_sent":4,"bytes_received":900,"#,
        r#""bytes_sent":400,"snapshot":"s","cut":6,"pin":0,"cause":"activation","rung":"original","#,
        r#""memory":"active","reason":"why","prompt_tokens":4,"cached_tokens":3,"cache_write_tokens":2,"#,
        r#""completion_tokens":1,"ttfb_ms":5,"total_ms":6,"ended":"hung_up","reasoning_tokens":0}"#,
    );
    assert_eq!(serde_json::to_string(&record).unwrap(), line);
}

#[test]
fn an_audit_line_leaves_out_unknown_fields_and_keeps_zeros() {
    let line = concat!(
        r#"{"time":"2026-03-04T05:06:07.089Z","request_id":"r-1","tenant":"t-1","stream":false,"#,
        r#""bytes_received":0,"bytes_sent":0,"memory":"off","total_ms":0,"ended":"complete"}"#,
    );
    assert_eq!(serde_json::to_string(&record("r-1")).unwrap(), line);

    let mut record = record("r-1");
    record.set_usage(Some(Usage {
        prompt: Some(4),
        cached: Some(0),
        ..Usage::default()
    }));
    let line = concat!(
        r#"{"time":"2026-03-04T05:06:07.089Z","request_id":"r-1","tenant":"t-1","stream":false,"#,
        r#""bytes_received":0,"bytes_sent":0,"memory":"off","prompt_tokens":4,"cached_tokens":0,"#,
        r#""total_ms":0,"ended":"complete"}"#,
    );
    assert_eq!(serde_json::to_string(&record).unwrap(), line);
}

#[tokio::test]
async fn lines_are_appended_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::fs::write(&path, "{\"request_id\":\"before\"}\n").unwrap();
    let audit = open(&path, &Tasks::new()).unwrap();
    for id in ["a", "b", "c"] {
        audit.record(record(id), RequestSpan::default());
    }
    audit.flush().await;
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(ids(&text), ["before", "a", "b", "c"]);
}

#[tokio::test]
async fn audit_lines_go_to_the_new_file_after_a_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let moved = folder.path().join("audit.1");
    let audit = open(&path, &Tasks::new()).unwrap();
    audit.record(record("a"), RequestSpan::default());
    audit.flush().await;
    std::fs::rename(&path, &moved).unwrap();
    audit.record(record("b"), RequestSpan::default());
    audit.reopen();
    audit.record(record("c"), RequestSpan::default());
    audit.flush().await;
    assert_eq!(ids(&std::fs::read_to_string(&moved).unwrap()), ["a", "b"]);
    assert_eq!(ids(&std::fs::read_to_string(&path).unwrap()), ["c"]);
}

#[tokio::test]
async fn a_stop_writes_all_accepted_records_and_counts_a_late_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let tasks = Tasks::new();
    let audit = open(&path, &tasks).unwrap();
    for _ in 0..BATCH * 3 {
        audit.record(record("x"), RequestSpan::default());
    }
    assert_eq!(tasks.stop(Duration::from_secs(30)).await, 0);
    assert_eq!(
        ids(&std::fs::read_to_string(&path).unwrap()).len(),
        BATCH * 3
    );
    // A record that comes too late is counted, and is no error. Flushing does not hang.
    audit.record(record("late"), RequestSpan::default());
    audit.flush().await;
    assert_eq!(audit.dropped(), 1);
    let Some(Condition::Degraded(error)) = tasks.readiness().condition("audit") else {
        panic!("it is lost, and not said");
    };
    assert!(error.contains("too late"), "{error}");
}

#[tokio::test]
async fn a_stop_writes_every_record_that_ending_tasks_add() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let tasks = Tasks::new();
    let audit = open(&path, &tasks).unwrap();
    let left = QUEUE + 10;
    let (stopped, entries) = (tasks.token(), audit.clone());
    tasks.spawn("requests", async move {
        stopped.cancelled().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..left {
            entries.record(record("cut"), RequestSpan::default());
        }
    });
    assert_eq!(tasks.stop(Duration::from_secs(30)).await, 0);
    assert_eq!(ids(&std::fs::read_to_string(&path).unwrap()).len(), left);
    assert_eq!(audit.dropped(), 0);
}

#[tokio::test]
async fn a_stuck_writer_does_not_block_the_stop() {
    let (release, held) = mpsc::channel();
    let tasks = Tasks::new();
    let audit = Audit::start(
        Output::Stream(Box::new(Stuck(held))),
        Exporter::default(),
        &tasks,
    );
    audit.record(record("x"), RequestSpan::default());
    let began = std::time::Instant::now();
    assert_eq!(tasks.stop(Duration::from_secs(30)).await, 1);
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(release);
}

#[tokio::test]
async fn an_unwritable_audit_file_gives_a_one_line_error_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nowhere").join("audit.jsonl");
    let error = open(&path, &Tasks::new()).unwrap_err().to_string();
    assert!(
        error.starts_with("audit.path: cannot write to `"),
        "{error}"
    );
    assert!(error.contains("nowhere"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

/// Fails at a request that is called `fault`.
#[derive(Debug)]
struct Faulty;

impl RecordReader for Faulty {
    fn request(&mut self, record: &mut AuditRecord) {
        assert_ne!(record.request_id, "fault");
    }

    fn call(&mut self, _: &CallRecord) {}
}

#[tokio::test]
async fn a_panic_in_a_record_reader_loses_one_line_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let tasks = Tasks::new();
    let exporter = Exporter::default().with_reader(Box::new(Faulty));
    let output = AuditOutput::File(&path, &Rotation::default());
    let audit = Audit::open(&output, exporter, &tasks).unwrap();
    for id in ["a", "fault"] {
        audit.record(record(id), RequestSpan::default());
        audit.flush().await;
    }
    let condition = || tasks.readiness().condition("audit");
    assert!(
        matches!(condition(), Some(Condition::Degraded(_))),
        "{:?}",
        condition()
    );
    audit.record(record("b"), RequestSpan::default());
    audit.flush().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let whole: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(ids(&whole.join("\n")), ["a", "b"]);
    assert_eq!(audit.dropped(), 1);
}

/// Panics at the first write.
struct PanickingOnce(bool);

impl Write for PanickingOnce {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(std::mem::replace(&mut self.0, true), "the first write");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_panic_in_a_write_loses_the_lines_of_that_write_and_counts_them() {
    let output = Output::Stream(Box::new(PanickingOnce(false)));
    let audit = Audit::start(output, Exporter::default(), &Tasks::new());
    for id in ["a", "b", "c"] {
        audit.record(record(id), RequestSpan::default());
    }
    audit.flush().await;
    assert_eq!(audit.dropped(), 3);
    audit.record(record("d"), RequestSpan::default());
    audit.flush().await;
    assert_eq!(audit.dropped(), 3);
}

/// Counts writes.
#[derive(Clone, Default)]
struct Counted(std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A write wakes whoever reads the lines, so lines that wait are written together, as many as a pipe takes as a whole.
#[tokio::test]
async fn lines_that_wait_are_written_together() {
    let output = Counted::default();
    let audit = Audit::start(
        Output::Stream(Box::new(output.clone())),
        Exporter::default(),
        &Tasks::new(),
    );
    let sent: Vec<String> = (0..100).map(|number| format!("r-{number}")).collect();
    for id in &sent {
        audit.record(record(id), RequestSpan::default());
    }
    audit.flush().await;
    let writes = output.0.lock().unwrap().clone();
    assert!(writes.len() < 10, "{}", writes.len());
    assert!(
        writes
            .iter()
            .all(|write| write.len() <= 4_096 && write.ends_with(b"\n"))
    );
    assert_eq!(ids(&String::from_utf8(writes.concat()).unwrap()), sent);
}

/// Writes nothing until a signal, then fails.
struct Stuck(mpsc::Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Err(io::Error::other("full"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_stuck_writer_blocks_no_request_and_every_lost_record_is_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let (release, held) = mpsc::channel();
    let tasks = Tasks::new();
    let audit = Audit::start(
        Output::Stream(Box::new(Stuck(held))),
        Exporter::default(),
        &tasks,
    );
    let sent = QUEUE + 10;
    metrics::with_local_recorder(&recorder, || {
        for _ in 0..sent {
            audit.record(record("x"), RequestSpan::default());
        }
    });
    // The runtime has one thread and this test has not yielded, so the writer has taken nothing.
    assert_eq!(audit.dropped(), 10);
    let rendered = recorder.handle().render();
    assert!(
        rendered.contains("diarist_audit_dropped_total{reason=\"full\"} 10"),
        "{rendered}"
    );
    drop(release);
    audit.flush().await;
    assert_eq!(audit.dropped(), sent as u64, "failed writes count too");
}

/// Names of conversations stand in it.
#[cfg(unix)]
#[tokio::test]
async fn the_audit_file_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let audit = open(&path, &Tasks::new()).unwrap();
    audit.record(record("one"), RequestSpan::default());
    audit.flush().await;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_record_starts_on_a_new_line_after_a_half_written_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::fs::write(&path, "{\"request_id\":\"a\"}\n{\"half").unwrap();
    for id in ["b", "c"] {
        let size = || std::fs::metadata(&path).unwrap().len();
        let before = size();
        let audit = open(&path, &Tasks::new()).unwrap();
        assert_eq!(size(), before, "the disk may still be full");
        audit.record(record(id), RequestSpan::default());
        audit.flush().await;
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[1], "{\"half");
    assert_eq!(ids(&lines[2..].join("\n")), ["b", "c"]);
}

/// A disk that is full in the middle of the first line, and has room again.
struct Full {
    written: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
    room: usize,
    failures: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 && self.failures > 0 {
            self.failures -= 1;
            return Err(io::Error::other("no space left on device"));
        }
        let taken = if self.failures > 0 {
            self.room.min(bytes.len())
        } else {
            bytes.len()
        };
        self.room -= taken.min(self.room);
        self.written
            .lock()
            .unwrap()
            .extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_full_disk_tears_one_audit_line_and_readiness_reports_it() {
    let written = std::sync::Arc::default();
    let tasks = Tasks::new();
    let full = Full {
        written: std::sync::Arc::clone(&written),
        room: 7,
        failures: 1,
    };
    let audit = Audit::start(Output::Stream(Box::new(full)), Exporter::default(), &tasks);
    let condition = || tasks.readiness().condition("audit");
    audit.record(record("torn"), RequestSpan::default());
    audit.flush().await;
    let Some(Condition::Degraded(error)) = condition() else {
        panic!("{:?}", condition());
    };
    assert!(error.contains("no space left"), "{error}");
    audit.record(record("whole"), RequestSpan::default());
    audit.flush().await;
    assert_eq!(condition(), Some(Condition::Up));
    let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0].len()), (2, 7), "{text}");
    assert_eq!(ids(lines[1]), ["whole"]);
    assert_eq!(audit.dropped(), 1);
}
