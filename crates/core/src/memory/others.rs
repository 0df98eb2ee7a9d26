//! What one conversation of a user is told of the others: which of their observations, and to whom a
//! snapshot that holds them may be sent.
//!
//! Only observations are told, whole, never a task, a suggestion or a message of the application: those
//! belong to the conversation they were made in. Pure; nothing is rephrased. Called by `jobs` when it
//! prepares a snapshot, and by the request path for whom one may serve.

use std::cmp::Reverse;

use super::entries::{self, Entry};
use super::verbatim;
use crate::history::{History, Link};

/// A beginning that two conversations share may be chance up to here ("hi", "hello"): what shares no
/// more of a recorded one is a conversation of its own.
pub const CHANCE: usize = 2;

/// Conversations that one is told of at most, the latest. With less than a sixteenth of the budget
/// there is little to be told, and what has to be read stays the same however many there are.
pub const TOLD: u32 = 16;

/// What a snapshot holds of other conversations, and whom it may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Others {
    /// The lineages told of, in the order in which they stand.
    pub lineages: Vec<i64>,
    /// The names their clients gave them: a conversation under one of them is none of the others.
    pub keys: Vec<String>,
    /// Tokens of what is told.
    pub tokens: u32,
    /// The conversation it was made for; `None` serves whoever begins one.
    pub bound: Option<Bound>,
}

/// The one conversation that a snapshot serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The last message it had for good when the snapshot was made: the newest may change still. What
    /// forks off before is another one.
    pub link: Link,
    /// How many messages it had up to there.
    pub count: usize,
    /// The name its client gave it. What goes on under another name is another one.
    pub key: Option<String>,
}

impl Others {
    /// Whether a request under `key` may be told this.
    pub fn admits(&self, key: Option<&str>) -> bool {
        let Some(key) = key else {
            return true;
        };
        let bound = self.bound.as_ref().and_then(|bound| bound.key.as_deref());
        bound.is_none_or(|bound| bound == key) && !self.keys.iter().any(|told| told == key)
    }

    /// Whether `history` goes on the conversation it was made for.
    pub(super) fn serves(&self, history: &History) -> bool {
        self.bound
            .as_ref()
            .is_none_or(|bound| history.covered_by(&bound.link, bound.count) == Some(bound.count))
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
pub fn digest(log: &[&str], budget: u32, weigh: impl Fn(&str) -> u32) -> String {
    let observed: Vec<String> = log.iter().map(|text| verbatim::split(text).0).collect();
    clip(&observed.join("\n"), u64::from(budget), &weigh).0
}

/// What is told of each of `digests`, which come with the latest first: index and text, the oldest
/// first, since of two entries that disagree the later one holds. Together they weigh at most `budget`.
///
/// The latest gets up to half, the next half of what is left, and so on; what nobody wanted goes round
/// once more in that order.
pub fn choose(
    digests: &[Digest],
    budget: u32,
    weigh: impl Fn(&str) -> u32,
) -> Vec<(usize, String)> {
    let mut left = u64::from(budget);
    let mut told: Vec<Option<(String, u64)>> = vec![None; digests.len()];
    for halved in [true, false] {
        for (digest, told) in digests.iter().zip(&mut told) {
            let has = told.as_ref().map_or(0, |(_, cost)| *cost);
            let share = if halved { left / 2 } else { has + left };
            let Some(room) = share.checked_sub(HEADING) else {
                continue;
            };
            let (text, weight) = clip(&digest.text, room, &weigh);
            if !text.is_empty() && weight + HEADING > has {
                left -= weight + HEADING - has;
                *told = Some((text, weight + HEADING));
            }
        }
    }
    let told = told.into_iter().enumerate().rev();
    told.filter_map(|(index, told)| Some((index, told?.0)))
        .collect()
}

/// About what it costs to say which conversation something is from, in tokens.
const HEADING: u64 = 40;

/// The observations of `log` that weigh at most `budget` together with the headers of their days, and
/// what they weigh.
fn clip(log: &str, budget: u64, weigh: &impl Fn(&str) -> u32) -> (String, u64) {
    let (days, entries) = entries::read(log, weigh);
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|index| Reverse((entries[*index].priority, *index)));
    let mut kept = vec![false; entries.len()];
    let mut dated = vec![false; days.len()];
    let mut weight = 0;
    for index in order {
        let Entry {
            day, weight: own, ..
        } = entries[index];
        let header = match days[day] {
            "" => 0,
            _ if dated[day] => 0,
            header => u64::from(weigh(header)) + 1,
        };
        if weight + own + header <= budget {
            weight += own + header;
            (kept[index], dated[day]) = (true, true);
        }
    }
    let mut lines = Vec::new();
    let mut day = 0;
    for (entry, _) in entries.iter().zip(kept).filter(|(_, kept)| *kept) {
        if entry.day != day {
            day = entry.day;
            lines.push(days[day]);
        }
        lines.extend(&entry.lines);
    }
    (lines.join("\n"), weight)
}

#[cfg(test)]
mod tests;
