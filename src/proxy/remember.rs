//! A memory request, read from top to bottom.
//!
//! Whatever memory does or fails to do, the request goes to the upstream and its answer to the
//! client (INV-OPEN). Nothing here counts tokens, reads a clock to decide, or waits for a model
//! (INV-FREE).

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::abort::Abort;
use super::body::{self, Idle, ProxyBody};
use super::choice::Choice;
use super::choose::{Settled, choose};
use super::decode::Encoding;
use super::hearing::{AnswerPlace, SUMMARY};
use super::identify::{Off, identify, owner, thread};
use super::ladder;
use super::late::{Late, Outcome};
use super::line::Line;
use super::memory::{Asked, Memory, Unfinished};
use super::mode::{self, By, Mode};
use super::opening;
use super::plain::came_compressed;
use super::tee::{Observed, OnAnswer, TeeSpec, tee};
use super::{Proxy, ProxyError, headers, lend, others};
use crate::history::{History, Item, Mark, Scope};
use crate::jobs::Exchange;
use crate::memory::place;
use crate::store::Used;
use crate::store::recall::Asking;
use crate::wire::chat::{self, NotParsed, Parsed};

/// read body → parse → identify → select → splice → forward → stream back, tee.
///
/// # Errors
/// Whatever keeps the upstream's answer from being the client's; never anything of memory.
pub(super) async fn handle(
    proxy: &Arc<Proxy>,
    memory: &Arc<Memory>,
    parts: Parts,
    body: Incoming,
    abort: Abort,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut line = Line::begin(memory.audit.as_ref());
    let received = Idle::new(body, proxy.limits.request_idle);
    let received = body::read_bounded(received, proxy.limits.max_body_bytes)
        .await
        .inspect_err(|error| line.failed(error))?;
    line.received(&received);
    let Reading { asked, place } = read(memory, &parts, &received, &mut line).await;
    let (choice, settled) = match &asked {
        Some(asked) => choose(memory, asked).await,
        None => (Choice::verbatim(received.clone()), None),
    };
    line.chosen(&choice);
    let sent = ladder::send(proxy, memory, &parts, asked.as_ref(), choice, &mut line)
        .await
        .inspect_err(|error| line.failed(error))?;
    line.answered(sent.response.status());
    let way = lend::after_head(memory, &parts, asked.as_ref(), proxy, &sent.response);
    let taken = Taken {
        used: sent.choice.used().clone(),
        asks_usage: sent.choice.asks_usage,
        asked: asked.map(Arc::new),
        outcome: Outcome::default(),
        way,
        place,
    };
    let response = listen(proxy, memory, parts, sent, settled, &taken);
    Ok(stream_back(proxy, memory, response, taken, line, abort))
}

/// A request whose answer has begun.
struct Taken {
    asked: Option<Arc<Asked>>,
    used: Used,
    asks_usage: bool,
    outcome: Outcome,
    way: Option<[u8; 32]>,
    /// Where its answer stands in its conversation.
    place: Option<AnswerPlace>,
}

/// The answer. Where its beginning can be looked at, what that says decides whether the request was
/// taken; else its status does.
fn listen(
    proxy: &Arc<Proxy>,
    memory: &Arc<Memory>,
    parts: Parts,
    sent: ladder::Sent,
    settled: Option<Settled>,
    taken: &Taken,
) -> Response<ProxyBody> {
    if let Some(asked) = &taken.asked
        && opening::can_look(&sent.response)
    {
        let late = Late {
            proxy: Arc::clone(proxy),
            memory: Arc::clone(memory),
            asked: Arc::clone(asked),
            choice: sent.choice,
            tried: sent.tried,
            outcome: taken.outcome.clone(),
            settled,
            parts,
        };
        return late.listen(sent.response);
    }
    if sent.response.status().is_success() {
        if let Some(asked) = &taken.asked {
            ladder::conclude(memory, asked, &sent.choice);
        }
        if let Some(settled) = settled {
            settled.accept();
        }
    }
    sent.response
}

/// A request that was read.
#[derive(Default)]
pub(super) struct Reading {
    /// What memory does with it; `None` where it gets none.
    pub(super) asked: Option<Asked>,
    /// Where its answer stands; `None` where it could not be read.
    pub(super) place: Option<AnswerPlace>,
}

impl Reading {
    /// A request of `scope` that gets no memory. Where it cannot be read its answer is heard alone.
    async fn passing(memory: &Memory, received: &Bytes, scope: &Scope) -> Self {
        let history = match parse(received, scope).await {
            Ok((_, history)) => history,
            Err(_) => History::chain(scope, Vec::new()),
        };
        Self::overheard(memory, history)
    }

