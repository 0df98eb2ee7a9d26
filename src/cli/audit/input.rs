//! Reads audit files line by line.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use flate2::bufread::MultiGzDecoder;

use super::lines::LineSplitter;
use crate::audit::with_rotated;
use crate::cli::progress;
use crate::cli::sources::ConfigSources;
use crate::config::AuditTarget;

/// Bytes that are read at once.
const BUFFER: usize = 256 * 1024;
/// The most files that are open at once. Systems allow a process 256 and more.
const MOST_OPEN: usize = 128;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The files of the command line, or the one of the configuration.
///
/// # Errors
///
/// No file is named anywhere.
pub(super) fn files(named: &[PathBuf], sources: &ConfigSources) -> anyhow::Result<Vec<PathBuf>> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    match sources.load()?.audit {
        AuditTarget::File(path) => Ok(with_rotated(&path)),
        AuditTarget::Stdout => bail!(
            "audit.path is \"-\", so the audit is in the standard output of `diarist serve`: give the file that \
             holds it, or set audit.path"
        ),
        AuditTarget::Off => bail!("audit.path is \"off\", so there is no audit: give a file"),
    }
}

/// Calls `take` with each line of all files.
///
/// # Errors
///
/// A file cannot be read.
pub(super) fn each_line(files: &[PathBuf], mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
    let sizes = files.iter().map(|file| std::fs::metadata(file).ok());
    let all: Option<u64> = sizes.map(|size| size.map(|size| size.len())).sum();
    let bar = progress::bytes_bar("reading", all);
    for (file, opened) in open_all(files)? {
        let failed = || format!("cannot read {}", file.display());
        let input: Box<dyn Read> = match opened {
            Some(opened) => Box::new(opened),
            None if is_standard_input(file) => Box::new(io::stdin().lock()),
            None => Box::new(File::open(file).with_context(failed)?),
        };
        read(bar.wrap_read(input), &mut take).with_context(failed)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// An input, and what is open of it already.
type Input<'f> = (&'f PathBuf, Option<File>);

/// Opens files before the first one is read: a rotation in the meantime gives them other names. It renames towards the
/// older ones, so they are opened from the newest on, and what is met again under another name is left out. What is no
/// file (a pipe) is opened when its turn comes: its writer may wait for that.
fn open_all(files: &[PathBuf]) -> anyhow::Result<Vec<Input<'_>>> {
    let mut inputs: Vec<Input<'_>> = Vec::new();
    let mut met = HashSet::new();
    for file in files.iter().rev() {
        let failed = || format!("cannot read {}", file.display());
        if is_standard_input(file) || !std::fs::metadata(file).with_context(failed)?.is_file() {
            if !(is_standard_input(file) && inputs.iter().any(|(other, _)| *other == file)) {
                inputs.push((file, None));
            }
            continue;
        }
        let opened = File::open(file).with_context(failed)?;
        let identity = identity(&opened.metadata().with_context(failed)?);
        if identity.is_none_or(|identity| met.insert(identity)) {
            inputs.push((file, (inputs.len() < MOST_OPEN).then_some(opened)));
        }
    }
    inputs.reverse();
    Ok(inputs)
}

/// What tells a file from every other one, whatever its name is.
#[cfg(unix)]
#[expect(
    clippy::unnecessary_wraps,
    reason = "other systems know no such number"
)]
fn identity(file: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    Some((file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(_file: &Metadata) -> Option<(u64, u64)> {
    None
}

pub(super) fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn read(input: impl Read, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    if input.fill_buf()?.starts_with(&GZIP) {
        let unzipped = MultiGzDecoder::new(input);
        read_plain(BufReader::with_capacity(BUFFER, unzipped), take)
    } else {
        read_plain(input, take)
    }
}

fn read_plain(mut input: impl BufRead, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
    let mut lines = LineSplitter::default();
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        let read = bytes.len();
        lines.feed(bytes, take);
        input.consume(read);
    }
    lines.finish(take);
    Ok(())
}
