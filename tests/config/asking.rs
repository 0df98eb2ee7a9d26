//! Which model is asked, and with what: tables, tiers, settings, options.

use std::collections::BTreeMap;

use diarist::config;
use diarist::llm::Models;

use super::{ConfigInput, assert_problems};

#[test]
fn a_model_may_depend_on_the_size_of_the_prompt() {
    let tiers = |pairs: &[(u32, &str)]| {
        let tiers = pairs
            .iter()
            .map(|(up_to, name)| (*up_to, (*name).to_owned()));
        Some(Models::Tiers(tiers.collect()))
    };
    let memory = ConfigInput::file(
        "[memory.observation.model]\n\"200_000\" = \"Mid.1/x\"\n20000 = \"small\"\n1000000 = \"large\"",
    )
    .valid()
    .memory;
    let expected = tiers(&[
        (20_000, "small"),
        (200_000, "Mid.1/x"),
        (1_000_000, "large"),
    ]);
    assert_eq!(memory.observation.model, expected, "in any order");
    assert_eq!(memory.reflection.model, expected, "lent as a name is");

    let memory = ConfigInput::file("memory.model = { 5 = \"a\" }")
        .env("DIARIST__MEMORY__MODEL", r#"{"9": "b", "7": "c"}"#)
        .valid()
        .memory;
    let from_environment = tiers(&[(7, "c"), (9, "b")]);
    assert_eq!(memory.reflection.model, from_environment);

    assert_problems(
        &ConfigInput::file("memory.model = { 0 = \"a\", many = \"b\", 5 = 7, 6 = \" \" }"),
        &[
            "memory.model: \"0\" is not a number of tokens",
            "memory.model: the model for prompts up to 5 tokens is not a name",
            "memory.model: the model for prompts up to 6 tokens is not a name",
            "memory.model: \"many\" is not a number of tokens",
        ],
    );
    assert_problems(
        &ConfigInput::file("memory.model = {}"),
        &["memory.model: the table has no model"],
    );
    assert_problems(
        &ConfigInput::file("memory.model = { \"1_0\" = \"a\", 10 = \"b\" }"),
        &["memory.model: the table has no model, or two models for the same number of tokens"],
    );
}

#[test]
fn model_settings_and_provider_options_are_read_and_checked() {
    let phase = ConfigInput::file(
        "[memory.observation]\nmodel_settings = { temperature = 1, top_p = 0.9, max_output_tokens = 500 }\n\
         [memory.observation.provider_options]\nthinking = { type = \"disabled\", Budget = 0 }",
    )
    .valid()
    .memory
    .observation;
    assert_eq!(phase.temperature, Some(1.0));
    assert_eq!(phase.max_output_tokens, Some(500));
    assert_eq!(
        serde_json::Value::Object(phase.parameters),
        serde_json::json!({"top_p": 0.9})
    );
    assert_eq!(
        serde_json::Value::Object(phase.options),
        serde_json::json!({"thinking": {"Budget": 0, "type": "disabled"}})
    );
    assert_problems(
        &ConfigInput::file(
            "[memory.observation]\ntemperature = 0.5\nmax_output_tokens = 7\n\
             model_settings = { temperature = 1, max_output_tokens = 5 }\n\
             [memory.reflection]\nmodel_settings = { top_p = 3, budget = 1, seed = 1.5 }\n\
             provider_options = { messages = [], stream = true, n = 1 }",
        ),
        &[
            "memory.observation.model_settings: memory.observation.temperature is also set",
            "memory.observation.model_settings: memory.observation.max_output_tokens is also set",
            "memory.reflection.provider_options: Diarist writes the field \"messages\" itself",
            "memory.reflection.provider_options: Diarist writes the field \"stream\" itself",
            "memory.reflection.model_settings: \"budget\" is not a common setting of models",
            "memory.reflection.model_settings: seed = 1.5 is out of range",
            "memory.reflection.model_settings: top_p = 3 is out of range",
        ],
    );
}

#[test]
fn the_effective_configuration_prints_a_table_as_valid_toml() {
    let given =
        ConfigInput::file("memory.reflection.provider_options = { a = { b = [1, \"x\"] } }");
    let env = BTreeMap::from([("HOME".to_owned(), "/home/ada".to_owned())]);
    let file = given.file.as_ref().map(tempfile::NamedTempFile::path);
    let printed = config::effective(&given.flags, &env, file).unwrap();
    let line = r#"provider_options = { "a" = { "b" = [1, "x"] } }"#;
    assert!(printed.contains(line), "{printed}");
    let again = ConfigInput::file(&printed)
        .valid()
        .memory
        .reflection
        .options;
    assert_eq!(again, given.valid().memory.reflection.options);
}

#[test]
fn a_secret_inside_a_table_is_never_printed() {
    let secret = "hunter2hunter2";
    let in_table = format!(
        "{{ max_tokens = 5, api_key = \"{secret}\", headers = {{ Authorization = \"{secret}\" }}, keys = [\"{secret}\"], \
         access_token = \"{secret}\", client_secret = \"{secret}\", password = \"{secret}\", \
         credential = \"{secret}\", auth = {{ user = \"{secret}\" }} }}"
    );
    let json = format!(r#"{{"api_key": "{secret}"}}"#);
    let variable = "DIARIST__MEMORY__OBSERVATION__PROVIDER_OPTIONS";
    let env = |value: &str| {
        BTreeMap::from([
            ("HOME".to_owned(), "/home/ada".to_owned()),
            (variable.to_owned(), value.to_owned()),
        ])
    };
    let given = ConfigInput::file(&format!("memory.observation.provider_options = {in_table}"));
    let file = given.file.as_ref().map(tempfile::NamedTempFile::path);
    let printed = config::effective(
        &given.flags,
        &BTreeMap::from([("HOME".to_owned(), "/home/ada".to_owned())]),
        file,
    );
    let printed = printed.unwrap();
    assert!(printed.contains(r#""max_tokens" = 5"#), "{printed}");
    assert!(!printed.contains(secret), "{printed}");
    let printed = config::effective(&given.flags, &env(&json), None).unwrap();
    assert!(!printed.contains(secret), "{printed}");
    let list = format!(r#"[{{"model": "x", "observation": {{"provider_options": {json}}}}}]"#);
    let given = BTreeMap::from([
        ("HOME".to_owned(), "/home/ada".to_owned()),
        ("DIARIST__MEMORY__OVERRIDES".to_owned(), list),
    ]);
    let printed = config::effective(&ConfigInput::default().flags, &given, None).unwrap();
    assert!(printed.contains("overrides = \"[redacted]\""), "{printed}");
    assert!(!printed.contains(secret), "{printed}");
    for wrong in [secret, &json[..json.len() - 1]] {
        let problems = ConfigInput::default()
            .env(variable, wrong)
            .problems()
            .concat();
        assert!(!problems.contains(secret), "{problems}");
    }
    let wrong =
        format!("[[memory.overrides]]\nmodel = \"x\"\nobservation.provider_options = \"{secret}\"");
    let problems = ConfigInput::file(&wrong).problems().concat();
    assert!(!problems.contains(secret), "{problems}");
}
