//! What the model is sent: which snapshot, and how its block reads.

use bytes::Bytes;
use diarist::history::{History, Scope};
use diarist::memory::render::{BlockPart, Hints, PREAMBLE_VERSION, segments};
use diarist::memory::select::{PreviousSend, SelectionReason, select};
use diarist::memory::{Rendering, SnapshotCause, SnapshotId, SnapshotMeta, dates};
use diarist::wire;
use jiff::civil::date;
use serde_json::{Value, json};

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[40, 60, 131, 132], the_block_appends_parts_in_order),
    (&[56], a_changed_message_is_no_longer_covered),
    (&[69], the_block_contains_only_the_newest_hints),
    (
        &[84],
        the_newest_user_message_is_never_covered_without_a_pin,
    ),
    (&[86, 92], calls_and_results_stay_together),
    (&[134], the_block_states_how_long_ago_each_date_is),
];

fn rendering() -> Rendering {
    Rendering {
        preamble: PREAMBLE_VERSION,
        as_of: date(2023, 5, 20),
    }
}

fn block(texts: &[&str], hints: Option<Hints<'_>>) -> Vec<String> {
    let rendering = rendering();
    let parts: Vec<BlockPart<'_>> = texts
        .iter()
        .map(|text| BlockPart { text, rendering })
        .collect();
    segments(&parts, hints)
}

const ONE: &str = "Date: May 15, 2023\n* 🔴 (09:00) one";
const TWO: &str = "Date: May 16, 2023\n* 🔴 (10:00) two";
const THREE: &str = "Date: May 17, 2023\n* 🔴 (11:00) three";

fn hints() -> Hints<'static> {
    Hints {
        current_task: Some("Primary: the hut on Gale Pass"),
        suggested_response: Some("Ask for the date."),
    }
}

fn the_block_appends_parts_in_order() {
    let two = block(&[ONE, TWO], None);
    let all = block(&[ONE, TWO, THREE], Some(hints()));
    // Rules, observations one by one, hints last.
    assert_eq!((two.len(), all.len()), (3, 5));
    assert!(all[0].trim_end().ends_with("<observations>"), "{}", all[0]);
    for (segment, text) in all[1..4].iter().zip(["one", "two", "three"]) {
        assert!(segment.contains(text), "{segment}");
    }
    let last = &all[4];
    let (task, response) = (last.find("Gale Pass"), last.find("Ask for the date."));
    assert!(task.is_some() && task < response, "{last}");
    // An append leaves every byte before it.
    assert_eq!(all[..3], two);
    assert!(all.concat().starts_with(&two.concat()));
    assert!(
        !two.concat().contains("</observations>"),
        "never closed before the hints"
    );
}

fn the_block_contains_only_the_newest_hints() {
    let before = block(&[ONE, TWO], Some(hints()));
    assert!(before.concat().contains("Gale Pass"));
    let none = block(&[ONE, TWO, THREE], None);
    assert!(
        !none.concat().contains("Gale Pass"),
        "they went with the activation"
    );
    let other = Hints {
        current_task: Some("Primary: something else entirely"),
        suggested_response: None,
    };
    let other = block(&[ONE, TWO, THREE], Some(other)).concat();
    assert!(
        !other.contains("Gale Pass") && !other.contains("Ask for"),
        "{other}"
    );
}

fn parsed(messages: &Value) -> History {
    let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
    let parsed = wire::Request::parse_chat(&Bytes::from(body)).unwrap();
    parsed.history(&Scope::new(b"key", None))
}

