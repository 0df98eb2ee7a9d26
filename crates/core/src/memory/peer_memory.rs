//! What one conversation of a user may know from the others: which of their observations, and which
//! requests may get a snapshot that holds them.
//!
//! Only whole observations are shared, never a task, a suggestion or a system message: those belong to
//! their own conversation. Pure; nothing is rephrased. Called by the jobs module when it prepares a
//! snapshot, and by the request path to check who may get one.

use std::cmp::Reverse;

use super::log_entries::{self, LogEntry};
use super::system_messages;
use crate::history::{History, Link};

/// Two conversations may share this many messages by chance ("hi", "hello"). A request that shares no
/// more with a recorded conversation is a conversation of its own.
pub const MAX_CHANCE_PREFIX: usize = 2;

/// The most conversations that are shared with one: the latest ones. With less than a sixteenth of the
/// budget, a conversation could say little; and the number of digests to read stays bounded.
pub const MAX_CONVERSATIONS: u32 = 16;

/// The memory of other conversations in a snapshot, and which requests may get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMemory {
    /// The lineages it comes from, in the order of the section.
    pub lineages: Vec<i64>,
    /// The thread keys of those lineages. A request with one of these keys belongs to one of them.
    pub keys: Vec<String>,
    /// Tokens of the section.
    pub tokens: u32,
    /// The conversation it was made for; `None` for any new conversation.
    pub binding: Option<ConversationBinding>,
}

/// The one conversation that may use a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationBinding {
    /// The last message that was certain when the snapshot was made; the newest one may still
    /// change. A fork before it is another conversation.
    pub link: Link,
    /// How many messages there were up to that one.
    pub count: usize,
    /// The thread key of the conversation. A request with another key belongs to another
    /// conversation.
    pub key: Option<String>,
}

impl PeerMemory {
    /// Whether a request with this thread key may get it.
    pub fn allows_key(&self, key: Option<&str>) -> bool {
        let Some(key) = key else {
            return true;
        };
        let bound_key = self.binding.as_ref().and_then(|bound| bound.key.as_deref());
        bound_key.is_none_or(|bound| bound == key) && !self.keys.iter().any(|source| source == key)
    }

    /// Whether `history` continues the conversation it was made for.
    pub(super) fn allows_history(&self, history: &History) -> bool {
        self.binding.as_ref().is_none_or(|bound| {
            history.count_through(&bound.link, bound.count) == Some(bound.count)
        })
    }
}

/// What a conversation shares with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Its lineage.
    pub lineage: i64,
    /// Its thread key.
    pub key: Option<String>,
    /// The title that the Observer gave it.
    pub title: Option<String>,
    /// When it last received something, in milliseconds since 1970.
    pub at_ms: i64,
    /// Its most important observations.
    pub text: String,
}

/// The observations of `log` (the texts of its parts, in order) that have at most `budget` tokens
/// together: the most important first, of equal ones the latest. They keep their order.
pub fn digest(log: &[&str], budget: u32, count_tokens: impl Fn(&str) -> u32) -> String {
    let observed: Vec<String> = log
        .iter()
        .map(|text| system_messages::split_messages(text).0)
        .collect();
    clip(&observed.join("\n"), u64::from(budget), &count_tokens).0
}

/// The excerpts of `digests`, whose latest comes first: index and text, oldest first, because of two
/// entries that disagree the later one holds. Together they have at most `budget` tokens.
///
/// The latest digest gets up to half of the budget, the next one half of the rest, and so on. What
/// remains is offered once more in that order.
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
