//! `diarist replay`: plays recorded conversations through Diarist and directly, and compares them.
//!
//! Every request, Diarist's own calls included, passes a [`recorder_proxy`] in front of the upstream. The report
//! uses only the usage that the upstream reports. Each run begins its prompts with its own [`cache_buster`], so that
//! no prompt is in the upstream's cache from another run.

mod args;
mod cache_buster;
mod input;
mod recorder_proxy;
mod report;

pub(super) use self::args::Args;
use self::args::Policy;
use self::report::ReplayedConversation;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use secrecy::SecretString;
use url::Url;

use super::harness::Harness;
use super::output::print;
use super::progress;
use super::replay_client::{Client, Rejection, story};
use super::sources::environment;
use crate::telemetry::{LogFormat, init_logging};
use crate::tokens::{O200k, TokenCounter as _};
use cache_buster::CacheBuster;
use diarist_provider::{
    CallerKind, Conversation, OBSERVER_MODEL, Options, Provider, REFLECTOR_MODEL, Replay,
};
use recorder_proxy::{CallKind, RecorderProxy};

/// The value of `--upstream` for the scripted provider.
const SCRIPTED: &str = "scripted";
/// How long Observer and Reflector may take after a request. Then the next request is sent, as a real client would
/// do without waiting.
const IDLE_TIMEOUT: Duration = Duration::from_mins(5);

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let conversations = input::read(&args.file, args.limit)?;
    let env = environment();
    let _log = init_logging(
        LogFormat::Auto,
        Some(env.get("DIARIST_LOG").map_or("warn", String::as_str)),
    )?;
    let key = ["DIARIST_API_KEY", "OPENAI_API_KEY"]
        .into_iter()
        .find_map(|name| env.get(name));
    let key = key.map(|key| SecretString::from(key.trim().to_owned()));
    let played = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(play(args, &conversations, key))?;
    print(&report::render(args, &played))?;
    let complete = played.iter().all(|played| !played.incomplete);
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The upstream, the models, and the scripted provider as long as it is needed.
struct ReplayTarget {
    base_url: Url,
    model: String,
    observer_model: Option<String>,
    reflector_model: Option<String>,
    _scripted: Option<Provider>,
}

async fn replay_target(
    args: &Args,
    conversations: &[Conversation],
) -> anyhow::Result<ReplayTarget> {
    if args.upstream == SCRIPTED {
        let counter = O200k::new();
        let provider = Provider::start(Options {
            count_tokens: std::sync::Arc::new(move |text| counter.count(text)),
            keep_bodies: false,
            ..Options::default()
        })
        .await
        .context("the scripted provider cannot be started")?;
        provider.script(CallerKind::Actor, Replay::from_conversations(conversations));
        return Ok(ReplayTarget {
            base_url: Url::parse(&provider.base_url()).context("no address")?,
            model: args
                .model
                .clone()
                .unwrap_or_else(|| "scripted-large".to_owned()),
            observer_model: Some(OBSERVER_MODEL.to_owned()),
            reflector_model: Some(REFLECTOR_MODEL.to_owned()),
            _scripted: Some(provider),
        });
    }
    let base_url = Url::parse(&args.upstream)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .context(
            "--upstream is neither a URL such as https://api.openai.com/v1 nor \"scripted\"",
        )?;
    let Some(model) = args.model.clone() else {
        bail!("a real upstream needs a model: give one with --model");
    };
    Ok(ReplayTarget {
        base_url,
        model,
        observer_model: args.memory_model.clone(),
        reflector_model: args.memory_model.clone(),
        _scripted: None,
    })
}

async fn play(
    args: &Args,
    conversations: &[Conversation],
    key: Option<SecretString>,
) -> anyhow::Result<Vec<ReplayedConversation>> {
    let target = replay_target(args, conversations).await?;
    let recorder = RecorderProxy::start(&target.base_url, key).await?;
    let harness = Harness::start(
        &recorder.base_url(CallKind::Proxied),
        &settings(args, &target, &recorder),
    )
    .await?;
    let requests: usize = conversations.iter().map(|one| one.requests().count()).sum();
    let rounds = if args.no_baseline { 1 } else { 2 };
    let bar = progress::bar("replaying", requests * rounds);
    let run = ReplayRun {
        client: Client::new("replay")?,
        model: &target.model,
        recorder: &recorder,
        proxied: CacheBuster::new(),
        direct: CacheBuster::new(),
        bar,
    };
    let mut played = Vec::with_capacity(conversations.len());
    for conversation in conversations {
        played.push(run.play(conversation, &harness, !args.no_baseline).await?);
    }
    run.bar.finish_and_clear();
    harness.stop().await?;
    Ok(played)
}

