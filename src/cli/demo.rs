//! `diarist demo`: shows what Diarist does with a long conversation, without a key and without a network.
//!
//! Plays an invented conversation twice over real HTTP against scripted providers on this machine: through a
//! Diarist and directly. Then it compares the records of the providers. The exit code is 0 if the conversation had
//! at least two activations and a reflection.

mod args;
mod report;

pub(super) use self::args::Args;
use self::report::DemoRun;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;

use super::harness::Harness;
use super::output::print;
use super::progress;
use super::replay_client::{Client, ModelCall, observation_block, story};
use crate::report::{MemoryChange, Tokens};
use crate::tokens::{O200k, TokenCounter as _};
use diarist_provider::{
    CallerKind, Conversation, OBSERVER_MODEL, Options, Provider, REFLECTOR_MODEL, RecordedRequest,
    Replay, Style,
};

/// The model in the requests of the client. It does not exist: the providers are scripted.
const MODEL: &str = "scripted-large";
/// How long memory may take after a turn. It needs milliseconds; this is the limit for a machine that hangs.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let turns = usize::try_from(args.turns).context("too many turns")?;
    let conversation = Conversation::generate(args.seed, turns, Style::Travel);
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(play(args, conversation))?;

    let story = story(
        &model_calls(&outcome.direct),
        &model_calls(&outcome.with_diarist),
    );
    let (activations, reflections) = (
        story.count(MemoryChange::Activation),
        story.count(MemoryChange::Reflection),
    );
    print(&report::render(args, &outcome, &story))?;
    if activations >= 2 && reflections >= 1 {
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "\nThe story is not complete: {activations} activations and {reflections} reflections, at \
         least 2 and 1 were wanted. Give it more --turns.\n"
    ))?;
    Ok(ExitCode::FAILURE)
}

/// Plays the conversation through Diarist, then directly.
async fn play(args: &Args, conversation: Conversation) -> anyhow::Result<DemoRun> {
    let requests: Vec<usize> = conversation.requests().collect();
    let bar = progress::bar("playing", requests.len() * 2);
    let proxied_provider = provider(&conversation, true).await?;
    let harness = Harness::start(
        &proxied_provider.base_url(),
        &[
            ("memory.observation.model", OBSERVER_MODEL.to_owned()),
            ("memory.reflection.model", REFLECTOR_MODEL.to_owned()),
            (
                "memory.observation.message_tokens",
                args.message_tokens.to_string(),
            ),
            (
                "memory.reflection.observation_tokens",
                args.observation_tokens.to_string(),
            ),
        ],
    )
    .await?;
    send_all(
        &conversation,
        &requests,
        harness.base_url(),
        Some(&harness),
        &bar,
    )
    .await?;
    harness.stop().await?;

    let direct_provider = provider(&conversation, false).await?;
    send_all(
        &conversation,
        &requests,
        &direct_provider.base_url(),
        None,
        &bar,
    )
    .await?;
    bar.finish_and_clear();
    Ok(DemoRun {
        direct: direct_provider.record(),
        with_diarist: proxied_provider.record(),
        conversation,
    })
}

/// A provider that answers as in the conversation, and counts tokens as OpenAI's models do.
async fn provider(conversation: &Conversation, keep_bodies: bool) -> anyhow::Result<Provider> {
    let counter = O200k::new();
    let provider = Provider::start(Options {
        count_tokens: Arc::new(move |text| counter.count(text)),
        keep_bodies,
        ..Options::default()
    })
    .await
    .context("the scripted provider cannot be started")?;
    provider.script(
        CallerKind::Actor,
        Replay::from_conversations([conversation]),
    );
    Ok(provider)
}

/// Sends every request of the conversation and waits for memory after each, so that the result does not depend on
/// the speed of the machine.
async fn send_all(
    conversation: &Conversation,
    requests: &[usize],
    base_url: &str,
    harness: Option<&Harness>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let client = Client::new("sk-made-up")?;
    for &sent in requests {
        let body = conversation.request(sent, MODEL, false);
        client.send(base_url, None, &body).await??;
        if let Some(harness) = harness {
            ensure!(
                harness.quiet(IDLE_TIMEOUT).await,
                "memory was not done within {IDLE_TIMEOUT:?}"
            );
        }
        bar.inc(1);
    }
    Ok(())
}

/// The record of a provider, as the report needs it.
fn model_calls(record: &[Arc<RecordedRequest>]) -> Vec<ModelCall> {
    let accepted = record.iter().filter(|entry| entry.is_accepted());
    accepted
        .map(|entry| ModelCall {
            part: entry.caller,
            tokens: Tokens {
                prompt: entry
                    .prompt_usage
                    .map(|measured| measured.prompt_tokens.into()),
                cached: entry
                    .prompt_usage
                    .map(|measured| measured.cached_tokens.into()),
                completion: entry.completion_tokens.map(Into::into),
            },
            block: entry.json().as_ref().and_then(observation_block),
        })
        .collect()
}