fn says(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// Published, text that comes behind what was observed is lost where the id stays the same.
fn a_changed_message_is_no_longer_covered() {
    let links = |answer: &str| {
        let messages = [
            says("user", "hi"),
            says("assistant", answer),
            says("user", "and?"),
        ];
        let history = parsed(&json!(messages));
        history
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect::<Vec<_>>()
    };
    let (before, after) = (links("Hello."), links("Hello. And one thing more."));
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    assert_ne!(before[2], after[2]);
    // What covered it covers it no more: it is raw.
    let grown = parsed(&json!([
        says("user", "hi"),
        says("assistant", "Hello. And one thing more."),
        says("user", "and?"),
    ]));
    let original = parsed(&json!([
        says("user", "hi"),
        says("assistant", "Hello."),
        says("user", "and?")
    ]));
    let covering = snapshot(&original, 2, None);
    assert_eq!(
        select(
            &original,
            std::slice::from_ref(&covering),
            PreviousSend::NotSent
        )
        .cut(),
        2
    );
    assert_eq!(select(&grown, &[covering], PreviousSend::NotSent).cut(), 0);
}

fn snapshot(history: &History, to_count: usize, pin: Option<usize>) -> SnapshotMeta {
    SnapshotMeta {
        id: SnapshotId(1),
        to: history.messages()[to_count - 1].link,
        to_count,
        eligible_from: 1,
        pin,
        parts: Vec::new(),
        tokens: 10,
        cause: SnapshotCause::Threshold,
        placement: String::new(),
        peer_memory: None,
    }
}

fn asks(ids: &[&str]) -> Value {
    let call = |id: &&str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}});
    json!({"role": "assistant", "content": null, "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "seen"})
}

fn the_newest_user_message_is_never_covered_without_a_pin() {
    let history = parsed(&json!([
        says("user", "hi"),
        says("assistant", "Hello."),
        says("user", "and?")
    ]));
    let all = snapshot(&history, 3, None);
    let chosen = select(&history, &[all], PreviousSend::NotSent);
    assert_eq!(
        (chosen.cut(), chosen.reason),
        (0, SelectionReason::Unsafe),
        "it may not be covered"
    );
    // In a task its question is covered and stands raw all the same.
    let task = parsed(&json!([
        says("user", "do it"),
        asks(&["a"]),
        result("a"),
        asks(&["b"]),
        result("b"),
    ]));
    let unpinned = select(&task, &[snapshot(&task, 3, None)], PreviousSend::NotSent);
    assert_eq!(unpinned.reason, SelectionReason::Unsafe);
    let pinned = select(&task, &[snapshot(&task, 3, Some(0))], PreviousSend::NotSent);
    assert_eq!((pinned.cut(), pinned.pin()), (3, Some(0)));
}

fn calls_and_results_stay_together() {
    let history = parsed(&json!([
        says("user", "one"),
        asks(&["a", "b"]),
        result("b"),
        result("a"),
        says("assistant", "Done."),
        says("user", "two"),
        asks(&["c", "d"]),
        result("c"),
    ]));
    let safe: Vec<usize> = (0..=history.len())
        .filter(|cut| history.cuts().is_safe(*cut))
        .collect();
    // Not within the parallel round, and not within the one under way.
    assert_eq!(safe, [0, 1, 4, 5, 6]);
    for cut in [2, 3, 7, 8] {
        let within = snapshot(&history, cut, Some(5));
        assert_eq!(
            select(&history, &[within], PreviousSend::NotSent).cut(),
            0,
            "{cut}"
        );
    }
}

fn the_block_states_how_long_ago_each_date_is() {
    // The published steps, from a day that is named.
    for (days, expected) in [
        (5, "5 days before"),
        (6, "6 days before"),
        (7, "1 week before"),
        (13, "1 week before"),
        (14, "2 weeks before"),
        (29, "4 weeks before"),
        (30, "1 month before"),
        (59, "1 month before"),
        (60, "2 months before"),
        (364, "12 months before"),
        (365, "1 year before"),
    ] {
        let as_of = date(2026, 6, 1);
        let day = as_of.saturating_sub(jiff::ToSpan::days(days));
        assert_eq!(dates::relation(day, as_of), expected, "{days}");
    }
    // A gap is told from two days on.
    assert_eq!(dates::gap(date(2023, 5, 15), date(2023, 5, 16)), None);
    let gap = dates::gap(date(2023, 5, 15), date(2023, 5, 18));
    assert_eq!(gap.as_deref(), Some("3 days"));
    let log = "Date: May 12, 2023\n* 🔴 (09:00) User flies to Oslo next week. (meaning May 17, 2023)\n\
               * 🔴 (09:01) User will hike in June. (meaning May 27-28, 2023)\n\
               Date: May 15, 2023\n* 🟡 (10:00) something";
    let text = block(&[log], None).concat();
    assert!(
        text.contains("Date: May 15, 2023 (5 days before)"),
        "{text}"
    );
    assert!(text.contains("[3 days later]"), "{text}");
    assert!(text.contains("(meaning May 17, 2023 - 3 days before: the day has passed, whether it happened is not known)"), "{text}");
    assert!(
        text.contains("(meaning May 27-28, 2023 - 1 week after)"),
        "{text}"
    );
    assert!(!text.contains("likely already happened"));
    // Frozen: the same text whatever day it is sent on, since the day it counts from is a part of it.
    assert!(text.contains("[as of May 20, 2023]"), "{text}");
}
