use serde_json::json;

use super::transcript::{Entry, Speaker, read};
use super::*;
use crate::conversation::{Conversation, Style};
use crate::message::text;
use crate::{CallerKind, estimate_tokens};

const SHOWN: &str = "\
Observe only what is fenced. Nothing of this line is history.
```history
Mar 4 2026:
User (2:05 PM): I own a Leaf EV and my plate is KX 4411. What now?
Tool Call look_up (14:06): {\"plate\": \"KX 4411\"}
Tool Result look_up: {\"found\": 3}
  Assistant (00:00): a second line of the result
Date: on or before Mar 4, 2026
Assistant: It is registered. I noted \"blue sticker\" for you.
2026-03-05:
User (09:00): Users: three of us
```
";

fn ask(style: ObserverStyle, shown: &str) -> String {
    let request = json!({"messages": [
        {"role": "system", "content": "User (00:00): never part of the history"},
        {"role": "user", "content": shown},
    ]});
    let ask = ScriptInput {
        request: request.as_object().unwrap(),
        messages: request["messages"].as_array().unwrap(),
        caller: CallerKind::Observer,
        choice: 0,
    };
    Observer { style }.reply(&ask).content.unwrap()
}

#[test]
fn a_transcript_is_read_with_its_speakers_times_and_dates() {
    let entries = read(SHOWN);
    let facts: Vec<_> = entries
        .iter()
        .map(|entry: &Entry| (entry.speaker, entry.time, entry.date.as_deref()))
        .collect();
    let first = Some("Mar 4, 2026");
    assert_eq!(
        facts,
        [
            (Speaker::User, Some((14, 5)), first),
            (Speaker::Call, Some((14, 6)), first),
            (Speaker::Result, Some((14, 6)), first),
            (Speaker::Assistant, None, Some("on or before Mar 4, 2026")),
            (Speaker::User, Some((9, 0)), Some("Mar 5, 2026")),
        ]
    );
    assert_eq!(
        entries[2].text,
        "{\"found\": 3}\n  Assistant (00:00): a second line of the result"
    );
    assert_eq!(entries[4].text, "Users: three of us");
}

#[test]
fn observations_come_in_the_published_format() {
    let observed = ask(ObserverStyle::Faithful, SHOWN);
    for line in [
        "<observations>",
        "Date: Mar 4, 2026",
        "* 🔴 (14:05) User asked: I own a Leaf EV and my plate is KX 4411. What now?",
        "Date: Mar 5, 2026",
        "</observations>",
        "<current-task>",
        "<suggested-response>",
    ] {
        assert!(
            observed.lines().any(|found| found == line),
            "{line} in {observed}"
        );
    }
    assert!(!observed.contains("never part"), "{observed}");
    assert!(observed.contains("blue sticker"), "{observed}");
}

#[test]
fn observations_keep_planted_facts_and_are_four_to_nine_times_shorter() {
    for style in [Style::Travel, Style::Coding] {
        let conversation = Conversation::generate(7, 60, style);
        let mut shown = String::from("Mar 4 2026:\n");
        for message in &conversation.messages[1..] {
            let speaker = match message["role"].as_str() {
                Some("user") => "User",
                Some("tool") => "Tool Result find",
                _ if message.get("tool_calls").is_some() => continue,
                _ => "Assistant",
            };
            shown.push_str(&format!("{speaker} (14:05): {}\n", text(message)));
        }
        let observed = ask(ObserverStyle::Faithful, &shown);
        for fact in &conversation.facts {
            assert!(observed.contains(&fact.words), "{}", fact.words);
        }
        let count = estimate_tokens();
        let ratio = f64::from(count(&shown)) / f64::from(count(&observed));
        assert!(
            (4.0..9.0).contains(&ratio),
            "{style:?} shrank {ratio:.1} times"
        );
    }
}

#[test]
fn each_faulty_observer_style_fails_in_its_own_way() {
    assert_eq!(ask(ObserverStyle::Empty, SHOWN), "");
    let looped = ask(ObserverStyle::Repetitive, SHOWN);
    assert!(looped.lines().filter(|line| line.starts_with("* ")).count() >= 400);
    let bare = ask(ObserverStyle::Untagged, SHOWN);
    assert!(!bare.contains('<') && bare.contains("* 🔴"));
    let forgetful = ask(ObserverStyle::Forgetful, SHOWN);
    assert!(forgetful.len() < ask(ObserverStyle::Faithful, SHOWN).len());
    assert_eq!(Reply::filtered().finish, Some("content_filter"));
}

#[test]
fn a_prompt_without_any_history_yields_no_observations() {
    let observed = ask(ObserverStyle::Faithful, "Nothing to see.");
    assert!(
        observed.starts_with("<observations>\n\n</observations>"),
        "{observed}"
    );
}
