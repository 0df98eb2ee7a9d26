//! What is remembered, and what can be read from it without the store. Behind one lock; nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::heard::Heard;
use super::pins::Pins;
use super::settled::Place;
use super::{Asking, BUDGET, ENTRY};
use crate::history::align::Standing;
use crate::history::{History, Item, Link, Mark, Scope, Stand, anchor};
use crate::memory::place::{
    Answered, Evidence, LineageName, Origin, Sighting, Step, StoredView, Witness,
};
use crate::memory::{Snapshot, SnapshotId, SnapshotMeta};
use crate::store::Found;

/// Links are seeded by their scope; the tenant stands beside them all the same (INV-OWN).
pub(super) type Key = ([u8; 32], Link);

#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) seen: HashSet<Key>,
    pub(super) ends: HashMap<Key, Vec<SnapshotMeta>>,
    /// Snapshots that are not stored yet, by the last link of the request that each was made for.
    pub(super) rescued: HashMap<Key, Vec<SnapshotMeta>>,
    pub(super) pins: Pins,
    /// Ends of the ranges at which observing stands still.
    pub(super) paused: HashSet<Key>,
    pub(super) texts: HashMap<([u8; 32], SnapshotId), Arc<Snapshot>>,
    /// Messages, and by what those that do not continue their chain find them.
    pub(super) steps: HashMap<Key, Step>,
    pub(super) anchors: HashMap<([u8; 32], Mark), Link>,
    pub(super) views: HashMap<Key, StoredView>,
    /// Requests that went out as views and are not recorded, by the last link of what was sent.
    pub(super) held: HashMap<Key, Arc<Sighting>>,
    /// Ends of ranges that are observed or wait for it.
    pub(super) taken: HashSet<Key>,
    /// Snapshots that cover nothing: those that requests were sent with, and the latest of each owner
    /// (by the root of its chains).
    pub(super) openers: HashMap<([u8; 32], SnapshotId), SnapshotMeta>,
    pub(super) newest_opener: HashMap<Key, SnapshotId>,
    /// Messages whose words are kept.
    pub(super) kept: HashSet<Key>,
    /// What requests of users were recorded with, by the message before their newest one.
    pub(super) begun: HashMap<Key, Option<SnapshotId>>,
    /// Messages so near to the beginning that conversations may share them by chance, and that something
    /// follows.
    pub(super) followed: HashSet<Key>,
    /// The names that lineages were recorded under.
    pub(super) names: HashMap<([u8; 32], i64), LineageName>,
    /// Names that several lineages have.
    pub(super) shared_names: HashSet<([u8; 32], String)>,
    pub(super) bytes: usize,
}

/// Messages of a request whose anchors are looked up, the latest first. A request that is not known
/// by one of them is not known.
const ANCHORS: usize = 96;

/// Anchors of `client` from the message at `from` on, the latest first, each with its place.
pub(super) fn anchors(client: &History, from: usize) -> impl Iterator<Item = (Mark, usize)> {
    let root = client.root();
    let from = from.max(1).max(client.len().saturating_sub(ANCHORS));
    (from..client.len()).rev().filter_map(move |place| {
        let item = |at: usize| Item::of(&root, &client.turns()[at].message);
        anchor(&root, &item(place - 1), &item(place)).map(|mark| (mark, place))
    })
}

/// Adds to `path`, at whose end the message at `place` of `client` stands, what the upstream answered there,
/// if that is what follows in the request: it is not recorded before a request has brought it back.
fn add_answer(path: &mut Vec<Step>, client: &History, place: usize, heard: &Heard) {
    let (Some(end), Some(next)) = (path.last().copied(), client.turns().get(place + 1)) else {
        return;
    };
    let item = Item::of(&client.root(), &next.message);
    let tip = end.stand.link;
    let Some(origin) = heard.answer(tip, item.ids.unwrap_or(item.content)) else {
        return;
    };
    let step = Step {
        stand: Stand {
            link: tip.next(&next.message.fingerprint),
            role: next.message.role,
        },
        parent: tip,
        item: Some(item),
        anchor: None,
        taken: false,
        live: true,
        kept: false,
        lineage: end.lineage,
        origin,
        standing: Standing {
            given: true,
            alone: true,
        },
        pending: true,
    };
    path.push(judged(step, heard));
}

/// `step` as it stands by what was heard since it was read.
fn judged(mut step: Step, heard: &Heard) -> Step {
    let witness = step.witness().map(|mark| Witness {
        mark,
        origin: step.origin,
    });
    let known = step.origin != Origin::default();
    step.standing.alone &= known && witness.is_some_and(|witness| !heard.is_elsewhere(&witness));
    step
}

/// Roughly what a held sighting weighs: two chains.
pub(super) fn weight(seen: &Sighting) -> usize {
    ENTRY * (seen.client.len() + seen.history.len() + 1)
}

