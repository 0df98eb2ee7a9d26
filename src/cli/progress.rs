//! What a playing command shows while it runs: a progress bar, and how wide its tables may be.

use indicatif::{ProgressBar, ProgressStyle};

/// What is assumed where there is no terminal, and the bounds within which text reads well.
const USUAL: usize = 80;
const NARROWEST: usize = 40;
const WIDEST: usize = 120;

/// Columns to write in.
pub(super) fn width() -> usize {
    terminal_size::terminal_size()
        .map_or(USUAL, |(width, _)| usize::from(width.0))
        .clamp(NARROWEST, WIDEST)
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
