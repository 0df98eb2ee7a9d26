//! What is known that a request may stand on: paths, views, answers. Gathered by `store`, from its tables
//! or from what one process remembers of them; decides nothing but whose it is.

use crate::history::{History, Item, Link, Mark, Stand, View};

/// A message of a path that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its link and who speaks.
    pub stand: Stand,
    /// The link before it.
    pub parent: Link,
    /// What it is known by; `None` where it was recorded before there was such a thing.
    pub item: Option<Item>,
    /// What it is found by.
    pub anchor: Option<Mark>,
    /// Whether a range that is observed, or waits for it with its words, ends here.
    pub taken: bool,
    /// Whether it was said while somebody watched; what a first request brings along was not, but for
    /// its newest message.
    pub live: bool,
    /// Whether its words are kept: it can be observed though nobody sends it any more.
    pub kept: bool,
    /// The lineage that recorded it.
    pub lineage: i64,
}

/// A request that was a view of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredView {
    /// How many messages the client sent.
    pub count: usize,
    /// The last link of the chain.
    pub base: Link,
    /// Which message stands where.
    pub view: View,
}

/// What is known that a request may stand on. Paths begin with their first message.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// How many of the request's messages are recorded as they are.
    pub depth: usize,
    /// The lineage that recorded the last of those.
    pub own: Option<i64>,
    /// The longest beginning of the request that is a view, and the chain it is a view of.
    pub view: Option<(StoredView, Vec<Step>)>,
    /// The path up to the latest message of the request that is known anywhere.
    pub path: Vec<Step>,
    /// How many messages of the request an answer of the model stands in, and the chain it answered.
    pub answered: Option<(usize, Vec<Step>)>,
}

impl Evidence {
    /// Whether `client` goes on from what was recorded of another conversation than `path` is of. What
    /// that one was told in the same words, as a model greets and asks everybody, is no reason to
    /// leave it.
    pub(super) fn belongs_elsewhere(&self, client: &History) -> bool {
        let Some(end) = self.path.last() else {
            return false;
        };
        let elsewhere = |lineage: i64, tip: Option<Link>| {
            lineage != end.lineage && self.path.iter().all(|step| Some(step.stand.link) != tip)
        };
        let depth = self.depth.checked_sub(1);
        let own = depth.and_then(|last| client.turns().get(last));
        let viewed = self.view.as_ref().and_then(|(_, base)| base.last());
        let leaves_own = self
            .own
            .is_some_and(|lineage| elsewhere(lineage, own.map(|turn| turn.link)));
        let leaves_view = viewed.is_some_and(|step| elsewhere(step.lineage, Some(step.stand.link)));
        leaves_own || leaves_view
    }
}
