//! What Diarist answers to a wrong command: one that exists and is written alike, or the list.
//!
//! clap suggests the most similar name, and it would also suggest hidden commands, which only say where to look. Called by
//! [`super::Cli::parse_from_args`].

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Leaves hidden commands of `root` out of the suggestions of `error`. If nothing is left, it lists the commands. `args`
/// are those that could not be parsed.
pub(super) fn suggest_commands(error: &mut clap::Error, root: &Command, args: &[OsString]) {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    let unknown = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => "",
    };
    let visible = visible_commands(parent(root, args, unknown));
    let suggested = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names,
        Some(ContextValue::String(name)) => vec![name],
        _ => Vec::new(),
    };
    let real = suggested.into_iter().filter(|name| visible.contains(name));
    let real: Vec<String> = real.collect();
    // clap may have an explanation of its own beside the names.
    error.remove(ContextKind::Suggested);
    if real.is_empty() {
        let list = format!("the subcommands are: {}", visible.join(", "));
        let list = ContextValue::StyledStrs(vec![list.into()]);
        error.insert(ContextKind::Suggested, list);
    } else {
        let names = ContextValue::Strings(real);
        error.insert(ContextKind::SuggestedSubcommand, names);
    }
}

/// The command that `unknown`, a word of `args`, should be a subcommand of.
fn parent<'a>(root: &'a Command, args: &[OsString], unknown: &str) -> &'a Command {
    // The first one is the program. One that is not Unicode is no command's name.
    let words = args.iter().skip(1).filter_map(|word| word.to_str());
    words
        .take_while(|word| *word != unknown)
        .fold(root, |command, word| {
            command.find_subcommand(word).unwrap_or(command)
        })
}

fn visible_commands(command: &Command) -> Vec<String> {
    let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
    visible.map(|it| it.get_name().to_owned()).collect()
}
