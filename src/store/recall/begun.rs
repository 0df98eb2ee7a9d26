//! How a request began: what the longest beginning of it was sent with, and whether that was this very
//! conversation or another one that says the same at first. Used by [`super::Recall`]; who the request says
//! it is decides `proxy`, with [`Lookup::own_beginning`].

use super::known::{Key, Known};
use super::{ENTRY, Lookup, Recall};
use crate::history::{History, Link, Scope};
use crate::memory::others::CHANCE;
use crate::memory::{SnapshotId, SnapshotMeta};
use crate::store::Begun;

/// How a request stands to what is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stands {
    /// It is a view of a conversation, which is proven.
    pub aligned: bool,
    /// How many of its messages are recorded as they are.
    pub depth: usize,
    /// They are so few that two conversations may share them, and something else follows them.
    pub followed: bool,
}

impl Stands {
    /// Whether it may be a conversation of its own, that begins.
    pub(super) fn may_begin(self) -> bool {
        !self.aligned && self.depth <= CHANCE
    }
}

impl Lookup {
    /// The longest beginning that went out, if it was one of the same conversation, where the request comes
    /// under `key`. What few words two conversations share says nothing: their names do, and without
    /// them, that they go on differently.
    pub fn own_beginning(&self, key: Option<&str>) -> Option<&Begun> {
        let own = |begun: &&Begun| {
            !self.stands.may_begin()
                || match (key, begun.key.as_deref()) {
                    (Some(key), Some(other)) => key == other,
                    _ => !self.stands.followed,
                }
        };
        self.begun.as_ref().filter(own)
    }
}

impl Recall {
    /// Fills in what of other conversations it may be sent with, as it `stands`.
    pub(super) fn open(
        &self,
        lookup: &mut Lookup,
        scope: &Scope,
        client: &History,
        stands: Stands,
    ) {
        let known = self.known();
        let begun = lookup.begun.as_ref().and_then(|begun| begun.snapshot);
        lookup.opened = begun.and_then(|id| known.openers.get(&(scope.tenant, id)).cloned());
        if stands.may_begin() {
            lookup.opener = known.newest_opener(scope, client).cloned();
        }
        lookup.stands = stands;
    }
}

impl Known {
    /// How the longest beginning of `history` went out that did; of several that for `model`.
    pub(super) fn begun(&self, scope: &Scope, history: &History, model: &str) -> Option<Begun> {
        // Only what users' conversations know of each other is asked for by this.
        scope.resource?;
        let mut turns = history.turns().iter().enumerate().rev();
        turns.find_map(|(index, turn)| {
            let key = (scope.tenant, turn.link);
            let pins = self.pins.as_asked(&key);
            let own = pins.map(|(used, asked, name)| (asked != model, used.snapshot, name));
            let own = own.min_by_key(|(other, snapshot, _)| (*other, *snapshot));
            // A client that takes back what it puts into its newest message ends no request where another
            // begins.
            let beside = self.begun.get(&key).filter(|_| index >= CHANCE);
            let (snapshot, name) = match (own, beside) {
                (Some((_, snapshot, name)), _) => (snapshot, name),
                (None, Some(snapshot)) => (*snapshot, None),
                (None, None) => return None,
            };
            Some(Begun {
                shared: index + 1,
                snapshot,
                key: name.map(str::to_owned),
            })
        })
    }

    /// A request that ends in `tip` was recorded with `snapshot`.
    pub(super) fn begin(&mut self, scope: &Scope, tip: Link, snapshot: Option<SnapshotId>) {
        let step = self.steps.get(&(scope.tenant, tip));
        let before = step.map(|step| (scope.tenant, step.parent));
        if let Some(before) = before.filter(|_| scope.resource.is_some()) {
            self.charge(ENTRY);
            let begun = self.begun.entry(before).or_insert(snapshot);
            *begun = snapshot.min(*begun);
        }
    }

    /// How `client` stands, of which `depth` messages are recorded.
    pub(super) fn stands(
        &self,
        scope: &Scope,
        client: &History,
        aligned: bool,
        depth: usize,
    ) -> Stands {
        let last = depth.checked_sub(1).map(|last| client.turns()[last].link);
        let followed = last.is_some_and(|last| self.followed.contains(&(scope.tenant, last)));
        Stands {
            aligned,
            depth,
            followed,
        }
    }

    /// Whether conversations may share everything up to `link` by chance.
    pub(super) fn may_be_chance(&self, scope: &Scope, link: Link) -> bool {
        let root = Link::root(scope);
        let mut at = link;
        for _ in 0..CHANCE {
            match self.steps.get(&(scope.tenant, at)) {
                Some(step) if step.parent == root => return true,
                Some(step) => at = step.parent,
                None => return false,
            }
        }
        false
    }

    /// The latest snapshot of the owner that covers nothing.
    pub(super) fn newest_opener(&self, scope: &Scope, history: &History) -> Option<&SnapshotMeta> {
        let root: Key = (scope.tenant, history.root());
        let newest = self.newest_opener.get(&root)?;
        self.openers.get(&(scope.tenant, *newest))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Asks, BUDGET};
    use super::*;
    use crate::history::{Role, Stand};
    use crate::memory::Cause;
    use crate::memory::place::Step;
    use crate::store::{SqliteStore, Used};

    /// There is no room left for how the request began, so everything goes while it is learned.
    #[tokio::test]
    async fn what_is_dropped_while_a_request_is_learned_is_not_taken_for_known() {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let recall = Recall::new(Arc::new(store));
        let scope = Scope::of(b"tenant", Some(b"user"));
        let tip = Link::from_slice(&[7; 32]).expect("32");
        let key = (scope.tenant, tip);
        let meta = SnapshotMeta {
            id: SnapshotId(1),
            to: tip,
            to_count: 1,
            eligible_from: 1,
            pin: None,
            parts: Vec::new(),
            tokens: 1,
            cause: Cause::Threshold,
            placement: String::new(),
            others: None,
        };
        let step = Step {
            stand: Stand {
                link: tip,
                role: Role::User,
            },
            parent: Link::root(&scope),
            item: None,
            anchor: None,
            taken: false,
            live: true,
            kept: false,
            lineage: 1,
            origin: crate::memory::place::Origin::default(),
            standing: crate::history::align::Standing::default(),
            pending: false,
        };
        let asks = Asks {
            model: "m",
            key: None,
        };
        for (room, drops) in [(2 * ENTRY, false), (ENTRY, true)] {
            recall.clear();
            let mut known = recall.known();
            known.steps.insert(key, step);
            known.bytes = BUDGET - room;
            drop(known);
            let metas = std::slice::from_ref(&meta);
            recall.complete(&scope, tip, asks, Used::default(), metas);
            let known = recall.known();
            assert!(known.seen.contains(&key), "nobody asks the store again");
            assert_eq!(known.ends.get(&key), Some(&vec![meta.clone()]), "{room}");
            assert_eq!(known.steps.is_empty(), drops);
        }
    }
}
