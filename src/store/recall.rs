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

mod pins;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::pins::Pins;
use super::{Carried, Store, StoreError, Used};
use crate::history::{History, Link, Scope};
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

/// Links are seeded by their scope; the tenant stands beside them all the same (INV-OWN).
type Key = ([u8; 32], Link);

#[derive(Debug, Default)]
struct Known {
    seen: HashSet<Key>,
    ends: HashMap<Key, Vec<SnapshotMeta>>,
    pins: Pins,
    /// Ends of the ranges at which observing stands still.
    paused: HashSet<Key>,
    texts: HashMap<([u8; 32], SnapshotId), Arc<Snapshot>>,
    bytes: usize,
}

/// The cache in front of a [`Store`].
#[derive(Debug)]
pub struct Recall {
    store: Arc<dyn Store>,
    known: Mutex<Known>,
    troubled: AtomicBool,
}

impl Recall {
    /// An empty memory of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            known: Mutex::default(),
            troubled: AtomicBool::new(false),
        }
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

    /// What is known of `history`. Never longer than [`PATIENCE`], never an error.
    pub async fn look(&self, scope: &Scope, history: &History) -> Lookup {
        let (mut lookup, warm) = self.remembered(scope, history);
        if warm {
            return lookup;
        }
        let chain: Vec<Link> = history.turns().iter().map(|turn| turn.link).collect();
        match bounded(self.store.find(scope, &chain)).await {
            Ok(found) => {
                let mut known = self.known();
                for meta in &found.snapshots {
                    known.learn(scope, meta);
                }
                for meta in found.snapshots {
                    if lookup
                        .candidates
                        .iter()
                        .all(|candidate| candidate.id != meta.id)
                    {
                        lookup.candidates.push(meta);
                    }
                }
                lookup.before = lookup.before.or(found.used);
                for carried in found.carried {
                    lookup.carry(carried);
                }
            }
            Err(error) => {
                tracing::debug!(error = %error, "the store did not answer; using what this process knows");
                lookup.origin = Origin::Failed;
            }
        }
        lookup
    }

    fn remembered(&self, scope: &Scope, history: &History) -> (Lookup, bool) {
        let known = self.known();
        let mut candidates = Vec::new();
        let mut trims = Vec::new();
        let (mut warm, mut paused) = (false, false);
        for turn in history.turns() {
            let key = (scope.tenant, turn.link);
            if let Some(ends) = known.ends.get(&key) {
                candidates.extend(ends.iter().cloned());
            }
            if let Some((used, model)) = known.pins.with_model(&key)
                && let Some(trim) = used.trimmed
            {
                let model = model.to_owned();
                trims.push(Carried { trim, model });
            }
            warm |= known.seen.contains(&key);
            paused |= known.paused.contains(&key);
        }
        let before = history
            .tip()
            .and_then(|tip| known.pins.of(&(scope.tenant, tip)).cloned());
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
        };
        for carried in trims {
            lookup.carry(carried);
        }
        (lookup, warm)
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
    pub fn settle(&self, scope: &Scope, tip: Link, model: &str, mine: Used, before: bool) -> Used {
        let mut known = self.known();
        known.charge(ENTRY);
        known.pins.settle((scope.tenant, tip), model, mine, before)
    }

    /// What the request with this tip is sent with at the moment.
    pub fn settled(&self, scope: &Scope, tip: Link) -> Option<Used> {
        self.known().pins.of(&(scope.tenant, tip)).cloned()
    }

    /// The request with this tip was refused as it `was` sent, and is to go out as `now` instead;
    /// unless an equal one was settled otherwise meanwhile. What both go out with.
    pub fn agree(&self, scope: &Scope, tip: Link, was: &Used, now: Used) -> Used {
        self.known().pins.agree((scope.tenant, tip), was, now)
    }

    /// A request that was settled has its answer. Where no upstream `accepted` it, and no equal one
    /// is under way, it is decided anew when it comes again.
    pub fn release(&self, scope: &Scope, tip: Link, accepted: bool) {
        self.known().pins.release(&(scope.tenant, tip), accepted);
    }

    /// A snapshot was prepared or read.
    pub fn insert(&self, scope: &Scope, snapshot: Snapshot) -> Arc<Snapshot> {
        let mut known = self.known();
        let size = snapshot.segments.iter().map(String::len).sum::<usize>();
        known.charge(size + ENTRY);
        known.learn(scope, &snapshot.meta);
        let snapshot = Arc::new(snapshot);
        known
            .texts
            .insert((scope.tenant, snapshot.meta.id), Arc::clone(&snapshot));
        snapshot
    }

    /// The recorder wrote `tip` for the first time and knows every snapshot of its chain.
    pub fn complete(&self, scope: &Scope, tip: Link, snapshots: &[SnapshotMeta]) {
        let mut known = self.known();
        known.charge(ENTRY);
        for meta in snapshots {
            known.learn(scope, meta);
        }
        known.seen.insert((scope.tenant, tip));
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

impl Known {
    fn learn(&mut self, scope: &Scope, meta: &SnapshotMeta) {
        let ends = self.ends.entry((scope.tenant, meta.to)).or_default();
        if ends.iter().all(|known| known.id != meta.id) {
            ends.push(meta.clone());
            self.bytes += ENTRY;
        }
    }

    /// Books `bytes`; over the budget everything goes (see the head of the file).
    fn charge(&mut self, bytes: usize) {
        if self.bytes + bytes > BUDGET {
            *self = Self::default();
        }
        self.bytes += bytes;
    }
}

async fn bounded<T>(query: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(PATIENCE, query)
        .await
        .unwrap_or_else(|_| Err(StoreError::Busy(format!("no answer within {PATIENCE:?}"))))
}
