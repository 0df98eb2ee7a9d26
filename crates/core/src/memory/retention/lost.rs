//! The lost items of a part by name, as they are stored beside it: the audit only counts them.
//!
//! An item is stored as its text. Whether another text has it is decided by reading that text again, so
//! what counts as the same item is what [`super::check`] says.

use serde_json::{Value, json};

use super::check::TextIndex;
use super::items::ItemReader;
use super::spelling::words;
use super::{ItemKind, RetentionReport};

/// The most items of one part. A part stands for some thousand tokens; few have more.
const MAX_ITEMS: usize = 128;

/// Bytes of the longest item. A longer one is a sentence in quotes or a very long path.
const MAX_BYTES: usize = 200;

/// An item that a part lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedItem {
    /// What it is.
    pub kind: ItemKind,
    /// As it was written.
    pub text: String,
    /// Whether it should not have been lost: a user said it, or an important observation.
    pub high: bool,
}

/// The items that a part lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostItems {
    /// Those that must not be lost first, then in the order of the source.
    pub items: Vec<NamedItem>,
    /// How many more there were, for which there was no room.
    pub unnamed: u32,
}

impl LostItems {
    /// The memory that they hold.
    pub fn bytes(&self) -> usize {
        let items = self.items.iter();
        items
            .map(|item| size_of::<NamedItem>() + item.text.len())
            .sum()
    }

    /// The items of a report, as far as there is room. Lines marked as done are not among them: they are
    /// sentences.
    pub fn from_report(report: &RetentionReport) -> Self {
        let is_item = |kind| kind != ItemKind::Done;
        let lost = report.lost.iter().filter(|lost| is_item(lost.kind));
        let (high, other): (Vec<_>, Vec<_>) = lost.partition(|lost| lost.high);
        let all = high.into_iter().chain(other);
        let mut named = Self::default();
        for lost in all {
            let text = match lost.kind {
                // The query of a link may hold a signature or a token.
                ItemKind::Url => lost.text.split(['?', '#']).next().unwrap_or_default(),
                _ => &lost.text,
            };
            if named.items.len() < MAX_ITEMS && text.len() <= MAX_BYTES {
                named.items.push(NamedItem {
                    kind: lost.kind,
                    text: text.to_owned(),
                    high: lost.high,
                });
            } else {
                named.unnamed = named.unnamed.saturating_add(1);
            }
        }
        named
    }

    /// As the database has it.
    pub fn to_json(&self) -> String {
        let items = self.items.iter();
        let items: Vec<Value> = items
            .map(|item| json!([item.kind.name(), item.text, item.high]))
            .collect();
        json!({"items": items, "unnamed": self.unnamed}).to_string()
    }

    /// The inverse. Items of kinds that this version does not know are left out; `None` if it is not what
    /// [`Self::to_json`] writes.
    pub fn from_json(json: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(json).ok()?;
        let mut lost = Self {
            items: Vec::new(),
            unnamed: u32::try_from(value["unnamed"].as_u64()?).ok()?,
        };
        for item in value["items"].as_array()? {
            let (kind, text) = (item[0].as_str()?, item[1].as_str()?.to_owned());
            let high = item[2].as_bool()?;
            if let Some(kind) = ItemKind::ALL.into_iter().find(|one| one.name() == kind) {
                lost.items.push(NamedItem { kind, text, high });
            }
        }
        Some(lost)
    }
}

/// A text in which items are looked for.
pub struct SearchedText {
    reader: ItemReader,
    index: TextIndex,
}

impl SearchedText {
    /// Reads `text`, in linear time.
    pub fn new(text: &str) -> Self {
        let reader = ItemReader::for_text(text);
        Self {
            index: TextIndex::new(text, &reader),
            reader,
        }
    }

    /// Whether the text has the item, in whatever spelling.
    pub fn has(&self, item: &NamedItem) -> bool {
        // At the beginning of a line, a capital makes no name.
        let line = format!("then {}", item.text);
        let mut read = self.reader.items(&line).into_iter();
        if read.any(|read| read.kind == item.kind && self.index.has_item(&read)) {
            return true;
        }
        let words = words(&item.text);
        !words.is_empty() && self.index.has_phrase(&words)
    }
}

