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

use super::events::ConversationState;
use super::prepare::SnapshotDraft;
use crate::history::{History, Link, Scope};
use crate::memory::Node;
use crate::memory::policy::is_another_model;
use crate::store::NewSnapshot;

/// Texts held, in bytes; beyond, all of them are dropped, and come again with the next requests.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A snapshot, and the conversation it would come into use in, with the model whose cache it would
/// have spoilt.
#[derive(Debug)]
pub(super) struct ModelSwitchSnapshot {
    pub(super) draft: SnapshotDraft,
    pub(super) conversation: ConversationState,
    reported: AtomicBool,
}

impl ModelSwitchSnapshot {
    /// Whether nobody was told yet that it came into use. Asked once it has.
    pub(super) fn mark_reported(&self) -> bool {
        !self.reported.swap(true, Ordering::Relaxed)
    }
}

type ChainKey = ([u8; 32], Link);

#[derive(Debug, Default)]
struct HeldSnapshots {
    by_chain: HashMap<ChainKey, Arc<ModelSwitchSnapshot>>,
    bytes: usize,
}

/// What is held.
#[derive(Debug, Default)]
pub(crate) struct ModelSwitchSnapshots(Mutex<HeldSnapshots>);

impl ModelSwitchSnapshots {
    fn lock(&self) -> MutexGuard<'_, HeldSnapshots> {
        // A panic while holding the lock leaves a map that is still a map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What would be sent if the next request of the chain `nodes`, which stands as `stood` says, asked
    /// another model. Takes the place of what was held for the chain before it grew.
    pub(super) fn replace(
        &self,
        conversation: ConversationState,
        nodes: &[Node],
        draft: Option<SnapshotDraft>,
    ) {
        let tenant = conversation.scope.tenant;
        let mut snapshots = self.lock();
        for node in nodes {
            if let Some(old) = snapshots.by_chain.remove(&(tenant, node.link)) {
                snapshots.bytes -= size(&old.draft);
            }
        }
        let Some(draft) = draft else { return };
        let size = size(&draft);
        if snapshots.bytes + size > MAX_BYTES {
            *snapshots = HeldSnapshots::default();
        }
        snapshots.bytes += size;
        let key = (tenant, draft.snapshot.tip);
        let reported = AtomicBool::new(false);
        let ready = ModelSwitchSnapshot {
            draft,
            conversation,
            reported,
        };
        snapshots.by_chain.insert(key, Arc::new(ready));
    }

    /// What is held for the chain that `history` continues, if it asks another model by `model`.
    pub(super) fn find(
        &self,
        scope: &Scope,
        history: &History,
        model: &str,
    ) -> Option<Arc<ModelSwitchSnapshot>> {
        let snapshots = self.lock();
        if snapshots.by_chain.is_empty() {
            return None;
        }
        // The newest message was never recorded: a repetition of what was is no change of model.
        let mut earlier_turns = history.turns().iter().rev().skip(1);
        let ready =
            earlier_turns.find_map(|turn| snapshots.by_chain.get(&(scope.tenant, turn.link)))?;
        is_another_model(&ready.conversation.model, model).then(|| Arc::clone(ready))
    }
}

fn size(draft: &SnapshotDraft) -> usize {
    let size = |new: &NewSnapshot| new.segments.iter().map(String::len).sum::<usize>() + 512;
    size(&draft.snapshot) + draft.peer_snapshot.as_ref().map_or(0, size)
}
