//! What the Observer is shown: attachments, hints, redaction.

use super::{ConfigInput, assert_problems};

#[test]
fn observer_input_settings_are_read_from_file_and_environment() {
    use diarist::memory::observe::{AttachmentFilter, RequestedHints};
    use diarist::memory::redact::Redactor;
    let config = ConfigInput::file(
        "[memory.observation]\nprevious_observer_tokens = false\nobserve_attachments = [\"Image/*\", \"text/csv\"]\n\
         continuation_hints = [\"current_task\"]\nmax_input_tokens = 8000\nomit_blocks = [\"open-files\"]\n\
         [memory.reflection]\ncontinuation_hints = false\ninstruction = \"Keep tickets.\"\n\
         [memory.redact]\nkinds = [\"api_key\"]\npatterns = ['\\bQX-\\d+']\n",
    )
    .valid();
    let observer = &config.memory.observer;
    assert_eq!(observer.previous_tokens, None);
    assert_eq!(observer.max_input_tokens, 8_000);
    assert_eq!(observer.omit_blocks, ["open-files"]);
    let only =
        |types: &[&str]| AttachmentFilter::Only(types.iter().map(|t| (*t).to_owned()).collect());
    assert_eq!(observer.attachments, only(&["image/*", "text/csv"]));
    let task = RequestedHints {
        current_task: true,
        suggested_response: false,
    };
    assert_eq!(observer.hints, task);
    assert_eq!(config.memory.hints, task);
    assert_eq!(
        config.memory.reflection.instruction.as_deref(),
        Some("Keep tickets.")
    );
    let redacted = observer.redactor.clean("password=hunter2hunter2 see QX-17");
    assert_eq!(redacted, "password=hunter2hunter2 see [redacted: pattern]");

    // The published defaults.
    let default = ConfigInput::default().valid().memory;
    assert_eq!(default.observer.previous_tokens, Some(2_000));
    assert_eq!(default.observer.attachments, AttachmentFilter::Auto);
    assert!(default.hints.suggested_response);
    // What is surely repeated. In `system-reminder` a client tells the project's rules, in
    // `environment_details` what a terminal printed, once.
    assert_eq!(default.observer.omit_blocks, ["reminderInstructions"]);
    assert!(!default.observer.title && !default.observer.application);
    assert_eq!(
        format!("{:?}", default.observer.redactor),
        format!("{:?}", Redactor::default())
    );

    for (key, value, want) in [
        ("OBSERVE_ATTACHMENTS", "true", AttachmentFilter::All),
        ("OBSERVE_ATTACHMENTS", "false", only(&[])),
        ("OBSERVE_ATTACHMENTS", "[]", only(&[])),
        ("OBSERVE_ATTACHMENTS", "auto", AttachmentFilter::Auto),
        (
            "OBSERVE_ATTACHMENTS",
            "image/png, audio/*",
            only(&["image/png", "audio/*"]),
        ),
    ] {
        let name = format!("DIARIST__MEMORY__OBSERVATION__{key}");
        let config = ConfigInput::default().env(&name, value).valid();
        assert_eq!(config.memory.observer.attachments, want, "{value}");
    }
    let none = ConfigInput::default().env("DIARIST__MEMORY__OBSERVATION__OMIT_BLOCKS", "[]");
    assert!(none.valid().memory.observer.omit_blocks.is_empty());
    let given = ConfigInput::default().env(
        "DIARIST__MEMORY__OBSERVATION__PREVIOUS_OBSERVER_TOKENS",
        "0",
    );
    assert_eq!(given.valid().memory.observer.previous_tokens, Some(0));
    // Commas belong to a pattern where the list is spelled as one.
    let given =
        ConfigInput::default().env("DIARIST__MEMORY__REDACT__PATTERNS", r#"["\\d{2,3}-x"]"#);
    let redactor = &given.valid().memory.observer.redactor;
    assert_eq!(redactor.clean("12-x"), "[redacted: pattern]");
}

#[test]
fn wrong_observer_input_settings_are_reported_with_a_remedy() {
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
            "memory.redact.kinds: there is no kind \"pin\" | use \"api_key\"",
            "memory.redact.patterns: \"(\" is not a regular expression: error: unclosed group | correct the pattern",
            "memory.observation.max_input_tokens: 10 tokens are out of range",
            "memory.observation.continuation_hints: there is no hint \"title\" | write true, false,",
            "memory.observation.observe_attachments: \"pictures\" is not a media type | write \"auto\"",
            "memory.observation.omit_blocks: \"<env>\" is not the name of a tag | write the name only",
            "memory.reflection.continuation_hints: there is no hint \"maybe\"",
            "memory.reflection.instruction: the text is empty",
        ],
    );
    for (pattern, what) in [
        ("x*", "matches the empty text"),
        (r"(\\w{1,999}){1,999}", "is not a regular expression"),
    ] {
        let given = ConfigInput::file(&format!("[memory.redact]\npatterns = [\"{pattern}\"]\n"));
        let problems = given.problems();
        assert!(problems[0].contains(what), "{problems:?}");
    }
}
