//! What passes is heard: messages of requests, answers to them, and quotations. Called for each request that
//! can be read, whatever becomes of it.

use super::{Asking, Recall};
use crate::history::{History, Item, Mark, Message, Scope};
use crate::memory::place::{
    Agreed, Evidence, How, Origin, Sighting, agreed, origin_of_answer, origins,
};

impl Recall {
    /// Writes down that the messages of `client` were said here, and says where each was first said.
    pub(super) fn hear(
        &self,
        client: &History,
        evidence: &Evidence,
        seen: Option<&Sighting>,
    ) -> Vec<Origin> {
        let origins = origins(client, evidence, seen);
        let root = client.root();
        let new = client.turns().iter().zip(&origins).skip(evidence.depth);
        let mut forgot = false;
        let mut heard = self.heard();
        for (turn, origin) in new.filter(|(turn, _)| turn.message.may_prove()) {
            let item = Item::of(&root, &turn.message);
            forgot |= heard.message(item.ids.unwrap_or(item.content), *origin);
        }
        drop(heard);
        if forgot {
            // What was believed to be said in one conversation alone is asked for again.
            self.clear();
        }
        origins
    }

    /// A request without memory passes, or one that was refused: what it says was said here all the same.
    pub fn overhear(&self, client: &History) -> Vec<Origin> {
        self.hear(client, &Evidence::default(), None)
    }

    /// A reply that stands in a request which does not go on from what that summarises is a quotation.
    pub(super) fn quote(
        &self,
        marks: &[(Mark, usize)],
        evidence: &Evidence,
        seen: Option<&Sighting>,
    ) {
        if seen.is_some_and(|seen| seen.how == How::Compacted) {
            return;
        }
        let mut heard = self.heard();
        let found = evidence.answered.as_ref().map(|answered| answered.mark);
        let known = marks.iter().map(|(mark, _)| *mark);
        let known: Vec<Mark> = known.filter(|mark| heard.knows_reply(mark)).collect();
        for mark in known.into_iter().chain(found) {
            heard.quoted(mark);
        }
    }

    /// The upstream answers `client`, whose messages were first said at `origins`, with `message`; `chain`
    /// is what memory knows the request by. Said before the last byte of the answer goes to the client.
    pub fn give(&self, client: &History, origins: &[Origin], chain: &History, message: &Message) {
        let origin = origin_of_answer(client, origins, &message.fingerprint);
        let item = Item::of(&client.root(), message);
        let mark = item.ids.unwrap_or(item.content);
        let mut heard = self.heard();
        heard.give(chain.tip().unwrap_or_else(|| chain.root()), mark, origin);
        let forgot = heard.message(mark, origin);
        drop(heard);
        if forgot {
            self.clear();
        }
    }

    /// The upstream answers `chain` with a text that may come back as a summary.
    pub fn reply(&self, chain: &History, mark: Mark) {
        self.heard().reply(mark, chain);
    }

    /// Whether the upstream gave the message that was first said at `origin`.
    pub fn gave(&self, origin: Origin) -> bool {
        self.heard().gave(origin)
    }

    /// Where a request that is a chain of its own says again what this process recorded on another, and
    /// whose conversation it is, if that is the same: a window that slides begins anew with every
    /// request until something of it is observed.
    pub fn agreed(
        &self,
        scope: &Scope,
        client: &History,
        asking: &Asking<'_>,
    ) -> Option<(Agreed, Option<i64>)> {
        let (known, heard) = (self.known(), self.heard());
        let (evidence, _) = known.evidence(scope, client, asking, &heard);
        let lineage = evidence.path.last()?.lineage;
        let (agreed, same) = agreed(client, &evidence)?;
        Some((agreed, same.then_some(lineage)))
    }
}
