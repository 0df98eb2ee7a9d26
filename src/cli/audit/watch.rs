//! `diarist audit --watch`: follows a file that grows, and prints the report again when it has.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::lines::LineSplitter;
use crate::cli::output::print_while_read;
use crate::ledger::Ledger;

/// Between two looks at the file.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
const BUFFER: usize = 256 * 1024;
/// Moves to the top left corner and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints `text` of the ledger whenever the file has grown, until nobody reads it. A file that is rotated or cut is
/// read from its begin, and the sums go on.
///
/// # Errors
///
/// The file cannot be read, or the report cannot be written.
pub(super) fn run(
    path: &Path,
    mut ledger: Ledger,
    text: impl Fn(&Ledger) -> String,
) -> anyhow::Result<()> {
    let failed = || format!("cannot read {}", path.display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .context("the runtime cannot start")?;
    runtime.block_on(async {
        let mut follower = Follower::open(path).with_context(failed)?;
        let mut has_news = true;
        loop {
            has_news |= follower.read(&mut ledger).with_context(failed)?;
            if has_news && !print_report(&text(&ledger))? {
                return Ok(());
            }
            has_news = follower.reopen_if_replaced(path, &mut ledger);
            if !has_news {
                tokio::time::sleep(PAUSE).await;
            }
        }
    })
}

/// Prints a report in the place of the one before. Whether somebody still reads.
///
/// # Errors
///
/// It cannot be written.
pub(super) fn print_report(text: &str) -> io::Result<bool> {
    let is_terminal = io::stdout().is_terminal();
    let clear = if is_terminal { CLEAR } else { "" };
    print_while_read(&format!("{clear}{text}"))
}

/// The open file, and the beginning of a line that is still being written.
struct Follower {
    file: File,
    read: u64,
    lines: LineSplitter,
    buffer: Vec<u8>,
}

impl Follower {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
            read: 0,
            lines: LineSplitter::default(),
            buffer: vec![0; BUFFER],
        })
    }

    /// Takes what is new; whether there was anything.
    fn read(&mut self, ledger: &mut Ledger) -> io::Result<bool> {
        let before = self.read;
        loop {
            let bytes = match self.file.read(&mut self.buffer) {
                Ok(0) => return Ok(self.read > before),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.read += bytes as u64;
            let new = &self.buffer[..bytes];
            self.lines.feed(new, &mut |line| ledger.add(line));
        }
    }

    /// Goes to the file that has the name now, if it is another one or was cut. Between two files of a rotation there
    /// may be none for a moment.
    fn reopen_if_replaced(&mut self, path: &Path, ledger: &mut Ledger) -> bool {
        let replaced = std::fs::metadata(path).is_ok_and(|now| {
            let open = self.file.metadata();
            now.len() < self.read || open.is_ok_and(|open| !is_same_file(&now, &open))
        });
        if !replaced {
            return false;
        }
        let Ok(next) = Self::open(path) else {
            return false;
        };
        // What came between the last look and the rotation. An error here ends no watch of the new file.
        drop(self.read(ledger));
        self.lines.finish(&mut |line| ledger.add(line));
        *self = next;
        true
    }
}

#[cfg(unix)]
fn is_same_file(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same_file(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    a.created().ok() == b.created().ok()
}
