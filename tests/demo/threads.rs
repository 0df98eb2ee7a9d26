//! `diarist threads` on the database a replay left behind.

use super::{long, recording, run, short};

/// A database with the short and the long conversation in it.
fn filled() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[short(), long()]);
    let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
    let (text, code) = run(&[
        "replay",
        &file,
        "--upstream",
        "scripted",
        "--no-baseline",
        "--message-tokens",
        "2000",
        "--observation-tokens",
        "1000",
        "--database",
        &url,
    ]);
    assert_eq!(code, Some(0), "{text}");
    (folder, url)
}

fn cells(text: &str, name: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.contains(name));
    let line = line.unwrap_or_else(|| panic!("no {name:?} in\n{text}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_conversation_is_listed_and_shown_by_each_of_its_names() {
    let (_folder, url) = filled();
    let (list, code) = run(&["threads", "--database", &url]);
    assert_eq!(code, Some(0), "{list}");
    let row = cells(&list, &long().id);
    let (id, key, label) = (&row[0], &row[1], &row[2]);
    assert_eq!(*key, long().id);
    assert_eq!(label.len(), 12, "{list}");
    assert_eq!(row[4], long().requests().count().to_string(), "{list}");

    let (text, code) = run(&["threads", "show", id, "--database", &url]);
    assert_eq!(code, Some(0), "{text}");
    for name in [key, label] {
        let (same, code) = run(&["threads", "show", name, "--database", &url]);
        assert_eq!((same, code), (text.clone(), Some(0)));
    }
    assert_eq!(cells(&text, "key"), ["key", key.as_str()]);
    assert!(
        text.contains("threshold") && text.contains("-- reflection "),
        "{text}"
    );
    assert!(
        text.contains("Observations, as the newest snapshot sends them"),
        "{text}"
    );
    assert!(text.contains("\nDate: "), "{text}");
    let facts = long().facts;
    assert!(
        facts.iter().any(|fact| text.contains(&fact.words)),
        "{text}"
    );

    let (text, code) = run(&["threads", "show", &short().id, "--database", &url]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("No snapshot yet") && text.contains("Nothing was observed yet"),
        "{text}"
    );

    let (list, _) = run(&["threads", "--limit", "1", "--database", &url]);
    assert!(
        list.contains(&long().id) && !list.contains(&short().id),
        "{list}"
    );
    assert!(list.contains("The latest 1"), "{list}");
}

#[test]
fn what_is_not_there_is_said_in_one_line_and_nothing_is_made() {
    let (folder, url) = filled();
    let (text, code) = run(&["threads", "show", "nobody", "--database", &url]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no conversation is called \"nobody\""),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");

    let missing = folder.path().join("elsewhere/diarist.db");
    let url = format!("sqlite://{}", missing.display());
    for args in [&["threads"][..], &["threads", "show", "1"]] {
        let (text, code) = run(&[args, &["--database", &url]].concat());
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("there is no database at"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert!(!missing.parent().unwrap().exists());

    let foreign = folder.path().join("notes.txt");
    std::fs::write(&foreign, "x".repeat(4096)).unwrap();
    let url = format!("sqlite://{}", foreign.display());
    let (text, code) = run(&["threads", "--database", &url]);
    assert_eq!(code, Some(1));
    assert!(text.contains("is not a SQLite database"), "{text}");
}
