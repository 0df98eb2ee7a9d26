//! Which texts of a request may be earlier answers of the model, sent in the place of the messages that they summarise.
//!
//! Decides nothing: the look-up compares them with the known answers. Called by [`super`] only.

use crate::history::{AnswerHash, History, Pepper, ScopedHash};
use crate::lookup::PossibleSummaries;
use crate::memory::alignment::{self, SummaryStart};
use crate::proxy::answer_position::{MIN_SUMMARY_BYTES, may_be_summary};
use crate::wire;

/// How many of a message's first lines may begin a summary. Clients send the model's summary as the whole
/// message, or behind a few lines of their own.
const SUMMARY_START_LINES: usize = 6;

/// The hashes of texts in this history that may be an earlier answer of the model, sent in the place of the
/// messages that it summarises. Each with the position of its message. Only texts whose ending is known are hashed as a
/// whole: hashing up to six beginnings of each would take longer than all else that is done with a new request.
pub(super) fn possible_answer_marks(
    parsed: &wire::Request,
    history: &History,
    pepper: &Pepper,
    is_ending_known: &dyn Fn(&ScopedHash) -> bool,
) -> PossibleSummaries {
    let root = history.root();
    let mut found = PossibleSummaries::default();
    let positions = alignment::summary_positions(history);
    for (position, text) in parsed.first_texts(positions, MIN_SUMMARY_BYTES) {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        let beginnings = std::iter::once(0).chain(breaks).take(SUMMARY_START_LINES);
        let candidates = beginnings
            .map(|at| text.split_at(at))
            .filter(|(_, text)| may_be_summary(text));
        // Nearly always all of them end alike.
        let mut previous: Option<(&str, bool)> = None;
        for (start, candidate) in candidates {
            let is_known = match previous {
                Some((other, is_known)) if AnswerHash::same_ending(other, candidate) => is_known,
                _ => is_ending_known(&AnswerHash::ending_of(pepper, &root, candidate)),
            };
            previous = Some((candidate, is_known));
            if is_known {
                let hash = ScopedHash::from_text(pepper, &root, candidate);
                found.marks.push((hash, position));
                let start = SummaryStart::from_text(pepper, &root, start);
                found.starts.push(start);
            }
        }
    }
    found
}
