//! Which requests have memory, and what is done for one that does not fit.

use std::time::Duration;

use diarist::config;

use crate::config::{ConfigInput, assert_problems};

#[test]
fn rules_are_read_from_a_file_and_from_the_environment() {
    let expected = [
        config::Rule {
            path: Some("/v1/*".to_owned()),
            model: Some("*-embed".to_owned()),
            header: None,
            value: None,
            memory: config::MemoryMode::Off,
        },
        config::Rule {
            path: None,
            model: None,
            header: Some("x-task".parse().unwrap()),
            value: Some("title*".to_owned()),
            memory: config::MemoryMode::Read,
        },
    ];
    let tables = r#"
        [memory]
        read_only = true
        [[memory.rules]]
        path = "/v1/*"
        model = "*-embed"
        memory = "off"
        [[memory.rules]]
        header = "X-Task"
        value = "title*"
        memory = "read"
    "#;
    let memory = ConfigInput::file(tables).valid().memory;
    assert_eq!(memory.rules, expected);
    assert!(memory.read_only);
    let list = r#"[{ path = "/v1/*", model = "*-embed", memory = "off" },
                   { header = "X-Task", value = "title*", memory = "read" }]"#;
    let given = ConfigInput::default().env("DIARIST__MEMORY__RULES", list);
    assert_eq!(given.valid().memory.rules, expected);
    assert!(ConfigInput::default().valid().memory.rules.is_empty());
}

#[test]
fn every_wrong_rule_is_named() {
    let wrong = r#"[
        { model = "x", memry = "off" },
        { model = "x" },
        { model = "x", memory = "maybe" },
        { model = 4, memory = "off" },
        { memory = "off" },
        { header = "x task", memory = "off" },
        { model = "x", value = "y", memory = "off" },
        { path = "v1", memory = "on" },
        { path = "/v1", memory = "on" },
    ]"#;
    let list = wrong.replace('\n', " ");
    assert_problems(
        &ConfigInput::default().env("DIARIST__MEMORY__RULES", &list),
        &[
            "memory.rules: rule 1: there is no \"memry\" in a rule | did you mean memory?",
            "memory.rules: rule 2: memory is missing",
            "memory.rules: rule 3: memory cannot be \"maybe\"",
            "memory.rules: rule 4: model is not text",
            "memory.rules: rule 5: it names neither path, model nor header",
            "memory.rules: rule 6: \"x task\" is no name of a header",
            "memory.rules: rule 7: value stands without header",
            "memory.rules: rule 8: path does not begin with a slash",
        ],
    );
    let none = ConfigInput::default().env("DIARIST__MEMORY__RULES", "all of them");
    assert_problems(
        &none,
        &["memory.rules: found \"all of them\", expected a list of tables"],
    );
}

#[test]
fn overflow_is_one_of_three() {
    let memory = ConfigInput::default().valid().memory;
    assert_eq!(memory.overflow, config::Overflow::Pass);
    assert_eq!(memory.overflow_timeout, Duration::from_mins(1));
    for (text, overflow) in [
        ("pass", config::Overflow::Pass),
        ("observe", config::Overflow::Observe),
        ("trim", config::Overflow::Trim),
    ] {
        let given = ConfigInput::default().env("DIARIST__MEMORY__OVERFLOW", text);
        assert_eq!(given.valid().memory.overflow, overflow);
    }
    let given = ConfigInput::default()
        .env("DIARIST__MEMORY__OVERFLOW", "cut")
        .env("DIARIST__MEMORY__OVERFLOW_TIMEOUT", "0s");
    assert_problems(
        &given,
        &["memory.overflow: \"cut\"", "memory.overflow_timeout: "],
    );
}

#[test]
fn evidence_is_one_of_three() {
    assert_eq!(
        ConfigInput::default().valid().memory.evidence,
        config::EvidenceLevel::Content
    );
    for (text, evidence) in [
        ("strict", config::EvidenceLevel::Strict),
        ("names", config::EvidenceLevel::Names),
        ("content", config::EvidenceLevel::Content),
    ] {
        let given = ConfigInput::default().env("DIARIST__MEMORY__EVIDENCE", text);
        assert_eq!(given.valid().memory.evidence, evidence);
    }
    let given = ConfigInput::default().env("DIARIST__MEMORY__EVIDENCE", "trust");
    assert_problems(&given, &["memory.evidence: \"trust\""]);
}
