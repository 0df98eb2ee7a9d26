//! Where a history may be cut: never between a tool call and its result (INV-PAIR).
//!
//! A cut is a count: cut `n` leaves the first `n` messages on one side. A *round* is an assistant message
//! that calls tools and the results that answer it. There are two questions about a cut:
//! - [`Cuts::is_closed`] looks only at the messages *before* the cut, so all processes that know the same
//!   prefix agree. Chunk boundaries are chosen by it.
//! - [`Cuts::is_safe`] looks at the whole request. Forwarded requests are checked by it.

use std::collections::HashMap;

use super::{Message, Role};

/// The cuts of one history.
#[derive(Clone, Debug)]
pub struct Cuts {
    closed: Vec<bool>,
    safe: Vec<bool>,
}

impl Cuts {
    /// Examines `messages`.
    pub fn new<'a>(messages: impl ExactSizeIterator<Item = &'a Message>) -> Self {
        let count = messages.len();
        let mut closed = vec![true; count + 1];
        // A difference array over cuts: how many calls each cut would separate from their
        // result.
        let mut split_changes = vec![0_i32; count + 2];
        // Calls without a result so far, each with the message that made it. A map, because a client may send
        // thousands of calls and results in one round.
        let mut open: HashMap<&str, usize> = HashMap::new();
        let mut calls: HashMap<&str, usize> = HashMap::new();
        for (index, message) in messages.enumerate() {
            if let Some(id) = message.answers.as_deref() {
                open.remove(id);
                if let Some(call) = calls.get(id) {
                    split_changes[call + 1] += 1;
                    split_changes[index + 1] -= 1;
                }
            } else if message.role != Role::Tool {
                // A message that is no result ends the round before it, finished or not.
                // The upstream that accepted the request accepted this too.
                open.clear();
            }
            for id in message.calls.iter() {
                open.entry(id).or_insert(index);
                calls.insert(id, index);
            }
            closed[index + 1] = open.is_empty();
        }
        if let Some(first) = open.values().min() {
            // The newest round is unfinished: its results are still to come.
            split_changes[first + 1] += 1;
        }
        let mut depth = 0;
        let safe = split_changes
            .iter()
            .take(count + 1)
            .map(|change| {
                depth += change;
                depth == 0
            })
            .collect();
        Self { closed, safe }
    }

    /// Whether every call among the first `cut` messages is answered there, or was abandoned: the
    /// conversation continued without its result.
    pub fn is_closed(&self, cut: usize) -> bool {
        self.closed.get(cut).copied().unwrap_or(false)
    }

    /// Whether a cut here separates no call from its result anywhere in this history.
    pub fn is_safe(&self, cut: usize) -> bool {
        self.safe.get(cut).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Encoder;

    fn message(role: Role, calls: &[&str], answers: Option<&str>) -> Message {
        Message {
            fingerprint: Encoder::new().finish(),
            role,
            calls: calls.iter().map(|c| (*c).into()).collect(),
            answers: answers.map(Into::into),
            distinctive_bytes: 0,
            random_ids: false,
            attachment_bytes: 0,
            span: 0..0,
        }
    }

    fn table(messages: &[Message]) -> (Vec<usize>, Vec<usize>) {
        let cuts = Cuts::new(messages.iter());
        let all = 0..=messages.len();
        (
            all.clone().filter(|c| cuts.is_closed(*c)).collect(),
            all.filter(|c| cuts.is_safe(*c)).collect(),
        )
    }

    #[test]
    fn no_cut_separates_parallel_calls_from_their_results() {
        let history = [
            message(Role::User, &[], None),
            message(Role::Assistant, &["a", "b"], None),
            message(Role::Tool, &[], Some("b")),
            message(Role::Tool, &[], Some("a")),
            message(Role::Assistant, &[], None),
        ];
        assert_eq!(table(&history), (vec![0, 1, 4, 5], vec![0, 1, 4, 5]));
    }

    #[test]
    fn no_cut_falls_into_the_unfinished_newest_tool_round() {
        let history = [
            message(Role::User, &[], None),
            message(Role::Assistant, &["a", "b"], None),
            message(Role::Tool, &[], Some("b")),
        ];
        assert_eq!(table(&history), (vec![0, 1], vec![0, 1]));
    }

    #[test]
    fn abandoned_round_ends_with_the_next_message() {
        let history = [
            message(Role::Assistant, &["a"], None),
            message(Role::User, &[], None),
            message(Role::Assistant, &[], None),
        ];
        assert_eq!(table(&history), (vec![0, 2, 3], vec![0, 1, 2, 3]));
    }

    #[test]
    fn no_cut_falls_between_a_tool_call_and_its_late_result() {
        let history = [
            message(Role::Assistant, &["a"], None),
            message(Role::User, &[], None),
            message(Role::Tool, &[], Some("a")),
            message(Role::User, &[], None),
        ];
        let (_, safe) = table(&history);
        assert_eq!(safe, vec![0, 3, 4]);
    }

    #[test]
    fn a_place_past_the_end_is_never_a_cut() {
        let cuts = Cuts::new([].iter());
        assert!(cuts.is_safe(0) && cuts.is_closed(0));
        assert!(!cuts.is_safe(1) && !cuts.is_closed(1));
    }
}
