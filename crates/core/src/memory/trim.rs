//! Decides which of the oldest raw rounds are left out of a request that does not fit its model.
//!
//! The last resort, for messages that are not observed, and only if the operator configured it. Whole
//! rounds are left out (INV-PAIR); the newest user message and the newest unfinished round stay. A pure
//! function of the history, the size of each message and the budget, so a repeated request is cut
//! alike. Called by the proxy after a refusal, and by the jobs module to learn how much to observe.

use crate::history::{History, Role};

/// The part of a history that is left out and replaced by a note: everything behind the snapshot up to
/// `to_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The last message that is left out, counted from 1.
    pub to_count: usize,
    /// The index of the user message among them that still stands raw before the tail.
    pub pin: Option<usize>,
    /// The version of the note.
    pub wording: u32,
}

impl Trim {
    /// Leaves out everything up to `to_count`, with the newest note; `None` if `history` must not
    /// be cut there.
    pub fn try_new(history: &History, to_count: usize) -> Option<Self> {
        Some(Self {
            to_count,
            pin: cut_at(history, to_count)?.pin,
            wording: super::render::TRIM_WORDING,
        })
    }

    /// Whether a longer `history` may be cut there too. The pin stays for as long as the cut: to
    /// remove it would change a prefix that the client keeps (INV-PREFIX).
    pub fn still_fits(&self, history: &History) -> bool {
        let keeps_question = history
            .newest_user()
            .is_none_or(|newest| newest >= self.to_count || self.pin == Some(newest));
        is_safe_cut(history, self.to_count)
            && keeps_question
            && (self.pin.is_none() || next_speaker(history, self.to_count) != Some(Role::User))
    }
}

fn is_safe_cut(history: &History, cut: usize) -> bool {
    0 < cut && cut < history.len() && history.cuts().is_safe(cut)
}

fn next_speaker(history: &History, cut: usize) -> Option<Role> {
    history.messages()[cut..]
        .iter()
        .map(|chained| chained.message.role)
        .find(|role| *role != Role::System)
}

/// A place where a history may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PinnedCut {
    /// The message that stands raw before the tail.
    pin: Option<usize>,
}

/// How `history` can be cut at `at`; `None` if it must not be cut there.
///
/// A cut stands at the beginning of a round of the conversation. Behind the newest user message, it
/// stands at the beginning of a tool round, and that message is pinned.
fn cut_at(history: &History, at: usize) -> Option<PinnedCut> {
    if !is_safe_cut(history, at) {
        return None;
    }
    let next = next_speaker(history, at);
    let newest = history.newest_user().filter(|newest| *newest < at);
    match (newest, next) {
        (None, Some(Role::User)) => Some(PinnedCut { pin: None }),
        // Directly behind the user message, the cut would leave out only what is pinned.
        (Some(question), Some(Role::Assistant)) if question + 1 < at => {
            Some(PinnedCut { pin: newest })
        }
        // Without any user message, all rounds are equal.
        (None, Some(Role::Assistant)) if history.newest_user().is_none() => {
            Some(PinnedCut { pin: None })
        }
        _ => None,
    }
}