impl std::fmt::Debug for SearchedText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SearchedText").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::retention::check_observations;

    const TRANSCRIPT: &str = "User (09:00): Ann Miller paid 1,250 EUR for order ZX-1041 on 3 May 2026, see /srv/app/main.rs.\n\
        Assistant (09:01): I wrote it to /var/log/orders.log for Bo Keller.";

    fn lost(observed: &str) -> LostItems {
        LostItems::from_report(&check_observations(TRANSCRIPT, observed))
    }

    fn texts(items: &LostItems) -> Vec<(&str, bool)> {
        let items = items.items.iter();
        items.map(|item| (item.text.as_str(), item.high)).collect()
    }

    #[test]
    fn lost_items_are_listed_with_those_of_the_user_first() {
        let lost = lost("* 🔴 (09:00) Ann Miller paid for an order");
        let found = texts(&lost);
        for (text, high) in [
            ("ZX-1041", true),
            ("/srv/app/main.rs", true),
            ("/var/log/orders.log", false),
        ] {
            assert!(found.contains(&(text, high)), "{text}: {found:?}");
        }
        assert!(!found.iter().any(|(text, _)| text.contains("Ann")));
        let first_other = found
            .iter()
            .position(|(_, high)| !high)
            .unwrap_or(found.len());
        assert!(found[first_other..].iter().all(|(_, high)| !high));
        assert_eq!(LostItems::from_json(&lost.to_json()), Some(lost));
        assert_eq!(LostItems::from_json("[]"), None);
    }

    #[test]
    fn an_item_is_found_again_in_another_spelling() {
        let lost = lost("* 🔴 (09:00) nothing of it");
        let text = "* Paid: 1250 EUR by Ann Miller for `ZX-1041`; bo keller has /srv/app/main.rs";
        let searched = SearchedText::new(text);
        let missing = lost.items.iter().filter(|item| !searched.has(item));
        let missing: Vec<&str> = missing.map(|item| item.text.as_str()).collect();
        for found in ["ZX-1041", "/srv/app/main.rs"] {
            assert!(!missing.contains(&found), "{missing:?}");
        }
        assert!(missing.contains(&"/var/log/orders.log"), "{missing:?}");
        let names = |part: &str| lost.items.iter().any(|item| item.text.contains(part));
        assert!(
            names("Ann") && names("Keller") && names("1,250"),
            "{lost:?}"
        );
        for found in ["Ann", "Keller", "1,250"] {
            assert!(
                !missing.iter().any(|text| text.contains(found)),
                "{missing:?}"
            );
        }
    }

    /// A query may hold a key of a form that redaction does not know.
    #[test]
    fn a_link_is_kept_without_its_query() {
        let text =
            "User (09:00): get https://files.example.com/a/report.pdf?key=hunter2#page of it";
        let lost = LostItems::from_report(&check_observations(text, "* 🔴 (09:00) nothing"));
        let links = lost.items.iter().filter(|item| item.kind == ItemKind::Url);
        let links: Vec<&str> = links.map(|item| item.text.as_str()).collect();
        assert_eq!(links, ["https://files.example.com/a/report.pdf"]);
        assert!(!lost.to_json().contains("hunter2"), "{lost:?}");
    }

    #[test]
    fn the_list_of_lost_items_has_a_limit_and_counts_the_rest() {
        let text: Vec<String> = (0..MAX_ITEMS + 9)
            .map(|number| format!("User (09:00): it is in /srv/{number}/file.rs"))
            .collect();
        let report = check_observations(&text.join("\n"), "");
        let lost = LostItems::from_report(&report);
        assert_eq!(lost.items.len(), MAX_ITEMS);
        let all = report
            .lost
            .iter()
            .filter(|lost| lost.kind != ItemKind::Done);
        assert_eq!(all.count(), MAX_ITEMS + lost.unnamed as usize);
    }
}
