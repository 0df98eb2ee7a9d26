//! One reflection: the log so far in, a smaller log out, or nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ask::{self, ask};
use super::events::Cycle;
use super::failure::{Failure, is_rejected_for_good};
use super::{Settings, Shop, evidence, payload};
use crate::llm::{CallError, Endpoint, Finish};
use crate::memory::reflect::{self, Attempt, Ladder, Outcome, Partial, ReflectInput, Source};
use crate::memory::{NewPart, Part, PartKind, dates, faithful, fallback, render};
use crate::store::Job;
use crate::telemetry;
use crate::tokens::TokenCounter;

/// What a reflection job carries: whose day it is, and whether somebody asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    /// Somebody asked.
    pub asked: bool,
    /// What they want it to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub focus: Option<String>,
    /// Whose day it is, by the IANA name of the zone; that of the settings in force where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

impl Wish {
    /// As the job carries it.
    pub fn to_json(&self) -> String {
        // A flag and a string always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn of(job: &Job) -> Self {
        serde_json::from_str(&job.work.payload).unwrap_or_default()
    }
}

/// Why a Reflector is asked again, as it is told.
const LOST: &str = "the answer lost what is important";
const LONG: &str = "the answer was not short enough";
const UNUSABLE: &str = "the answer could not be used";
const CUT: &str = "the answer was cut by a limit of its length";

/// Condenses the sources of `job`. Levels are tried from the gentle to the harsh until one reaches
/// the target. Of the answers that lost no more of what is of high priority than they may, the
/// smallest is kept, whichever came last, and only if it is smaller than the log it replaces. Where
/// there is none and the log is over its budget, the one that lost least, the newest of it put back.
pub(super) async fn reflect(
    shop: &Shop,
    settings: &Settings,
    endpoint: &Endpoint,
    job: &Job,
    cycle: &Cycle,
) -> Result<NewPart, Failure> {
    let parts = shop
        .store
        .parts(&job.scope, &job.work.parts)
        .await
        .map_err(|error| Failure::store(&error))?;
    if parts.len() != job.work.parts.len() {
        return Err(Failure::Hopeless);
    }
    let wish = Wish::of(job);
    let (phase, policy) = (&settings.reflection, &settings.policy);
    let counter = Arc::clone(&shop.counter);
    let from = policy.reflect_from;
    let whole = wish.asked || weight(&parts) >= policy.observation_tokens;
    // What is important is lost only where the log has no room for it.
    let limit = policy.observation_limit;
    let over = (weight(&parts) >= policy.observation_tokens).then_some(Over {
        limit,
        aim: reflect::target(limit),
    });
    let log = off_the_runtime(move || Log {
        over,
        ..Log::of(parts, (!whole).then_some(from), counter)
    });
    let log = Arc::new(log.await?);

    let zone = payload::zone(wish.zone.as_deref(), &settings.zone);
    let today = dates::day(shop.clock.now_ms(), &zone);
    let prompt = |level: u8, missing: Option<&str>| {
        reflect::prompt(&ReflectInput {
            observations: &log.older,
            level,
            nonce: &super::nonce(),
            now_date: &today,
            instruction: phase.instruction.as_deref(),
            focus: wish.focus.as_deref(),
            missing,
        })
    };
    // Where the size of the prompt decides who is asked, that of the gentlest one does.
    let first = ask::settings(shop, phase, job, &prompt(0, None)).await;
    let mut model = first.model;
    let start = reflect::start_level(&model, wish.asked);
    let mut ladder = Ladder::new(start, log.tokens, log.target, settings.max_loss);
    let mut failure = None;
    let mut trouble = None;
    while let Some(next) = ladder.ask() {
        if let Some(why) = trouble.take() {
            let why = next.missing.as_ref().map_or(why, |_| LOST);
            cycle.again(shop, settings, job, why);
        }
        if next.missing.is_some() {
            metrics::counter!(telemetry::REFLECTIONS_REMINDED).increment(1);
        }
        let prompt = prompt(next.level, next.missing.as_deref());
        let call = ask::settings(shop, phase, job, &prompt).await;
        match ask(shop, call, endpoint, job, &prompt).await {
            // Half a log is shorter, and that is all that can be said for it.
            Ok(reply) if reply.finish == Finish::Length => {
                tracing::warn!(
                    tenant = %job.scope.tenant_label(),
                    model = %reply.model,
                    "the Reflector's answer was cut by a limit of its length and is not used: allow it \
                     more (`max_output_tokens`, or the endpoint's own limit)"
                );
                ladder.unusable();
                trouble = Some(CUT);
            }
            Ok(reply) => {
                model = reply.model;
                let log = Arc::clone(&log);
                if let Some(attempt) = off_the_runtime(move || log.judge(&reply.text)).await? {
                    ladder.offer(attempt);
                    trouble = Some(LONG);
                } else {
                    ladder.unusable();
                    trouble = Some(UNUSABLE);
                }
            }
            Err(CallError::Refused { .. }) => {
                ladder.unusable();
                trouble = Some(UNUSABLE);
            }
            // The log only grows: a model it does not fit will never take it.
            Err(CallError::TooLong { .. }) => ladder.stop(),
            Err(CallError::Rejected { .. }) if is_rejected_for_good(job) => ladder.stop(),
            Err(error) => {
                failure = Some(error);
                ladder.stop();
            }
        }
    }
    let kept = kept(ladder, failure, limit)?;
    let span = job.work.span;
    let (kept, evidence) = off_the_runtime(move || {
        let kept = log.fitting(kept, limit);
        let observations = &log.source.observations;
        let evidence = evidence::of_reflection(&log.parts, observations, &kept.text, &span);
        (kept, evidence)
    })
    .await?;
    if let Some(loss) = kept.loss.filter(|loss| *loss > settings.max_loss) {
        lossy(job, kept.tokens, loss);
    }
    Ok(NewPart {
        kind: PartKind::Reflection,
        span,
        text: kept.text,
        tokens: kept.tokens,
        message_tokens: job.work.message_tokens,
        current_task: None,
        suggested_response: None,
        sources: job.work.parts.clone(),
        model: if kept.by_code {
            fallback::MODEL.to_owned()
        } else {
            model
        },
        asked: wish.asked,
        stopgap: false,
        evidence,
    })
}

