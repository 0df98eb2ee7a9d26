//! Decides what the client left out of a path, and whether it took that back.
//!
//! A client that drops its oldest messages or whole tool rounds saves room: memory of them is still
//! sent. A client that rewrites or removes a message and keeps what follows takes it back: memory of
//! that message is no longer sent. Only the shape distinguishes the two, because nothing but keys is
//! known of the messages. If the gap is so small that it may be either, memory of it is withheld until
//! more is dropped.

use std::collections::HashSet;
use std::ops::Range;

use super::matcher::{Matcher, Run};
use crate::history::{MessageKey, Role, ScopedHash};

/// A gap of at least this many messages was dropped to save room. A question with its answer may have
/// been taken back.
pub const MIN_DROPPED: usize = 3;

/// A notice stands for at least this many messages more than it has itself.
pub const NOTICE_MARGIN: usize = 2;

/// How many first messages a client keeps that drops from the middle: its task and an answer.
const MAX_KEPT_IN_FRONT: usize = 2;

impl Matcher<'_> {
    /// The first place on the path, before the end of `runs`, whose text the request holds nowhere.
    pub(super) fn first_missing(&self, runs: &[Run]) -> usize {
        let end = runs.last().map_or(0, Run::path_end);
        let sent = self.sent_contents();
        let is_sent = |place: &usize| sent.contains(&self.path.items[*place].content);
        (0..end).find(|place| !is_sent(place)).unwrap_or(end)
    }

    /// What the client did with the messages of the path before the end of `runs`.
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
        // A message that stands elsewhere in the request was moved.
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
            // A notice stands for more messages than it has itself.
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

/// What a client did with messages that it no longer sends: the first place of each kind on the path,
/// or the end.
pub(super) struct Changes {
    pub(super) rewritten: usize,
    pub(super) doubtful: usize,
}

/// What a client did in one gap.
enum Change {
    /// Nothing is missing, or it was dropped to save room.
    None,
    /// It was dropped or taken back.
    Doubtful(usize),
    /// It was taken back, or rewritten.
    Rewritten(usize),
}

/// The messages between two runs: on the path, and in the request.
struct Gap {
    path: Range<usize>,
    client: Range<usize>,
}

/// Whether a message belongs to a tool round.
fn is_tool_message(item: &MessageKey) -> bool {
    item.role == Role::Tool || item.ids.is_some()
}
