//! What of a path the client left out, and whether it took it back.
//!
//! A client that drops its oldest messages, or whole rounds of tools, saves room: what it dropped is
//! told all the same. A client that rewrites a message, or takes one out, and keeps what follows takes
//! it back: what only that message said is not told any more. The two are told apart by their shape
//! alone, since nothing but marks is known of the words.

use std::collections::HashSet;
use std::ops::Range;

use super::{Run, Sides};
use crate::history::{Item, Mark, Role};

/// A client that saves room drops at least a question and its answer. One message alone is taken back.
const DROPPED_AT_ONCE: usize = 2;

/// How many of the first messages a client keeps that drops from the middle: its task, and an answer.
const KEPT_IN_FRONT: usize = 2;

impl Sides<'_> {
    /// The first place on the path, up to the end of `runs`, whose words the request does not hold at
    /// any place.
    pub(super) fn missing(&self, runs: &[Run]) -> usize {
        let end = runs.last().map_or(0, Run::path_end);
        let sent = self.sent_contents();
        let held = |place: &usize| sent.contains(&self.path.items[*place].content);
        (0..end).find(|place| !held(place)).unwrap_or(end)
    }

    /// The first place on the path, up to the end of `runs`, that the client rewrote or took out while
    /// it kept what follows.
    pub(super) fn rewritten(&self, runs: &[Run], puts_there: impl Fn(usize) -> bool) -> usize {
        let end = runs.last().map_or(0, Run::path_end);
        let sent = self.sent_contents();
        let (mut client, mut path) = (0, 0);
        for run in runs {
            let gap = Gap {
                path: path..run.path,
                client: client..run.client,
            };
            if let Some(place) = self.taken_back(&gap, &sent, &puts_there) {
                return place;
            }
            (client, path) = (run.client_end(), run.path_end());
        }
        end
    }

    fn sent_contents(&self) -> HashSet<Mark> {
        self.client.items.iter().map(|item| item.content).collect()
    }

    /// The first message of `gap` that the client took back.
    fn taken_back(
        &self,
        gap: &Gap,
        sent: &HashSet<Mark>,
        puts_there: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let items = self.path.items;
        // What stands elsewhere in the request was moved.
        let lost = || {
            let gap = gap.path.clone();
            gap.filter(|place| !sent.contains(&items[*place].content))
        };
        let first = lost().next()?;
        let own = gap.client.clone();
        let own = own
            .filter(|at| self.is_own(*at) && !puts_there(*at))
            .count();
        let count = lost().count();
        let begins = gap.path.start == 0 && gap.client.start == 0;
        let saves_room = if own > 0 {
            // A notice stands for what was dropped, which is more than it.
            begins && count >= own + DROPPED_AT_ONCE
        } else if lost().all(|place| is_of_tools(&items[place])) {
            true
        } else {
            let behind_first =
                gap.path.start == gap.client.start && gap.path.start <= KEPT_IN_FRONT;
            behind_first && count >= DROPPED_AT_ONCE
        };
        (!saves_room).then_some(first)
    }
}

/// What stands between two runs: on the path, and in the request.
struct Gap {
    path: Range<usize>,
    client: Range<usize>,
}

/// Whether a message belongs to a round of tools.
fn is_of_tools(item: &Item) -> bool {
    item.role == Role::Tool || item.ids.is_some()
}
