//! Lines that are written together. Each write wakes whoever reads the lines, so a busy proxy writes several at once.

use std::io::{self, Write};

/// The most bytes of one write, but for a longer line. Linux writes so many to a pipe as a whole, so lines of several processes
/// never mix.
const MAX_WRITE: usize = 4_096;

/// Whole lines, with their ends.
#[derive(Debug, Default)]
pub(super) struct UnwrittenLines {
    bytes: Vec<u8>,
    /// Where each line ends in `bytes`.
    ends: Vec<usize>,
}

/// A write failed, perhaps in the middle of a line.
#[derive(Debug)]
pub(super) struct WriteFailure {
    pub(super) error: io::Error,
    /// How many lines were not written as a whole.
    pub(super) lost: usize,
}

impl UnwrittenLines {
    /// How many lines there are.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a line of so many bytes can be written together with these.
    pub(super) fn has_room(&self, line: usize) -> bool {
        self.ends.is_empty() || self.bytes.len() + line <= MAX_WRITE
    }

    /// Adds a line with its end.
    pub(super) fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.ends.push(self.bytes.len());
    }

    /// Begins on a new line. A reader skips an empty line, and finds the next one whole.
    pub(super) fn begin_new_line(&mut self) {
        self.bytes.insert(0, b'\n');
        for end in &mut self.ends {
            *end += 1;
        }
    }

    /// Writes all of them.
    pub(super) fn write_to(&mut self, output: &mut dyn Write) -> Result<(), WriteFailure> {
        let mut written = 0;
        while written < self.bytes.len() {
            let error = match output.write(&self.bytes[written..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(more) => {
                    written += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            let is_lost = |end: &&usize| **end > written;
            let lost = self.ends.iter().filter(is_lost).count();
            return Err(WriteFailure { error, lost });
        }
        let count = self.count();
        output
            .flush()
            .map_err(|error| WriteFailure { error, lost: count })
    }

    /// Takes all lines out, and keeps the room.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with so much room, which writes at most ten bytes at once.
    struct Disk {
        written: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(10).min(self.room);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn three_lines() -> UnwrittenLines {
        let mut lines = UnwrittenLines::default();
        for line in [&b"the first line\n"[..], b"the second\n", b"the third\n"] {
            assert!(lines.has_room(line.len()));
            lines.push(line);
        }
        lines
    }

    #[test]
    fn only_lines_that_are_not_whole_count_as_lost() {
        let whole = b"\nthe first line\nthe second\nthe third\n";
        for room in 0..=whole.len() {
            let mut disk = Disk {
                written: Vec::new(),
                room,
            };
            let mut lines = three_lines();
            lines.begin_new_line();
            let lost = lines
                .write_to(&mut disk)
                .err()
                .map_or(0, |failure| failure.lost);
            assert_eq!(disk.written, whole[..room]);
            let ends = disk.written.split(|byte| *byte == b'\n').count() - 1;
            assert_eq!(lost, 3 - ends.saturating_sub(1), "{room}");
        }
    }

    #[test]
    fn a_line_of_any_length_has_room_if_it_is_alone() {
        let mut lines = three_lines();
        assert!(!lines.has_room(MAX_WRITE));
        lines.clear();
        assert!(lines.has_room(2 * MAX_WRITE));
        lines.push(&[b'x'; 2 * MAX_WRITE]);
        assert!(!lines.has_room(1));
        assert_eq!((lines.count(), lines.bytes()), (1, 2 * MAX_WRITE));
    }
}
