//! `diarist reproduce`: repeats a failed model call of memory from its bundle, and shows how the answer is read.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};

use super::output::print;
use super::sources::{ConfigSources, environment};
use super::terminal::harmless;
use crate::config::Config;
use crate::jobs::Phase;
use crate::jobs::bundle::{self, Bundle, BundledAnswer};
use crate::llm::{CallError, Endpoint, Llm, Reply};
use crate::memory::observe::{ParsedAnswer, read_answer};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The bundle: a file from the folder in memory.bundles
    file: PathBuf,
    /// Only read the recorded answer again; call no model
    #[arg(long)]
    recorded: bool,
    /// The endpoint to call, instead of the configured one
    #[arg(long, value_name = "URL", requires = "api_key_env")]
    base_url: Option<url::Url>,
    /// The environment variable that holds the key for --base-url
    #[arg(long, value_name = "NAME", requires = "base_url")]
    api_key_env: Option<String>,
    /// Call this model instead of the recorded one
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let bundle =
        bundle::read(&args.file).map_err(|error| anyhow!("{}: {error}", args.file.display()))?;
    print(&head(&bundle))?;
    if args.recorded {
        let text = match &bundle.answer {
            BundledAnswer::Replied { text, .. } => parsed_answer(&bundle, text),
            BundledAnswer::Failed { .. } => {
                "The bundle holds no answer: the call failed.\n".to_owned()
            }
        };
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let endpoint = endpoint(args, &bundle)?;
    let mut settings = bundle.settings();
    if let Some(model) = &args.model {
        settings.model.clone_from(model);
    }
    let llm = Llm::new().context("the model client cannot be set up")?;
    let answer = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(llm.call(&endpoint, &settings, &bundle.prompt()))
        .map_err(|failed| failed.error);
    print(&outcome_text(&bundle, &endpoint, &answer))?;
    Ok(match answer {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn head(bundle: &Bundle) -> String {
    let phase_name = match bundle.kind.as_str() {
        "reflection" => "Reflector",
        _ => "Observer",
    };
    format!(
        "{phase_name} call of {} by Diarist {}, try {}: {} at {}\nThen: {}\n",
        bundle.at,
        harmless(&bundle.diarist),
        bundle.attempts,
        harmless(&bundle.parameters.model),
        harmless(&bundle.origin),
        harmless(&match &bundle.answer {
            BundledAnswer::Failed { class, message } => format!("{class}: {message}"),
            BundledAnswer::Replied { finish, .. } =>
                format!("{} (it ended by {finish})", bundle.verdict),
        }),
    ) + &missing_attachments(&bundle.prompt.attachments)
}

/// Names the attachments of the prompt, which a bundle does not hold.
fn missing_attachments(attachments: &[String]) -> String {
    if attachments.is_empty() {
        return String::new();
    }
    let names = attachments.join(", ");
    format!(
        "The images and files of its prompt are not in the bundle and are not sent ({}). The answer may differ.\n",
        harmless(&names)
    )
}

fn outcome_text(bundle: &Bundle, endpoint: &Endpoint, answer: &Result<Reply, CallError>) -> String {
    let at = endpoint.origin();
    match answer {
        Err(error) => format!("Now, at {at}: {}\n", harmless(&error.to_string())),
        Ok(reply) => {
            let count = |tokens: Option<u64>| tokens.map_or("?".to_owned(), |n| n.to_string());
            format!(
                "Now, at {at}: {} answered ({} tokens sent, {} written)\n{}",
                harmless(&reply.model),
                count(reply.usage.tokens.prompt),
                count(reply.usage.tokens.completion),
                parsed_answer(bundle, &reply.text)
            )
        }
    }
}

/// How this version reads an answer. Both phases use the same reader.
fn parsed_answer(bundle: &Bundle, answer: &str) -> String {
    match read_answer(answer, &bundle.prompt.user) {
        ParsedAnswer::Observed { text, .. } => format!(
            "It is read as {} lines of observations:\n\n{}\n",
            text.lines().count(),
            harmless(&text)
        ),
        ParsedAnswer::Empty => format!("Nothing in it can be used:\n\n{}\n", harmless(answer)),
        ParsedAnswer::Repetitive => format!(
            "It repeats itself without an end:\n\n{}\n",
            harmless(answer)
        ),
    }
}

/// The endpoint from the arguments, otherwise the configured one of the phase.
fn endpoint(args: &Args, bundle: &Bundle) -> anyhow::Result<Endpoint> {
    if let (Some(base_url), Some(name)) = (&args.base_url, &args.api_key_env) {
        let key = environment().remove(name);
        let key = key.with_context(|| format!("the variable {name} is not set"))?;
        return Ok(Endpoint::Configured {
            base_url: base_url.clone(),
            api_key: key.into(),
        });
    }
    let config = args.sources.load()?;
    let Some(configured) = &phase(&config, bundle).endpoint else {
        bail!(
            "this phase uses each conversation's own credential, and a bundle holds no credential: give \
             --base-url and --api-key-env, or --recorded to read only the recorded answer"
        );
    };
    Ok(configured.clone())
}

fn phase<'a>(config: &'a Config, bundle: &Bundle) -> &'a Phase {
    match bundle.kind.as_str() {
        "reflection" => &config.memory.reflection,
        _ => &config.memory.observation,
    }
}
