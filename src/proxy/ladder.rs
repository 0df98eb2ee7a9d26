//! Sending, and what is done when the upstream refuses (INV-OPEN).
//!
//! A changed request that is refused goes out once more as the client made it; what does not fit its
//! model is shortened, step by step ([`super::overflow`]). What a refusal means reads `wire::usage`, what
//! follows it stands in [`super::declined`]; any other answer passes at once. Called by `remember`.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt as _;

use super::body::OutBody;
use super::choice::{Choice, Rung};
use super::declined::Declined;
use super::decode::{Decoder, Encoding};
use super::line::Line;
use super::memory::{Asked, Memory};
use super::opening::{self, Beside, Said};
use super::overflow::{Steps, Tried};
use super::plain::plain_stream;
use super::{Proxy, ProxyBody, ProxyError, body, forward, lend};
use crate::llm::BorrowedRoute;
use crate::wire::usage::{Blame, Excess, Reason, may_decline, may_refuse, reason};

/// The upstream's answer and what it is the answer to.
pub(super) struct Sent {
    pub(super) response: Response<ProxyBody>,
    pub(super) choice: Choice,
    /// What was tried because it did not fit.
    pub(super) tried: Tried,
}

/// A refused request.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) choice: Choice,
    /// How much was too much, where the refusal says it.
    pub(super) excess: Option<Excess>,
    /// What was tried because of that already.
    pub(super) tried: Tried,
}

/// Sends `choice`, and again what a refusal asks for.
pub(super) async fn send(
    proxy: &Proxy,
    memory: &Memory,
    parts: &Parts,
    asked: Option<&Asked>,
    choice: Choice,
    line: &mut Line,
) -> Result<Sent, ProxyError> {
    let answer = once(proxy, parts, &choice, Form::Answer).await?;
    let Some(asked) = asked.filter(|_| may_be_refusal(&answer, &choice)) else {
        return Ok(choice.sent(answer));
    };
    let (mut choice, (mut answer, mut said)) = (choice, examine(answer).await);
    // Where there is no second answer, the first is the client's.
    if let Some(Reason::Declined(blame)) = said
        && let Some(again) = again(memory, asked, &choice, blame).await
        && let Ok(second) = once(proxy, parts, &again, Form::Answer).await
    {
        line.chosen(&again);
        (answer, said) = if may_be_refusal(&second, &again) {
            examine(second).await
        } else {
            (second, None)
        };
        choice = again;
    }
    let Some(Reason::TooLong(excess)) = said else {
        return Ok(choice.sent(answer));
    };
    let refused = Refused {
        choice: choice.clone(),
        excess,
        tried: Tried::default(),
    };
    let mut tell = |choice: &Choice| line.chosen(choice);
    let form = Form::Answer;
    let shorter = shorten(proxy, memory, parts, asked, refused, form, &mut tell).await;
    // Else the client hears that its own prompt is too long, which is something it can act on; not what
    // is wrong with words it never wrote.
    Ok(shorter.unwrap_or_else(|| choice.sent(answer)))
}

/// Whether `answer` may refuse `choice`: what the client made may be too long, anything else that is refused
/// of it is the client's to hear.
fn may_be_refusal(answer: &Response<ProxyBody>, choice: &Choice) -> bool {
    let status = answer.status().as_u16();
    may_refuse(status) || choice.is_changed() && may_decline(status)
}

/// What goes out after `choice` was refused for what it holds, if anything does.
pub(super) async fn again(
    memory: &Memory,
    asked: &Asked,
    choice: &Choice,
    blame: Blame,
) -> Option<Choice> {
    if !choice.is_changed() {
        return None;
    }
    let original = Choice::of(asked, None, false, choice.why, Rung::Refused);
    let declined = Declined::of(memory, asked, choice, blame);
    let again = agree(memory, asked, choice, original).await;
    Some(again.instead_of(Some(Arc::new(declined))))
}

/// A request that does not fit its model, shorter with every step.
pub(super) struct Shortening<'a> {
    memory: &'a Memory,
    asked: &'a Asked,
    steps: Steps<'a>,
    whole: Choice,
    last: Choice,
}

