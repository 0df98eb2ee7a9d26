use super::*;

/// A pair of logs, and what the shorter one lost.
struct Pair {
    name: String,
    before: String,
    after: String,
    lost: Vec<(ItemKind, String)>,
}

fn pairs() -> Vec<Pair> {
    let text = include_str!("pairs.txt");
    let blocks = text.split("\n== ").skip(1);
    let read = |block: &str| {
        let (name, rest) = block.split_once('\n').expect("a name");
        let (before, rest) = rest.split_once("\n--\n").expect("two logs");
        let (after, lost) = rest.split_once("\n-- lost").expect("what is lost");
        let lost = lost.lines().map(str::trim).filter(|line| !line.is_empty());
        Pair {
            name: name.to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            lost: lost.map(known_lost).collect(),
        }
    };
    blocks.map(read).collect()
}

/// `number 48,211`.
fn known_lost(line: &str) -> (ItemKind, String) {
    let (kind, text) = line.split_once(' ').expect("a kind and a text");
    let kind = ItemKind::ALL.into_iter().find(|one| one.name() == kind);
    (kind.expect("a kind"), text.to_owned())
}

/// The key of an item that a person calls lost; equal for two spellings of one item.
fn key_of_lost(kind: ItemKind, text: &str) -> String {
    let line = match kind {
        ItemKind::Quote => format!("then \"{text}\""),
        _ => format!("then {text}"),
    };
    let items = ItemReader::for_text(&line).items(&line);
    let read = items.iter().find(|item| item.kind == kind);
    read.map_or_else(|| text.to_lowercase(), |item| item.key().to_owned())
}

/// The key of an item that the code calls lost, as the longer log has it.
fn key_of_missing(before: &str, missing: &LostItem) -> String {
    let line = before.lines().nth(missing.line).expect("its line");
    let items = ItemReader::for_text(before).items(line);
    let read = items
        .iter()
        .find(|item| item.kind == missing.kind && item.text == missing.text);
    // A done item is the line itself.
    read.map_or_else(|| missing.text.to_lowercase(), |item| item.key().to_owned())
}

/// Counts the items that are lost and reported, reported but not lost, and lost but not reported. Each
/// matches at most one other.
fn compared(pair: &Pair) -> (u32, Vec<LostItem>, Vec<(ItemKind, String)>) {
    let mut unseen = pair.lost.clone();
    let (mut right, mut wrong) = (0, Vec::new());
    for one in check_reflection(&pair.before, &pair.after).lost {
        let key = key_of_missing(&pair.before, &one);
        let place = unseen
            .iter()
            .position(|(kind, text)| *kind == one.kind && key_of_lost(*kind, text) == key);
        if let Some(at) = place {
            unseen.remove(at);
            right += 1;
        } else {
            wrong.push(one);
        }
    }
    (right, wrong, unseen)
}

/// Precision: the share of reported items that are lost. Recall: the share of lost items that are
/// reported.
#[test]
fn lost_items_are_found_with_high_precision_and_recall() {
    let pairs = pairs();
    assert_eq!(pairs.len(), 30);
    let (mut right, mut wrong, mut unseen) = (0_u32, 0_u32, 0_u32);
    for pair in &pairs {
        let (found, others, missed) = compared(pair);
        for one in others {
            println!("{}: not lost: {:?} {:?}", pair.name, one.kind, one.text);
            wrong += 1;
        }
        for lost in missed {
            println!("{}: not found: {lost:?}", pair.name);
            unseen += 1;
        }
        right += found;
    }
    let share = |whole: u32| f64::from(right) / f64::from(whole);
    let (precision, recall) = (share(right + wrong), share(right + unseen));
    println!(
        "30 pairs, {} losses: precision {precision:.3} ({right} of {}), recall {recall:.3}",
        right + unseen,
        right + wrong
    );
    assert!(precision >= 0.9, "{precision}");
    assert!(recall >= 0.9, "{recall}");
}

/// A number inside another number, or a folder and a file in it, do not count for each other.
#[test]
fn similar_items_do_not_count_as_the_same_item() {
    let pair = |before: &str, lost: &[(ItemKind, &str)]| Pair {
        name: String::new(),
        before: before.to_owned(),
        after: "* nothing".to_owned(),
        lost: lost
            .iter()
            .map(|(kind, text)| (*kind, (*text).to_owned()))
            .collect(),
    };
    for (before, kind, text) in [
        ("* 🔴 there are 4 rows", ItemKind::Number, "48,211"),
        ("* 🔴 there are 48,211 rows", ItemKind::Number, "4"),
        ("* 🔴 it took 3.2 s", ItemKind::Number, "3.2 min"),
        ("* 🔴 it is in /etc/hosts", ItemKind::Path, "/etc"),
        (
            "* 🔴 see http://other.test/a",
            ItemKind::Url,
            "http://other.test",
        ),
        ("* 🔴 it is for Jonas", ItemKind::Identifier, "Jonas"),
        ("* ✅ barn painted", ItemKind::Done, "barn painted at last"),
    ] {
        let (right, wrong, unseen) = compared(&pair(before, &[(kind, text)]));
        assert_eq!((right, wrong.len(), unseen.len()), (0, 1, 1), "{text}");
    }
    // One occurrence does not count twice.
    let four = (ItemKind::Number, "4");
    let (right, _, unseen) = compared(&pair("* 🔴 there are 4 rows", &[four, four]));
    assert_eq!((right, unseen.len()), (1, 1));
}

