//! `diarist check`: checks the configuration and starts nothing.

use std::process::ExitCode;

use anyhow::Context as _;

use super::output::print;
use super::sources::ConfigSources;
use crate::app::{pepper_hint, pepper_place};
use crate::audit;
use crate::config::{AuditTarget, Config, Database, Override};
use crate::jobs::Settings;
use crate::llm::{Models, model_catalog};
use crate::report::grouped;
use crate::store::{Admin as _, OpenError, SqliteStore};

/// Tokens of an Observer prompt beside the messages and the log: the instructions, and room for the answer.
const PROMPT_OVERHEAD: u32 = 8_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let loaded = args.sources.read()?;
    let config = loaded.config;
    let database = check_database(&config)?;
    let warnings = loaded.warnings.into_iter().chain(warnings(&config));
    let warnings = warnings
        .chain(database.warning)
        .chain(audit_warning(&config));
    let warnings = warnings.map(|warning| format!("warning: {warning}\n"));
    let hints = config.hints();
    let hints = hints.into_iter().chain(database.hint);
    let hints = hints.map(|hint| format!("hint: {hint}\n"));
    let lines: String = std::iter::once("The configuration is valid.\n".to_owned())
        .chain(warnings)
        .chain(hints)
        .collect();
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}

/// What a server would say of the database.
#[derive(Default)]
struct DatabaseReport {
    /// Why it would start without memory, and try again and again.
    warning: Option<String>,
    hint: Option<String>,
}

/// Opens the database for reading, if there is one.
///
/// # Errors
/// The pepper cannot be read, or is not the one of the database. A server would not start.
fn check_database(config: &Config) -> anyhow::Result<DatabaseReport> {
    let pepper = pepper_place(config).find()?;
    let Database::Sqlite(path) = &config.database else {
        return Ok(DatabaseReport::default());
    };
    if !config.memory_enabled {
        return Ok(DatabaseReport::default());
    }
    // Before SQLite has the file open.
    let hint = pepper_hint(config);
    let problem = match SqliteStore::check_place(path) {
        Ok(()) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime cannot start")?
            .block_on(async {
                let store = SqliteStore::open_to_read(&config.database.to_string()).await?;
                let store = store.with_pepper(&pepper);
                let verified = store.verify_pepper().await;
                store.close().await;
                verified
            }),
        Err(problem) => Err(problem),
    };
    match problem {
        // A server makes one that is missing, and brings an older one up to date.
        Ok(()) | Err(OpenError::Missing(_) | OpenError::Older(_)) => Ok(DatabaseReport {
            hint,
            ..DatabaseReport::default()
        }),
        Err(problem) if problem.is_wrong_pepper() => Err(problem.into()),
        Err(problem) => Ok(DatabaseReport {
            warning: Some(format!("{problem}. Until then, requests have no memory.")),
            ..DatabaseReport::default()
        }),
    }
}

/// Why a server would not start with the configured audit file. No error: the file may be for another machine.
fn audit_warning(config: &Config) -> Option<String> {
    let AuditTarget::File(path) = &config.audit else {
        return None;
    };
    let problem = audit::check_place(path).err()?;
    Some(format!(
        "{problem}. Until then, `diarist serve` does not start."
    ))
}

/// What is known not to work with the configured models. For an override only what all conversations do not have
/// already. Unknown models get no warning.
fn warnings(config: &Config) -> Vec<String> {
    if !config.memory_enabled {
        return Vec::new();
    }
    let mut warnings = phase_warnings(&config.memory);
    for entry in &config.overrides {
        let override_warnings = phase_warnings(&entry.settings);
        let name = override_label(entry);
        let override_warnings = override_warnings
            .into_iter()
            .filter(|warning| !warnings.contains(warning));
        let override_warnings: Vec<String> = override_warnings
            .map(|warning| format!("{name}: {warning}"))
            .collect();
        warnings.extend(override_warnings);
    }
    warnings
}

/// The override, named by its patterns.
fn override_label(entry: &Override) -> String {
    let condition = |key: &str, value: &Option<String>| {
        let value = value.as_deref()?;
        Some(format!("{key} = \"{value}\""))
    };
    let conditions = [
        condition("model", &entry.model),
        condition("upstream", &entry.upstream),
    ];
    let conditions: Vec<String> = conditions.into_iter().flatten().collect();
    format!("memory.overrides for {}", conditions.join(", "))
}

fn phase_warnings(settings: &Settings) -> Vec<String> {
    let policy = &settings.policy;
    let reflector = policy.observation_tokens.saturating_mul(6) / 5;
    let observer = policy
        .buffer_tokens
        .saturating_mul(3)
        .saturating_div(2)
        .saturating_add(settings.observer.previous_tokens.unwrap_or(0))
        .saturating_add(PROMPT_OVERHEAD);
    let mut warnings = Vec::new();
    for (name, models, needs, what) in [
        (
            "Observer",
            &settings.observation.model,
            observer,
            "for the messages of one call (buffer_tokens), the log before them and the answer",
        ),
        (
            "Reflector",
            &settings.reflection.model,
            reflector,
            "for 1.2 times observation_tokens",
        ),
    ] {
        for (model, needs) in model_loads(models.as_ref(), needs) {
            if let Some(reason) = model_catalog::unsuited(model) {
                warnings.push(format!("{model} does not work as {name}: {reason}."));
            }
            if let Some(window) = model_catalog::window(model).filter(|window| *window < needs) {
                warnings.push(format!(
                    "{model} reads {} tokens, too few as {name}: it needs {} {what}.",
                    grouped(window.into()),
                    grouped(needs.into())
                ));
            }
        }
    }
    warnings
}

/// Each model and the longest prompt that it gets: the bound of its tier, but for the last model every prompt.
fn model_loads(models: Option<&Models>, longest: u32) -> Vec<(&str, u32)> {
    match models {
        None => Vec::new(),
        Some(Models::One(name)) => vec![(name, longest)],
        Some(Models::Tiers(tiers)) => tiers
            .iter()
            .enumerate()
            .map(|(at, (up_to, name))| {
                let last = at + 1 == tiers.len();
                let most = if last { longest } else { longest.min(*up_to) };
                (name.as_str(), most)
            })
            .collect(),
    }
}
