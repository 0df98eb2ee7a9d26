//! The terminal: how wide it is, and how far something has come.

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
pub(super) fn progress(what: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_message(what);
    // A template that cannot be read would be a mistake of ours: the usual bar then does.
    match ProgressStyle::with_template("{msg}  {bar:40}  {pos}/{len}  {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// `text` fit for a terminal: what a client or a model wrote may hold control sequences, which
/// could rewrite what is on the screen.
pub(super) fn harmless(text: &str) -> String {
    let replaced = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\tb\nc"), "a\tb\nc");
        assert_eq!(
            harmless("\u{1b}[2Jx\r\u{9b}"),
            "\u{fffd}[2Jx\u{fffd}\u{fffd}"
        );
    }
}
