//! What the Observer is shown: attachments, hints, redaction.

use super::{ConfigInput, assert_problems};

#[test]
fn what_the_observer_is_shown_is_read_from_file_and_environment() {
    use diarist::config::{Attachments, ContinuationHints, SecretKind};
    let config = ConfigInput::file(
        "[memory.observation]\nprevious_observer_tokens = false\nobserve_attachments = [\"Image/*\", \"text/csv\"]\n\
         continuation_hints = [\"current_task\"]\nmax_input_tokens = 8000\nomit_blocks = [\"open-files\"]\n\
         [memory.reflection]\ncontinuation_hints = false\ninstruction = \"Keep tickets.\"\n\
         [memory.redact]\nkinds = [\"api_key\"]\npatterns = ['\\bQX-\\d+']\n",
    )
    .valid();
    let observation = &config.memory.observation;
    assert_eq!(observation.previous_observer_tokens, None);
    assert_eq!(observation.max_input_tokens, 8_000);
    assert_eq!(observation.omit_blocks, ["open-files"]);
    let only = |types: &[&str]| Attachments::Only(types.iter().map(|t| (*t).to_owned()).collect());
    assert_eq!(
        observation.observe_attachments,
        only(&["image/*", "text/csv"])
    );
    let task = ContinuationHints {
        current_task: true,
        suggested_response: false,
    };
    assert_eq!(observation.continuation_hints, task);
    assert!(!config.memory.reflection.continuation_hints.current_task);
    assert_eq!(
        config.memory.reflection.instruction.as_deref(),
        Some("Keep tickets.")
    );
    assert_eq!(config.memory.redact.kinds, [SecretKind::ApiKey]);
    assert!(config.memory.redact.patterns[0].is_match("see QX-17"));

    // The published defaults.
    let default = ConfigInput::default().valid().memory;
    assert_eq!(default.observation.previous_observer_tokens, Some(2_000));
    assert_eq!(default.observation.observe_attachments, Attachments::Auto);
    assert!(default.observation.continuation_hints.suggested_response);
    // What is surely repeated. In `system-reminder` a client tells the project's rules, in
    // `environment_details` what a terminal printed, once.
    assert_eq!(default.observation.omit_blocks, ["reminderInstructions"]);
    assert!(!default.observation.thread_title && !default.observation.observe_system);
    assert_eq!(
        (default.redact.kinds.len(), default.redact.patterns.len()),
        (5, 0)
    );

    for (key, value, want) in [
        ("OBSERVE_ATTACHMENTS", "true", Attachments::All),
        ("OBSERVE_ATTACHMENTS", "false", only(&[])),
        ("OBSERVE_ATTACHMENTS", "[]", only(&[])),
        ("OBSERVE_ATTACHMENTS", "auto", Attachments::Auto),
        (
            "OBSERVE_ATTACHMENTS",
            "image/png, audio/*",
            only(&["image/png", "audio/*"]),
        ),
    ] {
        let name = format!("DIARIST__MEMORY__OBSERVATION__{key}");
        let config = ConfigInput::default().env(&name, value).valid();
        assert_eq!(
            config.memory.observation.observe_attachments, want,
            "{value}"
        );
    }
    let none = ConfigInput::default().env("DIARIST__MEMORY__OBSERVATION__OMIT_BLOCKS", "[]");
    assert!(none.valid().memory.observation.omit_blocks.is_empty());
    let given = ConfigInput::default().env(
        "DIARIST__MEMORY__OBSERVATION__PREVIOUS_OBSERVER_TOKENS",
        "0",
    );
    assert_eq!(
        given.valid().memory.observation.previous_observer_tokens,
        Some(0)
    );
    // Commas belong to a pattern where the list is spelled as one.
    let given =
        ConfigInput::default().env("DIARIST__MEMORY__REDACT__PATTERNS", r#"["\\d{2,3}-x"]"#);
    assert!(given.valid().memory.redact.patterns[0].is_match("12-x"));
}

#[test]
fn what_the_observer_can_not_be_shown_is_said_with_a_remedy() {
    let given = ConfigInput::file(
        "[memory.observation]\nprevious_observer_tokens = true\nobserve_attachments = [\"pictures\"]\n\
         continuation_hints = [\"title\"]\nmax_input_tokens = 10\nomit_blocks = [\"<env>\"]\n\
         [memory.reflection]\ncontinuation_hints = \"maybe\"\ninstruction = \" \"\n\
         [memory.redact]\nkinds = [\"pin\"]\npatterns = [\"(\"]\n",
    );
    assert_problems(
        &given,
        &[
            "memory.observation.previous_observer_tokens: ",
            "memory.observation.max_input_tokens: 10 tokens are no useful part of a history",
            "memory.observation.continuation_hints: there is no hint \"title\" | write true, false,",
            "memory.observation.observe_attachments: \"pictures\" is no media type | write \"auto\"",
            "memory.observation.omit_blocks: \"<env>\" is not the name of a tag | write the name alone",
            "memory.reflection.instruction: it is empty",
            "memory.reflection.continuation_hints: there is no hint \"maybe\"",
            "memory.redact.kinds: there is no kind \"pin\" | choose from \"api_key\"",
            "memory.redact.patterns: \"(\" is no regular expression: error: unclosed group | correct it",
        ],
    );
    for (pattern, what) in [
        ("x*", "matches the empty text"),
        (r"(\\w{1,999}){1,999}", "is no regular expression"),
    ] {
        let given = ConfigInput::file(&format!("[memory.redact]\npatterns = [\"{pattern}\"]\n"));
        let problems = given.problems();
        assert!(problems[0].contains(what), "{problems:?}");
    }
}
