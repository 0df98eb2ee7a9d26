//! From which messages a line of observations comes, found by code and not asked of any model.
//!
//! A line is compared with the messages of its chunk by what they share: items ([`super::faithful`]) and
//! words, the rarer the heavier. Where nothing speaks for certain messages, the line comes from the
//! whole range. A line of a reflection inherits the messages of the lines that it matches. Cost is linear
//! in the texts. Called by the jobs that write parts; `diarist threads show --why` walks it back.

use serde_json::{Value, json};

/// Messages `first` to `last`, both included, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The first message.
    pub first: usize,
    /// The last message.
    pub last: usize,
}

impl Range {
    /// The smallest range that holds both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// For each line of a part's text the messages it comes from; `None` for a line that says nothing
/// (empty, a date). Empty for a part that was written before origins were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(pub Vec<Option<Range>>);

impl Origins {
    /// The messages line `index` (from 0) comes from, as far as it is known.
    pub fn of(&self, index: usize) -> Option<Range> {
        self.0.get(index).copied().flatten()
    }

    /// As stored: an array of [first, last] or null.
    pub fn to_json(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|line| line.map_or(Value::Null, |range| json!([range.first, range.last])));
        Value::Array(lines.collect()).to_string()
    }

    /// The inverse of [`Origins::to_json`].
    pub fn from_json(json: &str) -> Option<Self> {
        let lines: Vec<Option<(usize, usize)>> = serde_json::from_str(json).ok()?;
        let range = |(first, last)| Range { first, last };
        Some(Self(
            lines.into_iter().map(|line| line.map(range)).collect(),
        ))
    }
}
