//! `diarist demo`: what Diarist does to a long conversation, without a key and without a network.
//!
//! A made-up conversation is played twice against scripted providers on this machine, directly and
//! through a Diarist, over real HTTP. Then the providers' records are put side by side. The exit
//! code says whether the story happened: two activations and a reflection at least.

mod telling;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;

use super::output::print;
use super::playing::{Client, Seen, block, story};
use super::prices;
use super::progress;
use super::stage::Stage;
use crate::report::{Mark, Tokens};
use crate::tokens::{O200k, TokenCounter as _};
use diarist_provider::{
    Conversation, OBSERVER_MODEL, Options, Part, Provider, REFLECTOR_MODEL, Recorded, Replay, Style,
};

/// The model the made-up client asks for. The providers are scripted; no such model exists.
const MODEL: &str = "scripted-large";
/// Smaller than the defaults: by those, a conversation needs some 300,000 tokens to its first
/// reflection, which takes minutes to play.
const MESSAGE_TOKENS: u32 = 8_000;
const OBSERVATION_TOKENS: u32 = 8_000;
/// How long memory may take after a turn. It takes milliseconds; this is for a machine that hangs.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Times the made-up user speaks; with tools, each makes one to four requests
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    turns: u32,
    /// Another seed makes up another conversation
    #[arg(long, value_name = "S", default_value_t = 7)]
    seed: u64,
    /// As memory.observation.message_tokens, whose default is 30,000
    #[arg(long, value_name = "N", default_value_t = MESSAGE_TOKENS)]
    message_tokens: u32,
    /// As memory.reflection.observation_tokens, whose default is 40,000
    #[arg(long, value_name = "N", default_value_t = OBSERVATION_TOKENS)]
    observation_tokens: u32,
    #[command(flatten)]
    prices: prices::PriceArgs,
}

/// Everything there is to tell.
struct Outcome {
    conversation: Conversation,
    direct: Vec<Arc<Recorded>>,
    with_diarist: Vec<Arc<Recorded>>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let turns = usize::try_from(args.turns).context("too many turns")?;
    let conversation = Conversation::generate(args.seed, turns, Style::Travel);
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(play(args, conversation))?;

    let story = story(&seen(&outcome.direct), &seen(&outcome.with_diarist));
    let (activations, reflections) = (story.count(Mark::Activation), story.count(Mark::Reflection));
    print(&telling::tell(args, &outcome, &story))?;
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
async fn play(args: &Args, conversation: Conversation) -> anyhow::Result<Outcome> {
    let requests: Vec<usize> = conversation.requests().collect();
    let bar = progress::bar("playing", requests.len() * 2);
    let behind = provider(&conversation, true).await?;
    let stage = Stage::start(
        &behind.base_url(),
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
        stage.base_url(),
        Some(&stage),
        &bar,
    )
    .await?;
    stage.stop().await?;

    let alone = provider(&conversation, false).await?;
    send_all(&conversation, &requests, &alone.base_url(), None, &bar).await?;
    bar.finish_and_clear();
    Ok(Outcome {
        direct: alone.record(),
        with_diarist: behind.record(),
        conversation,
    })
}

/// A provider that says what was said in the conversation, and counts as OpenAI's models do.
async fn provider(conversation: &Conversation, keep_bodies: bool) -> anyhow::Result<Provider> {
    let counter = O200k::new();
    let provider = Provider::start(Options {
        count: Arc::new(move |text| counter.count(text)),
        keep_bodies,
        ..Options::default()
    })
    .await
    .context("no port for the scripted provider")?;
    provider.script(Part::Actor, Replay::of([conversation]));
    Ok(provider)
}

/// Sends every request of the conversation, memory being given its time after each: so the story
/// is the same however fast the machine is.
async fn send_all(
    conversation: &Conversation,
    requests: &[usize],
    base_url: &str,
    stage: Option<&Stage>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let client = Client::new("sk-made-up")?;
    for &sent in requests {
        let body = conversation.request(sent, MODEL, false);
        client.ask(base_url, None, &body).await??;
        if let Some(stage) = stage {
            ensure!(
                stage.quiet(PATIENCE).await,
                "memory did not come to rest within {PATIENCE:?}"
            );
        }
        bar.inc(1);
    }
    Ok(())
}

/// A provider's record as the story needs it.
fn seen(record: &[Arc<Recorded>]) -> Vec<Seen> {
    let accepted = record.iter().filter(|entry| entry.accepted());
    accepted
        .map(|entry| Seen {
            part: entry.part,
            tokens: Tokens {
                prompt: entry.measured.map(|measured| measured.prompt_tokens.into()),
                cached: entry.measured.map(|measured| measured.cached_tokens.into()),
                completion: entry.completion_tokens.map(Into::into),
            },
            block: entry.json().as_ref().and_then(block),
        })
        .collect()
}
