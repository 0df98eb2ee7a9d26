//! A refusal that comes inside a stream: the head has gone to the client, so what helps has to go on as
//! the same stream.
//!
//! The same steps as for any refusal ([`super::ladder`]); where none of them helps, the client hears the
//! first one as it came. The head keeps saying what was sent first; audit and metric say what was sent
//! last. Called by `remember` for answers whose beginning can be looked at.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Response;
use http::request::Parts;

use super::choice::Choice;
use super::choose::Settled;
use super::ladder::{self, Form, Refused};
use super::memory::{Asked, Memory};
use super::opening::{self, Beside, Hears, Said};
use super::{Proxy, ProxyBody};

/// What became of a stream after its head, for the audit line.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome(Arc<Mutex<Became>>);

#[derive(Clone, Debug, Default)]
pub(super) struct Became {
    /// What was sent last, where that is not what the head is the answer to.
    pub(super) sent: Option<Choice>,
    /// What the client was told instead of an answer.
    pub(super) failed: Option<&'static str>,
}

impl Outcome {
    fn became(&self) -> MutexGuard<'_, Became> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) settled: Option<Settled>,
    pub(super) outcome: Outcome,
}

impl Late {
    /// The answer, listened to for as long as nothing of it was said.
    pub(super) fn listen(self, answer: Response<ProxyBody>) -> Response<ProxyBody> {
        answer.map(|body| opening::listened(body, self))
    }

    fn accepted(&self) {
        if let Some(settled) = &self.settled {
            settled.accept();
        }
    }
}

impl Hears for Late {
    async fn heard(self, said: Said, beside: Beside) -> Option<ProxyBody> {
        let excess = match said {
            Said::Answer => {
                self.accepted();
                return None;
            }
            Said::Error => {
                self.outcome.became().failed = Some("error");
                return None;
            }
            Said::TooLong(excess) => excess,
        };
        let choice = self.choice.clone();
        let refused = Refused { choice, excess };
        let mut tell = |choice: &Choice| self.outcome.became().sent = Some(choice.clone());
        let (proxy, memory, asked) = (&self.proxy, &self.memory, &self.asked);
        let shorter = ladder::shorten(
            proxy,
            memory,
            &self.parts,
            asked,
            refused,
            Form::Stream(&beside),
            &mut tell,
        );
        if let Some((_, answer)) = shorter.await {
            self.accepted();
            return Some(answer.into_body());
        }
        let mut became = self.outcome.became();
        became.sent = None;
        became.failed = Some("too_long");
        None
    }
}