/// A relative path and the path from the project's folder name the same file.
#[test]
fn a_relative_path_with_a_dot_is_the_same_path() {
    assert!(lost("* 🔴 see ./config/prod.toml", "* config/prod.toml is it").is_empty());
    assert_eq!(
        lost("* 🔴 see ../config/prod.toml", "* config/prod.toml is it").len(),
        1
    );
    assert_eq!(
        lost("* 🔴 see /config/prod.toml", "* config/prod.toml is it").len(),
        1
    );
}

fn lost(before: &str, after: &str) -> Vec<String> {
    let missing = check_reflection(before, after).lost;
    missing.into_iter().map(|one| one.text).collect()
}

#[test]
fn items_of_different_kinds_are_found_in_one_line() {
    let line = "* 🔴 (09:12) Ask Jonas about `QX-2291` in src/a_b.rs:7 by 2026-03-04: 3.2 s, \"two words\", https://e.test/x";
    let kinds: std::collections::BTreeSet<ItemKind> = ItemReader::for_text(line)
        .items(line)
        .iter()
        .map(|item| item.kind)
        .collect();
    let all: std::collections::BTreeSet<ItemKind> = ItemKind::ALL.into_iter().collect();
    // A done item is the line itself, so it is not read out of a line.
    assert_eq!(
        kinds,
        all.difference(&[ItemKind::Done].into()).copied().collect()
    );
    // The time at the beginning of a line is no item: merged lines may drop it.
    assert!(lost("* 🔴 (09:12) hello", "* 🔴 hello").is_empty());
}

#[test]
fn items_of_high_priority_are_counted_separately() {
    let log = "* 🔴 Ann has 31 goats\n* 🟡 and 17 hens\n* ✅ Barn painted\n  * -> in 4 days";
    let report = check_reflection(log, "* 🔴 Ann has goats");
    assert_eq!(
        report.retention.high,
        Share {
            retained: 0,
            total: 2
        }
    );
    assert_eq!(
        report.retention.for_kind(ItemKind::Number),
        Share {
            retained: 0,
            total: 3
        }
    );
    assert_eq!(
        report.retention.for_kind(ItemKind::Done),
        Share {
            retained: 0,
            total: 1
        }
    );
    assert_eq!(report.damaged_lines().collect::<Vec<_>>(), [0, 2]);
    let whole = check_reflection(log, log);
    assert_eq!(
        (whole.lost.len(), whole.retention.for_all_kinds().loss()),
        (0, 0.0)
    );
}

#[test]
fn a_repeated_item_counts_once_with_its_highest_priority() {
    let log = "* 🟡 order 4471 came\n* 🔴 order 4471 is wrong\n* 🟢 order 4471 again";
    let report = check_reflection(log, "* 🔴 it is wrong");
    assert_eq!(
        report.retention.high,
        Share {
            retained: 0,
            total: 1
        }
    );
    assert_eq!(report.lost[0].line, 1);
}

#[test]
fn a_shared_surname_does_not_count_as_the_lost_name() {
    let log = "* 🔴 ask Anna Keller and Peter Keller\n* 🔴 then Anna Brandt\n* 🔴 Keller pays";
    let gone = |after: &str| lost(log, after);
    assert_eq!(gone(log), [] as [&str; 0]);
    // Peter can be recognised only by his first name; each word of the other two is in another name
    // too.
    assert_eq!(gone("* 🔴 Anna Keller pays, Brandt not"), ["Peter Keller"]);
    assert_eq!(
        gone("* 🔴 Keller pays"),
        ["Anna Keller", "Peter Keller", "Anna Brandt"]
    );
    assert_eq!(
        gone("* 🔴 Peter, Anna Keller, Anna Brandt"),
        [] as [&str; 0]
    );
    // A name that shares no word is recognised by either word.
    assert!(lost("* 🔴 ask Anna Keller", "* 🔴 ask Keller").is_empty());
}

