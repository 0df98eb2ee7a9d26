//! `diarist threads show --lost`: the names, numbers, dates and paths of a conversation that are in no request any more.
//!
//! Each part keeps what it lost of its source. What the newest snapshot says elsewhere, or a raw message behind it as far
//! as its text is stored, is not lost. Reads the database only.

use std::collections::{BTreeSet, HashSet};

use super::why::MessageTexts;
use crate::cli::terminal::harmless;
use crate::memory::retention::{LostItems, NamedItem, SearchedText};
use crate::memory::{Part, PartId, PartKind, Snapshot};
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::ThreadDetail;

/// The list of a conversation.
pub(super) fn text(detail: &ThreadDetail, texts: &MessageTexts) -> String {
    let newest = detail
        .snapshots
        .iter()
        .max_by_key(|snapshot| (snapshot.meta.to_count, snapshot.meta.id));
    let Some(newest) = newest.filter(|snapshot| snapshot.meta.to_count > 0) else {
        return "No observation replaces a message of this conversation, so nothing is lost.\n"
            .to_owned();
    };
    let parts = told_parts(detail, newest);
    // Messages are numbered from 1.
    let pin = newest.meta.pin.map(|pin| pin + 1);
    let tail = newest.meta.to_count + 1..=detail.row.messages;
    let raw = pin.into_iter().chain(tail);
    let raw: Vec<Option<String>> = raw.map(|place| texts.of_message(detail, place)).collect();
    let sent = newest.segments.concat() + &raw.iter().flatten().cloned().collect::<String>();
    let lost = still_lost(&parts, &SearchedText::new(&sent));
    let mut text = format!(
        "Snapshot {} stands for messages 1-{}. ",
        newest.meta.id.0, newest.meta.to_count
    );
    if lost.is_empty() {
        text.push_str("Nothing that was noted as lost is missing in it.\n");
    } else {
        text.push_str("These of their items are in no request any more:\n\n");
        text.push_str(&table(&lost));
    }
    text + &notes(&parts, &raw)
}

/// The parts that the snapshot is made of, and those that these were made of.
fn told_parts<'a>(detail: &'a ThreadDetail, newest: &Snapshot) -> Vec<&'a Part> {
    let mut wanted: Vec<PartId> = newest.meta.parts.clone();
    let mut known: BTreeSet<PartId> = wanted.iter().copied().collect();
    while let Some(id) = wanted.pop() {
        let part = detail.parts.iter().find(|part| part.id == id);
        let sources = part.map_or(&[][..], |part| &part.body.sources);
        wanted.extend(sources.iter().filter(|source| known.insert(**source)));
    }
    let parts = detail.parts.iter();
    parts.filter(|part| known.contains(&part.id)).collect()
}

/// An item and the part that lost it.
type LostBy<'a> = (&'a NamedItem, &'a Part);

/// What no text of the snapshot has, each item once: those that must not be lost first, then in the order of the parts.
fn still_lost<'a>(parts: &[&'a Part], sent: &SearchedText) -> Vec<LostBy<'a>> {
    let noted = |part: &'a Part| part.body.analysis.lost.iter();
    let all = parts.iter().flat_map(|part| {
        let items = noted(part).flat_map(|lost: &LostItems| &lost.items);
        items.map(move |item| (item, *part))
    });
    let mut lost: Vec<LostBy<'_>> = all.filter(|(item, _)| !sent.has(item)).collect();
    lost.sort_by_key(|(item, part)| (!item.high, part.body.span.from_count, part.id));
    let mut listed = HashSet::new();
    lost.retain(|(item, _)| listed.insert((item.kind, &item.text)));
    lost
}

fn table(lost: &[LostBy<'_>]) -> String {
    let head = ["item", "kind", "important", "lost by", "messages"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(lost.iter().map(|(item, part)| {
        let span = &part.body.span;
        vec![
            harmless(&item.text),
            item.kind.name().to_owned(),
            if item.high { "yes" } else { "no" }.to_owned(),
            format!("{} {}", kind_label(part.body.kind), part.id.0),
            format!("{}-{}", span.from_count + 1, span.to_count),
        ]
    }));
    align_columns(&rows, &[ColumnAlign::Left; 5])
}

/// The kind of a part, as the timeline and the documents name it.
fn kind_label(kind: PartKind) -> &'static str {
    match kind {
        PartKind::Chunk => "observation",
        PartKind::Reflection => "reflection",
    }
}

/// What the list cannot know.
fn notes(parts: &[&Part], raw: &[Option<String>]) -> String {
    let mut text = String::new();
    let lists = parts
        .iter()
        .filter_map(|part| part.body.analysis.lost.as_ref());
    let unnamed: u64 = lists.map(|lost| u64::from(lost.unnamed)).sum();
    if unnamed > 0 {
        text.push_str(&format!(
            "\n{} more lost items have no name here: there was no room for them.\n",
            grouped(unnamed)
        ));
    }
    for part in parts {
        if part.body.analysis.lost.is_none() {
            let share = part.body.analysis.retention.for_all_kinds();
            text.push_str(&format!(
                "\n{} {} was written before lost items were noted by name. It lost {} of {} items.\n",
                kind_label(part.body.kind),
                part.id.0,
                share.total - share.retained.min(share.total),
                share.total
            ));
        }
    }
    let unknown = raw.iter().filter(|text| text.is_none()).count();
    if unknown > 0 {
        let whose = if unknown == raw.len() {
            "Their text is not stored".to_owned()
        } else {
            format!("The text of {unknown} of them is not stored")
        };
        text.push_str(&format!(
            "\n{} raw messages are sent beside the snapshot. {whose}, so they may say some of it again.\n",
            raw.len()
        ));
    }
    text
}
