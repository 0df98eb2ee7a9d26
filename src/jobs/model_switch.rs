//! Snapshots that are ready for a change of model (`activate_on_model_change`): composed by the
//! recorder and not committed, one for each chain.
//!
//! The new model's prompt cache holds nothing of the conversation, so an activation costs nothing
//! with exactly this request. The request path finds the snapshot here, commits it with one short
//! write, and goes on without it if that takes too long. Kept in memory only: a process that does
//! not know the last model does nothing. Each snapshot has the state of its conversation beside it,
//! for the activation event.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::base::Base;
use super::events::ConversationState;
use super::outcome::PendingWork;
use super::snapshots::{PreparedSnapshot, SnapshotDraft, Snapshots};
use crate::history::{History, Link, Scope};
use crate::memory::Node;
use crate::memory::policy::is_another_model;
use crate::store::NewSnapshot;
use crate::tasks::Tasks;

/// The most bytes of text held. Beyond that all are dropped, and the next requests bring new ones.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A snapshot, and the state of its conversation with the model that it named last.
#[derive(Debug)]
struct ModelSwitchSnapshot {
    draft: SnapshotDraft,
    conversation: ConversationState,
    reported: AtomicBool,
}

impl ModelSwitchSnapshot {
    /// Whether this is the first report of the activation. Called after the commit.
    fn mark_reported(&self) -> bool {
        !self.reported.swap(true, Ordering::Relaxed)
    }
}

type ChainKey = ([u8; 32], Link);

#[derive(Debug, Default)]
struct HeldSnapshots {
    by_chain: HashMap<ChainKey, Arc<ModelSwitchSnapshot>>,
    bytes: usize,
}

/// The snapshots that are held.
#[derive(Debug, Default)]
pub(super) struct ModelSwitchSnapshots(Mutex<HeldSnapshots>);

impl ModelSwitchSnapshots {
    fn lock(&self) -> MutexGuard<'_, HeldSnapshots> {
        // A panic during an update leaves a valid map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds `draft` for the next request of the chain `nodes`, if that names another model.
    /// Replaces what was held for any prefix of the chain.
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

    /// The snapshot held for the chain that `history` continues, if `model` is another one than its
    /// last.
    fn find(
        &self,
        scope: &Scope,
        history: &History,
        model: &str,
    ) -> Option<Arc<ModelSwitchSnapshot>> {
        let snapshots = self.lock();
        if snapshots.by_chain.is_empty() {
            return None;
        }
        // The newest message is skipped, because it was never recorded: repeating a recorded
        // request changes no model.
        let mut earlier_messages = history.messages().iter().rev().skip(1);
        let ready = earlier_messages
            .find_map(|chained| snapshots.by_chain.get(&(scope.tenant, chained.link)))?;
        is_another_model(&ready.conversation.model, model).then(|| Arc::clone(ready))
    }
}

/// How long a request waits for the one write that commits a snapshot for another model.
const COMMIT_TIMEOUT: Duration = Duration::from_millis(20);

/// The request path's side: activates the snapshot that is held for a conversation.
#[derive(Clone)]
pub(super) struct ModelSwitch {
    base: Base,
    snapshots: Snapshots,
    held: Arc<ModelSwitchSnapshots>,
    pending_work: PendingWork,
}

impl ModelSwitch {
    pub(super) fn new(
        base: &Base,
        held: &Arc<ModelSwitchSnapshots>,
        pending_work: &PendingWork,
    ) -> Self {
        Self {
            base: base.clone(),
            snapshots: Snapshots::new(base),
            held: Arc::clone(held),
            pending_work: pending_work.clone(),
        }
    }

    /// Commits the snapshot held for `history`, if its request names another `model` than the
    /// conversation's last one, and if the request `can_omit` the messages that the snapshot covers.
    /// `None` if there is none, or if the commit takes longer than [`COMMIT_TIMEOUT`].
    pub(super) async fn activate(
        &self,
        tasks: &Tasks,
        scope: &Scope,
        history: &History,
        model: &str,
        can_omit: impl Fn(usize, Option<usize>) -> bool,
    ) -> Option<PreparedSnapshot> {
        let candidate = self.held.find(scope, history, model)?;
        let new = &candidate.draft.snapshot;
        if !can_omit(new.to_count, new.pin) {
            return None;
        }
        let (this, scope, model) = (self.clone(), scope.clone(), model.to_owned());
        let (result_tx, result_rx) = tokio::sync::oneshot::channel();
        this.pending_work.begin();
        // In a task of its own, so that a commit that is too late for this request serves the next.
        tasks.spawn("model change", async move {
            let ending = this.pending_work.ending();
            let committed = this.snapshots.commit(&scope, &candidate.draft).await;
            if let Ok(prepared) = &committed
                && candidate.mark_reported()
            {
                let (tip, snapshot) = (candidate.draft.snapshot.tip, &prepared.snapshot.meta);
                let events = &this.base.events;
                events.emit_activated(&candidate.conversation, &model, tip, snapshot);
            }
            drop(ending);
            // The receiver is gone if the commit was too late.
            let _ = result_tx.send(committed);
        });
        let committed = tokio::time::timeout(COMMIT_TIMEOUT, result_rx)
            .await
            .ok()?
            .ok()?;
        match committed {
            Ok(prepared) => Some(prepared),
            Err(error) => {
                tracing::debug!(error = %error, "no snapshot could be activated for another model");
                None
            }
        }
    }
}

fn size(draft: &SnapshotDraft) -> usize {
    let size = |new: &NewSnapshot| new.segments.iter().map(String::len).sum::<usize>() + 512;
    size(&draft.snapshot) + draft.peer_snapshot.as_ref().map_or(0, size)
}
