//! A path and a request side by side: which messages are the same, and which runs they form.
//!
//! Knows only the keys of the messages ([`MessageKey`]), no text. Finds runs and counts what speaks against
//! chance; what follows from a run is decided by [`super::align`], [`super::proof`] and [`super::changes`].

use std::collections::{HashMap, HashSet};

use crate::history::message::MIN_DISTINCTIVE_BYTES;
use crate::history::message_key::{LONG_ANSWER_BYTES, MessageKey};
use crate::history::{Role, ScopedHash};

/// Consecutive messages of a request that stand on a path without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The index of the first message in the request.
    pub client: usize,
    /// The index of the first message on the path.
    pub path: usize,
    /// The number of messages.
    pub len: usize,
}

impl Run {
    pub(crate) fn client_end(&self) -> usize {
        self.client + self.len
    }

    pub(crate) fn path_end(&self) -> usize {
        self.path + self.len
    }

    /// Its messages: place on the path, index in the request.
    pub(super) fn pairs(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let (path, client) = (self.path, self.client);
        (0..self.len).map(move |at| (path + at, client + at))
    }

    /// Whether both request and path begin with it.
    pub(super) fn is_at_start(&self) -> bool {
        self.client == 0 && self.path == 0
    }
}

/// The messages of a run that are evidence, which short words are not. Repeated messages count once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MatchEvidence {
    /// Messages of any author, and tool rounds by their own ids.
    distinctive: usize,
    /// Those by the model.
    by_model: usize,
    /// Those by the model that are long, and tool rounds.
    strong: usize,
    /// Those that stand once on each side.
    unique: usize,
}

impl MatchEvidence {
    /// Whether a request cannot hold this by chance: three messages, one of them by the model; or
    /// two, with an id or a long answer among them.
    pub(super) fn is_conclusive(&self) -> bool {
        let enough = (self.distinctive >= 3 && self.by_model >= 1)
            || (self.distinctive >= 2 && self.strong >= 1);
        enough && self.unique >= 1
    }
}

/// The messages of one side and where they stand.
pub(super) struct MessageIndex<'a> {
    pub(super) items: &'a [MessageKey],
    /// Where a content or id stands; `None` if it stands more than once.
    pub(super) contents: HashMap<ScopedHash, Option<usize>>,
    ids: HashMap<ScopedHash, Option<usize>>,
}

impl<'a> MessageIndex<'a> {
    fn new(items: &'a [MessageKey]) -> Self {
        let mut side = Self {
            items,
            contents: HashMap::with_capacity(items.len()),
            ids: HashMap::new(),
        };
        for (at, item) in items.iter().enumerate() {
            record_position(&mut side.contents, item.content, at);
            if let Some(ids) = item.ids {
                record_position(&mut side.ids, ids, at);
            }
        }
        side
    }

    pub(super) fn unique_content_position(&self, item: &MessageKey) -> Option<usize> {
        self.contents.get(&item.content).copied().flatten()
    }

    pub(super) fn unique_ids_position(&self, item: &MessageKey) -> Option<usize> {
        self.ids.get(&item.ids?).copied().flatten()
    }
}

fn record_position(
    positions: &mut HashMap<ScopedHash, Option<usize>>,
    mark: ScopedHash,
    at: usize,
) {
    positions
        .entry(mark)
        .and_modify(|place| *place = None)
        .or_insert(Some(at));
}

