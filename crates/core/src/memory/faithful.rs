//! What a text that stands in for another one has lost: names, numbers, dates, quotes, paths, links,
//! identifiers, and what was marked as done.
//!
//! A model that condenses is believed afterwards, so what it dropped is measured by code. The items of
//! the longer text are read ([`items`]), spelled alike ([`spelling`]), and looked for in the shorter
//! one; a rewording is no loss. Works line by line and in linear time, and decides nothing: the jobs
//! that observe and reflect ask again, mend, or write the numbers down.

mod beginning;
mod cut;
mod dates;
mod items;
mod measure;
mod mend;
mod names;
mod namesakes;
mod numbers;
mod spelling;

use serde_json::{Map, Value, json};

pub use items::{Feature, Item, Reader};
pub use measure::{Missing, Report, Source, condensed, observed};
pub use mend::{mend, newest};

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A person, a place, a product: a word with a capital where none is due.
    Name,
    /// A number, with its unit where it has one.
    Number,
    /// A day, a month, a time of day.
    Date,
    /// Words in quotes or backticks.
    Quote,
    /// A path or the name of a file.
    Path,
    /// A link.
    Url,
    /// Letters and digits mixed, words with an underscore or a capital inside, handles, addresses.
    Identifier,
    /// A line marked as done.
    Done,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Name,
        Self::Number,
        Self::Date,
        Self::Quote,
        Self::Path,
        Self::Url,
        Self::Identifier,
        Self::Done,
    ];

    /// The stable name in the store, in metrics and in what people are told.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Number => "number",
            Self::Date => "date",
            Self::Quote => "quote",
            Self::Path => "path",
            Self::Url => "url",
            Self::Identifier => "identifier",
            Self::Done => "done",
        }
    }
}

/// How many of some items were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Found again.
    pub kept: u32,
    /// All of them.
    pub total: u32,
}

impl Share {
    fn add(&mut self, kept: bool) {
        self.kept = self.kept.saturating_add(u32::from(kept));
        self.total = self.total.saturating_add(1);
    }

    fn sum(shares: &[Self]) -> Self {
        shares.iter().fold(Self::default(), |sum, share| Self {
            kept: sum.kept.saturating_add(share.kept),
            total: sum.total.saturating_add(share.total),
        })
    }

    /// The share that was lost, 0 to 1; 0 where there was nothing to lose.
    pub fn loss(self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        f64::from(self.total - self.kept.min(self.total)) / f64::from(self.total)
    }
}

/// What a part kept of what it was written from, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    kinds: [Share; Kind::ALL.len()],
    /// Of a conversation, what others than its user said; most of it is left out on purpose, so it is in
    /// no sum.
    others: [Share; Kind::ALL.len()],
    /// The items that must not be lost: what stands in lines of high priority, what was marked as
    /// done; of a conversation, what its user said.
    pub high: Share,
}

/// The name of [`Retention::high`] in the store.
const HIGH: &str = "high";

/// The name of what assistants and tools said, by kind, in the store.
const OTHERS: &str = "others";

impl Retention {
    fn add(&mut self, kind: Kind, high: bool, kept: bool) {
        self.kinds[kind as usize].add(kept);
        if high {
            self.high.add(kept);
        }
    }

    fn add_of_others(&mut self, kind: Kind, kept: bool) {
        self.others[kind as usize].add(kept);
    }

    /// Of one kind.
    pub fn of(&self, kind: Kind) -> Share {
        self.kinds[kind as usize]
    }

    /// Of all kinds; of a conversation, of what its user said.
    pub fn all(&self) -> Share {
        Share::sum(&self.kinds)
    }

    /// Of all kinds, of what assistants and tools said. Nothing of a log, which has no speakers.
    pub fn of_others(&self) -> Share {
        Share::sum(&self.others)
    }

    /// As stored, see [`Retention::to_map`].
    pub fn to_json(&self) -> String {
        Value::Object(self.to_map()).to_string()
    }

    /// Kind -> [kept, total], kinds that did not occur left out; what others said in a map of its own.
    pub fn to_map(&self) -> Map<String, Value> {
        let mut map = by_kind(&self.kinds);
        put(&mut map, HIGH, self.high);
        let others = by_kind(&self.others);
        if !others.is_empty() {
            map.insert(OTHERS.to_owned(), Value::Object(others));
        }
        map
    }

    /// The inverse of [`Retention::to_json`]; kinds of a later version are passed over.
    pub fn from_json(json: &str) -> Option<Self> {
        let map: Map<String, Value> = serde_json::from_str(json).ok()?;
        let mut retention = Self::default();
        for (name, value) in map {
            if let (OTHERS, Value::Object(others)) = (name.as_str(), &value) {
                for (name, value) in others {
                    take(&mut retention.others, name, share(value)?);
                }
                continue;
            }
            let share = share(&value)?;
            if name == HIGH {
                retention.high = share;
            } else {
                take(&mut retention.kinds, &name, share);
            }
        }
        Some(retention)
    }
}

fn put(map: &mut Map<String, Value>, name: &str, share: Share) {
    if share.total > 0 {
        map.insert(name.to_owned(), json!([share.kept, share.total]));
    }
}

fn by_kind(shares: &[Share; Kind::ALL.len()]) -> Map<String, Value> {
    let mut map = Map::new();
    for kind in Kind::ALL {
        put(&mut map, kind.name(), shares[kind as usize]);
    }
    map
}

fn share(value: &Value) -> Option<Share> {
    let [kept, total] = value.as_array()?.as_slice() else {
        return None;
    };
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    Some(Share {
        kept: number(kept)?,
        total: number(total)?,
    })
}

fn take(shares: &mut [Share; Kind::ALL.len()], name: &str, share: Share) {
    if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) {
        shares[kind as usize] = share;
    }
}

#[cfg(test)]
mod tests;
