//! Compares the messages that a client keeps in front of its summary with the conversation that it summarises: whether its
//! user took something back.
//!
//! Only keys are known of the messages, so the shape decides, by the same numbers as in `history::align`. It does not
//! judge whose the summary is. Called by [`super::client_summary`].

use std::collections::HashSet;
use std::ops::Range;

use super::known_chains::{PathEntry, SummaryCandidate, SummaryStart};
use super::path_comparison::runs_before;
use crate::history::align::{MIN_DROPPED, NOTICE_MARGIN, Run};
use crate::history::{History, Role, ScopedHash};

/// The messages that the client keeps in front of its summary, compared with the conversation that it summarises.
pub(super) struct KeptMessages<'a> {
    client: &'a History,
    /// The index of the summary in the request.
    summary_index: usize,
    /// The start of the summary: an earlier one with the same start is no text of the user.
    start: Option<SummaryStart>,
    path: &'a [PathEntry],
    /// What request and path have in common in front of the summary.
    runs: Vec<Run>,
    /// The contents of all messages of the request.
    sent: HashSet<ScopedHash>,
    /// The contents of all messages of the path.
    known: HashSet<ScopedHash>,
}

impl<'a> KeptMessages<'a> {
    pub(super) fn new(
        client: &'a History,
        summary: &SummaryCandidate,
        path: &'a [PathEntry],
    ) -> Option<Self> {
        let sent = (0..client.len()).map(|at| client.message_key(at).content);
        let known = path.iter().filter_map(|step| step.message_key);
        Some(Self {
            client,
            summary_index: summary.count.saturating_sub(1),
            start: summary.start,
            path,
            runs: runs_before(client, summary.count, path)?,
            sent: sent.collect(),
            known: known.map(|key| key.content).collect(),
        })
    }

    /// Whether the user took something back: the client changed or removed a message of its user, although it keeps
    /// such messages. If it keeps none, the summary stands for all of them.
    ///
    /// Some clients keep the newest messages of their user, some the first messages of the conversation. So what is
    /// missing in front of all that is kept was left out to save room, if it is enough; and so was what is missing
    /// behind it, if all messages up to there are kept.
    pub(super) fn lack_user_text(&self) -> bool {
        let (Some(first), Some(last)) = (self.runs.first(), self.runs.last()) else {
            return false;
        };
        if !self.keep_user_text() {
            return false;
        }
        let (front, back) = (0..first.path, last.path_end()..self.path.len());
        let keeps_beginning = self.runs.len() == 1 && first.path == 0;
        let taken_back_in_front = {
            let lost = self.lost_user_text(front.clone());
            lost > 0 && is_edit(lost, self.new_user_text(0..first.client))
        };
        let mut between = self
            .runs
            .windows(2)
            .map(|pair| pair[0].path_end()..pair[1].path);
        let taken_back_behind = match self.lost_user_text(back.clone()) {
            0 => false,
            _ if keeps_beginning => {
                let lost = back.filter(|place| !self.is_sent(*place)).count();
                is_edit(
                    lost,
                    self.new_user_text(last.client_end()..self.summary_index),
                )
            }
            _ => true,
        };
        taken_back_in_front || between.any(|gap| self.lost_user_text(gap) > 0) || taken_back_behind
    }

    fn keep_user_text(&self) -> bool {
        let places = self.runs.iter().flat_map(|run| run.path..run.path_end());
        places
            .map(|place| self.path[place].message.role)
            .any(|role| role == Role::User)
    }

    /// How many messages of the client's user in this part of the request the path does not hold.
    fn new_user_text(&self, client: Range<usize>) -> usize {
        let is_new = |at: &usize| {
            let key = self.client.message_key(*at);
            let is_users = self.client.messages()[*at].message.role == Role::User;
            is_users && !self.known.contains(&key.content)
        };
        client.filter(is_new).count()
    }

    fn is_sent(&self, place: usize) -> bool {
        let key = self.path[place].message_key;
        key.is_some_and(|key| self.sent.contains(&key.content))
    }

    /// How many messages of the user in this part of the path the request does not hold.
    fn lost_user_text(&self, path: Range<usize>) -> usize {
        let is_users = |place: &usize| {
            let step = &self.path[*place];
            let is_summary = step.summary_start.is_some() && step.summary_start == self.start;
            step.message.role == Role::User && !is_summary
        };
        path.filter(is_users)
            .filter(|place| !self.is_sent(*place))
            .count()
    }
}

/// Whether a client that `lost` so many messages at one place, and has so many of its own there, may have changed or
/// removed one of them.
fn is_edit(lost: usize, new: usize) -> bool {
    lost < MIN_DROPPED || (new > 0 && lost < new + NOTICE_MARGIN)
}
