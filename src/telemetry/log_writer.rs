//! Writes log lines to standard error on a thread of its own, so that nothing waits for whoever reads them: a pipe whose
//! reader hangs takes no more lines.
//!
//! Decides which lines are lost: those that come while [`MAX_LINES`] wait. Those that the output refuses, such as a file on
//! a full disk, are lost, too. Used by [`super::logging`] only.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use super::LOG_DROPPED;

/// Lines that wait for the thread. A line has a few hundred bytes.
const MAX_LINES: usize = 4_096;

/// How long the end of the process waits for the lines that wait.
const FLUSH: Duration = Duration::from_secs(1);

enum Message {
    Line(Vec<u8>),
    /// All lines before this one are written.
    Flush(SyncSender<()>),
}

/// Where log lines are put. Each write is one line.
#[derive(Clone, Debug)]
pub(super) struct LogWriter {
    queue: SyncSender<Message>,
    /// Lines that were lost since the last line that says so.
    lost: Arc<AtomicU64>,
}

impl LogWriter {
    /// Starts the thread, which writes to `output`. `report` says that so many lines were lost.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<(Self, LogGuard)> {
        let (queue, messages) = sync_channel(MAX_LINES);
        let lost = Arc::<AtomicU64>::default();
        let writer = Self {
            queue: queue.clone(),
            lost: Arc::clone(&lost),
        };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&messages, output, &lost, report))?;
        Ok((writer, LogGuard { queue }))
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Message::Line(line.to_vec())).is_err() {
            count_lost(&self.lost);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn count_lost(lost: &AtomicU64) {
    lost.fetch_add(1, Ordering::Relaxed);
    metrics::counter!(LOG_DROPPED).increment(1);
}

/// Until the last sender is gone, which are those of the process.
fn write_lines(
    messages: &Receiver<Message>,
    mut output: impl Write,
    lost: &AtomicU64,
    report: impl Fn(u64),
) {
    // Whether the last write failed, which may have left half a line.
    let mut torn = false;
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                // Now there is room for a line that says so. An output that refuses lines would refuse this one, too.
                if !torn {
                    let lost = lost.swap(0, Ordering::Relaxed);
                    if lost > 0 {
                        report(lost);
                    }
                }
                match messages.recv() {
                    Ok(message) => message,
                    Err(_disconnected) => return,
                }
            }
        };
        match message {
            Message::Line(mut line) => {
                if torn {
                    line.insert(0, b'\n');
                }
                torn = output.write_all(&line).is_err();
                if torn {
                    count_lost(lost);
                }
            }
            Message::Flush(done) => {
                let _ = output.flush();
                // Whoever waited may be gone.
                let _ = done.send(());
            }
        }
    }
}

/// Keeps the process until its last lines are written, but not for longer than a second.
#[derive(Debug)]
#[must_use = "the last lines are written when it is dropped"]
pub struct LogGuard {
    queue: SyncSender<Message>,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let until = Instant::now() + FLUSH;
        let (done, written) = sync_channel(1);
        let mut message = Message::Flush(done);
        // While there is no room for it, many lines wait, and perhaps nobody reads them.
        while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            message = back;
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Sender};
    use std::sync::{Mutex, OnceLock, PoisonError};

    use super::*;

    /// Takes its first line only after a signal, as a pipe that nobody reads.
    struct Stalled {
        begin: Option<Receiver<()>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Stalled {
        fn new() -> (Self, Sender<()>, Arc<Mutex<Vec<u8>>>) {
            let (begin, waits) = mpsc::channel();
            let written = Arc::<Mutex<Vec<u8>>>::default();
            let stalled = Self {
                begin: Some(waits),
                written: Arc::clone(&written),
            };
            (stalled, begin, written)
        }
    }

    impl Write for Stalled {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if let Some(begin) = self.begin.take() {
                let _ = begin.recv();
            }
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The line that says how many were lost goes the way of all lines, so it needs room, too.
    #[test]
    fn lines_beyond_the_queue_are_lost_and_counted_and_no_write_waits() {
        let (stalled, begin, written) = Stalled::new();
        let reporter = Arc::<OnceLock<LogWriter>>::default();
        let report = {
            let reporter = Arc::clone(&reporter);
            move |lost| {
                let mut writer = reporter.get().unwrap().clone();
                writeln!(writer, "{lost}").unwrap();
            }
        };
        let (mut writer, guard) = LogWriter::start(stalled, report).unwrap();
        reporter.set(writer.clone()).unwrap();
        let sent = MAX_LINES + 100;
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..sent {
                writer.write_all(b"line\n").unwrap();
            }
            done.send(()).unwrap();
        });
        let limit = Duration::from_mins(1);
        ended.recv_timeout(limit).expect("no write waits");
        drop(begin);
        let written = || String::from_utf8(written.lock().unwrap().clone()).unwrap();
        // It comes behind all others.
        let until = Instant::now() + limit;
        while written().lines().all(|line| line == "line") && Instant::now() < until {
            std::thread::yield_now();
        }
        drop(guard);
        let written = written();
        let (lines, reports): (Vec<&str>, Vec<&str>) =
            written.lines().partition(|line| *line == "line");
        let [lost] = reports[..] else {
            panic!("{reports:?}")
        };
        let lost: usize = lost.parse().unwrap();
        // One may be with the thread already.
        assert!((99..=100).contains(&lost), "{lost}");
        assert_eq!(lines.len() + lost, sent);
    }

    /// A disk that is full in the middle of the first line, refuses the second, and has room again.
    struct Full {
        results: Vec<io::Result<usize>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Full {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let taken = self.results.pop().unwrap_or(Ok(line.len()))?;
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.extend_from_slice(&line[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_the_output_refuses_are_counted_and_tear_no_other() {
        let full = || Err(io::ErrorKind::StorageFull.into());
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let output = Full {
            results: vec![full(), full(), Ok(3)],
            written: Arc::clone(&written),
        };
        let (reported, lost) = mpsc::channel();
        let report = move |lost| reported.send(lost).unwrap();
        let (mut writer, guard) = LogWriter::start(output, report).unwrap();
        writer.write_all(b"first\n").unwrap();
        // Such an output would refuse the report, too.
        assert!(lost.recv_timeout(Duration::from_millis(50)).is_err());
        for line in ["second\n", "third\n"] {
            writer.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(lost.recv_timeout(Duration::from_mins(1)), Ok(2));
        drop(guard);
        let written = written.lock().unwrap().clone();
        assert_eq!(String::from_utf8(written).unwrap(), "fir\nthird\n");
    }

    #[test]
    fn a_lost_line_is_counted_in_the_metrics() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || count_lost(&AtomicU64::new(0)));
        let page = handle.render();
        assert!(page.contains(&format!("{LOG_DROPPED} 1")), "{page}");
    }

    #[test]
    fn the_end_does_not_wait_for_a_reader_that_hangs() {
        let (stalled, _begin, _) = Stalled::new();
        let (mut writer, guard) = LogWriter::start(stalled, |_| ()).unwrap();
        writer.write_all(b"line\n").unwrap();
        // It would hang here.
        drop(guard);
    }
}
