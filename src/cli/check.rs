//! `diarist check`: judges the configuration without starting anything.

use std::process::ExitCode;

use super::output::print;
use super::sources::Sources;
use crate::config::{Config, Models, Observation, Override, Reflection, Thresholds};
use crate::llm::known;
use crate::report::grouped;

/// What one prompt of the Observer holds beside the messages and the log before them: instructions,
/// and room for the answer.
const BESIDE_MESSAGES: u32 = 8_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
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
    let mut warnings = of_phases(&memory.thresholds, observation, reflection);
    for known in &memory.overrides {
        let (observation, reflection) = (&known.observation, &known.reflection);
        let own = of_phases(&known.thresholds, observation, reflection);
        let name = whom(known);
        let own = own
            .into_iter()
            .filter(|warning| !warnings.contains(warning));
        let own: Vec<String> = own.map(|warning| format!("{name}: {warning}")).collect();
        warnings.extend(own);
    }
    warnings
}

/// The override, by whom it is for.
fn whom(known: &Override) -> String {
    let named = |key: &str, value: &Option<String>| {
        let value = value.as_deref()?;
        Some(format!("{key} = \"{value}\""))
    };
    let whom = [
        named("model", &known.model),
        named("upstream", &known.upstream),
    ];
    let whom: Vec<String> = whom.into_iter().flatten().collect();
    format!("memory.overrides for {}", whom.join(", "))
}

fn of_phases(
    thresholds: &Thresholds,
    observation: &Observation,
    reflection: &Reflection,
) -> Vec<String> {
    let reflector = thresholds.observation_tokens.saturating_mul(6) / 5;
    let observer = thresholds
        .buffer_tokens
        .saturating_mul(3)
        .saturating_div(2)
        .saturating_add(observation.previous_observer_tokens.unwrap_or(0))
        .saturating_add(BESIDE_MESSAGES);
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
        for (model, needs) in asked(models.as_ref(), needs) {
            if let Some(reason) = known::unsuited(model) {
                warnings.push(format!("{model} does not work as {name}: {reason}."));
            }
            if let Some(window) = known::window(model).filter(|window| *window < needs) {
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
fn asked(models: Option<&Models>, longest: u32) -> Vec<(&str, u32)> {
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
