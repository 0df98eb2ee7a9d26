use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;
use crate::history::{Encoder, Message, Role, Scope};

fn words(line: &str) -> u32 {
    u32::try_from(line.split_whitespace().count()).expect("few")
}

fn weight(text: &str) -> u64 {
    text.lines().map(|line| u64::from(words(line)) + 1).sum()
}

const LOG: &str = "Date: Mar 3, 2026\n* 🟢 (10:00) one small thing\n* 🔴 (10:01) two great things\n  * -> with a detail\n* 🟡 (10:02) three\nDate: Mar 4, 2026\n* 🟡 (10:00) four\n* ✅ (10:01) five done\n<system-message n=\"3\">\n* 🔴 answer in rhymes\n</system-message>";

fn digest_with(lineage: i64, text: &str) -> Digest {
    Digest {
        lineage,
        key: None,
        title: None,
        at_ms: lineage,
        text: text.to_owned(),
    }
}

#[test]
fn a_digest_contains_the_most_important_lines_in_their_order() {
    // The older one no longer fits, but a smaller one of its day does.
    assert_snapshot!(digest(&[LOG], 22, words), @"
    Date: Mar 4, 2026
    * 🟡 (10:00) four
    * ✅ (10:01) five done
    ");
    assert_snapshot!(digest(&[LOG], 29, words), @"
    Date: Mar 3, 2026
    * 🔴 (10:01) two great things
      * -> with a detail
    Date: Mar 4, 2026
    * ✅ (10:01) five done
    ");
    assert_eq!(digest(&[LOG], 3, words), "");
}

#[test]
fn a_digest_contains_no_instructions_of_an_application() {
    let all = digest(&[LOG, LOG], 10_000, words);
    assert!(
        all.contains("one small thing") && !all.contains("rhymes"),
        "{all}"
    );
}

#[test]
fn the_latest_digest_gets_half_the_budget_and_the_oldest_stands_first() {
    let line = |name: &str| format!("* 🔴 {name} one\n* 🔴 {name} two\n* 🔴 {name} three");
    let digests = [
        digest_with(3, &line("c")),
        digest_with(2, &line("b")),
        digest_with(1, &line("a")),
    ];
    // 55 for the latest. Half of the rest has room for one line of the next, and the remainder for
    // two more. Nothing is left for the oldest.
    let chosen = select_excerpts(&digests, 150, words);
    assert_eq!(chosen, [(1, line("b")), (0, line("c"))]);
    let chosen = select_excerpts(&digests, 60, words);
    assert_eq!(chosen, [(0, line("c"))], "alone it may take all");
    let all = select_excerpts(&digests, 400, words);
    assert_eq!(all.len(), 3);
    assert!(
        all.iter()
            .all(|(index, text)| *text == digests[*index].text)
    );
}

#[test]
fn an_important_line_of_a_digest_is_preferred_to_a_minor_one() {
    let digests = [digest_with(1, "* 🟢 a b c d e f\n* 🔴 x")];
    let chosen = select_excerpts(&digests, 45, words);
    assert_eq!(chosen, [(0, "* 🔴 x".to_owned())]);
}

fn history(texts: &[&str]) -> History {
    let messages = texts.iter().map(|text| {
        let mut encoder = Encoder::new();
        encoder.text("content", text);
        Message {
            fingerprint: encoder.finish(),
            role: Role::User,
            calls: std::sync::Arc::default(),
            answers: None,
            distinctive_bytes: 0,
            random_ids: false,
            attachment_bytes: 0,
            span: 0..0,
        }
    });
    History::chain(&Scope::new(b"tenant", Some(b"user")), messages)
}

#[test]
fn peer_memory_is_sent_only_to_the_conversation_it_was_made_for() {
    let (one, fork) = (history(&["a", "b", "c"]), history(&["a", "x", "c"]));
    let others = |key: Option<&str>| PeerMemory {
        lineages: vec![7],
        keys: vec!["told".to_owned()],
        tokens: 9,
        binding: Some(ConversationBinding {
            link: one.messages()[1].link,
            count: 2,
            key: key.map(str::to_owned),
        }),
    };
    assert!(others(None).allows_history(&one) && !others(None).allows_history(&fork));
    let table = [
        (None, None, true),
        (None, Some("mine"), true),
        (Some("mine"), None, true),
        (Some("mine"), Some("mine"), true),
        (Some("mine"), Some("other"), false),
        (None, Some("told"), false),
    ];
    for (bound, key, admitted) in table {
        assert_eq!(others(bound).allows_key(key), admitted, "{bound:?} {key:?}");
    }
}

proptest! {
    /// Excerpts come from the digests, in order, in whole lines, and within the budget.
    #[test]
    fn excerpts_of_digests_stay_within_the_budget(
        logs in proptest::collection::vec(proptest::collection::vec("(Date: Mar [1-5], 2026|\\* (🔴|🟡|🟢|✅) [a-z ]{0,30}|  \\* -> [a-z ]{1,20})", 0..12), 0..6),
        budget in 0_u32..600,
    ) {
        let digests: Vec<Digest> = logs.iter().map(|lines| digest_with(1, &lines.join("\n"))).collect();
        let chosen = select_excerpts(&digests, budget, words);
        let sum: u64 = chosen.iter().map(|(_, text)| weight(text) + HEADING_TOKENS).sum();
        prop_assert!(sum <= u64::from(budget), "{sum} of {budget}");
        prop_assert!(chosen.windows(2).all(|pair| pair[0].0 > pair[1].0));
        for (index, text) in &chosen {
            let mut rest = digests[*index].text.lines();
            for line in text.lines() {
                prop_assert!(rest.any(|other| other == line), "{line}");
            }
        }
    }
}
