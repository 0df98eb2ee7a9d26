//! A path and a request side by side: what of the path need not be sent to be remembered, from where on the
//! request says something else, and from where on it says the path itself.

use super::evidence::Step;
use crate::history::align::{Aligned, Run, Told, align, alike};
use crate::history::{History, Item, View};

/// How many messages from the beginning of `path` are observed, or wait for it with their words.
pub(super) fn observed(path: &[Step]) -> usize {
    path.iter()
        .rposition(|step| step.taken)
        .map_or(0, |at| at + 1)
}

/// A path and a request as they are compared.
pub(super) struct Sides<'a> {
    path: &'a [Step],
    pub(super) known: Vec<Item>,
    pub(super) sent: Vec<Item>,
}

impl<'a> Sides<'a> {
    pub(super) fn of(client: &History, path: &'a [Step]) -> Option<Self> {
        let known: Vec<Item> = path.iter().map(|step| step.item).collect::<Option<_>>()?;
        let root = client.root();
        let turns = client.turns().iter();
        let sent = turns.map(|turn| Item::of(&root, &turn.message)).collect();
        (!known.is_empty()).then_some(Self { path, known, sent })
    }

    /// `puts_there` says which messages of the request the client itself puts in front of what it keeps.
    pub(super) fn align(
        &self,
        same_name: bool,
        puts_there: impl Fn(usize) -> bool,
    ) -> Option<Aligned> {
        let standing = |place: usize| self.path[place].standing;
        let told = Told {
            standing,
            same_name,
            puts_there,
        };
        align(&self.known, &told, &self.sent)
    }

    /// Of the path's first `reach` messages, how many from the beginning need not be sent to be
    /// remembered: what is observed, and where words are kept what the client dropped behind it.
    pub(super) fn remembered(&self, runs: &[Run], reach: usize) -> usize {
        let is_there = |place: usize| {
            let kept = self.path[place].kept;
            match sent_at(runs, place) {
                Some(client) => kept || self.sent[client].content == self.known[place].content,
                None => kept && is_dropped(runs, place),
            }
        };
        let observed = observed(&self.path[..reach]);
        (observed..reach)
            .find(|place| !is_there(*place))
            .unwrap_or(reach)
    }
}

/// The message of the request that stands at `place` of the path.
fn sent_at(runs: &[Run], place: usize) -> Option<usize> {
    let mut runs = runs.iter();
    let run = runs.find(|run| (run.path..run.path + run.len).contains(&place))?;
    Some(run.client + (place - run.path))
}

/// Whether the client has put less in the place of a gap than it left out: else it said the same in
/// other words, and the last words count.
fn is_dropped(runs: &[Run], place: usize) -> bool {
    let before = runs.iter().rfind(|run| run.path + run.len <= place);
    let Some(behind) = runs.iter().find(|run| run.path > place) else {
        return false;
    };
    let (client, path) = before.map_or((0, 0), |run| (run.client + run.len, run.path + run.len));
    behind.client - client < behind.path - path
}

/// The first message behind what is observed that is no longer what it was: a result that was pruned
/// before anybody was shown it, a call that was repaired. From there on the chain says what the client
/// says now: a range must not count as observed without its words (INV-COVER).
pub(super) fn first_changed(view: &View, known: &[Item], sent: &[Item]) -> usize {
    let (client, open) = view.open();
    (open..known.len())
        .find(|place| {
            let sent = sent.get(client + (place - open));
            sent.is_none_or(|sent| sent.content != known[*place].content)
        })
        .unwrap_or(known.len())
}

/// From where on the client sends `path` itself behind `place`: what it kept was not summarised, and
/// would be told twice. The longest beginning of it counts, since it may have gone back since; of several
/// the last. What it changed among what it kept is not told either.
pub(super) fn kept_from(client: &History, place: usize, path: &[Step]) -> Option<usize> {
    let Sides { known, sent, .. } = Sides::of(client, path)?;
    let behind = alike(&known, &sent[place..]);
    let changed = behind
        .first()
        .map(|run| run.path.saturating_sub(run.client));
    let kept = |from: usize| {
        let both = known[from..].iter().zip(&sent[place..]);
        both.take_while(|(known, sent)| known.content == sent.content)
            .count()
    };
    let longest = (0..known.len()).max_by_key(|from| kept(*from));
    let from = longest.filter(|from| kept(*from) > 0);
    Some(from.or(changed).unwrap_or(known.len()))
}

/// Where on `path` stands what the client sends before the last of its first `place` messages: what is told
/// of is not sent as well.
pub(super) fn in_front(client: &History, place: usize, path: &[Step]) -> Option<Vec<Run>> {
    let Some(before) = place.checked_sub(1) else {
        return Some(Vec::new());
    };
    let Sides { known, sent, .. } = Sides::of(client, path)?;
    Some(alike(&known, &sent[..before]))
}