impl<'a> Shortening<'a> {
    /// `whole` was refused as too long, after so much was `tried`; `way` is how it went to the upstream.
    pub(super) fn begin(
        memory: &'a Memory,
        asked: &'a Asked,
        way: &'a (dyn Fn() -> Option<BorrowedRoute> + Sync),
        whole: Choice,
        tried: Tried,
    ) -> Self {
        Self {
            memory,
            asked,
            steps: Steps::begin(memory, asked, way, &whole, tried),
            last: whole.clone(),
            whole,
        }
    }

    /// What goes out instead of what went out last, which was refused with this `excess`; `None` where
    /// nothing is left to do.
    pub(super) async fn next(&mut self, excess: Option<Excess>) -> Option<Choice> {
        let again = self.steps.next(&self.last, excess).await?;
        Some(self.goes(again).await)
    }

    /// The same, where what went out last was refused for what it holds.
    pub(super) async fn elsewhere(&mut self, blame: Blame) -> Option<Choice> {
        let again = self.steps.elsewhere(&self.last, blame)?;
        Some(self.goes(again).await)
    }

    async fn goes(&mut self, again: Choice) -> Choice {
        let declined = again.instead_of.clone();
        let again = agree(self.memory, self.asked, &self.last, again).await;
        self.last = again.instead_of(declined);
        self.last.clone()
    }

    /// What went out last was taken.
    pub(super) fn accepted(&self) {
        conclude(self.memory, self.asked, &self.last);
    }

    /// What was tried so far.
    fn tried(&self) -> Tried {
        self.steps.tried.clone()
    }

    /// Nothing helped: it is decided anew when it comes again; until then as it went out first.
    pub(super) fn give_up(self) -> Choice {
        if let Some(tip) = self.asked.history.tip() {
            let (scope, last) = (&self.asked.identity.scope, self.last.used());
            let (recall, whole) = (&self.memory.recall, self.whole.used().clone());
            recall.agree(scope, (tip, &self.asked.model), last, whole);
        }
        self.whole
    }
}

/// `accepted` was taken, maybe where something else was refused: what is learned from it.
pub(super) fn conclude(memory: &Memory, asked: &Asked, accepted: &Choice) {
    if let Some(snapshot) = accepted.snapshot() {
        memory.manners.taken(&asked.model, snapshot.meta.id);
    }
    match &accepted.instead_of {
        Some(declined) => declined.learn(memory, asked, accepted),
        None if accepted.is_changed() => memory.manners.took_change(asked.asker()),
        None => {}
    }
}

/// As what the answer goes on to the client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form<'a> {
    /// As whatever it is.
    Answer,
    /// As the rest of a stream whose head has gone: only another stream is of use. What keeps the connection
    /// alive passes meanwhile.
    Stream(&'a Beside),
}

/// What is too long, shorter with every step, until it is taken or nothing is left to do. `tell` is told of whatever goes out, and at last of what went out first where
/// nothing helped.
pub(super) async fn shorten(
    proxy: &Proxy,
    memory: &Memory,
    parts: &Parts,
    asked: &Asked,
    refused: Refused,
    form: Form<'_>,
    tell: &mut (dyn FnMut(&Choice) + Send),
) -> Option<Sent> {
    let Refused {
        choice,
        excess,
        tried,
    } = refused;
    let asks_usage = choice.asks_usage;
    let way = || lend::way_of(proxy, parts);
    let mut shortening = Shortening::begin(memory, asked, &way, choice, tried);
    let mut next = shortening.next(excess).await;
    while let Some(again) = next {
        if matches!(form, Form::Stream(_)) && again.asks_usage && !asks_usage {
            // The report would reach a client that has not asked for it.
            break;
        }
        tell(&again);
        let Ok(answer) = once(proxy, parts, &again, form).await else {
            break;
        };
        let (answer, came) = came(answer, &again, form).await;
        match came {
            Came::Taken => {
                let tried = shortening.tried();
                return Some(Sent {
                    tried,
                    ..again.sent(answer)
                });
            }
            Came::TooLong(more) => next = shortening.next(more).await,
            Came::Declined(blame) => next = shortening.elsewhere(blame).await,
            Came::Otherwise | Came::Nothing => break,
        }
    }
    tell(&shortening.give_up());
    None
}

