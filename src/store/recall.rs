//! What this process remembers of the store, so that a warm conversation asks it nothing.
//!
//! Holds which snapshots end at which link, the text of those that were used, and what each request
//! was sent with. It answers for a chain without a query when it is *complete* for it: a link is
//! marked `seen` only by the recorder, when the recorder has just written that link for the first
//! time (nothing can hang below it yet) and has put every snapshot of its chain here. Complete or
//! nothing: when the memory budget is reached everything is dropped at once, and each conversation
//! asks the store once more.
//!
//! It is also the first rung of INV-OPEN: with the store gone, what is known here still serves.

mod begun;
mod crowds;
mod heard;
mod hearing;
mod known;
mod pins;
mod probes;
mod settled;

use std::cell::LazyCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::begun::Stands;
use self::crowds::Crowds;
use self::heard::Heard;
use self::known::{Known, anchors, weight};
pub use self::pins::Asks;
use self::probes::may_replace;
use super::{Begun, Carried, Elsewhere, Probes, Record, Store, StoreError, Used};
use crate::history::align::Standing;
use crate::history::{History, Link, Mark, Scope, Stand};
use crate::memory::place::{self, EvidenceLevel, LineageName, Sighting, Step, decide};
use crate::memory::select::Before;
use crate::memory::{Snapshot, SnapshotId, SnapshotMeta, Trim};

/// How long a request waits for each of its reads of the store. A cold conversation
/// needs two indexed reads, a few milliseconds on a healthy disk; a locked one must not be felt.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// Texts and index entries kept, in bytes.
const BUDGET: usize = 64 * 1024 * 1024;

/// Roughly what an index entry weighs.
const ENTRY: usize = 160;

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From this process alone, which knows all there is.
    Warm,
    /// The same, while the store is in trouble.
    Alone,
    /// From the store.
    Cold,
    /// The store failed; what this process happens to know.
    Failed,
}

/// How a request asks: what it is looked up by beside what it says.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The model.
    pub model: &'a str,
    /// The name of the conversation, where its client gives one.
    pub key: Option<&'a str>,
    /// What its first leading system message is known by.
    pub system: Option<Mark>,
    /// Which evidence counts.
    pub level: EvidenceLevel,
}

/// What is known of one request's chain.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Snapshots that end on the chain.
    pub candidates: Vec<SnapshotMeta>,
    /// What exactly this request was sent with before.
    pub before: Option<Used>,
    /// How far beginnings of it were trimmed, once for each model.
    pub carried: Vec<Carried>,
    /// Where this comes from.
    pub origin: Origin,
    /// The Observer has been shown too much of this owner already to be shown more of this chain.
    pub paused: bool,
    /// What other conversations of the owner know, where this one is only beginning. No candidate: whether
    /// it may be told that is not known here.
    pub opener: Option<SnapshotMeta>,
    /// How the longest beginning of it went out that did.
    pub begun: Option<Begun>,
    /// What that was sent with, if that covers nothing. No candidate either.
    pub opened: Option<SnapshotMeta>,
    /// How it stands to what is recorded: another conversation may share so little by chance.
    pub stands: Stands,
    /// Where each message of the client was first said.
    pub origins: Vec<place::Origin>,
    /// Whether the request says what another chain holds, and is told nothing of that for want of proof.
    pub withheld: bool,
}

impl Lookup {
    /// How far requests for `model` that this one continues were trimmed.
    pub fn trim_for(&self, model: &str) -> Option<Trim> {
        let mut carried = self.carried.iter();
        carried
            .find(|carried| carried.model == model)
            .map(|carried| carried.trim)
    }

    fn carry(&mut self, new: Carried) {
        let mut carried = self.carried.iter_mut();
        match carried.find(|known| known.model == new.model) {
            // What continues a trimmed request was trimmed at least as far.
            Some(known) if known.trim.to_count < new.trim.to_count => known.trim = new.trim,
            Some(_) => {}
            None => self.carried.push(new),
        }
    }

    /// As [`crate::memory::select::select`] wants it.
    pub fn before(&self) -> Before {
        match &self.before {
            None => Before::Unseen,
            Some(Used { snapshot: None, .. }) => Before::Raw,
            Some(Used {
                snapshot: Some(id), ..
            }) => Before::With(*id),
        }
    }
}

