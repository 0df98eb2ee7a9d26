//! The audit file: opened for appending, and rotated by size and age where the operator wants that.
//!
//! A full file `audit.jsonl` becomes `audit.jsonl.1`, the one before it `audit.jsonl.2`, and so on, as `logrotate` names
//! them. Several processes may write one file: whoever finds that the name leads to another file takes that one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

/// The most bytes of the first line that are read for its time. Request lines are shorter.
const FIRST_LINE: u64 = 16 * 1024;

/// After a rotation that failed, the next one is tried after this time.
const RETRY: SignedDuration = SignedDuration::from_mins(1);

/// How often, while lines are written, the name is looked at: does it still lead to this file?
const LOOK_INTERVAL: SignedDuration = SignedDuration::from_secs(2);

/// The audit cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("audit.path: cannot write to `{}`: {source}; name a file in a folder that exists and that Diarist's user may write to", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// Whether lines could be written to the file at `path`, as far as that shows without making it.
///
/// # Errors
///
/// The file cannot be opened for writing, or its folder does not exist.
pub fn check_place(path: &Path) -> Result<(), AuditError> {
    let check = || match path.metadata() {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // A pipe is not opened: that waits for its reader.
        Ok(found) if !found.is_file() => Ok(()),
        Ok(_) => OpenOptions::new().append(true).open(path).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let whole = std::path::absolute(path)?;
            whole
                .parent()
                .map_or(Ok(()), |folder| folder.metadata().map(drop))
        }
        Err(error) => Err(error),
    };
    check().map_err(|source| AuditError {
        path: path.to_owned(),
        source,
    })
}

/// When a new audit file begins, and how many old ones stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Before the file is larger than this, in bytes.
    pub max_bytes: Option<u64>,
    /// When the first line of the file is older than this.
    pub max_age: Option<Duration>,
    /// Older files beyond this number are deleted.
    pub keep_files: u64,
}

/// The names of the files that a rotation of `path` made, oldest first, and then `path` itself. logrotate may have
/// compressed them.
#[must_use]
pub fn with_rotated(path: &Path) -> Vec<PathBuf> {
    let rotated = (1..).map_while(|number| {
        let plain = numbered(path, number);
        let mut compressed = plain.clone().into_os_string();
        compressed.push(".gz");
        let names = [plain, PathBuf::from(compressed)];
        names.into_iter().find(|file| file.exists())
    });
    let mut files: Vec<PathBuf> = rotated.collect();
    files.reverse();
    files.push(path.to_owned());
    files
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// The file that lines are written to.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
    /// When the first line was written; `None` as long as there is none.
    first_line: Option<Timestamp>,
    rotation: Rotation,
    failed: Option<Timestamp>,
    /// When the name was last looked at.
    looked_at: Option<Timestamp>,
    /// Whether the file ended in half a line when it was opened: a full disk or a kill cut a write short. Whoever writes
    /// the next line ends it. That is not done at once, since the disk may still be full.
    pub(super) was_torn: bool,
}