    /// A request that gets no memory, and is heard all the same.
    fn overheard(memory: &Memory, history: History) -> Self {
        Self {
            asked: None,
            place: Some(AnswerPlace::overheard(&memory.recall, history)),
        }
    }
}

/// Parses and identifies; nothing is asked where the request gets no memory, with the reason on the line.
pub(super) async fn read(
    memory: &Memory,
    parts: &Parts,
    received: &Bytes,
    line: &mut Line,
) -> Reading {
    if !memory.enabled {
        line.without(Off::Disabled);
        return Reading::default();
    }
    // Once: a reload meanwhile is for the next request.
    let treatment = memory.treats.now();
    let asks_off = mode::asked(&parts.headers) == Some(Mode::Off);
    let identity = identify(&parts.headers, parts.uri.query(), &treatment.owners);
    let mut identity = match identity {
        Ok(identity) => identity,
        Err(off) => {
            line.without(if asks_off { Off::Asked } else { off });
            let Ok(owner) = owner(&parts.headers, parts.uri.query(), &treatment.owners) else {
                return Reading::default();
            };
            return Reading::passing(memory, received, &owner.scope).await;
        }
    };
    line.tenant(&identity);
    let off = match asks_off {
        true => Some(Off::Asked),
        false if memory.manners.is_signing(&identity.scope.tenant) => Some(Off::Signed),
        false => None,
    };
    if let Some(off) = off {
        line.without(off);
        return Reading::passing(memory, received, &identity.scope).await;
    }
    let (parsed, history) = match parse(received, &identity.scope).await {
        Ok(read) => read,
        Err(reason) => {
            line.bypass(reason.to_string());
            let nothing = History::chain(&identity.scope, Vec::new());
            return Reading::overheard(memory, nothing);
        }
    };
    identity.thread = thread(&parts.headers, &parsed, &treatment.sources);
    if let Some(flaw) = identity.flaw {
        // A token that does not hold is a credential like any other; whose it might have been is unknown.
        let said = format!("authorization:{}", flaw.name());
        identity.thread.ignored.push(said);
    }
    let crowd = |key: &String| memory.recall.is_crowd(&identity.scope, key);
    if identity.thread.key.as_ref().is_some_and(crowd) {
        identity.thread.disown();
    }
    line.parsed(&identity, &parsed, &history);
    if history.is_empty() {
        line.bypass("no_history".to_owned());
        return Reading::overheard(memory, history);
    }
    let model = parsed.model().unwrap_or_default().to_owned();
    let mut decided = mode::decide(
        &treatment.rules,
        treatment.read_only.of(&model),
        parts,
        &model,
    );
    line.mode(decided);
    if decided.mode == Mode::Off {
        line.without(match decided.by {
            By::Rule(_) => Off::Rule,
            _ => Off::Asked,
        });
        return Reading::overheard(memory, history);
    }
    let client = Arc::new(history);
    let answers = || answers(&parsed, &client);
    let first = parsed.head().messages().first();
    let system = first.map(|message| Item::of(&client.root(), message).content);
    let asking = Asking {
        model: &model,
        key: identity.thread.key.as_deref(),
        system,
        level: treatment.evidence,
    };
    let looked = memory
        .recall
        .look(&identity.scope, &client, asking, answers);
    let (mut lookup, seen) = looked.await;
    let history = seen
        .as_ref()
        .map_or_else(|| Arc::clone(&client), |seen| Arc::clone(&seen.history));
    let origins = lookup.origins.clone();
    let place = AnswerPlace::new(&memory.recall, &client, origins, &history);
    line.parsed(&identity, &parsed, &history);
    if identity.thread.child && seen.is_some() && decided.mode == Mode::On {
        // It does not continue the conversation it works for, and would write into it all the same.
        (decided.mode, decided.by) = (Mode::Read, By::Child);
        line.mode(decided);
    }
    let writes = decided.mode == Mode::On;
    others::admit(memory, &identity, writes, &mut lookup);
    let asked = Asked {
        writes,
        treatment,
        identity,
        parsed: Arc::new(parsed),
        history,
        seen: seen.map(Arc::new),
        lookup,
        system,
        model,
    };
    Reading {
        asked: Some(asked),
        place: Some(place),
    }
}

/// Where in a message clients put the answer to a request for a summary: it is all of it, or stands behind a
/// few lines of their own.
const LINES: usize = 6;

