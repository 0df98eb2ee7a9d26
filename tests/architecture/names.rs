//! Names that say nothing at their use. They grew here once and are not to come back: a name is a
//! noun for what the thing is, or a verb for what the function does.

use std::collections::BTreeSet;
use std::path::Path;

use super::source::{tokens, without_tests};
use super::{all_sources, files_of_test_modules};

/// Never the name of an item, a field, a parameter or a local.
const BANNED: [&str; 21] = [
    "asked", "begun", "books", "crowd", "crowds", "given", "heard", "lend", "lent", "manners",
    "of", "owed", "said", "seen", "shop", "stood", "tell", "told", "way", "wish", "wishes",
];

/// A name follows them.
const DECLARE: [&str; 10] = [
    "const", "enum", "fn", "let", "mod", "mut", "static", "struct", "trait", "type",
];

#[test]
fn no_source_file_contains_a_vague_name() {
    let sources = all_sources();
    let tests_only = files_of_test_modules(&sources);
    let product = sources
        .iter()
        .filter(|(path, _)| !tests_only.iter().any(|root| path.starts_with(root)));
    let found: Vec<String> = product
        .flat_map(|(path, text)| bad_names(path, text))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_planted_vague_name_is_found() {
    for (text, name) in [
        ("fn of(x: u8) {}", "of"),
        ("struct Told;", "Told"),
        ("fn f(asked: u8) {}", "asked"),
        ("struct S { pub seen: u8 }", "seen"),
        ("fn f() { let mut way = 1; }", "way"),
    ] {
        let found = bad_names(Path::new("src/x.rs"), text);
        assert_eq!(
            found,
            [format!("src/x.rs:1: the name `{name}` says nothing")]
        );
    }
    let fine = "fn f() -> impl Iterator<Item = u8> { told_at(x.seen()) }\n#[cfg(test)]\nmod tests { fn told() {} }";
    assert_eq!(bad_names(Path::new("src/x.rs"), fine), [""; 0]);
}

fn bad_names(path: &Path, text: &str) -> Vec<String> {
    let tokens = without_tests(&tokens(text));
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        let name = token.text.to_lowercase();
        let before = at.checked_sub(1).map_or("", word);
        let declared = DECLARE.contains(&before)
            || (word(at + 1) == ":" && ["(", ",", "{", "|", "pub", ")"].contains(&before));
        if declared && BANNED.contains(&name.as_str()) {
            found.insert((token.line, token.text.clone()));
        }
    }
    found
        .into_iter()
        .map(|(line, name)| format!("{}:{line}: the name `{name}` says nothing", path.display()))
        .collect()
}
