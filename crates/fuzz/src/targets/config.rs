//! The configuration: the lines before `---` are variables of the environment, the rest is a file.

use std::collections::BTreeMap;

use diarist::config::{self, Flags};

/// A key that the operator wrote. It may stand nowhere but in the request to the model.
const SECRET: &str = "fuzz-secret-0123456789abcdef";

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (variables, file) = text.split_once("\n---\n").unwrap_or(("", &text));
    let mut env: BTreeMap<String, String> = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (format!("DIARIST__{name}"), value.to_owned()))
        .collect();
    env.insert("HOME".to_owned(), "/nowhere".to_owned());
    env.insert("DIARIST__MEMORY__API_KEY".to_owned(), SECRET.to_owned());
    env.entry("DIARIST__MEMORY__BASE_URL".to_owned())
        .or_insert_with(|| "https://api.example/v1".to_owned());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("diarist.toml");
    std::fs::write(&path, file).expect("a file can be written");
    let flags = Flags::default();
    match config::read(&flags, &env, Some(&path)) {
        Ok(loaded) => {
            let effective =
                config::effective(&flags, &env, Some(&path)).expect("a valid configuration");
            let shown = format!("{effective}{:?}{:?}", loaded.config, loaded.warnings);
            assert!(!shown.contains(SECRET), "a secret is shown");
        }
        Err(error) => {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                assert!(!problem.key.is_empty(), "an error without a key: {problem}");
                assert!(
                    !problem.what.is_empty() && !problem.remedy.is_empty(),
                    "no remedy: {problem}"
                );
            }
            assert!(
                !format!("{error}{error:?}").contains(SECRET),
                "a secret is shown"
            );
        }
    }
}
