//! What one conversation of a user is told of the others: which of their observations, and to whom a
//! snapshot that holds them may be sent.
//!
//! Only observations are told, whole, never a task, a suggestion or a message of the application: those
//! belong to the conversation they were made in. Pure; nothing is rephrased. Called by `jobs` when it
//! prepares a snapshot, and by the request path for whom one may serve.

use std::cmp::Reverse;

use super::log_entries::{self, LogEntry};
use super::system_messages;
use crate::history::{History, Link};

/// A beginning that two conversations share may be chance up to here ("hi", "hello"): what shares no
/// more of a recorded one is a conversation of its own.
pub const MAX_CHANCE_PREFIX: usize = 2;

/// Conversations that one is told of at most, the latest. With less than a sixteenth of the budget
/// there is little to be told, and what has to be read stays the same however many there are.
pub const MAX_CONVERSATIONS: u32 = 16;

/// What a snapshot holds of other conversations, and whom it may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMemory {
    /// The lineages told of, in the order in which they stand.
    pub lineages: Vec<i64>,
    /// The names their clients gave them: a conversation under one of them is none of the others.
    pub keys: Vec<String>,
    /// Tokens of what is told.
    pub tokens: u32,
    /// The conversation it was made for; `None` serves whoever begins one.
    pub binding: Option<ConversationBinding>,
}

/// The one conversation that a snapshot serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationBinding {
    /// The last message it had for good when the snapshot was made: the newest may change still. What
    /// forks off before is another one.
    pub link: Link,
    /// How many messages it had up to there.
    pub count: usize,
    /// The name its client gave it. What goes on under another name is another one.
    pub key: Option<String>,
}

impl PeerMemory {
    /// Whether a request under `key` may be told this.
    pub fn allows_key(&self, key: Option<&str>) -> bool {
        let Some(key) = key else {
            return true;
        };
        let bound_key = self.binding.as_ref().and_then(|bound| bound.key.as_deref());
        bound_key.is_none_or(|bound| bound == key) && !self.keys.iter().any(|told| told == key)
    }

    /// Whether `history` goes on the conversation it was made for.
    pub(super) fn allows_history(&self, history: &History) -> bool {
        self.binding.as_ref().is_none_or(|bound| {
            history.count_through(&bound.link, bound.count) == Some(bound.count)
        })
    }
}

/// What others may be told of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Its lineage.
    pub lineage: i64,
    /// The name its client gave it.
    pub key: Option<String>,
    /// What the Observer calls it.
    pub title: Option<String>,
    /// When it was last heard of, in milliseconds since 1970.
    pub at_ms: i64,
    /// Its most important observations.
    pub text: String,
}

/// The observations of `log` (the texts of its parts, in order) that weigh at most `budget`: the most
/// important first, of equal ones the latest. They keep their order.
pub fn digest(log: &[&str], budget: u32, count_tokens: impl Fn(&str) -> u32) -> String {
    let observed: Vec<String> = log
        .iter()
        .map(|text| system_messages::split_messages(text).0)
        .collect();
    clip(&observed.join("\n"), u64::from(budget), &count_tokens).0
}

/// What is told of each of `digests`, which come with the latest first: index and text, the oldest
/// first, since of two entries that disagree the later one holds. Together they weigh at most `budget`.
///
/// The latest gets up to half, the next half of what is left, and so on; what nobody wanted goes round
/// once more in that order.
pub fn select_excerpts(
    digests: &[Digest],
    budget: u32,
    count_tokens: impl Fn(&str) -> u32,
) -> Vec<(usize, String)> {
    let mut left = u64::from(budget);
    let mut excerpts: Vec<Option<(String, u64)>> = vec![None; digests.len()];
    for halved in [true, false] {
        for (digest, excerpt) in digests.iter().zip(&mut excerpts) {
            let current_cost = excerpt.as_ref().map_or(0, |(_, cost)| *cost);
            let share = if halved {
                left / 2
            } else {
                current_cost + left
            };
            let Some(max_tokens) = share.checked_sub(HEADING_TOKENS) else {
                continue;
            };
            let (text, tokens) = clip(&digest.text, max_tokens, &count_tokens);
            if !text.is_empty() && tokens + HEADING_TOKENS > current_cost {
                left -= tokens + HEADING_TOKENS - current_cost;
                *excerpt = Some((text, tokens + HEADING_TOKENS));
            }
        }
    }
    let excerpts = excerpts.into_iter().enumerate().rev();
    excerpts
        .filter_map(|(index, excerpt)| Some((index, excerpt?.0)))
        .collect()
}

/// The approximate tokens of the heading that names a conversation.
const HEADING_TOKENS: u64 = 40;

/// The observations of `log` that have at most `budget` tokens together with their day headers, and
/// their tokens.
fn clip(log: &str, budget: u64, count_tokens: &impl Fn(&str) -> u32) -> (String, u64) {
    let (days, entries) = log_entries::read_log(log, count_tokens);
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|index| Reverse((entries[*index].priority, *index)));
    let mut selected = vec![false; entries.len()];
    let mut dated = vec![false; days.len()];
    let mut tokens = 0;
    for index in order {
        let LogEntry {
            day,
            tokens: entry_tokens,
            ..
        } = entries[index];
        let header = match days[day] {
            "" => 0,
            _ if dated[day] => 0,
            header => u64::from(count_tokens(header)) + 1,
        };
        if tokens + entry_tokens + header <= budget {
            tokens += entry_tokens + header;
            (selected[index], dated[day]) = (true, true);
        }
    }
    let mut lines = Vec::new();
    let mut day = 0;
    for (entry, _) in entries
        .iter()
        .zip(selected)
        .filter(|(_, is_selected)| *is_selected)
    {
        if entry.day != day {
            day = entry.day;
            lines.push(days[day]);
        }
        lines.extend(&entry.lines);
    }
    (lines.join("\n"), tokens)
}

#[cfg(test)]
mod tests;
