//! A refusal that comes inside a stream: the head has gone to the client, so what helps has to go on as
//! the same stream.
//!
//! The same steps as for any refusal ([`super::ladder`]), but for those that were taken before the head came;
//! where none of them helps, the client hears the first one about its own prompt as it came, if that is a
//! stream too. The head keeps saying what was sent first; audit and metric say what was sent last. Called by
//! `remember` for answers whose beginning can be looked at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Response;
use http::request::Parts;

use super::choice::Choice;
use super::choose::Settled;
use super::ladder::{self, Came, Form, Refused};
use super::memory::{Asked, Memory};
use super::opening::{self, Beside, Hears, Said};
use super::overflow::Tried;
use super::{Proxy, ProxyBody};
use crate::wire::usage::Blame;

/// What became of a stream after its head.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    became: Arc<Mutex<Became>>,
    /// What goes on was not asked for its usage, whatever the head is the answer to.
    unasked: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Became {
    /// What was sent last, where that is not what the head is the answer to.
    pub(super) sent: Option<Choice>,
    /// What the client was told instead of an answer.
    pub(super) failed: Option<&'static str>,
}

impl Outcome {
    fn became(&self) -> MutexGuard<'_, Became> {
        self.became.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set once nothing of the stream may be taken out any more.
    pub(super) fn unasked(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unasked)
    }

    pub(super) fn take(&self) -> Became {
        std::mem::take(&mut self.became())
    }
}

/// A request whose stream has not begun.
pub(super) struct Late {
    pub(super) proxy: Arc<Proxy>,
    pub(super) memory: Arc<Memory>,
    pub(super) parts: Parts,
    pub(super) asked: Arc<Asked>,
    pub(super) choice: Choice,
    /// What was tried before, because it did not fit: none of it is tried, nor waited for, twice.
    pub(super) tried: Tried,
    pub(super) settled: Option<Settled>,
    pub(super) outcome: Outcome,
}

impl Late {
    /// The answer, listened to for as long as nothing of it was said.
    pub(super) fn listen(self, answer: Response<ProxyBody>) -> Response<ProxyBody> {
        answer.map(|body| opening::listened(body, self))
    }

    /// `choice` was taken.
    fn accepted(&self, choice: &Choice) {
        ladder::conclude(&self.memory, &self.asked, choice);
        if let Some(settled) = &self.settled {
            settled.accept();
        }
    }

    /// `choice` goes out now: a client that leaves meanwhile leaves its line with that.
    fn tell(&self, choice: &Choice) {
        self.outcome.became().sent = Some(choice.clone());
    }

    fn failed(&self, failed: &'static str) {
        self.outcome.became().failed = Some(failed);
    }

    /// `choice` is what the client's stream is the answer to from now on.
    fn goes_on(&self, choice: &Choice, answer: Response<ProxyBody>) -> ProxyBody {
        let unasked = self.choice.asks_usage && !choice.asks_usage;
        self.outcome.unasked.store(unasked, Ordering::Relaxed);
        self.tell(choice);
        answer.into_body()
    }

    /// The request was refused for what it holds, and what was changed of it may be at fault.
    async fn declined(&self, blame: Blame, beside: &Beside) -> Option<ProxyBody> {
        let (form, choice) = (Form::Stream(beside), &self.choice);
        let again = ladder::again(&self.memory, &self.asked, choice, blame).await;
        let again = again.filter(|again| choice.asks_usage || !again.asks_usage);
        let Some(again) = again else {
            return self.none("error");
        };
        self.tell(&again);
        let Ok(answer) = ladder::once(&self.proxy, &self.parts, &again, form).await else {
            return self.none("error");
        };
        let (answer, came) = ladder::came(answer, &again, form).await;
        let failed = match came {
            Came::Taken => {
                self.accepted(&again);
                return Some(self.goes_on(&again, answer));
            }
            Came::TooLong(excess) => {
                let refused = Refused {
                    choice: again.clone(),
                    excess,
                    tried: self.tried.clone().but_elsewhere(),
                };
                let shorter = self.too_long(refused, beside).await;
                if shorter.is_some() {
                    return shorter;
                }
                "too_long"
            }
            Came::Declined(_) | Came::Otherwise => "error",
            // What was refused at first says more.
            Came::Nothing => return self.none("error"),
        };
        if !opening::can_look(&answer) {
            return self.none("error");
        }
        self.failed(failed);
        Some(self.goes_on(&again, answer))
    }

    /// Nothing goes on in the place of what the client was sent first.
    fn none(&self, failed: &'static str) -> Option<ProxyBody> {
        self.outcome.became().sent = None;
        self.failed(failed);
        None
    }

    /// What was `refused` did not fit its model.
    async fn too_long(&self, refused: Refused, beside: &Beside) -> Option<ProxyBody> {
        let mut tell = |choice: &Choice| self.tell(choice);
        let (proxy, memory, asked) = (&self.proxy, &self.memory, &self.asked);
        let form = Form::Stream(beside);
        let shorter = ladder::shorten(proxy, memory, &self.parts, asked, refused, form, &mut tell);
        let sent = shorter.await?;
        self.accepted(&sent.choice);
        Some(self.goes_on(&sent.choice, sent.response))
    }
}

impl Hears for Late {
    async fn heard(self, said: Said, beside: Beside) -> Option<ProxyBody> {
        match said {
            Said::Answer => {
                self.accepted(&self.choice);
                None
            }
            Said::Error | Said::Nothing => self.none("error"),
            Said::Declined(blame) => self.declined(blame, &beside).await,
            Said::TooLong(excess) => {
                let refused = Refused {
                    choice: self.choice.clone(),
                    excess,
                    tried: self.tried.clone(),
                };
                let shorter = self.too_long(refused, &beside).await;
                shorter.or_else(|| self.none("too_long"))
            }
        }
    }
}