impl Known {
    /// Where `client` stands if it went out before and is pinned, recorded or not.
    pub(super) fn place(
        &self,
        scope: &Scope,
        client: &History,
        asking: &Asking<'_>,
        heard: &Heard,
    ) -> Place {
        let Some(tip) = client.tip() else {
            return Place::Open;
        };
        let key = (scope.tenant, tip);
        if self.pins.any(&key) {
            return Place::Own;
        }
        let pinned = |seen: &&Arc<Sighting>| {
            let tip = seen.history.tip();
            tip.is_some_and(|tip| self.pins.any(&(scope.tenant, tip)))
        };
        let holds = |seen: &&Arc<Sighting>| self.still_holds(scope, seen, asking, heard);
        match self.held.get(&key).filter(pinned).filter(holds) {
            Some(held) => Place::View(Box::new(Sighting::clone(held))),
            None => Place::Open,
        }
    }

    /// Whether what proved `seen` proves it still, to a request of this name.
    fn still_holds(
        &self,
        scope: &Scope,
        seen: &Sighting,
        asking: &Asking<'_>,
        heard: &Heard,
    ) -> bool {
        let name = seen
            .lineage
            .and_then(|lineage| self.name_of(scope, lineage));
        let evidence = Evidence {
            key: asking.key.map(str::to_owned),
            level: asking.level,
            ..Evidence::default()
        };
        let elsewhere = |witness: &Witness| heard.is_elsewhere(witness);
        seen.proof.is_empty()
            || (evidence.admits_name(name.as_ref()) && !seen.proof.iter().any(elsewhere))
    }

    /// A held sighting is recorded.
    pub(super) fn let_go(&mut self, key: &Key) {
        if let Some(gone) = self.held.remove(key) {
            self.bytes = self.bytes.saturating_sub(weight(&gone));
        }
    }

    /// What this process knows that `client` may stand on, and whether that is all there is if it
    /// stands on nothing but its own chain.
    pub(super) fn evidence(
        &self,
        scope: &Scope,
        client: &History,
        asking: &Asking<'_>,
        heard: &Heard,
    ) -> (Evidence, bool) {
        let mut evidence = Evidence {
            key: asking.key.map(str::to_owned),
            level: asking.level,
            ..Evidence::default()
        };
        let mut warm = false;
        for (index, turn) in client.turns().iter().enumerate() {
            let key = (scope.tenant, turn.link);
            warm |= self.seen.contains(&key);
            if let Some(step) = self.steps.get(&key) {
                (evidence.depth, evidence.own) = (index + 1, Some(step.lineage));
                evidence.depth_origin = step.origin;
            }
            if let Some(view) = self.views.get(&key) {
                let base = self.path(scope, view.base, heard);
                evidence.view_holds = view.proof.iter().all(|w| !heard.is_elsewhere(w));
                evidence.view = Some((view.clone(), base));
            }
        }
        let known = evidence.view.as_ref().map_or(0, |(view, _)| view.count);
        let hit = anchors(client, known.max(evidence.depth))
            .find_map(|(mark, place)| Some((*self.anchors.get(&(scope.tenant, mark))?, place)));
        if let Some((link, place)) = hit {
            evidence.path = self.path(scope, link, heard);
            add_answer(&mut evidence.path, client, place, heard);
        }
        let base = evidence.view.iter().filter_map(|(_, base)| base.last());
        let ends = base.chain(evidence.path.last()).map(|end| end.lineage);
        let names = ends.filter_map(|lineage| Some((lineage, self.name_of(scope, lineage)?)));
        evidence.names = names.collect();
        // What leads elsewhere and proves nothing may do so with what only the store knows.
        let enough = warm && hit.is_none() && known <= evidence.depth;
        (evidence, enough)
    }

    /// The path up to `link`; nothing unless it is known from its first message on.
    pub(super) fn path(&self, scope: &Scope, link: Link, heard: &Heard) -> Vec<Step> {
        let root = Link::root(scope);
        let mut path = Vec::new();
        let mut at = link;
        while at != root {
            let key = (scope.tenant, at);
            let Some(step) = self.steps.get(&key) else {
                return Vec::new();
            };
            let step = Step {
                taken: step.taken || self.taken.contains(&key),
                kept: self.kept.contains(&key),
                ..*step
            };
            path.push(judged(step, heard));
            at = step.parent;
        }
        path.reverse();
        path
    }

    pub(super) fn holds_seen(&self, scope: &Scope, history: &History) -> bool {
        let mut turns = history.turns().iter();
        turns.any(|turn| self.seen.contains(&(scope.tenant, turn.link)))
    }

