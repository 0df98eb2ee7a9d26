//! Splits bytes into lines, however they arrive.

use memchr::memchr;

/// More bytes of one line are dropped. No line of the audit is nearly so long, and what is cut counts as torn.
const LONGEST: usize = 1024 * 1024;

/// Holds the beginning of a line whose end has not come yet.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    rest: Vec<u8>,
}

impl LineSplitter {
    /// Calls `take` with each line that ends in `bytes`, without its line break.
    pub(super) fn feed(&mut self, mut bytes: &[u8], take: &mut impl FnMut(&[u8])) {
        while let Some(end) = memchr(b'\n', bytes) {
            let line = &bytes[..end];
            if self.rest.is_empty() {
                take(line);
            } else {
                self.keep(line);
                take(&self.rest);
                self.rest.clear();
            }
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    /// Calls `take` with a last line that has no line break.
    pub(super) fn finish(&mut self, take: &mut impl FnMut(&[u8])) {
        if !self.rest.is_empty() {
            take(&self.rest);
            self.rest.clear();
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST.saturating_sub(self.rest.len());
        self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut splitter, mut found) = (LineSplitter::default(), Vec::new());
        let mut take = |line: &[u8]| found.push(line.to_vec());
        for piece in pieces {
            splitter.feed(piece, &mut take);
        }
        splitter.finish(&mut take);
        found
    }

    #[test]
    fn the_same_lines_are_found_for_every_piece_boundary() {
        let text = b"one\n\ntwo\nlast";
        let expected: [&[u8]; 4] = [b"one", b"", b"two", b"last"];
        assert_eq!(lines(&[text]), expected);
        for at in 0..text.len() {
            assert_eq!(lines(&[&text[..at], &text[at..]]), expected, "{at}");
        }
    }

    #[test]
    fn a_line_longer_than_the_limit_is_cut() {
        let piece = vec![b'x'; LONGEST];
        let found = lines(&[&piece, &piece, b"\nnext\n"]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].len(), &found[1][..]), (LONGEST, &b"next"[..]));
    }
}
