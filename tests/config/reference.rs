//! The reference file: what `diarist config` prints is valid, complete, and the file that is shipped.

use diarist::config;

use super::ConfigInput;

/// Renew it with `cargo run -- config > config/example.toml`.
#[test]
fn the_example_file_equals_the_printed_reference() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/config/example.toml");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text == config::reference(),
        "config/example.toml differs from `diarist config`"
    );
}

/// The lines of the reference that hold a key, without their `#`.
fn commented_keys() -> impl Iterator<Item = String> {
    let lines = config::reference();
    let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    lines.into_iter().filter_map(|line| {
        let bare = line.strip_prefix('#')?;
        (!bare.is_empty() && !bare.starts_with(' ')).then(|| bare.to_owned())
    })
}

#[test]
fn the_reference_parses_to_the_defaults_with_and_without_its_comments() {
    let defaults = format!("{:?}", ConfigInput::default().valid());
    let reference = config::reference();
    assert_eq!(
        format!("{:?}", ConfigInput::file(&reference).valid()),
        defaults
    );

    let uncommented: Vec<&str> = reference
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(bare) if bare.starts_with(' ') || bare.is_empty() => line,
            Some(bare) if bare.ends_with("unset by default") => "",
            Some(bare) => bare,
            None => line,
        })
        .collect();
    let given = ConfigInput::file(&uncommented.join("\n"));
    assert_eq!(format!("{:?}", given.valid()), defaults);
    // Every default really was written, not merely left alone.
    assert_eq!(
        commented_keys()
            .filter(|line| !line.ends_with("unset by default"))
            .count(),
        uncommented
            .iter()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'))
            .count(),
    );
}

#[test]
fn every_example_in_the_reference_is_valid() {
    // memory.model excludes the models of the phases, a secret the file of keys; all else may stand
    // together.
    let mut section = String::new();
    let lines = config::reference();
    let mut text = String::new();
    for line in lines.lines() {
        if line.starts_with('[') {
            line.clone_into(&mut section);
        }
        match line.strip_prefix('#') {
            Some(bare) if bare.is_empty() || bare.starts_with(' ') => {}
            Some(bare) if section == "[memory]" && bare.starts_with("model ") => {}
            Some(bare) if bare.starts_with("keys_file ") => {}
            // Only a build that can export takes it.
            Some(bare) if section == "[otlp]" && bare.starts_with("endpoint ") => {}
            Some(bare) => text.push_str(&format!("{bare}\n")),
            None => text.push_str(&format!("{line}\n")),
        }
    }
    let config = ConfigInput::file(&text).valid();
    assert_eq!(config.memory.observation.max_output_tokens, Some(16_000));
    assert!(config.memory.observation.instruction.is_some());
    assert!(config.memory.reflection.endpoint.is_some());
}
