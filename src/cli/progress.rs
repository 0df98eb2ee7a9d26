//! The progress bar of `demo` and `replay`, and the width of their tables.

use indicatif::{ProgressBar, ProgressStyle};

/// The width without a terminal, and the bounds within which text is easy to read.
const DEFAULT_WIDTH: usize = 80;
const MIN_WIDTH: usize = 40;
const MAX_WIDTH: usize = 120;

/// Columns of the output.
pub(super) fn width() -> usize {
    terminal_size::terminal_size()
        .map_or(DEFAULT_WIDTH, |(width, _)| usize::from(width.0))
        .clamp(MIN_WIDTH, MAX_WIDTH)
}

/// A bar on standard error; nothing if that is not a terminal.
pub(super) fn bar(what: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_message(what);
    // An invalid template would be a bug here; the default bar is shown then.
    match ProgressStyle::with_template("{msg}  {bar:40}  {pos}/{len}  {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
