//! A summary that the client put in the place of what it summarises.
//!
//! Clients that summarise ask the model for it, and the answer comes back word for word at the beginning
//! of what they send next. So an answer that the upstream gave in one conversation alone leads to that
//! conversation. Everybody may quote an answer, and a canned one stands in many conversations: it counts
//! only where a client that summarises puts it, and only if something else of the conversation agrees.

use std::sync::Arc;

use super::evidence::{Answered, Evidence, Names, Step};
use super::sides::{in_front, kept_from, observed};
use super::{Agreed, Found, How, OPENING, Sighting, Witness};
use crate::history::align::Run;
use crate::history::{History, Role, TELLING, View};

/// How many messages that were said while somebody watched, and that the summary tells of, have to stand in
/// front of it where nothing else speaks for it: behind the first messages, and in what is said now.
const IN_FRONT: usize = 2;

/// The log goes on behind the answer. What stood before it and was not observed is in the client's
/// own summary, which stays raw where the client put it; but where it is what is said now, it is what the
/// chain goes on with. What the client kept in front of it stands where it was said.
///
/// What a person says now may quote an answer, and so may one of many messages; what was recorded as the
/// beginning of a conversation is one: none of them stands for what it was an answer to. But who quotes does
/// not say again before it, in order, what was said in that conversation.
pub(super) fn compacted(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let answered = evidence.answered.as_ref()?;
    let (place, path) = (answered.place, &answered.path);
    if evidence.depth >= place.max(1) {
        return None;
    }
    let names = evidence.names(path);
    if !answered.alone || !evidence.admits(names) || !stands_as_summary(client, place, names) {
        return None;
    }
    // The last message of the chain that was answered asked for the summary.
    let before = path.get(..path.len().checked_sub(1)?)?;
    let observed = observed(before);
    if observed == 0 {
        return None;
    }
    let kept = kept_from(client, place, before)?;
    let from = kept.min(observed);
    let runs = in_front(client, place, &before[..from])?;
    let newest = client.turns().last().map(|turn| turn.message.role);
    let is_said_now = place == client.len() && newest == Some(Role::User);
    if (is_said_now || place > OPENING) && live(&runs, before) < IN_FRONT {
        return None;
    }
    let agrees = answered.same_system || !runs.is_empty() || kept < before.len();
    if !agrees || takes_back_in_front(client, &runs, &before[..from]) {
        return None;
    }
    let goes_on = place - usize::from(is_said_now);
    let found = Found {
        how: How::Compacted,
        same: true,
        proof: vec![Witness {
            mark: answered.mark,
            origin: answered.origin(),
        }],
        held: None,
    };
    let view = View::from_parts(runs, goes_on, from)?;
    Sighting::of(client, &before[..from], view, Agreed::default(), found)
}

/// How many messages of `runs` were said while somebody watched.
fn live(runs: &[Run], path: &[Step]) -> usize {
    let places = runs.iter().flat_map(|run| run.path..run.path + run.len);
    places.filter(|place| path[*place].live).count()
}

/// Whether the message that ends at `place` stands where clients put a summary: as words of the user or
/// of the application, or as the very first message. As an answer behind a message of the user it is
/// where every answer stands; there the name has to say that it is the same conversation.
fn stands_as_summary(client: &History, place: usize, names: Names) -> bool {
    let Some(at) = place.checked_sub(1) else {
        return true;
    };
    let Some(turn) = client.turns().get(at) else {
        return false;
    };
    match turn.message.role {
        Role::User | Role::System => true,
        Role::Assistant => at == 0 || names == Names::Same,
        Role::Tool => false,
    }
}

/// Whether the client changed what its user said, or took some of it out, among what it keeps in front of
/// the summary: who keeps all the user said is told nothing that the user took back.
fn takes_back_in_front(client: &History, runs: &[Run], path: &[Step]) -> bool {
    let root = client.root();
    let says = |step: &Step| {
        let mut sent = client.turns().iter();
        sent.any(|turn| step.says(&root, &turn.message))
    };
    let lost = |step: &Step| {
        let tells = step.item.is_some_and(|item| item.weight >= TELLING);
        step.stand.role == Role::User && tells && !says(step)
    };
    let gaps = runs.windows(2).map(|pair| {
        let from = pair[0].path + pair[0].len;
        &path[from..pair[1].path]
    });
    gaps.flatten().any(lost)
}

impl Evidence {
    /// Whether the message at `at` of `client` is what the client itself puts in front of what it keeps
    /// of the conversation of `path`: its summary, and the short words around that.
    pub(super) fn puts_there(&self, client: &History, path: &[Step], at: usize) -> bool {
        let Some(answered) = &self.answered else {
            return false;
        };
        let Some(summary) = answered.place.checked_sub(1) else {
            return false;
        };
        let is_brief = client.turns()[at].message.weight < TELLING;
        let is_there = at == summary || (at <= summary + 1 && is_brief);
        is_there && self.is_summary_of(client, answered, path)
    }

    /// Whether the answer was given in the conversation of `path`, or under its name.
    fn is_summary_of(&self, client: &History, answered: &Answered, path: &[Step]) -> bool {
        let names = self.names(&answered.path);
        let lineage = |path: &[Step]| path.last().map(|end| end.lineage);
        let (here, there) = (lineage(path), lineage(&answered.path));
        let same_key = |here: i64, there: i64| {
            let key = |lineage: i64| self.names.get(&lineage)?.key.as_ref();
            key(here).is_some() && key(here) == key(there)
        };
        let belongs = here
            .zip(there)
            .is_some_and(|(a, b)| a == b || same_key(a, b));
        let stands = stands_as_summary(client, answered.place, names)
            || (self.key.is_some() && names != Names::Different);
        answered.alone && belongs && stands && names != Names::Different
    }
}
