//! What a playing command shows while it runs: a progress bar, and how wide its tables may be.

use indicatif::{ProgressBar, ProgressStyle};

/// What is assumed where there is no terminal, and the bounds within which text reads well.
const DEFAULT_WIDTH: usize = 80;
const MIN_WIDTH: usize = 40;
const MAX_WIDTH: usize = 120;

/// Columns to write in.
pub(super) fn width() -> usize {
    terminal_size::terminal_size()
        .map_or(DEFAULT_WIDTH, |(width, _)| usize::from(width.0))
        .clamp(MIN_WIDTH, MAX_WIDTH)
}

/// A bar on standard error; nothing where that is no terminal.
pub(super) fn bar(what: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_message(what);
    // A template that cannot be read would be a mistake of ours: the usual bar then does.
    match ProgressStyle::with_template("{msg}  {bar:40}  {pos}/{len}  {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
