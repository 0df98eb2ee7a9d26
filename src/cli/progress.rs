//! Progress bars, and the width of tables.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// The width without a terminal, and the bounds within which text is easy to read.
#[cfg(feature = "demo")]
const DEFAULT_WIDTH: usize = 80;
#[cfg(feature = "demo")]
const MIN_WIDTH: usize = 40;
#[cfg(feature = "demo")]
const MAX_WIDTH: usize = 120;

/// Columns of the output.
#[cfg(feature = "demo")]
pub(super) fn width() -> usize {
    terminal_size::terminal_size()
        .map_or(DEFAULT_WIDTH, |(width, _)| usize::from(width.0))
        .clamp(MIN_WIDTH, MAX_WIDTH)
}

/// Columns of the terminal that standard output is; `None` if it is none.
pub(super) fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    let size = out
        .is_terminal()
        .then(|| terminal_size::terminal_size_of(out));
    size.flatten().map(|(width, _)| usize::from(width.0))
}

/// A bar on standard error; nothing if that is not a terminal.
#[cfg(feature = "demo")]
pub(super) fn bar(what: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_message(what);
    with_template(bar, "{msg}  {bar:40}  {pos}/{len}  {elapsed}")
}

/// A bar of bytes on standard error, of an unknown number of them if there is no `length`; nothing if that is not a
/// terminal.
pub(super) fn bytes_bar(what: &'static str, length: Option<u64>) -> ProgressBar {
    match length {
        Some(length) => with_template(
            ProgressBar::new(length).with_message(what),
            "{msg}  {bar:40}  {bytes}/{total_bytes}  {elapsed}",
        ),
        None => with_template(
            ProgressBar::no_length().with_message(what),
            "{msg}  {bytes}  {elapsed}",
        ),
    }
}

/// A bar of lines on standard error; nothing if that is not a terminal.
pub(super) fn lines_bar(what: &'static str, lines: u64) -> ProgressBar {
    let bar = ProgressBar::new(lines).with_message(what);
    with_template(bar, "{msg}  {bar:40}  {human_pos}/{human_len}  {elapsed}")
}

fn with_template(bar: ProgressBar, template: &str) -> ProgressBar {
    // An invalid template would be a bug here; the default bar is shown then.
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
