//! Alignment: where a request that continues no known chain stands on a path that is known.
//!
//! Clients drop their oldest messages, replace old tool results, move what they insert, or put a
//! clock into their first message. Then the chain is another one. [`align`] finds the runs of messages
//! that both hold, says whether they prove that it is the same conversation ([`proof`]), and what the
//! client left out or changed ([`changed`]). What may be chance is `None`: the request goes out as a
//! conversation of its own. Pure, and about linear in both. Called on the request path through
//! `memory::place`.

use std::collections::{HashMap, HashSet};

mod changed;
mod proof;

use super::item::{Item, LONG, TELLING};
use super::{Mark, Role};

use self::changed::Changes;
pub use self::proof::Standing;

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

    /// Its messages: place on the path, index in the request.
    fn pairs(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let (path, client) = (self.path, self.client);
        (0..self.len).map(move |at| (path + at, client + at))
    }

    /// Whether request and path begin alike with it.
    fn begins(&self) -> bool {
        self.client == 0 && self.path == 0
    }
}

/// Where a request stands on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aligned {
    /// Runs in order. The messages of the last one cannot agree by chance.
    pub runs: Vec<Run>,
    /// The places on the path that prove that this is the same conversation. Empty where nothing
    /// proves it: then another conversation may say the same, and may be told nothing that its own
    /// request does not hold.
    pub proof: Vec<usize>,
    /// The first place on the path whose words the request does not hold; the end of the runs where
    /// it holds all of them.
    pub missing: usize,
    /// The first place on the path that the client rewrote, or took out, while it kept what follows;
    /// the end of the runs where there is none.
    pub rewritten: usize,
    /// The first place on the path of so few messages that the client may have dropped them to save room,
    /// or taken them back; the end of the runs where there is none.
    pub doubtful: usize,
}

/// What is known of a path and a request beside what they say.
#[derive(Clone, Copy, Debug)]
pub struct Told<S, P> {
    /// What is known of the message at a place of the path.
    pub standing: S,
    /// Whether both carry the same name, and it names one conversation.
    pub same_name: bool,
    /// Whether the client itself puts the message at an index of the request in front of what it keeps:
    /// its summary.
    pub puts_there: P,
}

/// Where `client` stands on `path`; `None` where the agreement may be chance.
///
/// Between and in front of runs the request may hold messages that the path does not know, and the
/// path messages that the request no longer holds. What follows the last run in the request is new.
pub fn align<S, P>(path: &[Item], told: &Told<S, P>, client: &[Item]) -> Option<Aligned>
where
    S: Fn(usize) -> Standing,
    P: Fn(usize) -> bool,
{
    let sides = Sides::of(path, client, |place| (told.standing)(place).alone);
    let mut runs = sides.runs();
    runs.retain(|run| run.begins() || sides.counts(*run));
    while let Some(last) = runs.last() {
        let proof = sides.proof(&runs, told);
        if sides.evidence(*last).proves() || !proof.is_empty() {
            let missing = sides.missing(&runs);
            let Changes {
                rewritten,
                doubtful,
            } = sides.changes(&runs, &told.puts_there);
            return Some(Aligned {
                runs,
                proof,
                missing,
                rewritten,
                doubtful,
            });
        }
        runs.pop();
    }
    None
}

/// What `client` says again of `path`, in order, whatever that proves; without short words.
pub fn alike(path: &[Item], client: &[Item]) -> Vec<Run> {
    let sides = Sides::of(path, client, |_| false);
    let mut runs = sides.runs();
    runs.retain(|run| sides.counts(*run));
    runs
}

/// What in a run tells something, and is no short word. What is said again and again counts once.
#[derive(Clone, Copy, Debug, Default)]
struct Agreement {
    /// Messages of anybody, and rounds of tools by their own ids.
    counting: usize,
    /// Those of the model.
    telling: usize,
    /// Those of the model that are long, and rounds of tools.
    strong: usize,
    /// Those that stand once on each side.
    once: usize,
}

impl Agreement {
    /// Whether it cannot be chance that a request holds this: three messages, the model's among them,
    /// or two where an id or a long answer is among them.
    fn proves(&self) -> bool {
        let enough =
            (self.counting >= 3 && self.telling >= 1) || (self.counting >= 2 && self.strong >= 1);
        enough && self.once >= 1
    }
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
    /// Which messages of the path no other conversation holds.
    alone: Vec<bool>,
}

impl<'a> Sides<'a> {
    fn of(path: &'a [Item], client: &'a [Item], alone: impl Fn(usize) -> bool) -> Self {
        Self {
            path: Side::of(path),
            client: Side::of(client),
            alone: (0..path.len()).map(alone).collect(),
        }
    }

    /// Whether `run` is more than short words.
    fn counts(&self, run: Run) -> bool {
        self.evidence(run).counting > 0
    }

    /// Whether the two messages are one. The ids of tool calls are the best there is: a result that
    /// came back shorter, or as a placeholder, is the same result; a call that was repaired the
    /// same call. But only where an id stands once, and in no other conversation: some servers number
    /// their calls anew each time, and a cache gives everybody the same.
    fn same(&self, path: usize, client: usize) -> bool {
        let (known, sent) = (&self.path.items[path], &self.client.items[client]);
        known.content == sent.content || (self.alone[path] && self.same_ids(known, sent))
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

    /// What tells something in `run`.
    fn evidence(&self, run: Run) -> Agreement {
        let (mut evidence, mut heard) = (Agreement::default(), HashSet::new());
        for (path, client) in run.pairs() {
            let (known, sent) = (&self.path.items[path], &self.client.items[client]);
            let ids = self.has_same_own_ids(known, sent);
            let said = known.ids.is_none()
                && sent.ids.is_none()
                && known.weight >= TELLING
                && heard.insert(known.content);
            let answer = said && known.role == Role::Assistant;
            evidence.counting += usize::from(ids || said);
            evidence.telling += usize::from(ids || answer);
            evidence.strong += usize::from(ids || (answer && known.weight >= LONG));
            evidence.once += usize::from(ids || (said && self.is_once(known, sent)));
        }
        evidence
    }

    /// Whether both bear the ids of one tool call that was drawn at random, and nothing else does.
    fn has_same_own_ids(&self, known: &Item, sent: &Item) -> bool {
        known.has_own_ids()
            && known.ids == sent.ids
            && self.path.only_ids(known).is_some()
            && self.client.only_ids(sent).is_some()
    }

    fn is_once(&self, known: &Item, sent: &Item) -> bool {
        self.path.only_content(known).is_some() && self.client.only_content(sent).is_some()
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
