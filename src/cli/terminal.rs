//! Text made safe for a terminal.

use crate::ledger::changes_screen;

/// `text` without control characters and without those that change the direction of writing. Clients and models write
/// some of the texts, and such a character could change what is on the screen.
pub(super) fn harmless(text: &str) -> String {
    let replaced = |c: char| {
        if changes_screen(c) && c != '\n' && c != '\t' {
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
        assert_eq!(harmless("a\u{202e}b\u{2066}"), "a\u{fffd}b\u{fffd}");
    }
}