/// The log that takes the place of what was condensed.
struct Kept {
    text: String,
    tokens: u32,
    /// The share of what is important that it lost, where that may be more than it may.
    loss: Option<f64>,
    /// No model wrote it.
    by_code: bool,
}

/// The best of all answers. One that lost more than it may only where no other is below the limit.
fn kept(mut ladder: Ladder, failure: Option<CallError>, limit: u32) -> Result<Kept, Failure> {
    let best = ladder.best();
    // Where a call failed, another try may lose nothing.
    let instead = match &best {
        Some((_, tokens)) => *tokens >= limit,
        None => failure.is_none(),
    };
    let partial = ladder.partial().filter(|_| instead);
    match (partial, best) {
        (Some(partial), _) => Ok(Kept {
            text: partial.text,
            tokens: partial.tokens,
            loss: Some(partial.loss),
            by_code: false,
        }),
        (None, Some((text, tokens))) => Ok(Kept {
            text,
            tokens,
            loss: None,
            by_code: false,
        }),
        (None, None) => Err(failure.map_or(Failure::Hopeless, Failure::Call)),
    }
}

/// Says that a reflection lost more than it may.
fn lossy(job: &Job, tokens: u32, lost: f64) {
    metrics::counter!(telemetry::REFLECTIONS_LOSSY).increment(1);
    tracing::warn!(
        tenant = %job.scope.tenant_label(),
        messages = job.work.span.to_count,
        tokens,
        lost,
        "there is no room for all that is important: what is oldest of it was left out"
    );
}

fn weight(parts: &[Part]) -> u32 {
    parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.body.tokens))
}

/// Comparing two logs of a megabyte takes longer than a worker of the runtime may be held.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        Failure::Call(CallError::Transient {
            retry_after: None,
            message: "the thread that compares logs died".to_owned(),
        })
    })
}

/// A log that is over its budget: rather something is lost than nothing condensed.
#[derive(Clone, Copy)]
struct Over {
    /// Its hard limit.
    limit: u32,
    /// What it is brought down to where something is lost: some way below the limit, or the next chunk
    /// would cost something again.
    aim: u32,
}

/// What is condensed, and what answers are measured against.
struct Log {
    parts: Vec<Part>,
    source: Source,
    /// The whole days that the Reflector is shown.
    older: String,
    /// Those that stay as they are.
    newer: String,
    items: faithful::Source,
    tokens: u32,
    target: u32,
    over: Option<Over>,
    counter: Arc<dyn TokenCounter>,
}

