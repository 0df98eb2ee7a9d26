//! Shortens texts to a number of tokens, between characters.

use crate::memory::prompt::{first_chars, last_chars};
use crate::tokens::TokenCounter;

/// No text except white space has this many bytes per token. What lies beyond is left out before
/// counting, so a result of many megabytes does not take seconds.
const BYTES_PER_TOKEN: usize = 64;

/// `text` in at most `limit` tokens: three parts from its start, one part from its end (where errors
/// and totals stand), and between them a note with the approximate number of tokens left out.
pub fn truncate_middle(text: &str, limit: u32, counter: &dyn TokenCounter) -> String {
    // A token has at least one byte.
    if text.len() <= limit as usize {
        return text.to_owned();
    }
    let max_bytes = limit as usize * BYTES_PER_TOKEN;
    let total = if text.len() <= max_bytes {
        counter.count(text)
    } else {
        let counted = counter.count(&text[..text.floor_char_boundary(max_bytes)]);
        let (counted, length) = (u64::from(counted), text.len() as u64);
        u32::try_from(counted.saturating_mul(length) / max_bytes as u64).unwrap_or(u32::MAX)
    };
    if total <= limit {
        return text.to_owned();
    }
    let cut = |characters: usize| {
        let end = characters / 4;
        let (start, end) = (first_chars(text, characters - end), last_chars(text, end));
        (start, end)
    };
    // Bisection for the most characters whose two ends fit. More characters never have fewer tokens,
    // apart from effects at the edges.
    let note = |left: u32| format!(" [... about {left} tokens left out ...] ");
    let budget = limit.saturating_sub(counter.count(&note(total)));
    let (mut fitting, mut too_many) = (0, text.len().min(max_bytes) + 1);
    while fitting + 1 < too_many {
        let middle = fitting + (too_many - fitting) / 2;
        let (start, end) = cut(middle);
        if counter.count(start).saturating_add(counter.count(end)) <= budget {
            fitting = middle;
        } else {
            too_many = middle;
        }
    }
    let (start, end) = cut(fitting);
    format!("{start}{}{end}", note(total.saturating_sub(budget)))
}

/// The beginning of `text` in at most `limit` tokens.
pub(super) fn truncate_end(text: &str, limit: u32, counter: &dyn TokenCounter) -> String {
    let (mut fitting, mut too_many) = (0, text.len().min(limit as usize * BYTES_PER_TOKEN) + 1);
    while fitting + 1 < too_many {
        let middle = fitting + (too_many - fitting) / 2;
        let cut = text.floor_char_boundary(middle);
        if counter.count(&text[..cut]) <= limit {
            fitting = middle;
        } else {
            too_many = middle;
        }
    }
    text[..text.floor_char_boundary(fitting)].to_owned()
}
