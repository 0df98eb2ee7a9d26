//! `diarist audit --why`: finds the line of a request, and the one that its verdict compares it with.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use jiff::civil::DateTime;
use memchr::memmem;

use super::input::{each_line, is_standard_input};
use crate::ledger::{Line, LineKind, Text, explain};
use crate::model_prices::PriceTable;

/// The explanation of request `id`. Reads the files twice: which conversation matters is known after the first time.
///
/// # Errors
///
/// No file has a line of the request, or a file cannot be read.
pub(super) fn text(id: &str, files: &[PathBuf], prices: &PriceTable) -> anyhow::Result<String> {
    ensure!(
        !files.iter().any(|file| is_standard_input(file)),
        "--why reads the files twice, and standard input can be read only once: write it to a file first"
    );
    let mut found = LineOf::new(id);
    each_line(files, |line| found.take(line))?;
    let found = found.found().with_context(|| not_found(id))?;
    let mut before = LineBefore::new(&found);
    each_line(files, |line| before.take(line))?;
    let explained = explain_lines(id, &found, before.found().as_deref(), prices)?;
    Ok(match explained.snapshot {
        Some(_) => {
            explained.text + "\nTo read its observations, which the database has, use --store.\n"
        }
        None => explained.text,
    })
}

/// Says that request `id` has no line.
pub(super) fn not_found(id: &str) -> String {
    format!(
        "no line has the request_id {id:?}: it is in the response header x-diarist-request-id, and its line comes when the \
         answer has ended"
    )
}

/// A request in words, and what names its observations.
pub(super) struct Explained {
    pub(super) text: String,
    /// The number of its snapshot, if it had one.
    pub(super) snapshot: Option<String>,
    pub(super) tenant: String,
    /// When its answer ended, in UTC.
    pub(super) end: Option<DateTime>,
    /// How many messages were left out behind the observations.
    pub(super) trimmed: Option<u64>,
}

/// Explains the line `found` of request `id`, compared with the line `before`.
///
/// # Errors
///
/// `found` is no line of a request.
pub(super) fn explain_lines(
    id: &str,
    found: &[u8],
    before: Option<&[u8]>,
    prices: &PriceTable,
) -> anyhow::Result<Explained> {
    let Ok((_, line)) = Line::parse(found) else {
        bail!("the line of request {id:?} cannot be read");
    };
    let before = before.and_then(|bytes| Line::parse(bytes).ok());
    let before = before.as_ref().map(|(_, line)| line);
    Ok(Explained {
        text: explain(&line, before, prices),
        snapshot: line.snapshot.as_ref().map(|text| text.as_str().to_owned()),
        tenant: line.tenant.as_str().to_owned(),
        end: line.end(),
        trimmed: line.trimmed,
    })
}

/// Looks for the line of a request. If several have its id, the last one counts.
pub(super) struct LineOf<'a> {
    id: &'a str,
    finder: memmem::Finder<'a>,
    found: Option<Vec<u8>>,
}

impl<'a> LineOf<'a> {
    pub(super) fn new(id: &'a str) -> Self {
        Self {
            id,
            finder: memmem::Finder::new(id),
            found: None,
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let has_id = |line: Line<'_>| line.request_id.as_ref().map(Text::as_str) == Some(self.id);
        if self.finder.find(bytes).is_some() && request(bytes).is_some_and(has_id) {
            self.found = Some(bytes.to_vec());
        }
    }

    pub(super) fn found(self) -> Option<Vec<u8>> {
        self.found
    }
}

/// Looks for the line that a verdict compares with: of the conversation's requests whose answers have ended before this
/// one's, the one that ended last. A request that was refused left nothing to compare with.
pub(super) struct LineBefore<'a> {
    /// The line of the request, and when its answer ended; `None` if it belongs to no conversation.
    line: Option<(Line<'a>, DateTime)>,
    /// Ends are known to the millisecond. Of those within one, the order of the lines tells: a line is written when its
    /// answer has ended.
    is_written: bool,
    found: Option<(DateTime, Vec<u8>)>,
}

impl<'a> LineBefore<'a> {
    /// That of the request with the line `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let line = request(bytes).filter(|line| line.thread.is_some());
        Self {
            line: line.and_then(|line| line.end().map(|end| (line, end))),
            is_written: false,
            found: None,
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let Some((line, end)) = &self.line else {
            return;
        };
        let Some(other) = request(bytes) else { return };
        if other.request_id == line.request_id {
            self.is_written = true;
            return;
        }
        let Some(other_end) = other.end() else { return };
        let is_earlier = other_end < *end || other_end == *end && !self.is_written;
        let is_later = self
            .found
            .as_ref()
            .is_none_or(|(latest, _)| other_end >= *latest);
        if other.tenant == line.tenant
            && other.thread == line.thread
            && other.leaves_a_prompt()
            && is_earlier
            && is_later
        {
            self.found = Some((other_end, bytes.to_vec()));
        }
    }

    pub(super) fn found(self) -> Option<Vec<u8>> {
        self.found.map(|(_, bytes)| bytes)
    }
}

fn request(bytes: &[u8]) -> Option<Line<'_>> {
    match Line::parse(bytes) {
        Ok((LineKind::Request, line)) => Some(line),
        _ => None,
    }
}