    pub(super) fn step(&mut self, scope: &Scope, step: &Step) {
        let key = (scope.tenant, step.stand.link);
        if let Some(known) = self.steps.get_mut(&key) {
            known.standing.alone &= step.standing.alone;
            return;
        }
        self.charge(2 * ENTRY);
        if self.may_be_chance(scope, step.parent) {
            self.followed.insert((scope.tenant, step.parent));
        }
        self.steps.insert(key, *step);
        if let Some(anchor) = step.anchor {
            self.anchors.insert((scope.tenant, anchor), step.stand.link);
        }
    }

    /// A lineage goes under `name`. A name that several have names none of them.
    pub(super) fn name(&mut self, scope: &Scope, lineage: i64, name: &LineageName) {
        if let Some(key) = name.key.as_ref().filter(|_| !name.only) {
            self.shared_names.insert((scope.tenant, key.clone()));
        }
        if self
            .names
            .insert((scope.tenant, lineage), name.clone())
            .is_none()
        {
            self.bytes += ENTRY;
        }
    }

    /// The name of a lineage, as far as it is known here.
    fn name_of(&self, scope: &Scope, lineage: i64) -> Option<LineageName> {
        let name = self.names.get(&(scope.tenant, lineage))?;
        let is_shared = |key: &String| self.shared_names.contains(&(scope.tenant, key.clone()));
        Some(LineageName {
            only: name.only && !name.key.as_ref().is_some_and(is_shared),
            key: name.key.clone(),
        })
    }

    /// Keeps what the store found, and says what it is evidence of.
    pub(super) fn learn_found(
        &mut self,
        scope: &Scope,
        client: &History,
        found: Found,
        asking: &Asking<'_>,
        heard: &Heard,
    ) -> Evidence {
        let openers = found.openers.iter().chain(&found.newest_opener);
        for meta in found.snapshots.iter().chain(openers) {
            self.learn(scope, meta);
        }
        let (hit, path) = found.path.unwrap_or_default();
        let answered = found.answered.as_ref().map(|found| found.path.as_slice());
        for step in path
            .iter()
            .chain(&found.base)
            .chain(answered.unwrap_or_default())
        {
            self.step(scope, step);
            if step.taken {
                self.taken.insert((scope.tenant, step.stand.link));
            }
            if step.kept {
                self.keep((scope.tenant, step.stand.link));
            }
        }
        for (lineage, name) in &found.names {
            self.name(scope, *lineage, name);
        }
        let viewed = found.view.as_ref().map_or(0, |view| view.count);
        let all = |path: Vec<Step>| path.into_iter().map(|step| judged(step, heard)).collect();
        let proof = found.view.iter().flat_map(|view| &view.proof);
        let view_holds = found.view_holds && !proof.into_iter().any(|w| heard.is_elsewhere(w));
        Evidence {
            depth: found.depth,
            depth_origin: found.depth_origin,
            own: found.own,
            view: found.view.map(|view| (view, all(found.base))),
            view_holds,
            // What continues a view is known by it.
            path: if hit >= viewed {
                let mut path = all(path);
                add_answer(&mut path, client, hit, heard);
                path
            } else {
                Vec::new()
            },
            answered: found.answered.map(|answered| {
                let witness = Witness {
                    mark: answered.mark,
                    origin: answered.origin(),
                };
                Answered {
                    alone: answered.alone && !heard.is_elsewhere(&witness),
                    ..answered
                }
            }),
            key: asking.key.map(str::to_owned),
            names: found.names.into_iter().collect(),
            level: asking.level,
        }
    }

    /// The words of a message are kept.
    pub(super) fn keep(&mut self, message: Key) {
        if !self.kept.contains(&message) {
            self.charge(ENTRY);
            self.kept.insert(message);
        }
    }

    pub(super) fn learn(&mut self, scope: &Scope, meta: &SnapshotMeta) {
        if meta.opens() {
            let new = self.openers.insert((scope.tenant, meta.id), meta.clone());
            self.bytes += if new.is_none() { ENTRY } else { 0 };
            let newest = self.newest_opener.entry((scope.tenant, meta.to));
            let newest = newest.or_insert(meta.id);
            *newest = meta.id.max(*newest);
            return;
        }
        let ends = self.ends.entry((scope.tenant, meta.to)).or_default();
        if ends.iter().all(|known| known.id != meta.id) {
            ends.push(meta.clone());
            self.bytes += ENTRY;
        }
    }

    /// The text of a snapshot, from now on at hand.
    pub(super) fn keep_text(&mut self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        let key = (scope.tenant, snapshot.meta.id);
        self.texts.insert(key, Arc::clone(&snapshot));
        snapshot
    }

    /// Books `bytes`; over the budget everything goes (see the head of the file).
    pub(super) fn charge(&mut self, bytes: usize) {
        if self.bytes + bytes > BUDGET {
            *self = Self::default();
        }
        self.bytes += bytes;
    }
}
