//! What a request would go out as, without sending it: the reading, the choosing and what follows
//! from a refusal, for whoever brings the upstream's answer along.
//!
//! Decides nothing of its own. Called by the simulation, which plays client and upstream.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;

use super::choice::Choice;
use super::choose::{Settled, choose};
use super::hearing::AnswerPlace;
use super::ladder::{self, Shortening};
use super::line::Line;
use super::memory::{Asked, Memory};
use super::overflow::Tried;
use super::remember;
use super::tee::Said;
use crate::history::{History, Scope};
use crate::jobs::Exchange;
use crate::llm::BorrowedRoute;
use crate::memory::Snapshot;
use crate::store::Used;
use crate::wire::usage::{Blame, Excess};

/// A request that memory may touch, and what it goes out as.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    asked: Asked,
    place: AnswerPlace,
    choice: Choice,
    settled: Option<Arc<Settled>>,
}

impl Rehearsal {
    /// Reads and chooses. `None` where the request goes out verbatim.
    pub async fn begin(memory: &Memory, parts: &Parts, received: &Bytes) -> Option<Self> {
        let mut line = Line::begin(memory.audit.as_ref());
        let reading = remember::read(memory, parts, received, &mut line).await;
        let (asked, place) = reading.asked.zip(reading.place)?;
        let (choice, settled) = choose(memory, &asked).await;
        line.chosen(&choice);
        Some(Self {
            asked,
            place,
            choice,
            settled: settled.map(Arc::new),
        })
    }

    /// The body that goes out.
    pub fn body(&self) -> Bytes {
        self.choice.frames.concat().into()
    }

    /// What it was made with.
    pub fn used(&self) -> Used {
        self.choice.used().clone()
    }

    /// The rung it stands on, by its name.
    pub fn rung(&self) -> &'static str {
        self.choice.rung.name()
    }

    /// Why memory is what it is.
    pub fn why(&self) -> &'static str {
        self.choice.why
    }

    /// Whether something that it may belong to is withheld from it.
    pub fn is_withheld(&self) -> bool {
        self.asked.lookup.withheld
    }

    /// Whose it is.
    pub fn scope(&self) -> &Scope {
        &self.asked.identity.scope
    }

    /// Where it is a view of another chain: which of its messages stands at each place of that.
    pub fn view(&self) -> Option<Vec<Option<usize>>> {
        let seen = self.asked.seen.as_ref()?;
        let places = 0..self.asked.history.len();
        Some(places.map(|place| seen.view.sent(place)).collect())
    }

    /// The chain that memory knows it by.
    pub fn history(&self) -> &Arc<History> {
        &self.asked.history
    }

    /// The text that stands in for the oldest messages, where one does.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.choice.snapshot().map(|snapshot| &**snapshot)
    }

    /// It was refused as too long: what goes out instead, step by step. `way` is how it went.
    pub fn shorten<'a>(
        &'a self,
        memory: &'a Memory,
        way: &'a (dyn Fn() -> Option<BorrowedRoute> + Sync),
    ) -> Shorter<'a> {
        let whole = self.choice.clone();
        Shorter {
            whole: self,
            steps: Shortening::begin(memory, &self.asked, way, whole, Tried::default()),
        }
    }

    /// It was refused for something else: what goes out instead, if anything does.
    pub async fn refused(&self, memory: &Memory, blame: Blame) -> Option<Self> {
        let choice = ladder::again(memory, &self.asked, &self.choice, blame).await?;
        Some(Self {
            asked: self.asked.clone(),
            place: self.place.clone(),
            choice,
            settled: self.settled.clone(),
        })
    }

    /// That was accepted, maybe where something else was refused: what is learned from it.
    pub fn accepted_after(&self, memory: &Memory) {
        ladder::conclude(memory, &self.asked, &self.choice);
    }

    /// The upstream has taken it: however its answer ends, it goes out alike from now on.
    pub fn accept(&self) {
        if let Some(settled) = &self.settled {
            settled.accept();
        }
    }

    /// The upstream answers it with this message, as JSON.
    pub fn answered(&self, message: &serde_json::Value) {
        self.place.mark(&[Said::whole(message)]);
    }

    /// Its answer has ended well: what is handed over to be recorded; `way` is the hash of the way it
    /// lent its memory, if any.
    pub fn exchange(&self, way: Option<[u8; 32]>, at_ms: i64) -> Exchange {
        self.asked.clone().exchange(self.used(), way, at_ms)
    }
}

/// A request that does not fit its model, shorter with every step.
pub struct Shorter<'a> {
    whole: &'a Rehearsal,
    steps: Shortening<'a>,
}

impl std::fmt::Debug for Shorter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shorter").finish_non_exhaustive()
    }
}

impl Shorter<'_> {
    /// The next step, where what went out last was refused with this `excess`.
    pub async fn next(&mut self, excess: Option<Excess>) -> Option<Rehearsal> {
        let choice = self.steps.next(excess).await?;
        Some(Rehearsal {
            choice,
            ..self.whole.clone()
        })
    }

    /// The same, where that was refused for what it holds.
    pub async fn elsewhere(&mut self, blame: Blame) -> Option<Rehearsal> {
        let choice = self.steps.elsewhere(blame).await?;
        Some(Rehearsal {
            choice,
            ..self.whole.clone()
        })
    }

    /// What went out last was accepted.
    pub fn accepted(&self) {
        self.steps.accepted();
    }

    /// Nothing helped: the client hears the first refusal.
    pub fn give_up(self) {
        self.steps.give_up();
    }
}
