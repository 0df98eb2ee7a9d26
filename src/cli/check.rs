//! `diarist check`: judges the configuration without starting anything.

use std::process::ExitCode;

use super::output::print;
use super::sources::ConfigSources;
use crate::config::{
    Config, Models, ObservationSettings, Override, ReflectionSettings, Thresholds,
};
use crate::llm::model_catalog;
use crate::report::grouped;

/// What one prompt of the Observer holds beside the messages and the log before them: instructions,
/// and room for the answer.
const PROMPT_OVERHEAD: u32 = 8_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.sources.load()?;
    let warnings = warnings(&config).into_iter();
    let warnings = warnings.map(|warning| format!("warning: {warning}\n"));
    let hints = config.hints();
    let hints = hints.iter().map(|hint| format!("hint: {hint}\n"));
    let lines: String = std::iter::once("The configuration is valid.\n".to_owned())
        .chain(warnings)
        .chain(hints)
        .collect();
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}

/// What is known to go wrong with the models that are named, for each override what it makes otherwise.
/// Of a model nobody knows nothing is said.
fn warnings(config: &Config) -> Vec<String> {
    let memory = &config.memory;
    if !memory.enabled {
        return Vec::new();
    }
    let (observation, reflection) = (&memory.observation, &memory.reflection);
    let mut warnings = phase_warnings(&memory.thresholds, observation, reflection);
    for entry in &memory.overrides {
        let (observation, reflection) = (&entry.observation, &entry.reflection);
        let override_warnings = phase_warnings(&entry.thresholds, observation, reflection);
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

/// The override, by whom it is for.
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

fn phase_warnings(
    thresholds: &Thresholds,
    observation: &ObservationSettings,
    reflection: &ReflectionSettings,
) -> Vec<String> {
    let reflector = thresholds.observation_tokens.saturating_mul(6) / 5;
    let observer = thresholds
        .buffer_tokens
        .saturating_mul(3)
        .saturating_div(2)
        .saturating_add(observation.previous_observer_tokens.unwrap_or(0))
        .saturating_add(PROMPT_OVERHEAD);
    let mut warnings = Vec::new();
    for (name, models, needs, what) in [
        (
            "Observer",
            &observation.phase.model,
            observer,
            "for what is observed at a time (buffer_tokens), the log before it and the answer",
        ),
        (
            "Reflector",
            &reflection.phase.model,
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

/// Each model and the longest prompt it is asked: its bound, and the last one whatever comes.
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