/// The first cut behind `covered_count` that leaves no more than `budget`. If none does, the last one,
/// because no shorter request is possible. `None` if there is no cut behind `covered_count`.
///
/// `sizes` are the sizes of the messages, in the unit of `budget`. `is_allowed` can forbid cuts for
/// reasons outside the history.
pub fn trim_to_budget(
    history: &History,
    sizes: &[u32],
    covered_count: usize,
    budget: u64,
    is_allowed: impl Fn(&Trim) -> bool,
) -> Option<Trim> {
    let size = |index: usize| sizes.get(index).copied().map_or(0, u64::from);
    let mut left: u64 = (covered_count..history.len()).map(size).sum();
    let mut last = None;
    for cut in covered_count + 1..history.len() {
        left -= size(cut - 1);
        let Some(trim) = Trim::try_new(history, cut).filter(&is_allowed) else {
            continue;
        };
        last = Some(trim);
        if left + trim.pin.map_or(0, size) <= budget {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Encoder, Message, Scope};

    /// `u`ser, `a`ssistant, `s`ystem, `c`all of two tools, `r`esult of both.
    fn history(roles: &str) -> History {
        let mut messages = Vec::new();
        let mut rounds = 0;
        for role in roles.chars() {
            let (role, calls, answers): (_, Vec<Box<str>>, Vec<Option<String>>) = match role {
                'u' => (Role::User, Vec::new(), vec![None]),
                'a' => (Role::Assistant, Vec::new(), vec![None]),
                's' => (Role::System, Vec::new(), vec![None]),
                'c' => {
                    rounds += 1;
                    let calls = ["x", "y"].map(|name| format!("{name}{rounds}").into());
                    (Role::Assistant, calls.to_vec(), vec![None])
                }
                _ => {
                    let answers = ["y", "x"].map(|name| Some(format!("{name}{rounds}")));
                    (Role::Tool, Vec::new(), answers.to_vec())
                }
            };
            for answers in answers {
                messages.push(Message {
                    fingerprint: Encoder::new().finish(),
                    role,
                    calls: calls.clone().into(),
                    answers: answers.map(Into::into),
                    distinctive_bytes: 0,
                    random_ids: false,
                    attachment_bytes: 0,
                    span: 0..0,
                });
            }
        }
        History::chain(&Scope::new(b"key", None), messages)
    }

    fn cuts(roles: &str) -> Vec<usize> {
        let history = history(roles);
        (0..=history.len() + 1)
            .filter(|at| cut_at(&history, *at).is_some())
            .collect()
    }

    #[test]
    fn trimming_removes_whole_rounds_and_keeps_the_newest() {
        assert_eq!(cuts("uauau"), [2, 4]);
        assert_eq!(cuts("uauaua"), [2, 4]);
        assert_eq!(cuts("u"), [0; 0]);
        assert_eq!(
            cuts("uasuau"),
            [2, 3, 5],
            "a system message begins no round"
        );
        // A round of parallel calls is left out as a whole, and belongs to the question before
        // it.
        assert_eq!(cuts("ucrau"), [5]);
    }

    #[test]
    fn a_long_task_is_cut_between_tool_rounds_and_keeps_its_question() {
        assert_eq!(cuts("ucrcrcr"), [4, 7]);
        let task = history("ucrcrcr");
        assert_eq!(cut_at(&task, 4), Some(PinnedCut { pin: Some(0) }));
        // The unfinished round stays whole.
        assert_eq!(cuts("ucrcrc"), [4, 7]);
        assert_eq!(cuts("uc"), [0; 0]);
    }

    #[test]
    fn a_conversation_without_a_user_message_can_be_trimmed() {
        assert_eq!(cuts("crcr"), [3]);
        assert_eq!(cut_at(&history("crcr"), 3), Some(PinnedCut { pin: None }));
    }

    #[test]
    fn the_first_cut_within_the_budget_is_chosen() {
        let chat = history("uauauau");
        let weights = [10; 7];
        let at = |covered, budget| {
            trim_to_budget(&chat, &weights, covered, budget, |_| true).map(|trim| trim.to_count)
        };
        assert_eq!(at(0, 50), Some(2));
        assert_eq!(at(0, 49), Some(4));
        assert_eq!(at(4, 1_000), Some(6), "behind what is covered");
        assert_eq!(at(0, 0), Some(6), "as little as can be sent");
        assert_eq!(at(6, 0), None);
    }

    #[test]
    fn a_pinned_message_counts_against_the_budget() {
        let task = history("ucrcrcr");
        let weights = [40, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        let at =
            |budget| trim_to_budget(&task, &weights, 0, budget, |_| true).map(|trim| trim.to_count);
        assert_eq!(at(46), Some(4));
        assert_eq!(at(45), Some(7));
    }

    #[test]
    fn a_trim_stays_valid_for_longer_requests_of_the_same_history() {
        let trim = Trim::try_new(&history("ucrcrcr"), 4).expect("a cut");
        assert!(trim.still_fits(&history("ucrcrcrcr")));
        assert!(trim.still_fits(&history("ucrcrcrau")), "the next question");
        assert!(
            !trim.still_fits(&history("ucru")),
            "another question in its place"
        );
        assert!(!trim.still_fits(&history("ucr")), "nothing would be left");
        let trim = Trim::try_new(&history("uauau"), 2).expect("a cut");
        assert!(trim.still_fits(&history("uauauaucr")));
    }
}
