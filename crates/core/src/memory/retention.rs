//! Measures what a shorter text lost of a longer one: names, numbers, dates, quotes, paths, links,
//! identifiers, and what was marked as done.
//!
//! The text of a model that condenses replaces what it read, so code checks it. The items of the longer
//! text are read ([`items`]), brought to one spelling ([`spelling`]) and looked for in the shorter
//! text; a rewording is no loss. Works line by line and in linear time. It decides nothing: the jobs
//! that observe and reflect repeat the call, restore lines, or store the numbers.

mod ambiguous_names;
mod check;
mod dates;
mod items;
mod line_marks;
mod line_words;
mod lost;
mod names;
mod numbers;
mod restore_lines;
mod spelling;

use serde_json::{Map, Value, json};

pub use check::{LostItem, RetentionReport, RetentionSource, check_observations, check_reflection};
pub use items::{Feature, Item, ItemReader};
pub use lost::{LostItems, NamedItem, SearchedText};
pub use restore_lines::{newest_that_fit, restore_lines};

/// The kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemKind {
    /// A person, a place, a product: a word with a capital where grammar asks for none.
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

impl ItemKind {
    /// All kinds.
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

    /// The stable name in the store, in metrics and in what operators read.
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

/// How many of some items were retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The items found again.
    pub retained: u32,
    /// All items.
    pub total: u32,
}

impl Share {
    fn add(&mut self, retained: bool) {
        self.retained = self.retained.saturating_add(u32::from(retained));
        self.total = self.total.saturating_add(1);
    }

    fn sum(shares: &[Self]) -> Self {
        shares.iter().fold(Self::default(), |sum, share| Self {
            retained: sum.retained.saturating_add(share.retained),
            total: sum.total.saturating_add(share.total),
        })
    }

    /// The share that was lost, 0 to 1; 0 if there were no items.
    pub fn loss(self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        f64::from(self.total - self.retained.min(self.total)) / f64::from(self.total)
    }
}

/// What a part retained of the text it was made from, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    kinds: [Share; ItemKind::ALL.len()],
    /// What others than the user said in a transcript. The Observer leaves most of it out on
    /// purpose, so it is in no sum.
    non_user: [Share; ItemKind::ALL.len()],
    /// The items that must not be lost: in a log, those in lines of high priority or marked as
    /// done; in a transcript, those that the user said.
    pub high: Share,
}

/// The name of [`Retention::high`] in the store.
const HIGH_PRIORITY: &str = "high";

/// The name in the store of what assistants and tools said, by kind.
const NON_USER: &str = "others";

impl Retention {
    fn add(&mut self, kind: ItemKind, high: bool, is_retained: bool) {
        self.kinds[kind as usize].add(is_retained);
        if high {
            self.high.add(is_retained);
        }
    }

    fn add_non_user(&mut self, kind: ItemKind, is_retained: bool) {
        self.non_user[kind as usize].add(is_retained);
    }

    /// The share for one kind.
    pub fn for_kind(&self, kind: ItemKind) -> Share {
        self.kinds[kind as usize]
    }

    /// The share for all kinds; for a transcript, of what its user said.
    pub fn for_all_kinds(&self) -> Share {
        Share::sum(&self.kinds)
    }

    /// The share for all kinds of what assistants and tools said; empty for a log, which has no
    /// speakers.
    pub fn for_non_user(&self) -> Share {
        Share::sum(&self.non_user)
    }

    /// The stored form, see [`Retention::to_map`].
    pub fn to_json(&self) -> String {
        Value::Object(self.to_map()).to_string()
    }

    /// Kind -> [retained, total]. Kinds that did not occur are left out; what others than the user
    /// said is in a map of its own.
    pub fn to_map(&self) -> Map<String, Value> {
        let mut map = by_kind(&self.kinds);
        insert_share(&mut map, HIGH_PRIORITY, self.high);
        let non_user = by_kind(&self.non_user);
        if !non_user.is_empty() {
            map.insert(NON_USER.to_owned(), Value::Object(non_user));
        }
        map
    }

    /// The inverse of [`Retention::to_json`]. Kinds of a later version are ignored.
    pub fn from_json(json: &str) -> Option<Self> {
        let map: Map<String, Value> = serde_json::from_str(json).ok()?;
        let mut retention = Self::default();
        for (name, value) in map {
            if let (NON_USER, Value::Object(non_user)) = (name.as_str(), &value) {
                for (name, value) in non_user {
                    set_share(&mut retention.non_user, name, parse_share(value)?);
                }
                continue;
            }
            let share = parse_share(&value)?;
            if name == HIGH_PRIORITY {
                retention.high = share;
            } else {
                set_share(&mut retention.kinds, &name, share);
            }
        }
        Some(retention)
    }
}

fn insert_share(map: &mut Map<String, Value>, name: &str, share: Share) {
    if share.total > 0 {
        map.insert(name.to_owned(), json!([share.retained, share.total]));
    }
}

fn by_kind(shares: &[Share; ItemKind::ALL.len()]) -> Map<String, Value> {
    let mut map = Map::new();
    for kind in ItemKind::ALL {
        insert_share(&mut map, kind.name(), shares[kind as usize]);
    }
    map
}

fn parse_share(value: &Value) -> Option<Share> {
    let [retained, total] = value.as_array()?.as_slice() else {
        return None;
    };
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    Some(Share {
        retained: number(retained)?,
        total: number(total)?,
    })
}

fn set_share(shares: &mut [Share; ItemKind::ALL.len()], name: &str, share: Share) {
    if let Some(kind) = ItemKind::ALL.into_iter().find(|kind| kind.name() == name) {
        shares[kind as usize] = share;
    }
}

#[cfg(test)]
mod tests;