impl Log {
    /// All of `parts`, or the days up to the point `until`.
    fn of(parts: Vec<Part>, until: Option<u32>, counter: Arc<dyn TokenCounter>) -> Self {
        let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
        let source = Source::of(&texts);
        let weigh = |log: &str| render::weight(log, |text| counter.count(text));
        // As one part, which a reflection is: to name a day once instead of with each chunk condenses nothing.
        let tokens = weigh(&source.restore(&source.observations));
        let (older, newer) = match until {
            // Of a log that has long passed the point, the older half.
            Some(point) => source.older(point.max(tokens / 2), weigh),
            None => (source.observations.as_str(), ""),
        };
        let (older, newer) = (older.to_owned(), newer.to_owned());
        let stays = match newer.as_str() {
            "" => 0,
            newer => weigh(newer),
        };
        Self {
            items: faithful::Source::of_log(&older),
            // A quarter of what is shown is to go.
            target: stays.min(tokens) + reflect::target(tokens.saturating_sub(stays)),
            older,
            newer,
            tokens,
            source,
            over: None,
            counter,
            parts,
        }
    }

    /// What is sent of what was kept. Still too long, it is shortened by code: one range has one
    /// reflection, so what is left is left out here, not later. Where something is lost anyway, code
    /// competes: whole lines, the oldest of the least weight left out, may lose less.
    fn fitting(&self, kept: Kept, limit: u32) -> Kept {
        let aim = reflect::target(limit);
        if let Some(loss) = kept.loss {
            let (text, tokens) = self.shortened(&self.source.observations, self.tokens, aim);
            let code = self.lost(&text);
            if code < loss && tokens < limit {
                return Kept {
                    text,
                    tokens,
                    loss: Some(code),
                    by_code: true,
                };
            }
        }
        if kept.tokens < limit {
            return kept;
        }
        let (observations, _) = crate::memory::verbatim::split(&kept.text);
        let (text, tokens) = self.shortened(&observations, kept.tokens, aim);
        Kept {
            loss: Some(self.lost(&text)),
            text,
            tokens,
            ..kept
        }
    }

    /// `observations`, the log's `tokens` brought down to `aim` by code.
    fn shortened(&self, observations: &str, tokens: u32, aim: u32) -> (String, u32) {
        let excess = tokens.saturating_sub(aim);
        let short = fallback::shorten(observations, excess, |line| self.counter.count(line));
        let text = self.source.restore(&short);
        let tokens = self.weigh(&text);
        (text, tokens)
    }

    /// The share of what is important that a whole log lost.
    fn lost(&self, text: &str) -> f64 {
        let (observations, _) = crate::memory::verbatim::split(text);
        self.items.check(&observations).retention.high.loss()
    }

    /// What an answer amounts to; `None` where it says nothing.
    fn judge(&self, answer: &str) -> Option<Attempt> {
        let Outcome::Observed { text, .. } = reflect::read(answer, &self.older) else {
            return None;
        };
        let report = self.items.check(&text);
        let lost: BTreeSet<usize> = report.hurt().collect();
        let mended = (!lost.is_empty()).then(|| self.mended(&text, &lost));
        let partial = match (&mended, self.over) {
            (Some((_, all)), Some(over)) if *all >= over.limit.min(self.tokens) => {
                Some(self.partial(&text, &lost, over.aim))
            }
            _ => None,
        };
        let (text, tokens) = self.whole(&text);
        Some(Attempt {
            text,
            tokens,
            loss: report.retention.high.loss(),
            mended,
            missing: reflect::missing(&self.older, &report),
            partial,
        })
    }

    /// The log that would be sent where this is what became of its older days, and its tokens.
    fn whole(&self, condensed: &str) -> (String, u32) {
        let text = self.source.restore(&reflect::join(condensed, &self.newer));
        let tokens = self.weigh(&text);
        (text, tokens)
    }

    fn weigh(&self, text: &str) -> u32 {
        render::weight(text, |text| self.counter.count(text))
    }

    fn mended(&self, condensed: &str, lost: &BTreeSet<usize>) -> (String, u32) {
        self.whole(&faithful::mend(&self.older, condensed, lost))
    }

    /// With as many of the lost lines put back as there is room for, the newest first.
    fn partial(&self, condensed: &str, lost: &BTreeSet<usize>, aim: u32) -> Partial {
        let mut room = aim.saturating_sub(self.whole(condensed).1);
        loop {
            let weigh = |line: &str| self.counter.count(line);
            let back = faithful::newest(&self.older, lost, room, weigh);
            let (text, tokens) = self.mended(condensed, &back);
            // Days that come back weigh something too.
            if tokens > aim && !back.is_empty() {
                room = room.saturating_sub(tokens - aim);
                continue;
            }
            return Partial {
                loss: self.lost(&text),
                beyond: tokens > aim,
                text,
                tokens,
            };
        }
    }
}
