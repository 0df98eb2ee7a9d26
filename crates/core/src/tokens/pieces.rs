//! Cuts text into pieces that a tokenizer can handle.
//!
//! The split pattern of `o200k_base` backtracks: a million white-space characters overflow the stack of
//! its engine. Pieces are small and cut where the pattern ends a match anyway, so the sum of their
//! counts is the count of the whole. Only text without such a place (no space for thousands of bytes)
//! is cut anywhere, which costs a token or two per cut.

/// The most bytes of a piece: the largest size that the reference measurements advise.
pub(super) const MAX_PIECE_BYTES: usize = 4096;

/// The pieces of `text`, in order.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(cut(rest));
        rest = tail;
        Some(piece)
    })
}

/// Where the first piece of `text` ends.
fn cut(text: &str) -> usize {
    if text.len() <= MAX_PIECE_BYTES {
        return text.len();
    }
    let end = text.floor_char_boundary(MAX_PIECE_BYTES);
    // Only in the second half: a piece must not become tiny because its only space is near its
    // start.
    let from = text.floor_char_boundary(MAX_PIECE_BYTES / 2);
    let seam = |index: &usize| is_seam(text, *index);
    (from..=end).rev().find(seam).unwrap_or(end)
}

/// Whether the pattern ends a match before the byte at `index`, whatever is around it: no match reaches
/// from a non-space character into a space, or from a letter or digit into a line break.
fn is_seam(text: &str, index: usize) -> bool {
    let bytes = text.as_bytes();
    match bytes[index] {
        b' ' => text[..index]
            .chars()
            .next_back()
            .is_some_and(|c| !c.is_whitespace()),
        b'\n' => bytes[index - 1].is_ascii_alphanumeric(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_text_lose_nothing_and_are_never_too_long() {
        for text in [
            String::new(),
            "a".to_owned(),
            "a".repeat(3 * MAX_PIECE_BYTES + 1),
            " ".repeat(3 * MAX_PIECE_BYTES),
            "wörd ".repeat(MAX_PIECE_BYTES),
            "字".repeat(MAX_PIECE_BYTES),
            "👩‍👩‍👧‍👦".repeat(MAX_PIECE_BYTES / 4),
            "line\n".repeat(MAX_PIECE_BYTES),
        ] {
            assert_eq!(pieces(&text).collect::<String>(), text);
            assert!(pieces(&text).all(|piece| !piece.is_empty() && piece.len() <= MAX_PIECE_BYTES));
            // At least half the limit each, except for the last piece and the width of a
            // character.
            assert!(pieces(&text).count() <= text.len() / (MAX_PIECE_BYTES / 2 - 4) + 1);
        }
    }

    #[test]
    fn cuts_fall_between_words() {
        let text = "some words, and more.\n".repeat(1000);
        assert!(pieces(&text).skip(1).all(|piece| piece.starts_with(' ')));
    }
}