/// Observer and Reflector have endpoints of their own, so that the recorder can tell their calls apart.
fn settings(
    args: &Args,
    target: &ReplayTarget,
    recorder: &RecorderProxy,
) -> Vec<(&'static str, String)> {
    let key = || recorder_proxy::KEY.to_owned();
    let mut settings = vec![
        (
            "memory.observation.message_tokens",
            args.message_tokens().to_string(),
        ),
        (
            "memory.reflection.observation_tokens",
            args.observation_tokens.to_string(),
        ),
        (
            "memory.observation.base_url",
            recorder.base_url(CallKind::Observer),
        ),
        ("memory.observation.api_key", key()),
        (
            "memory.reflection.base_url",
            recorder.base_url(CallKind::Reflector),
        ),
        ("memory.reflection.api_key", key()),
    ];
    let models = [
        ("memory.observation.model", &target.observer_model),
        ("memory.reflection.model", &target.reflector_model),
    ];
    settings.extend(
        models
            .into_iter()
            .filter_map(|(key, model)| Some((key, model.clone()?))),
    );
    settings.extend(args.database.clone().map(|url| ("store.url", url)));
    settings.push(("memory.policy", args.policy().name().to_owned()));
    if args.policy() == Policy::CostAware {
        settings.extend(cost_settings(args));
    }
    settings
}

/// The prices of the command line as multiples of an uncached token of the conversation's model.
fn cost_settings(args: &Args) -> Vec<(&'static str, String)> {
    let prices = args.prices.prices();
    let input = prices.conversation.input;
    let mut settings = Vec::new();
    if input > 0.0 {
        let memory = prices.memory;
        settings.extend(
            [
                ("memory.cost.cache_read", prices.conversation.cached),
                ("memory.cost.observer_input", memory.input),
                ("memory.cost.observer_output", memory.output),
            ]
            .map(|(key, price)| (key, (price / input).to_string())),
        );
    }
    settings
}

/// What all conversations share.
struct ReplayRun<'a> {
    client: Client,
    model: &'a str,
    recorder: &'a RecorderProxy,
    proxied: CacheBuster,
    direct: CacheBuster,
    bar: indicatif::ProgressBar,
}

impl ReplayRun<'_> {
    async fn play(
        &self,
        conversation: &Conversation,
        harness: &Harness,
        baseline: bool,
    ) -> anyhow::Result<ReplayedConversation> {
        let mut errors = Vec::new();
        self.recorder.take_calls();
        let proxied = self
            .round(conversation, harness.base_url(), Some(harness), usize::MAX)
            .await?;
        let calls = self.recorder.take_calls();
        if let Some(rejection) = &proxied.rejection {
            errors.push(format!(
                "request {} with Diarist was {rejection}",
                proxied.completed + 1
            ));
        }
        let mut direct = Vec::new();
        if baseline {
            let base_url = self.recorder.base_url(CallKind::Direct);
            let round = self
                .round(conversation, &base_url, None, proxied.completed)
                .await?;
            direct = self.recorder.take_calls();
            if let Some(rejection) = &round.rejection {
                errors.push(format!(
                    "request {} without Diarist was {rejection}; the totals without Diarist end there",
                    round.completed + 1
                ));
            }
        }
        Ok(ReplayedConversation {
            id: conversation.id.clone(),
            story: story(&direct, &calls),
            incomplete: proxied.rejection.is_some(),
            errors,
        })
    }

    /// Sends the requests of a conversation, at most `most` of them, until one is refused.
    async fn round(
        &self,
        conversation: &Conversation,
        base_url: &str,
        harness: Option<&Harness>,
        limit: usize,
    ) -> anyhow::Result<RoundResult> {
        let cache_buster = if harness.is_some() {
            &self.proxied
        } else {
            &self.direct
        };
        let mut round = RoundResult::default();
        for sent in conversation.requests().take(limit) {
            let mut body = conversation.request(sent, self.model, false);
            cache_buster.prepend_to(&mut body);
            let thread = harness.map(|_| conversation.id.as_str());
            let answer = self.client.send(base_url, thread, &body).await?;
            self.bar.inc(1);
            if let Err(rejection) = answer {
                // The next conversation would get the same answer.
                if matches!(rejection.status, 401 | 403 | 404 | 502) && round.completed == 0 {
                    bail!("the first request of {} was {rejection}", conversation.id);
                }
                round.rejection = Some(rejection);
                break;
            }
            round.completed += 1;
            if let Some(harness) = harness
                && !harness.quiet(IDLE_TIMEOUT).await
            {
                tracing::warn!(
                    "the Observer or Reflector is not done after {IDLE_TIMEOUT:?}; continuing"
                );
            }
        }
        Ok(round)
    }
}

/// How far one run came.
#[derive(Default)]
struct RoundResult {
    completed: usize,
    rejection: Option<Rejection>,
}
