//! What of a path the client left out, and whether it took it back.
//!
//! A client that drops its oldest messages, or whole rounds of tools, saves room: what it dropped is
//! told all the same. A client that rewrites a message, or takes one out, and keeps what follows takes
//! it back: what only that message said is not told any more. The two are told apart by their shape
//! alone, since nothing but marks is known of the words. Where so little was dropped that it may be
//! either, nothing of it is told until more is dropped.

use std::collections::HashSet;
use std::ops::Range;

use super::matcher::{Matcher, Run};
use crate::history::{MessageKey, Role, ScopedHash};

/// From so many messages on, what is gone was dropped to save room. A question and its answer may as well
/// have been taken back.
const MIN_DROPPED: usize = 3;

/// So many messages more than it consists of a notice stands for at least.
const NOTICE_MARGIN: usize = 2;

/// How many of the first messages a client keeps that drops from the middle: its task, and an answer.
const MAX_KEPT_IN_FRONT: usize = 2;

impl Matcher<'_> {
    /// The first place on the path, up to the end of `runs`, whose words the request does not hold at
    /// any place.
    pub(super) fn first_missing(&self, runs: &[Run]) -> usize {
        let end = runs.last().map_or(0, Run::path_end);
        let sent = self.sent_contents();
        let is_sent = |place: &usize| sent.contains(&self.path.items[*place].content);
        (0..end).find(|place| !is_sent(place)).unwrap_or(end)
    }

    /// What the client did with what stands before the end of `runs`.
    pub(super) fn changes(
        &self,
        runs: &[Run],
        is_client_summary: impl Fn(usize) -> bool,
    ) -> Changes {
        let end = runs.last().map_or(0, Run::path_end);
        let sent = self.sent_contents();
        let mut changes = Changes {
            rewritten: end,
            doubtful: end,
        };
        let (mut client, mut path) = (0, 0);
        for run in runs {
            let gap = Gap {
                path: path..run.path,
                client: client..run.client,
            };
            match self.change(&gap, &sent, &is_client_summary) {
                Change::None => {}
                Change::Doubtful(place) => changes.doubtful = changes.doubtful.min(place),
                Change::Rewritten(place) => {
                    changes.rewritten = place;
                    break;
                }
            }
            (client, path) = (run.client_end(), run.path_end());
        }
        changes
    }

    fn sent_contents(&self) -> HashSet<ScopedHash> {
        self.client.items.iter().map(|item| item.content).collect()
    }

    /// What the client did with the messages of `gap`.
    fn change(
        &self,
        gap: &Gap,
        sent: &HashSet<ScopedHash>,
        is_client_summary: impl Fn(usize) -> bool,
    ) -> Change {
        let items = self.path.items;
        // What stands elsewhere in the request was moved.
        let lost = || {
            let gap = gap.path.clone();
            gap.filter(|place| !sent.contains(&items[*place].content))
        };
        let Some(first) = lost().next() else {
            return Change::None;
        };
        let unknown = gap.client.clone();
        let unknown = unknown
            .filter(|at| self.is_unknown(*at) && !is_client_summary(*at))
            .count();
        let lost_count = lost().count();
        if unknown > 0 {
            // A notice stands for what was dropped, which is more than it.
            let is_at_start = gap.path.start == 0 && gap.client.start == 0;
            return if is_at_start && lost_count >= unknown + NOTICE_MARGIN {
                Change::None
            } else {
                Change::Rewritten(first)
            };
        }
        if lost().all(|place| is_tool_message(&items[place])) {
            return Change::None;
        }
        let is_after_kept =
            gap.path.start == gap.client.start && gap.path.start <= MAX_KEPT_IN_FRONT;
        match (is_after_kept, lost_count >= MIN_DROPPED) {
            (true, true) => Change::None,
            (true, false) => Change::Doubtful(first),
            (false, _) => Change::Rewritten(first),
        }
    }
}

/// What a client did with what it does not send any more: the first place of each on the path, or the end.
pub(super) struct Changes {
    pub(super) rewritten: usize,
    pub(super) doubtful: usize,
}

/// The same of one gap.
enum Change {
    /// Nothing is gone, or it was dropped to save room.
    None,
    /// It was dropped or taken back.
    Doubtful(usize),
    /// It was taken back, or is said in other words.
    Rewritten(usize),
}

/// What stands between two runs: on the path, and in the request.
struct Gap {
    path: Range<usize>,
    client: Range<usize>,
}

/// Whether a message belongs to a round of tools.
fn is_tool_message(item: &MessageKey) -> bool {
    item.role == Role::Tool || item.ids.is_some()
}