impl AuditFile {
    /// Opens the file for appending.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub(super) fn open(path: &Path, rotation: &Rotation) -> Result<Self, AuditError> {
        let open = || {
            let mut options = OpenOptions::new();
            options.append(true).create(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::OpenOptionsExt as _;
                // Names of conversations stand in it.
                options.mode(0o600);
            }
            options.open(path)
        };
        let file = open().map_err(|source| AuditError {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            first_line: rotation.max_age.and_then(|_| first_time(path)),
            rotation: rotation.clone(),
            failed: None,
            looked_at: None,
            was_torn: ends_in_half_a_line(path),
        })
    }

    /// Opens the file of this name again.
    ///
    /// # Errors
    ///
    /// It cannot be opened. Lines go to the old file.
    pub(super) fn reopen(&mut self) -> Result<(), AuditError> {
        *self = Self::open(&self.path, &self.rotation)?;
        Ok(())
    }

    /// Begins a new file if a line of this length, written now, needs one: also if somebody has moved or deleted the
    /// file and said nothing.
    ///
    /// # Errors
    ///
    /// A file cannot be renamed or opened. Lines go to the old one, and the next try is a minute later.
    pub(super) fn rotate_for(&mut self, line: usize, now: Timestamp) -> io::Result<()> {
        let rests = self.failed.is_some_and(|at| now.duration_since(at) < RETRY);
        let rotated = if !rests && (self.is_lost(now) || self.is_due(line, now)) {
            self.rotate()
        } else {
            Ok(())
        };
        if rotated.is_err() {
            self.failed = Some(now);
        }
        self.first_line.get_or_insert(now);
        rotated
    }

    fn rotate(&mut self) -> io::Result<()> {
        if !self.is_replaced() {
            self.shift()?;
        }
        self.reopen().map_err(|error| error.source)
    }

    fn is_due(&self, line: usize, now: Timestamp) -> bool {
        let is_old = self.rotation.max_age.is_some_and(|max_age| {
            let age = |first: Timestamp| now.duration_since(first);
            let max_age = SignedDuration::try_from(max_age).unwrap_or(SignedDuration::MAX);
            self.first_line.is_some_and(|first| age(first) > max_age)
        });
        let is_full = self.rotation.max_bytes.is_some_and(|max_bytes| {
            // A pipe or a device is never full, and an empty file takes a line of any length.
            let file = self.file.metadata().ok().filter(std::fs::Metadata::is_file);
            let length = file.map_or(0, |file| file.len());
            length > 0 && length + line as u64 > max_bytes
        });
        is_old || is_full
    }

    /// Looks now and then whether the name still leads to this file.
    fn is_lost(&mut self, now: Timestamp) -> bool {
        // The clock may have been set back.
        let is_recent = |at: Timestamp| now.duration_since(at).abs() < LOOK_INTERVAL;
        if self.looked_at.is_some_and(is_recent) {
            return false;
        }
        self.looked_at = Some(now);
        let is_lost = self.is_replaced();
        if is_lost {
            tracing::warn!(
                "another program has moved or deleted the audit file; from now on lines go to a new one of its name"
            );
        }
        is_lost
    }

    /// Whether the name leads to another file: another process, or a tool, has moved this one away.
    #[cfg(unix)]
    fn is_replaced(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
        let named = std::fs::metadata(&self.path).map(identity);
        match (named, self.file.metadata().map(identity)) {
            (Ok(named), Ok(open)) => named != open,
            (Err(_), _) => true,
            (_, Err(_)) => false,
        }
    }

    #[cfg(not(unix))]
    fn is_replaced(&self) -> bool {
        !self.path.exists()
    }

    /// Renames the file and the older ones. The oldest one beyond the number to keep is overwritten.
    fn shift(&self) -> io::Result<()> {
        let name = |number| match number {
            0 => self.path.clone(),
            number => numbered(&self.path, number),
        };
        for number in (0..self.rotation.keep_files).rev() {
            match std::fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.rotation.keep_files == 0 {
            std::fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

impl Write for AuditFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Whether the file has a last line without an end. A file that cannot be read, such as a pipe, has none.
fn ends_in_half_a_line(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() > 0);
    let mut last = [b'\n'];
    let read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)
    };
    is_file && { read }().is_ok() && last != *b"\n"
}