/// What an answer of the model would be known by, if one stands in the place of what it summarises.
fn answers(parsed: &Parsed, history: &History) -> Vec<(Mark, usize)> {
    let root = history.root();
    let mut marks = Vec::new();
    for (place, text) in parsed.opening(place::opening(history)) {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        marks.extend(
            std::iter::once(0)
                .chain(breaks)
                .take(LINES)
                .map(|at| &text[at..])
                .filter(|text| SUMMARY.contains(&text.len()))
                .map(|text| (Mark::of_text(&root, text), place)),
        );
    }
    marks
}

/// Bodies from this size on are read on a thread of their own: at about a millisecond a megabyte, a
/// smaller one is read sooner than handed over, and a larger one would hold up other requests.
const READ_APART: usize = 256 * 1024;

async fn parse(received: &Bytes, scope: &Scope) -> Result<(Parsed, History), NotParsed> {
    let (body, owner) = (received.clone(), scope.clone());
    let read = move || {
        let parsed = chat::parse(&body)?;
        let history = parsed.history(&owner);
        Ok((parsed, history))
    };
    if received.len() < READ_APART {
        return read();
    }
    // A thread that could not be had, or died: the request passes as one that was not understood.
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or(Err(NotParsed::InvalidJson))
}

/// The upstream's answer, tapped. When it has ended, one way or the other, the exchange is audited
/// and, if it was accepted, recorded.
fn stream_back(
    proxy: &Proxy,
    memory: &Arc<Memory>,
    response: Response<ProxyBody>,
    taken: Taken,
    line: Line,
    abort: Abort,
) -> Response<ProxyBody> {
    let (mut parts, body) = response.into_parts();
    let spec = TeeSpec {
        streaming: opening::is_event_stream(&parts.headers),
        encoding: Encoding::of(parts.headers.get(header::CONTENT_ENCODING)),
        filter_usage: taken.asks_usage,
    };
    parts.version = http::Version::HTTP_11;
    parts.headers = headers::towards_client(parts.headers);
    line.write_headers(&mut parts.headers);
    if spec.filter_usage && spec.streaming {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let compressed = spec.encoding != Encoding::Identity || came_compressed(&parts.extensions);
    if spec.filter_usage
        && compressed
        && let Some(asked) = &taken.asked
    {
        // It compressed although it was asked not to. Its report is taken out where that could be
        // decoded, which costs its clients their compression: it is not asked again.
        memory.manners.usage_refused(asked.asker());
    }
    let status = parts.status;
    let place = taken.place.clone();
    let hear: OnAnswer = Box::new(move |said| {
        if let Some(place) = &place {
            place.mark(said);
        }
    });
    let (body, observed) = tee(body, spec, hear, &proxy.tasks);
    let body = body.unless(taken.outcome.unasked());
    let memory = Arc::clone(memory);
    let unfinished = Unfinished::of(&memory);
    // The drain waits until what was answered is audited and handed over.
    let hold = proxy.tasks.hold();
    proxy.tasks.spawn("exchange", async move {
        let _hold = (hold, unfinished);
        if let Ok(observed) = observed.await {
            ended(&memory, taken, line, status, observed);
        }
    });
    Response::from_parts(parts, abort.watch(body).boxed_unsync())
}

/// The answer has ended: what is left of it.
fn ended(
    memory: &Memory,
    mut taken: Taken,
    mut line: Line,
    status: StatusCode,
    observed: Observed,
) {
    let (at_ms, answered_ms) = (line.came_ms(), jiff::Timestamp::now().as_millisecond());
    if let Some(asked) = &taken.asked {
        line.zone(&asked.identity);
    }
    let became = taken.outcome.take();
    if let Some(sent) = &became.sent {
        line.chosen(sent);
        taken.used = sent.used().clone();
        taken.asks_usage = sent.asks_usage;
    }
    let failed = became.failed.or(observed.error.then_some("error"));
    if status.is_success() {
        line.error(failed);
    }
    line.ended(&observed);
    let accepted =
        status.is_success() && failed.is_none() && observed.saw_done && !observed.refusal;
    let Some(asked) = taken.asked.filter(|_| accepted) else {
        return;
    };
    if asked.parsed.stream() && asked.parsed.usage_asked() == Some(true) {
        memory.manners.usage_accepted(asked.asker());
    }
    if taken.asks_usage && observed.usage.is_some() {
        memory.manners.reported_usage(&asked.model);
    }
    let answer = observed
        .words
        .filter(|words| SUMMARY.contains(&words.len()))
        .map(|words| Mark::of_text(&asked.history.root(), &words));
    if asked.writes {
        let asked = Arc::unwrap_or_clone(asked);
        memory.jobs.intake().offer(Exchange {
            answer,
            answered_ms,
            ..asked.exchange(taken.used, taken.way, at_ms)
        });
    }
}
