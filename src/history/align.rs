//! Alignment: where a request that continues no known chain stands on a path that is known.
//!
//! Clients drop their oldest messages, replace old tool results, move what they insert, or put a
//! clock into their first message. Then the chain is another one, and still it is the same
//! conversation, if the request holds a run of it that cannot be chance. What is not proven is
//! `None`: the request goes out as a conversation of its own. Pure, and about linear in both.
//! Called on the request path by `store::recall`.

use std::collections::HashMap;

use super::item::{Item, LONG, TELLING};
use super::{Mark, Role};

/// Messages of a request that stand on a path without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first one in the request.
    pub client: usize,
    /// Index of the first one on the path.
    pub path: usize,
    /// How many.
    pub len: usize,
}

impl Run {
    fn client_end(&self) -> usize {
        self.client + self.len
    }

    fn path_end(&self) -> usize {
        self.path + self.len
    }
}

/// Where `client` stands on `path`: runs in order, the last of them proven. `None` where nothing is.
///
/// Between and in front of runs the request may hold messages that the path does not know, and the
/// path messages that the request no longer holds. What follows the last run in the request is new.
pub fn align(path: &[Item], client: &[Item]) -> Option<Vec<Run>> {
    let sides = Sides {
        path: Side::of(path),
        client: Side::of(client),
    };
    let mut runs = sides.runs();
    while let Some(last) = runs.last() {
        if sides.proves(last) {
            return Some(runs);
        }
        runs.pop();
    }
    None
}

/// One of the two, and where its messages stand.
struct Side<'a> {
    items: &'a [Item],
    /// Where a content or an id stands; `None` where it stands more than once.
    contents: HashMap<Mark, Option<usize>>,
    ids: HashMap<Mark, Option<usize>>,
}

impl<'a> Side<'a> {
    fn of(items: &'a [Item]) -> Self {
        let mut side = Self {
            items,
            contents: HashMap::with_capacity(items.len()),
            ids: HashMap::new(),
        };
        for (at, item) in items.iter().enumerate() {
            note(&mut side.contents, item.content, at);
            if let Some(ids) = item.ids {
                note(&mut side.ids, ids, at);
            }
        }
        side
    }

    fn only_content(&self, item: &Item) -> Option<usize> {
        self.contents.get(&item.content).copied().flatten()
    }

    fn only_ids(&self, item: &Item) -> Option<usize> {
        self.ids.get(&item.ids?).copied().flatten()
    }
}

fn note(places: &mut HashMap<Mark, Option<usize>>, mark: Mark, at: usize) {
    places
        .entry(mark)
        .and_modify(|place| *place = None)
        .or_insert(Some(at));
}

struct Sides<'a> {
    path: Side<'a>,
    client: Side<'a>,
}

impl Sides<'_> {
    /// Whether the two messages are one. The ids of tool calls are the best there is: a result that
    /// came back shorter, or as a placeholder, is the same result; a call that was repaired the
    /// same call. But only where an id stands once: some servers number their calls anew each time.
    fn same(&self, path: usize, client: usize) -> bool {
        let (known, sent) = (&self.path.items[path], &self.client.items[client]);
        known.content == sent.content || self.same_ids(known, sent)
    }

    fn same_ids(&self, known: &Item, sent: &Item) -> bool {
        known.ids.is_some()
            && known.ids == sent.ids
            && known.role == sent.role
            && (known.role != Role::Tool || sent.weight <= known.weight)
            && self.path.only_ids(known).is_some()
            && self.client.only_ids(sent).is_some()
    }

    /// All that agrees in order: messages that stand once on each side, as far as they do not cross,
    /// and whatever agrees next to them.
    fn runs(&self) -> Vec<Run> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (client, item) in self.client.items.iter().enumerate() {
            let by_ids = self
                .client
                .only_ids(item)
                .and_then(|_| self.path.only_ids(item));
            let by_content = || {
                self.client
                    .only_content(item)
                    .and_then(|_| self.path.only_content(item))
            };
            if let Some(path) = by_ids.or_else(by_content)
                && self.same(path, client)
            {
                pairs.push((client, path));
            }
        }
        self.extended(&ascending(&pairs))
    }

    /// Runs around `seeds`, each grown as far as its neighbours agree.
    fn extended(&self, seeds: &[(usize, usize)]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        // The common beginning needs no seed: it may repeat itself.
        let (mut client, mut path) = (0, 0);
        while path < self.path.items.len()
            && client < self.client.items.len()
            && self.same(path, client)
        {
            client += 1;
            path += 1;
        }
        if client > 0 {
            runs.push(Run {
                client: 0,
                path: 0,
                len: client,
            });
        }
        for (at_client, at_path) in seeds.iter().copied() {
            if at_client < client || at_path < path {
                continue;
            }
            let mut run = Run {
                client: at_client,
                path: at_path,
                len: 1,
            };
            while run.client > client && run.path > path && self.same(run.path - 1, run.client - 1)
            {
                run.client -= 1;
                run.path -= 1;
                run.len += 1;
            }
            while run.path_end() < self.path.items.len()
                && run.client_end() < self.client.items.len()
                && self.same(run.path_end(), run.client_end())
            {
                run.len += 1;
            }
            (client, path) = (run.client_end(), run.path_end());
            runs.push(run);
        }
        runs
    }

    /// Whether `run` cannot be chance: three messages that tell something, the model's among them,
    /// or two where an id or a long answer is among them; and the path holds it once.
    fn proves(&self, run: &Run) -> bool {
        let (mut counting, mut telling, mut strong) = (0, 0, 0);
        for at in 0..run.len {
            let known = &self.path.items[run.path + at];
            let sent = &self.client.items[run.client + at];
            let ids = known.has_own_ids()
                && known.ids == sent.ids
                && self.path.only_ids(known).is_some()
                && self.client.only_ids(sent).is_some();
            let said = known.ids.is_none() && sent.ids.is_none() && known.weight >= TELLING;
            let answer = said && known.role == Role::Assistant;
            counting += usize::from(ids || said);
            telling += usize::from(ids || answer);
            strong += usize::from(ids || (answer && known.weight >= LONG));
        }
        ((counting >= 3 && telling >= 1) || (run.len >= 2 && counting >= 2 && strong >= 1))
            && self.once(run)
    }

    /// Whether the path says what `run` says only there.
    fn once(&self, run: &Run) -> bool {
        let range = run.path..run.path_end();
        if self.path.items[range.clone()].iter().any(|item| {
            self.path.only_content(item).is_some() || self.path.only_ids(item).is_some()
        }) {
            return true;
        }
        let said: Vec<Mark> = self.path.items[range].iter().map(|i| i.content).collect();
        let found = self
            .path
            .items
            .windows(run.len)
            .filter(|window| window.iter().map(|i| i.content).eq(said.iter().copied()))
            .take(2)
            .count();
        found == 1
    }
}

/// The most of `pairs` (ordered by the first) that also ascend by the second.
fn ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // Patience: `ends[n]` is the pair with the smallest second that n + 1 ascending pairs end with.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, (_, second)) in pairs.iter().enumerate() {
        let place = ends.partition_point(|end| pairs[*end].1 < *second);
        before.push(place.checked_sub(1).map(|place| ends[place]));
        if place == ends.len() {
            ends.push(index);
        } else {
            ends[place] = index;
        }
    }
    let mut chosen = Vec::with_capacity(ends.len());
    let mut at = ends.last().copied();
    while let Some(index) = at {
        chosen.push(pairs[index]);
        at = before[index];
    }
    chosen.reverse();
    chosen
}

#[cfg(test)]
mod tests;