/// A path and a request, prepared for comparison.
pub(super) struct Matcher<'a> {
    pub(super) path: MessageIndex<'a>,
    pub(super) client: MessageIndex<'a>,
    /// Which messages of the path no other conversation holds.
    unshared: Vec<bool>,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(
        path: &'a [MessageKey],
        client: &'a [MessageKey],
        is_unshared: impl Fn(usize) -> bool,
    ) -> Self {
        Self {
            path: MessageIndex::new(path),
            client: MessageIndex::new(client),
            unshared: (0..path.len()).map(is_unshared).collect(),
        }
    }

    /// Whether `run` is more than short words.
    pub(super) fn has_evidence(&self, run: Run) -> bool {
        self.evidence(run).distinctive > 0
    }

    /// Whether the two messages are the same. Tool call ids are the best evidence: a result that
    /// came back shorter or as a placeholder is the same result, and a repaired call is the same
    /// call if its id was drawn at random. But the id must stand once and in no other conversation: some servers number their
    /// calls from the start, and a cache gives everybody the same ids.
    pub(super) fn is_same_message(&self, path: usize, client: usize) -> bool {
        let (path_item, client_item) = (&self.path.items[path], &self.client.items[client]);
        path_item.content == client_item.content
            || (self.unshared[path] && self.has_same_ids(path_item, client_item))
    }

    fn has_same_ids(&self, path_item: &MessageKey, client_item: &MessageKey) -> bool {
        path_item.ids.is_some()
            && path_item.ids == client_item.ids
            && path_item.role == client_item.role
            && match path_item.role {
                Role::Tool => client_item.distinctive_bytes <= path_item.distinctive_bytes,
                _ => path_item.has_random_ids(),
            }
            && self.path.unique_ids_position(path_item).is_some()
            && self.client.unique_ids_position(client_item).is_some()
    }

    /// All runs in order. Their seeds are messages that stand once on each side and do not cross;
    /// equal neighbours join them.
    pub(super) fn find_runs(&self) -> Vec<Run> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (client, item) in self.client.items.iter().enumerate() {
            let by_ids = self
                .client
                .unique_ids_position(item)
                .and_then(|_| self.path.unique_ids_position(item));
            let by_content = || {
                self.client
                    .unique_content_position(item)
                    .and_then(|_| self.path.unique_content_position(item))
            };
            if let Some(path) = by_ids.or_else(by_content)
                && self.is_same_message(path, client)
            {
                pairs.push((client, path));
            }
        }
        self.extend_seeds(&longest_ascending(&pairs))
    }

    /// Runs around `seeds`, each extended while the neighbours are equal.
    fn extend_seeds(&self, seeds: &[(usize, usize)]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        // The common beginning needs no seed, because it may repeat itself.
        let (mut client, mut path) = (0, 0);
        while path < self.path.items.len()
            && client < self.client.items.len()
            && self.is_same_message(path, client)
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
            while run.client > client
                && run.path > path
                && self.is_same_message(run.path - 1, run.client - 1)
            {
                run.client -= 1;
                run.path -= 1;
                run.len += 1;
            }
            while run.path_end() < self.path.items.len()
                && run.client_end() < self.client.items.len()
                && self.is_same_message(run.path_end(), run.client_end())
            {
                run.len += 1;
            }
            (client, path) = (run.client_end(), run.path_end());
            runs.push(run);
        }
        runs
    }

    /// The evidence in `run`.
    pub(super) fn evidence(&self, run: Run) -> MatchEvidence {
        let (mut evidence, mut counted) = (MatchEvidence::default(), HashSet::new());
        for (path, client) in run.pairs() {
            let (path_item, client_item) = (&self.path.items[path], &self.client.items[client]);
            let by_ids = self.has_same_random_ids(path_item, client_item);
            let by_content = path_item.ids.is_none()
                && client_item.ids.is_none()
                && path_item.distinctive_bytes >= MIN_DISTINCTIVE_BYTES
                && counted.insert(path_item.content);
            let model_text = by_content && path_item.role == Role::Assistant;
            evidence.distinctive += usize::from(by_ids || by_content);
            evidence.by_model += usize::from(by_ids || model_text);
            evidence.strong += usize::from(
                by_ids || (model_text && path_item.distinctive_bytes >= LONG_ANSWER_BYTES),
            );
            evidence.unique += usize::from(
                by_ids || (by_content && self.is_unique_on_both(path_item, client_item)),
            );
        }
        evidence
    }

    /// Whether both have the randomly drawn ids of one tool call, and no other message on either
    /// side has them.
    pub(super) fn has_same_random_ids(
        &self,
        path_item: &MessageKey,
        client_item: &MessageKey,
    ) -> bool {
        path_item.has_random_ids()
            && path_item.ids == client_item.ids
            && self.path.unique_ids_position(path_item).is_some()
            && self.client.unique_ids_position(client_item).is_some()
    }

    pub(super) fn is_unique_on_both(
        &self,
        path_item: &MessageKey,
        client_item: &MessageKey,
    ) -> bool {
        self.path.unique_content_position(path_item).is_some()
            && self.client.unique_content_position(client_item).is_some()
    }
}

/// The largest subset of `pairs` (ordered by the first number) whose second numbers ascend too.
fn longest_ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // Patience sorting: `ends[n]` is the pair with the smallest second number that ends n + 1
    // ascending pairs.
    let mut ends: Vec<usize> = Vec::new();
    let mut predecessors: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (index, (_, second)) in pairs.iter().enumerate() {
        let place = ends.partition_point(|end| pairs[*end].1 < *second);
        predecessors.push(place.checked_sub(1).map(|place| ends[place]));
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
        at = predecessors[index];
    }
    chosen.reverse();
    chosen
}
