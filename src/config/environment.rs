//! How keys are spelled in the environment, and which variables look like keys but are not read.
//!
//! Called by `layers`, which reads the variables, and by [`super::read`], which warns of the others.

use std::collections::BTreeMap;

use super::nearest::nearest;
use super::spec::Sections;

/// Every environment variable that sets a key begins with this.
pub const ENVIRONMENT_PREFIX: &str = "DIARIST__";

/// A variable that begins so, but with one underscore, is not read as a key.
const MISSPELLED_PREFIX: &str = "DIARIST_";

/// Variables with one underscore that are not meant as keys: ours, and those that Kubernetes sets in every pod
/// of a namespace with a service called diarist (`DIARIST_PORT_8484_TCP`, `DIARIST_SERVICE_HOST`). The last two
/// are beginnings of names.
const OTHER_VARIABLES: [&str; 2] = ["DIARIST_LOG", "DIARIST_API_KEY"];
const KUBERNETES_PREFIXES: [&str; 2] = ["DIARIST_PORT", "DIARIST_SERVICE_"];

/// The variable that sets a key.
pub(super) fn variable(path: &str) -> String {
    format!(
        "{ENVIRONMENT_PREFIX}{}",
        path.replace('.', "__").to_uppercase()
    )
}

/// A warning for every variable that looks like a key of ours and is not read.
pub(super) fn unread_variables(sections: Sections, env: &BTreeMap<String, String>) -> Vec<String> {
    let names = env.keys().filter(|name| is_misspelled(name));
    names.map(|name| warning(sections, name)).collect()
}

fn is_misspelled(name: &str) -> bool {
    name.starts_with(MISSPELLED_PREFIX)
        && !name.starts_with(ENVIRONMENT_PREFIX)
        && !OTHER_VARIABLES.contains(&name)
        && !KUBERNETES_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn warning(sections: Sections, name: &str) -> String {
    let what = format!("The environment variable {name} is not read");
    if name == "DIARIST_CONFIG" {
        return format!("{what}. Give the configuration file with --config FILE.");
    }
    let flat = |text: &str| text.to_lowercase().replace("__", "_");
    let written = flat(&name[MISSPELLED_PREFIX.len()..]);
    let spellings: Vec<(String, &str)> = sections
        .keys()
        .map(|key| (flat(&key.path.replace('.', "_")), key.path))
        .collect();
    let candidates = spellings.iter().map(|(spelling, _)| spelling.as_str());
    let meant = nearest(&written, candidates).and_then(|near| {
        let mut spellings = spellings.iter();
        spellings.find(|(spelling, _)| spelling == near)
    });
    match meant {
        Some((_, path)) => format!(
            "{what}: names have two underscores between their parts. Did you mean {}?",
            variable(path)
        ),
        None => format!(
            "{what}: names of keys begin with {ENVIRONMENT_PREFIX}. `diarist config` lists every key."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::SECTIONS;

    fn warnings(names: &[&str]) -> Vec<String> {
        let env = names.iter().map(|name| ((*name).to_owned(), String::new()));
        unread_variables(SECTIONS, &env.collect())
    }

    #[test]
    fn a_warning_suggests_the_right_name_of_an_unread_variable() {
        for (written, meant) in [
            ("DIARIST_MEMORY_MODEL", "DIARIST__MEMORY__MODEL?"),
            ("DIARIST_MEMORY__MODEL", "DIARIST__MEMORY__MODEL?"),
            ("DIARIST_MEMORY_MODLE", "DIARIST__MEMORY__MODEL?"),
            (
                "DIARIST_MEMORY_OBSERVATION_MESSAGE_TOKENS",
                "DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS?",
            ),
            ("DIARIST_CONFIG", "--config FILE."),
            ("DIARIST_COLOUR", "lists every key."),
        ] {
            let warnings = warnings(&[written]);
            assert_eq!(warnings.len(), 1, "{written}");
            assert!(warnings[0].contains(written), "{warnings:?}");
            assert!(warnings[0].ends_with(meant), "{warnings:?}");
        }
    }

    #[test]
    fn valid_variables_and_those_of_other_programs_give_no_warning() {
        let others = [
            "DIARIST_LOG",
            "DIARIST_PORT",
            "DIARIST_PORT_8484_TCP",
            "DIARIST_SERVICE_HOST",
            "DIARIST__MEMORY__MODEL",
            "DIARISTS_MEMORY",
        ];
        assert_eq!(warnings(&others), Vec::<String>::new());
    }
}
