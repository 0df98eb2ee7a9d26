//! `diarist audit --why`: finds the line of a request, and the one that its verdict compares it with.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use jiff::civil::DateTime;
use memchr::memmem;

use super::input::{each_line, is_standard_input};
use crate::ledger::{Line, LineKind, PriceTable, explain};

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
    let Some(found) = line_of(id, files)? else {
        bail!(
            "no line has the request_id {id:?}: it is in the response header x-diarist-request-id, and its line comes \
             when the answer has ended"
        );
    };
    let Ok((_, line)) = Line::parse(&found) else {
        bail!("the line of request {id:?} cannot be read");
    };
    let before = line_before(&line, files)?;
    let before = before.as_deref().and_then(|bytes| Line::parse(bytes).ok());
    Ok(explain(
        &line,
        before.as_ref().map(|(_, line)| line),
        prices,
    ))
}

fn line_of(id: &str, files: &[PathBuf]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut found = None;
    let finder = memmem::Finder::new(id);
    each_line(files, |bytes| {
        if finder.find(bytes).is_some() && request(bytes).is_some_and(|line| has_id(&line, id)) {
            found = Some(bytes.to_vec());
        }
    })?;
    Ok(found)
}

/// The line that the verdict of `line` compares with: of the conversation's requests whose answers have ended before
/// this one's, the one that ended last. A request that was refused left nothing to compare with.
fn line_before(line: &Line<'_>, files: &[PathBuf]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut found: Option<(DateTime, Vec<u8>)> = None;
    let Some(end) = line.end().filter(|_| line.thread.is_some()) else {
        return Ok(None);
    };
    // Ends are known to the millisecond. Of those within one, the order in the file tells: a line is written when its
    // answer has ended.
    let mut is_written = false;
    each_line(files, |bytes| {
        let Some(other) = request(bytes) else { return };
        if other.request_id == line.request_id {
            is_written = true;
            return;
        }
        let Some(other_end) = other.end() else { return };
        let is_earlier = other_end < end || other_end == end && !is_written;
        let is_later = found
            .as_ref()
            .is_none_or(|(latest, _)| other_end >= *latest);
        if other.tenant == line.tenant
            && other.thread == line.thread
            && other.leaves_a_prompt()
            && is_earlier
            && is_later
        {
            found = Some((other_end, bytes.to_vec()));
        }
    })?;
    Ok(found.map(|(_, bytes)| bytes))
}

fn request(bytes: &[u8]) -> Option<Line<'_>> {
    match Line::parse(bytes) {
        Ok((LineKind::Request, line)) => Some(line),
        _ => None,
    }
}

fn has_id(line: &Line<'_>, id: &str) -> bool {
    line.request_id
        .as_ref()
        .is_some_and(|found| found.as_str() == id)
}
