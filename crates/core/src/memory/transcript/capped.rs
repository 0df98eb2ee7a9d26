//! Texts cut to a number of tokens, between characters.

use crate::memory::prompt::{head, tail};
use crate::tokens::TokenCounter;

/// No text of so many bytes per token exists outside of white space; what lies beyond is left out
/// before anything is counted, so that a result of many megabytes costs no seconds.
const BYTES_PER_TOKEN: usize = 64;

/// `text` within `limit` tokens: three parts from its start, one from its end (where errors and
/// totals stand), and between them about how many tokens were left out.
pub fn capped(text: &str, limit: u32, counter: &dyn TokenCounter) -> String {
    // A token is a byte at least.
    if text.len() <= limit as usize {
        return text.to_owned();
    }
    let most = limit as usize * BYTES_PER_TOKEN;
    let all = if text.len() <= most {
        counter.count(text)
    } else {
        let counted = counter.count(&text[..text.floor_char_boundary(most)]);
        let (counted, length) = (u64::from(counted), text.len() as u64);
        u32::try_from(counted.saturating_mul(length) / most as u64).unwrap_or(u32::MAX)
    };
    if all <= limit {
        return text.to_owned();
    }
    let cut = |characters: usize| {
        let end = characters / 4;
        let (start, end) = (head(text, characters - end), tail(text, end));
        (start, end)
    };
    // The most characters whose two ends fit, by bisection: a longer cut never has fewer tokens, but
    // for what the tokenizer does at its edges.
    let note = |left: u32| format!(" [... about {left} tokens left out ...] ");
    let budget = limit.saturating_sub(counter.count(&note(all)));
    let (mut fits, mut beyond) = (0, text.len().min(most) + 1);
    while fits + 1 < beyond {
        let middle = fits + (beyond - fits) / 2;
        let (start, end) = cut(middle);
        if counter.count(start).saturating_add(counter.count(end)) <= budget {
            fits = middle;
        } else {
            beyond = middle;
        }
    }
    let (start, end) = cut(fits);
    format!("{start}{}{end}", note(all.saturating_sub(budget)))
}

/// The first characters of `text`, within `limit` tokens.
pub(super) fn start(text: &str, limit: u32, counter: &dyn TokenCounter) -> String {
    let (mut fits, mut beyond) = (0, text.len().min(limit as usize * BYTES_PER_TOKEN) + 1);
    while fits + 1 < beyond {
        let middle = fits + (beyond - fits) / 2;
        let cut = text.floor_char_boundary(middle);
        if counter.count(&text[..cut]) <= limit {
            fits = middle;
        } else {
            beyond = middle;
        }
    }
    text[..text.floor_char_boundary(fits)].to_owned()
}
