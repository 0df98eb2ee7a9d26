//! Snapshots at hand for the moment another model is asked: what the recorder has composed and not
//! committed, by the chain it was composed for.
//!
//! The new model's cache holds nothing of the conversation, so an activation costs nothing with exactly
//! this request. The request path finds the snapshot here, commits it by one write that it waits for
//! very shortly, and goes on without it otherwise. Held in memory only: a process that does not know
//! which model was asked last does nothing. Beside it is how the conversation stood, for what is told of
//! the activation: the request path knows nothing of that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::events::Stood;
use super::prepare::Draft;
use crate::history::{History, Link, Scope};
use crate::memory::Node;
use crate::memory::policy::is_another_model;
use crate::store::NewSnapshot;

/// Texts held, in bytes; beyond, all of them are dropped, and come again with the next requests.
const BUDGET: usize = 16 * 1024 * 1024;

/// A snapshot, and the conversation it would come into use in, with the model whose cache it would
/// have spoilt.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) draft: Draft,
    pub(super) stood: Stood,
    told: AtomicBool,
}

impl Ready {
    /// Whether nobody was told yet that it came into use. Asked once it has.
    pub(super) fn is_news(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }
}

type Key = ([u8; 32], Link);

#[derive(Debug, Default)]
struct Held {
    ready: HashMap<Key, Arc<Ready>>,
    bytes: usize,
}

/// What is held.
#[derive(Debug, Default)]
pub(crate) struct Standby(Mutex<Held>);

impl Standby {
    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic while holding the lock leaves a map that is still a map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What would be sent if the next request of the chain `nodes`, which stands as `stood` says, asked
    /// another model. Takes the place of what was held for the chain before it grew.
    pub(super) fn hold(&self, stood: Stood, nodes: &[Node], draft: Option<Draft>) {
        let tenant = stood.scope.tenant;
        let mut held = self.held();
        for node in nodes {
            if let Some(old) = held.ready.remove(&(tenant, node.link)) {
                held.bytes -= size(&old.draft);
            }
        }
        let Some(draft) = draft else { return };
        let size = size(&draft);
        if held.bytes + size > BUDGET {
            *held = Held::default();
        }
        held.bytes += size;
        let key = (tenant, draft.snapshot.tip);
        let told = AtomicBool::new(false);
        let ready = Ready { draft, stood, told };
        held.ready.insert(key, Arc::new(ready));
    }

    /// What is held for the chain that `history` continues, if it asks another model by `model`.
    pub(super) fn find(&self, scope: &Scope, history: &History, model: &str) -> Option<Arc<Ready>> {
        let held = self.held();
        if held.ready.is_empty() {
            return None;
        }
        // The newest message was never recorded: a repetition of what was is no change of model.
        let mut before = history.turns().iter().rev().skip(1);
        let ready = before.find_map(|turn| held.ready.get(&(scope.tenant, turn.link)))?;
        is_another_model(&ready.stood.model, model).then(|| Arc::clone(ready))
    }
}

fn size(draft: &Draft) -> usize {
    let size = |new: &NewSnapshot| new.segments.iter().map(String::len).sum::<usize>() + 512;
    size(&draft.snapshot) + draft.bound.as_ref().map_or(0, size)
}