#[test]
fn items_of_the_user_and_of_others_are_counted_separately() {
    let transcript = "Date: Mar 4, 2026\nUser maria (14:05): order 4471\n  is 12 kg\nTool result search: 9999 hits\nAssistant: 8888\nUser: and 17 goats\n";
    let report = check_observations(transcript, "* 🔴 order 4471, goats");
    let missing = |high: bool| -> Vec<&str> {
        let lost = report.lost.iter().filter(|one| one.high == high);
        lost.map(|one| one.text.as_str()).collect()
    };
    assert_eq!(missing(true), ["12 kg", "17"]);
    assert_eq!(missing(false), ["9999", "8888"]);
    let retention = report.retention;
    assert_eq!(
        retention.high,
        Share {
            retained: 1,
            total: 3
        }
    );
    assert_eq!(retention.for_all_kinds(), retention.high);
    assert_eq!(
        retention.for_non_user(),
        Share {
            retained: 0,
            total: 2
        }
    );
    let noted = check_observations(transcript, "* 🔴 order 4471, goats\n* 🟡 8888").retention;
    assert_eq!(
        noted.for_non_user(),
        Share {
            retained: 1,
            total: 2
        }
    );
    assert_eq!(
        noted.to_json(),
        r#"{"number":[1,3],"high":[1,3],"others":{"number":[1,2]}}"#
    );
    assert_eq!(Retention::from_json(&noted.to_json()), Some(noted));
    // What both say counts as said by the user.
    let both = "Assistant: 8888 it is\nUser: 8888, yes\n";
    let kept = check_observations(both, "* 🔴 nothing").retention;
    assert_eq!((kept.high.total, kept.for_non_user().total), (1, 0));
}

#[test]
fn retention_is_unchanged_after_writing_and_reading_json() {
    let log = "* 🔴 Ask Ann about 31 goats\n* ✅ Barn painted";
    let retention = check_reflection(log, "* 🔴 Ann").retention;
    let json = retention.to_json();
    assert_eq!(
        json,
        r#"{"name":[1,1],"number":[0,1],"done":[0,1],"high":[1,3]}"#
    );
    assert_eq!(Retention::from_json(&json), Some(retention));
    assert_eq!(Retention::from_json("{}"), Some(Retention::default()));
    assert_eq!(
        Retention::from_json(r#"{"smell":[1,2]}"#),
        Some(Retention::default())
    );
    assert_eq!(Retention::from_json("[1]"), None);
}

/// And each text retains all of itself.
#[test]
fn text_of_any_kind_is_read_without_panic() {
    let odd = [
        "",
        "://",
        "http://",
        "\"",
        "„",
        "「",
        "1,",
        ",1",
        "3月",
        "2026年",
        "月日",
        "@",
        "#",
        "a://b c://",
        "*",
        "* 🔴",
        "✅\u{fe0f} x",
        "''''",
        "(25:61) x",
        ".",
        "..",
        "/",
        "//",
        "C:\\x",
        "1.2.3.4",
        "-",
        "--",
        "1-",
        "-1-2",
        "ß1",
        "İ1",
        "é.é",
        "漢a漢1漢",
        "\u{202e}1",
    ];
    for a in odd {
        for b in odd {
            let text = format!("{a}{b} {b}{a}\n* 🔴 {a} {b}");
            let kept = check_reflection(&text, &text);
            assert_eq!(kept.lost, [], "{text:?}");
        }
    }
}

mod generated {
    use super::*;
    use proptest::prelude::*;

    const WORD: &str = "([A-Z][a-z]{1,8}|[a-z]{1,8}|[0-9]{1,5}([.,][0-9]{1,3})?|\"[a-z ]{1,9}\"|/[a-z/]{1,9}|[a-z]{1,4}\\.rs|[A-Z]{2}-[0-9]{2}|用户|[0-9]月[0-9]日|kg|EUR|,|\\.|:|„|“|`|✅|🔴|\n\\* )";

    proptest! {
        /// A text retains all of itself, and the empty text retains nothing.
        #[test]
        fn an_equal_text_loses_no_item_and_an_empty_text_all(words in proptest::collection::vec(WORD, 0..60)) {
            let text = words.join(" ");
            prop_assert_eq!(check_reflection(&text, &text).lost, vec![]);
            let none = check_reflection(&text, "").retention.for_all_kinds();
            prop_assert_eq!(none.retained, 0);
        }

        /// More lines never retain less.
        #[test]
        fn a_longer_text_retains_no_fewer_items(
            lines in proptest::collection::vec(proptest::collection::vec(WORD, 0..8), 1..10),
            one: prop::sample::Index,
            other: prop::sample::Index,
        ) {
            let lines: Vec<String> = lines.iter().map(|words| words.join(" ")).collect();
            let text = lines.join("\n");
            let retained = |count: usize| {
                let prefix = lines[..count].join("\n");
                check_reflection(&text, &prefix).retention.for_all_kinds().retained
            };
            let (one, other) = (one.index(lines.len() + 1), other.index(lines.len() + 1));
            prop_assert!(retained(one.min(other)) <= retained(one.max(other)), "{text}");
        }
    }
}
