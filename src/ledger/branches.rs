//! Which earlier request of a conversation a request goes on with.
//!
//! The lines of a client's side tasks bear the name of its conversation, and say nothing of what they are. Their sizes tell
//! them apart. Called by [`super::estimate`].

use super::token_range::Range;

/// What the lines before tell about one conversation with one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Conversation {
    /// The newest request of each branch, the branch that was used last in front.
    branches: [Option<Branch>; BRANCHES],
    /// The provider reported a cache hit.
    pub(super) hit: bool,
}

/// A client has a title, tags and the next questions written beside the conversation itself.
const BRANCHES: usize = 4;

/// Where one is so many times as long as the other, they are no requests of the same task: a title is short, however long
/// the conversation is. A new message may be as long as all before it.
const OTHER_TASK: f64 = 10.0;
/// The next turn of a conversation has so many messages more, at most: a call of a tool, its result, and words.
const NEXT_TURN: u64 = 4;
/// A request that is shorter by so little takes the place of the one before it.
const SAME_TASK: f64 = 1.25;

/// Requests that continue each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Branch {
    /// Bytes and messages of the last one, as the client sent it.
    pub(super) bytes: u64,
    pub(super) messages: u64,
    /// Tokens of the last one as it would have been.
    pub(super) prompt: Option<Range>,
    /// Messages were replaced.
    pub(super) replaced: bool,
}

impl Branch {
    /// How many times the longer is as long as the shorter.
    fn ratio_to(&self, bytes: u64) -> f64 {
        self.bytes.max(bytes) as f64 / self.bytes.min(bytes).max(1) as f64
    }
}

impl Conversation {
    /// The branch that a request of so many bytes belongs to: the one of the nearest size, unless that is another task. A
    /// longer one means that the client went back.
    pub(super) fn branch_before(&self, bytes: u64, messages: u64) -> Option<Branch> {
        let branches = self.branches.iter().flatten();
        let by_ratio = branches.map(|branch| (branch.ratio_to(bytes), *branch));
        let nearest = by_ratio.min_by(|(one, _), (other, _)| one.total_cmp(other));
        // Old lines do not say how long they are.
        let is_near = |(ratio, branch): &(f64, Branch)| {
            // Somebody pasted a file into the conversation.
            let more_messages = messages.saturating_sub(branch.messages);
            let is_next_turn = bytes > branch.bytes && (1..=NEXT_TURN).contains(&more_messages);
            *ratio <= OTHER_TASK || is_next_turn || branch.bytes == 0 || bytes == 0
        };
        let nearest = nearest.filter(is_near);
        nearest.map(|(_, branch)| branch)
    }

    /// Puts `branch` in front: in the place of `before`, if it goes on with that, or of the one that was not used for the
    /// longest time. The newest in which messages were replaced is the conversation itself, or else the longest; it stays.
    pub(super) fn set_branch(&mut self, before: Option<Branch>, branch: Branch) {
        let goes_on = |before: &Branch| {
            before.bytes <= branch.bytes || before.ratio_to(branch.bytes) <= SAME_TASK
        };
        let continued = before.filter(goes_on);
        let mut places = self.branches.iter();
        let place = places.position(|it| it.is_none() || (it.is_some() && *it == continued));
        let known = || self.branches.iter().flatten();
        let active = known().find(|branch| branch.replaced);
        let main = active.or_else(|| known().max_by_key(|branch| branch.bytes));
        let oldest = self.branches.iter().rposition(|it| it.as_ref() != main);
        let place = place.or(oldest).unwrap_or(BRANCHES - 1);
        self.branches[place] = Some(branch);
        self.branches[..=place].rotate_right(1);
    }
}