/// What came of another request.
pub(super) enum Came {
    /// An answer for the client.
    Taken,
    /// It is still too long.
    TooLong(Option<Excess>),
    /// It is refused for what it holds.
    Declined(Blame),
    /// Something that is of no use to a client that asked for something else.
    Otherwise,
    /// A stream that ended, or broke off, before it said anything.
    Nothing,
}

pub(super) async fn came(
    answer: Response<ProxyBody>,
    choice: &Choice,
    form: Form<'_>,
) -> (Response<ProxyBody>, Came) {
    if may_be_refusal(&answer, choice) {
        let (answer, said) = examine(answer).await;
        let came = match said {
            Some(Reason::TooLong(excess)) => Came::TooLong(excess),
            Some(Reason::Declined(blame)) => Came::Declined(blame),
            None if matches!(form, Form::Answer) => Came::Taken,
            None => Came::Otherwise,
        };
        return (answer, came);
    }
    match form {
        Form::Answer => (answer, Came::Taken),
        Form::Stream(_) if !opening::can_look(&answer) => (answer, Came::Otherwise),
        Form::Stream(beside) => {
            let (answer, said) = opening::look(answer, beside).await;
            let came = match said {
                Said::Answer => Came::Taken,
                Said::TooLong(excess) => Came::TooLong(excess),
                Said::Declined(blame) => Came::Declined(blame),
                Said::Error => Came::Otherwise,
                Said::Nothing => Came::Nothing,
            };
            (answer, came)
        }
    }
}

/// `again`, which is to go out in the place of `refused`; or what an equal request has gone out with
/// meanwhile in the same place (INV-SAME).
async fn agree(memory: &Memory, asked: &Asked, refused: &Choice, again: Choice) -> Choice {
    let Some(tip) = asked.history.tip() else {
        return again;
    };
    let (was, now) = (refused.used(), again.used().clone());
    let asking = (tip, asked.model.as_str());
    let agreed = memory.recall.agree(&asked.identity.scope, asking, was, now);
    if agreed == *again.used() || agreed == *was {
        return again;
    }
    let alike = Choice::alike(memory, asked, &agreed, &again).await;
    alike.unwrap_or(again)
}

impl Choice {
    fn sent(self, response: Response<ProxyBody>) -> Sent {
        Sent {
            response,
            choice: self,
            tried: Tried::default(),
        }
    }
}

pub(super) async fn once(
    proxy: &Proxy,
    parts: &Parts,
    choice: &Choice,
    form: Form<'_>,
) -> Result<Response<ProxyBody>, ProxyError> {
    let mut parts = parts.clone();
    let in_plain_bytes = choice.asks_usage || matches!(form, Form::Stream(_));
    if in_plain_bytes {
        // The event that answers our own question is taken out again, which a compressed stream
        // would not allow; and a head that has gone said that there is none.
        parts.headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        );
    }
    let out = OutBody::Segments(choice.frames.clone());
    let response = forward::send(&proxy.upstream, parts, out).await?;
    let response =
        response.map(|body| body::Idle::new(body, proxy.limits.response_idle).boxed_unsync());
    // Some compress all the same.
    Ok(if in_plain_bytes {
        plain_stream(response)
    } else {
        response
    })
}

/// Reads what may be a refusal, and puts the answer together again as it was.
async fn examine(response: Response<ProxyBody>) -> (Response<ProxyBody>, Option<Reason>) {
    /// Error bodies are a few hundred bytes.
    const READ: usize = 64 * 1024;
    let (parts, rest) = response.into_parts();
    let (read, rest) = body::peek(rest, READ).await;
    let encoding = Encoding::of(parts.headers.get(header::CONTENT_ENCODING));
    // What cannot be read names nothing.
    let plain = plain(encoding, &read).unwrap_or_default();
    let said = reason(parts.status.as_u16(), &plain);
    (Response::from_parts(parts, body::after(read, rest)), said)
}

fn plain(encoding: Encoding, read: &Bytes) -> Option<Bytes> {
    let mut decoder = Decoder::new(encoding);
    decoder.push(read.clone()).ok()
}