/// The cache in front of a [`Store`].
#[derive(Debug)]
pub struct Recall {
    store: Arc<dyn Store>,
    known: Mutex<Known>,
    troubled: AtomicBool,
    crowds: Crowds,
    heard: Mutex<Heard>,
}

impl Recall {
    /// An empty memory of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            known: Mutex::default(),
            troubled: AtomicBool::new(false),
            crowds: Crowds::default(),
            heard: Mutex::default(),
        }
    }

    /// More conversations go under `key` than one name can stand for; whether that is news.
    pub fn crowd(&self, scope: &Scope, key: &str) -> bool {
        self.crowds.add(scope, key)
    }

    /// Whether `key` was found to name no conversation.
    pub fn is_crowd(&self, scope: &Scope, key: &str) -> bool {
        self.crowds.has(scope, key)
    }

    /// Says whether the store took what was last to be written to it. A warm conversation asks it
    /// nothing and would not notice.
    pub fn troubled(&self, troubled: bool) {
        self.troubled.store(troubled, Ordering::Relaxed);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic while holding the lock leaves maps that are still maps.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever needs both locks takes that of what is known first.
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of what `client` sent, and where it stands. Never longer than [`PATIENCE`], never
    /// an error. `answers` are marks of texts among its first messages (see [`Probes`]); they are only
    /// asked for where its chain is not known.
    pub async fn look(
        &self,
        scope: &Scope,
        client: &Arc<History>,
        asking: Asking<'_>,
        answers: impl FnOnce() -> Vec<(Mark, usize)> + Send,
    ) -> (Lookup, Option<Sighting>) {
        let model = asking.model;
        let (place, (here, enough)) = {
            let (known, heard) = (self.known(), self.heard());
            let place = known.place(scope, client, &asking, &heard);
            (place, known.evidence(scope, client, &asking, &heard))
        };
        let sighting = place.clone().or_decide(|| decide(client, &here));
        let answers = LazyCell::new(answers);
        // Another process may know who else says what proves it.
        let doubtful = |seen: &Sighting| !seen.proof.is_empty() && self.store.has_neighbours();
        let complete = match &sighting {
            Some(seen) => !doubtful(seen) && self.known().holds_seen(scope, &seen.history),
            None => enough && !may_replace(client, &here, &answers),
        };
        if complete {
            let history = sighting.as_ref().map_or(client, |seen| &seen.history);
            let mut lookup = self.remembered(scope, history, model, true);
            lookup.origins = self.hear(client, &here, sighting.as_ref());
            lookup.withheld = here.is_withheld(sighting.as_ref());
            let stands = self
                .known()
                .stands(scope, client, sighting.is_some(), here.depth);
            self.open(&mut lookup, scope, client, stands);
            return (lookup, sighting);
        }
        let chain: Vec<Link> = client.turns().iter().map(|turn| turn.link).collect();
        let probes = Probes {
            anchors: anchors(client, 0).collect(),
            answers: answers.clone(),
            system: asking.system,
            model: Some(model.to_owned()),
        };
        match bounded(self.store.trace(scope, &chain, &probes)).await {
            Ok(found) => {
                let (used, mut carried) = (found.used.clone(), found.carried.clone());
                let used_as_view = found.used_as_view.clone();
                let path_carried = found.path_carried.clone();
                let (depth, followed, begun) = (found.depth, found.followed, found.begun.clone());
                let path = found.path.as_ref().and_then(|(_, path)| path.last());
                let ended = path
                    .map(|step| step.stand.link)
                    .zip(found.path_used.clone());
                let evidence = {
                    let mut known = self.known();
                    known.learn_found(scope, client, found, &asking, &self.heard())
                };
                let sighting = place.or_decide(|| decide(client, &evidence));
                self.quote(&answers, &evidence, sighting.as_ref());
                let origins = self.hear(client, &evidence, sighting.as_ref());
                let history = sighting.as_ref().map_or(client, |seen| &seen.history);
                let mut lookup = self.remembered(scope, history, model, false);
                lookup.origins = origins;
                lookup.withheld = evidence.is_withheld(sighting.as_ref());
                // What it was sent with as a view says nothing where it is none any more.
                let used_as_view = used_as_view.filter(|_| sighting.is_some());
                lookup.before = lookup.before.or(used).or(used_as_view);
                // A view that brings nothing new ends where another request did, and is pinned with it.
                if let (Some(seen), Some((tip, used))) = (&sighting, ended)
                    && seen.history.tip() == Some(tip)
                {
                    lookup.before = lookup.before.or(Some(used));
                }
                if let Some(seen) = &sighting {
                    let on_chain = |tip: &Link| seen.history.turns().iter().any(|t| t.link == *tip);
                    let path = path_carried.into_iter().filter(|(tip, _)| on_chain(tip));
                    carried.extend(path.map(|(_, carried)| carried));
                }
                for carried in carried {
                    lookup.carry(carried);
                }
                let on_chain = |tip: &Option<Link>| match (tip, &sighting) {
                    (None, _) => true,
                    (Some(tip), Some(seen)) => seen.history.turns().iter().any(|t| t.link == *tip),
                    (Some(_), None) => false,
                };
                let begun = begun.into_iter().filter(|(tip, _)| on_chain(tip));
                // Of two that are as long, what this process sent counts.
                lookup.begun = begun
                    .map(|(_, begun)| begun)
                    .chain(lookup.begun)
                    .max_by_key(|begun| begun.shared);
                let stands = Stands {
                    aligned: sighting.is_some(),
                    depth,
                    followed,
                };
                self.open(&mut lookup, scope, client, stands);
                (lookup, sighting)
            }
            Err(error) => {
                tracing::debug!(error = %error, "the store did not answer; using what this process knows");
                let history = sighting.as_ref().map_or(client, |seen| &seen.history);
                let mut lookup = self.remembered(scope, history, model, false);
                lookup.origins = self.hear(client, &here, sighting.as_ref());
                let stands = self
                    .known()
                    .stands(scope, client, sighting.is_some(), here.depth);
                self.open(&mut lookup, scope, client, stands);
                lookup.opener = None;
                lookup.origin = Origin::Failed;
                (lookup, sighting)
            }
        }
    }

    fn remembered(&self, scope: &Scope, history: &Arc<History>, model: &str, warm: bool) -> Lookup {
        let known = self.known();
        let mut candidates = Vec::new();
        let mut trims = Vec::new();
        let mut paused = false;
        for turn in history.turns() {
            let key = (scope.tenant, turn.link);
            if let Some(ends) = known.ends.get(&key) {
                candidates.extend(ends.iter().cloned());
            }
            if let Some(rescued) = known.rescued.get(&key) {
                candidates.extend(rescued.iter().cloned());
            }
            trims.extend(known.pins.by_model(&key).filter_map(|(used, model)| {
                let (trim, model) = (used.trimmed?, model.to_owned());
                Some(Carried { trim, model })
            }));
            paused |= known.paused.contains(&key);
        }
        let begun = known.begun(scope, history, model);
        let before = history
            .tip()
            .and_then(|tip| known.pins.of(&(scope.tenant, tip), model).cloned());
        let origin = match (warm, self.troubled.load(Ordering::Relaxed)) {
            (false, _) => Origin::Cold,
            (true, false) => Origin::Warm,
            (true, true) => Origin::Alone,
        };
        let mut lookup = Lookup {
            candidates,
            before,
            carried: Vec::new(),
            origin,
            paused,
            opener: None,
            opened: None,
            begun,
            stands: Stands::default(),
            origins: Vec::new(),
            withheld: false,
        };
        for carried in trims {
            lookup.carry(carried);
        }
        lookup
    }

    /// A request was recorded in the lineage of this number and name: its new messages with their marks,
    /// and what else later ones find it by.
    pub fn follow(
        &self,
        scope: &Scope,
        history: &History,
        (lineage, name): (i64, &LineageName),
        record: &Record,
        elsewhere: &Elsewhere,
    ) {
        let (new, traces) = (&record.new_nodes, &record.traces);
        let mut known = self.known();
        known.name(scope, lineage, name);
        let from = new.first().map_or(0, |node| node.count - 1);
        let mut parent = match from.checked_sub(1) {
            Some(before) => history.turns()[before].link,
            None => history.root(),
        };
        for (node, marks) in new.iter().zip(&traces.marks) {
            known.step(
                scope,
                &Step {
                    stand: Stand {
                        link: node.link,
                        role: node.role,
                    },
                    parent,
                    item: Some(marks.item),
                    anchor: marks.anchor,
                    taken: false,
                    live: node.live,
                    kept: false,
                    lineage,
                    origin: marks.origin,
                    standing: Standing {
                        given: marks.given,
                        alone: !elsewhere.messages.contains(&node.link),
                    },
                    pending: false,
                },
            );
            parent = node.link;
        }
        for (link, _) in &traces.words {
            known.keep((scope.tenant, *link));
        }
        if let Some((tip, view)) = &traces.view {
            known.let_go(&(scope.tenant, *tip));
            known.charge(ENTRY);
            known.views.insert((scope.tenant, *tip), view.clone());
        }
    }

    /// The range that ends at `to` is observed, or waits for it with its words.
    pub fn taken(&self, scope: &Scope, to: Link) {
        let mut known = self.known();
        known.charge(ENTRY);
        known.taken.insert((scope.tenant, to));
    }

    /// A snapshot was prepared; its text is read when it is asked for.
    pub fn learn(&self, scope: &Scope, meta: &SnapshotMeta) {
        let mut known = self.known();
        known.charge(ENTRY);
        known.learn(scope, meta);
    }

    /// Whether `id` is known to be a snapshot that covers nothing.
    pub fn opens(&self, scope: &Scope, id: SnapshotId) -> bool {
        self.known().openers.contains_key(&(scope.tenant, id))
    }

    /// The words of these messages are gone.
    pub fn expired(&self, messages: &[([u8; 32], Link)]) {
        let mut known = self.known();
        for message in messages {
            if known.kept.remove(message) {
                known.bytes = known.bytes.saturating_sub(ENTRY);
            }
        }
    }

    /// The text of a snapshot; `None` where neither this process nor the store can give it in time.
    pub async fn text(&self, scope: &Scope, id: SnapshotId) -> Option<Arc<Snapshot>> {
        let known = self.known().texts.get(&(scope.tenant, id)).cloned();
        if known.is_some() {
            return known;
        }
        match bounded(self.store.snapshot(scope, id)).await {
            Ok(Some(snapshot)) => Some(self.insert(scope, snapshot)),
            Ok(None) => None,
            Err(error) => {
                tracing::debug!(error = %error, "a snapshot could not be read; using what this process knows");
                None
            }
        }
    }

    /// Of `candidates` those whose text this process holds: what is left when the store is gone.
    pub fn at_hand(&self, scope: &Scope, candidates: &[SnapshotMeta]) -> Vec<SnapshotMeta> {
        let known = self.known();
        candidates
            .iter()
            .filter(|meta| known.texts.contains_key(&(scope.tenant, meta.id)))
            .cloned()
            .collect()
    }

    /// Settles what the request with this tip, for this model, is sent with. The first to settle
    /// wins, so two equal requests at the same moment go out alike. `before` says that `mine` is what
    /// it was sent with before. Whoever settles also calls [`Recall::release`].
    pub fn settle(
        &self,
        scope: &Scope,
        tip: Link,
        asks: Asks<'_>,
        mine: Used,
        before: bool,
    ) -> Used {
        let mut known = self.known();
        known.charge(ENTRY);
        known.pins.settle((scope.tenant, tip), asks, mine, before)
    }

    /// The request was settled as the view that `seen` is. Until it is recorded its repetitions are that
    /// same view, whatever is observed meanwhile.
    pub fn hold_sighting(&self, scope: &Scope, seen: &Arc<Sighting>) {
        let Some(tip) = seen.client.tip() else { return };
        let key = (scope.tenant, tip);
        let mut known = self.known();
        // What is recorded as this view is found by it.
        if known.views.contains_key(&key) {
            return;
        }
        known.let_go(&key);
        known.charge(weight(seen));
        known.held.insert(key, Arc::clone(seen));
    }

    /// What the request with this tip is sent with at the moment, for this model.
    pub fn settled(&self, scope: &Scope, tip: Link, model: &str) -> Option<Used> {
        self.known().pins.of(&(scope.tenant, tip), model).cloned()
    }

    /// The request with this tip, for this model, was refused as it `was` sent, and is to go out as `now`
    /// instead; unless an equal one was settled otherwise meanwhile. What both go out with.
    pub fn agree(&self, scope: &Scope, asking: (Link, &str), was: &Used, now: Used) -> Used {
        let (tip, model) = asking;
        let mut known = self.known();
        known.pins.agree(&(scope.tenant, tip), model, was, now)
    }

    /// What the request with this tip, for this model, was sent with is stored now, under the number of
    /// `now`.
    pub fn renumber(&self, scope: &Scope, asking: (Link, &str), was: &Used, now: Used) {
        let (tip, model) = asking;
        let mut known = self.known();
        known.pins.renumber(&(scope.tenant, tip), model, was, now);
    }

    /// A request that was settled has its answer. Where no upstream `accepted` it, and no equal one
    /// is under way, it is decided anew when it comes again.
    pub fn release(&self, scope: &Scope, tip: Link, model: &str, accepted: bool) {
        let mut known = self.known();
        known.pins.release(&(scope.tenant, tip), model, accepted);
    }

    /// A snapshot was prepared or read.
    pub fn insert(&self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let mut known = self.known();
        let size = snapshot.segments.iter().map(String::len).sum::<usize>();
        known.charge(size + ENTRY);
        known.learn(scope, &snapshot.meta);
        known.keep_text(scope, snapshot)
    }

    /// Something was observed for the request that ends in `tip` and is not stored yet. It serves that
    /// request and what goes on from it: any other branch would be told anew in other words what it
    /// was told before (INV-PREFIX).
    pub fn rescued(&self, scope: &Scope, tip: Link, snapshot: Snapshot) -> Arc<Snapshot> {
        let mut known = self.known();
        let size = snapshot.segments.iter().map(String::len).sum::<usize>();
        known.charge(size + 2 * ENTRY);
        let rescued = known.rescued.entry((scope.tenant, tip)).or_default();
        rescued.push(snapshot.meta.clone());
        known.keep_text(scope, snapshot)
    }

    /// The recorder wrote `tip` for the first time, for `model` and as it was sent, and knows every
    /// snapshot of its chain. From here on nobody asks the store for either.
    pub fn complete(
        &self,
        scope: &Scope,
        tip: Link,
        asks: Asks<'_>,
        used: Used,
        snapshots: &[SnapshotMeta],
    ) {
        let mut known = self.known();
        known.charge(ENTRY);
        // This may drop everything, as whatever is charged may: what is learned stands behind it.
        known.begin(scope, tip, used.snapshot);
        for meta in snapshots {
            known.learn(scope, meta);
        }
        known.pins.recorded((scope.tenant, tip), asks, used);
        known.seen.insert((scope.tenant, tip));
    }

    /// A request was recorded for `model` whose every message was recorded before. Only where all that was
    /// recorded of it is known here: elsewhere the first time counts, and only the store knows that.
    pub fn again(&self, scope: &Scope, tip: Link, asks: Asks<'_>, used: Used) {
        let (mut known, key) = (self.known(), (scope.tenant, tip));
        if known.seen.contains(&key) {
            known.charge(ENTRY);
            known.pins.recorded(key, asks, used);
        }
    }

    /// The range that ends at `to` may not be observed for now. Whether that is new.
    pub fn pause(&self, scope: &Scope, to: Link) -> bool {
        let mut known = self.known();
        let new = !known.paused.contains(&(scope.tenant, to));
        if new {
            known.charge(ENTRY);
            known.paused.insert((scope.tenant, to));
        }
        new
    }

    /// The range that ends at `to` is being observed. Whether it was paused before.
    pub fn resume(&self, scope: &Scope, to: Link) -> bool {
        self.known().paused.remove(&(scope.tenant, to))
    }

    /// Drops everything: something was deleted from the store.
    pub fn clear(&self) {
        *self.known() = Known::default();
    }
}

async fn bounded<T>(query: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(PATIENCE, query)
        .await
        .unwrap_or_else(|_| Err(StoreError::Busy(format!("no answer within {PATIENCE:?}"))))
}