/// The time of the first line; `None` if the file is empty or begins with something else.
fn first_time(path: &Path) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct FirstLine {
        time: String,
    }
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut line = Vec::new();
    let mut start = BufReader::new(File::open(path).ok()?).take(FIRST_LINE);
    start.read_until(b'\n', &mut line).ok()?;
    let first: FirstLine = serde_json::from_slice(&line).ok()?;
    first.time.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u32) -> Timestamp {
        format!("2026-03-04T05:{minute:02}:00Z").parse().unwrap()
    }

    fn line(minute: u32) -> String {
        format!("{{\"time\":\"{}\"}}\n", at(minute))
    }

    /// Writes a line of each minute.
    fn write(file: &mut AuditFile, minutes: &[u32]) {
        for minute in minutes {
            let line = line(*minute);
            file.rotate_for(line.len(), at(*minute)).unwrap();
            file.write_all(line.as_bytes()).unwrap();
        }
    }

    /// The minutes of the lines in each file, oldest file first.
    fn written(path: &Path) -> Vec<Vec<String>> {
        let read_minutes = |file: PathBuf| {
            let text = std::fs::read_to_string(file).unwrap();
            text.lines().map(|line| line[23..25].to_owned()).collect()
        };
        with_rotated(path).into_iter().map(read_minutes).collect()
    }

    fn rotation(lines: Option<usize>, minutes: Option<u64>) -> Rotation {
        Rotation {
            max_bytes: lines.map(|lines| (lines * line(0).len()) as u64),
            max_age: minutes.map(Duration::from_mins),
            keep_files: 2,
        }
    }

    #[test]
    fn a_full_audit_file_is_rotated_and_the_oldest_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut file = AuditFile::open(&path, &rotation(Some(2), None)).unwrap();
        write(&mut file, &[1, 2, 3, 4, 5]);
        assert_eq!(
            written(&path),
            [vec!["01", "02"], vec!["03", "04"], vec!["05"]]
        );
        // A new process goes on in the same file.
        let mut file = AuditFile::open(&path, &rotation(Some(2), None)).unwrap();
        write(&mut file, &[6, 7]);
        assert_eq!(
            written(&path),
            [vec!["03", "04"], vec!["05", "06"], vec!["07"]]
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn an_old_audit_file_is_rotated_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for minutes in [[1, 2], [11, 12]] {
            let mut file = AuditFile::open(&path, &rotation(None, Some(10))).unwrap();
            write(&mut file, &minutes);
        }
        assert_eq!(written(&path), [vec!["01", "02", "11"], vec!["12"]]);
    }

    #[test]
    fn a_line_longer_than_the_size_limit_gets_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let small = Rotation {
            max_bytes: Some(1),
            ..rotation(None, None)
        };
        let mut file = AuditFile::open(&path, &small).unwrap();
        write(&mut file, &[1, 2]);
        assert_eq!(written(&path), [vec!["01"], vec!["02"]]);
    }

    #[cfg(unix)]
    #[test]
    fn a_process_follows_the_rotation_by_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let open = || AuditFile::open(&path, &rotation(Some(2), None)).unwrap();
        let (mut one, mut other) = (open(), open());
        write(&mut one, &[1, 2, 3]);
        write(&mut other, &[4]);
        assert_eq!(written(&path), [vec!["01", "02"], vec!["03", "04"]]);
    }

    #[cfg(unix)]
    #[test]
    fn a_deleted_or_moved_audit_file_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for rotation in [rotation(None, None), rotation(Some(9), None)] {
            let mut file = AuditFile::open(&path, &rotation).unwrap();
            write(&mut file, &[1, 2]);
            std::fs::remove_file(&path).unwrap();
            write(&mut file, &[3]);
            assert_eq!(written(&path), [vec!["03"]]);
            std::fs::rename(&path, folder.path().join("moved")).unwrap();
            write(&mut file, &[4]);
            assert_eq!(written(&path), [vec!["04"]]);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_deleted_audit_file_is_noticed_after_two_seconds_or_when_the_clock_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut file = AuditFile::open(&path, &rotation(None, None)).unwrap();
        file.rotate_for(1, at(5)).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Each look costs a question to the file system, so there is none for each line.
        file.rotate_for(1, at(5) + SignedDuration::from_secs(1))
            .unwrap();
        assert!(!path.exists());
        file.rotate_for(1, at(5) + SignedDuration::from_secs(2))
            .unwrap();
        assert!(path.exists());
        file.rotate_for(1, at(6)).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.rotate_for(1, at(1)).unwrap();
        assert!(path.exists());
    }
}
