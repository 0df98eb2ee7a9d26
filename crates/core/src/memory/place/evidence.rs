//! What is known that a request may stand on: paths, views, answers. Gathered by `store`, from its tables
//! or from what one process remembers of them; decides nothing but whose it is.

use std::collections::HashMap;

use super::origin::Origin;
use super::{Held, Sighting};
use crate::history::align::Standing;
use crate::history::{History, Item, Link, Mark, Message, Stand, View};

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
    /// Where what it says was first said. Copies of one message on several chains of a conversation
    /// share it.
    pub origin: Origin,
    /// Whether the upstream gave it as its answer in this conversation, and whether no other one is
    /// known to hold it.
    pub standing: Standing,
    /// The upstream has given it, and no recorded request has brought it back yet.
    pub pending: bool,
}

impl Answered {
    /// Where it belongs: behind the message that asked for it.
    pub fn origin(&self) -> Origin {
        let asked = self.path.last();
        asked.map_or_else(Origin::default, |asked| Origin::of(&asked.stand.link))
    }
}

impl Step {
    /// Whether it says what `message` of the owner's chains that begin at `root` says.
    pub(super) fn says(&self, root: &Link, message: &Message) -> bool {
        let content = Item::of(root, message).content;
        self.item.is_some_and(|item| item.content == content)
    }

    /// What tells whether other conversations hold it: the ids of its tool calls, which are drawn anew
    /// with each answer, or what it says.
    pub fn witness(&self) -> Option<Mark> {
        let item = self.item?;
        Some(item.ids.unwrap_or(item.content))
    }
}

/// Which evidence lets a request be told what it does not hold (`memory.evidence`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvidenceLevel {
    /// None: a request is told only what it holds.
    Strict,
    /// That it carries the name of a conversation, and no other conversation has that name.
    Names,
    /// That, or what it says.
    #[default]
    Content,
}

impl EvidenceLevel {
    /// As it is configured.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Names => "names",
            Self::Content => "content",
        }
    }
}

/// The name that a lineage was recorded under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineageName {
    /// The name, where its client gave one.
    pub key: Option<String>,
    /// Whether it is the only lineage of that name.
    pub only: bool,
}

/// How the name of a request stands to that of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Both have one, and they differ: two conversations.
    Different,
    /// At least one has none, or it names several.
    Unknown,
    /// Both have the same, and it names one conversation.
    Same,
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
    /// What proved that the request belongs to the chain; empty where it was told nothing that it does
    /// not hold.
    pub proof: Vec<Witness>,
    /// From where on nothing of the chain was told.
    pub held: Option<Held>,
}

/// A message that proved that a request belongs to a conversation. It does so no more once another
/// conversation holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// What it is known by.
    pub mark: Mark,
    /// Where it was first said.
    pub origin: Origin,
}

/// What is known that a request may stand on. Paths begin with their first message.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// How many of the request's messages are recorded as they are.
    pub depth: usize,
    /// Where the last of those was first said.
    pub depth_origin: Origin,
    /// The lineage that recorded the last of those.
    pub own: Option<i64>,
    /// The longest beginning of the request that is a view, and the chain it is a view of.
    pub view: Option<(StoredView, Vec<Step>)>,
    /// The path up to the latest message of the request that is known anywhere.
    pub path: Vec<Step>,
    /// An answer of the model that stands in the request.
    pub answered: Option<Answered>,
    /// The name that the request comes under.
    pub key: Option<String>,
    /// The names of the lineages that recorded the ends of these paths.
    pub names: HashMap<i64, LineageName>,
    /// Which evidence counts.
    pub level: EvidenceLevel,
    /// Whether what proved the view is known in no other conversation still.
    pub view_holds: bool,
}

/// An answer that may stand in the place of what it summarises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// How many messages of the request reach up to it, with it.
    pub place: usize,
    /// What it is known by.
    pub mark: Mark,
    /// The chain that it answered.
    pub path: Vec<Step>,
    /// Whether a request of that chain began with the same system message as this one.
    pub same_system: bool,
    /// Whether the upstream gave it in that conversation alone.
    pub alone: bool,
}

impl Evidence {
    /// How the name of the request stands to the one that the end of `path` was recorded under.
    pub(super) fn names(&self, path: &[Step]) -> Names {
        let lineage = path.last().and_then(|end| self.names.get(&end.lineage));
        self.compared(lineage)
    }

    fn compared(&self, lineage: Option<&LineageName>) -> Names {
        let known = lineage.and_then(|lineage| Some((lineage.key.as_ref()?, lineage.only)));
        match (&self.key, known) {
            (Some(own), Some((other, _))) if own != other => Names::Different,
            (Some(_), Some((_, true))) => Names::Same,
            _ => Names::Unknown,
        }
    }

    /// Whether a request may be told what it does not hold, if it is proven to belong to a conversation
    /// that stands so to its name.
    pub(super) fn admits(&self, names: Names) -> bool {
        match (self.level, names) {
            (EvidenceLevel::Strict, _) | (_, Names::Different) => false,
            (EvidenceLevel::Names, names) => names == Names::Same,
            (EvidenceLevel::Content, _) => true,
        }
    }

    /// Whether there is something that the request may belong to, and it is not told all of that.
    pub fn is_withheld(&self, seen: Option<&Sighting>) -> bool {
        let is_something = !self.path.is_empty()
            || self
                .view
                .as_ref()
                .is_some_and(|(view, _)| !view.proof.is_empty());
        let is_told = seen.is_some_and(|seen| seen.lineage.is_some() && seen.held.is_none());
        is_something && !is_told
    }

    /// The same, of a lineage of this name.
    pub fn admits_name(&self, lineage: Option<&LineageName>) -> bool {
        self.admits(self.compared(lineage))
    }

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
