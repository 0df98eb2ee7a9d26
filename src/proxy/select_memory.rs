//! Selects the snapshot that a request goes out with, and where its block stands.
//!
//! Only selects among what exists, in the order of INV-OPEN: what the store has, what this process has in its
//! cache, the client's own bytes. How the result looks as bytes, `outgoing_request` says. Called by
//! `chat_completions` and `dry_run`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::capabilities::CacheAddition;
use super::fallback::Fallback;
use super::memory::{AddForCache, AskUsage, Memory, MemoryRequest};
use super::outgoing_request::{Block, Extras, OutgoingRequest};
use super::peer_memory;
use crate::history::{Link, Scope};
use crate::jobs::PreparedSnapshot;
use crate::lookup::{Lookup, LookupSource, SentLabel, SnapshotCache};
use crate::memory::select::{PreviousSend, Selection, SelectionReason, select, select_aligned};
use crate::memory::{Snapshot, SnapshotMeta};
use crate::store::SentWith;
use crate::wire::Placement;

/// Keeps the selection for equal requests. Dropped before the upstream has accepted the request, it releases
/// the selection, and the next equal request is selected anew.
#[derive(Debug)]
pub(super) struct SelectionGuard {
    cache: Arc<SnapshotCache>,
    scope: Scope,
    tip: Link,
    model: String,
    accepted: AtomicBool,
}

impl SelectionGuard {
    /// The upstream has accepted the request.
    pub(super) fn accept(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }
}

impl Drop for SelectionGuard {
    fn drop(&mut self) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        let (cache, model) = (&self.cache, &self.model);
        cache.end_send(&self.scope, self.tip, model, accepted);
    }
}

/// Selects for `request`, and reserves the selection, so that an equal request goes out alike (INV-SAME).
pub(super) async fn select_memory(
    memory: &Memory,
    request: &MemoryRequest,
) -> (OutgoingRequest, Option<SelectionGuard>) {
    let extended = activate_on_model_change(memory, request).await;
    let lookup = extended.as_ref().unwrap_or(&request.lookup);
    let selected = select_available(memory, request, lookup).await;
    let (selection, fallback) = (selected.selection, selected.fallback);
    let observed = selection.cut();
    let previous_send = lookup.previous_send.as_ref();
    let trim = match previous_send {
        Some(previous_send) => previous_send.trim,
        None => lookup.trim_for(&request.model),
    };
    // A blocked snapshot means the original, without a trim either.
    let is_original = fallback == Fallback::Blocked;
    let trim =
        trim.filter(|trim| !is_original && trim.to_count > observed && request.allows_trim(trim));
    let placement = previous_send
        .and_then(|previous_send| Placement::from_name(&previous_send.placement))
        .or_else(|| block_placement(memory, request, selected.text.as_deref()));
    let block = placement
        .filter(|_| selected.text.is_some() || trim.is_some())
        .map(|placement| Block {
            snapshot: selected.text,
            trim,
            placement,
        });
    let why = match (&selection.snapshot, &block) {
        _ if fallback == Fallback::Blocked => "filtered",
        (_, None) if request.held_out => "holdout",
        (Some(_), None) => "no_placement",
        (_, Some(block))
            if block.trim.is_some() && selection.reason != SelectionReason::Repeated =>
        {
            "trimmed"
        }
        _ if lookup.paused && selection.reason != SelectionReason::Repeated => "observer_paused",
        _ => selection.reason.name(),
    };
    let fallback = match (&block, fallback) {
        (Some(block), Fallback::NotNeeded) if block.trim.is_some() => Fallback::Trimmed,
        (_, fallback) => fallback,
    };
    let extras = Extras {
        usage: asks_usage(memory, request, previous_send),
        cache_key: adds(CacheAddition::Key, memory, request, previous_send),
        cache_breakpoint: adds(CacheAddition::Breakpoint, memory, request, previous_send),
    };
    let outgoing = OutgoingRequest::new(request, block, extras, why, fallback);
    // A selection that only a failing store forced must not be repeated.
    if selected.certain {
        reserve_selection(memory, request, outgoing, previous_send.is_some()).await
    } else {
        (outgoing, None)
    }
}

/// Where the block stands: at the placement that its snapshot was made for, unless the model refuses that.
pub(super) fn block_placement(
    memory: &Memory,
    request: &MemoryRequest,
    snapshot: Option<&Snapshot>,
) -> Option<Placement> {
    let (capabilities, tenant_model) = (&memory.capabilities, request.tenant_model());
    match snapshot {
        Some(snapshot) => capabilities.placement_for(tenant_model, &snapshot.meta.placement),
        None => capabilities.placement(tenant_model),
    }
}

/// Whether to ask for usage in the stream: as before; otherwise if the upstream accepts it, or if the operator
/// always wants it.
fn asks_usage(memory: &Memory, request: &MemoryRequest, previous_send: Option<&SentWith>) -> bool {
    let (capabilities, tenant_model) = (&memory.capabilities, request.tenant_model());
    let always = request.policy.ask_usage == AskUsage::Always;
    let previous = previous_send.and_then(|previous_send| previous_send.usage_requested);
    let asks = previous.unwrap_or_else(|| capabilities.may_ask_usage(tenant_model, always));
    request.may_ask_usage() && asks && !capabilities.refuses_usage(tenant_model)
}

/// Whether a block comes with `addition`: as before; otherwise if the upstream documents it, or if the operator always
/// wants it.
fn adds(
    addition: CacheAddition,
    memory: &Memory,
    request: &MemoryRequest,
    previous_send: Option<&SentWith>,
) -> bool {
    let capabilities = &memory.capabilities;
    let adds = match (previous_send, addition) {
        (Some(previous_send), CacheAddition::Key) => previous_send.cache_key,
        (Some(previous_send), CacheAddition::Breakpoint) => previous_send.cache_breakpoint,
        (None, _) => {
            request.add_for_cache(addition) == AddForCache::Always
                || capabilities.documents(addition, &request.model)
        }
    };
    adds && request.may_add(addition) && !capabilities.refuses(addition, request.tenant_model())
}

/// The lookup of a request for another model than its conversation used before, with the snapshots that were
/// activated because of that. `None` if the lookup stays as it is.
async fn activate_on_model_change(memory: &Memory, request: &MemoryRequest) -> Option<Lookup> {
    let lookup = &request.lookup;
    // A store in trouble is not waited for.
    let is_new = lookup.previous_send.is_none()
        && matches!(lookup.source, LookupSource::Warm | LookupSource::Cold);
    if !is_new || !request.writes || request.held_out {
        return None;
    }
    let (scope, history) = (&request.identity.scope, &request.history);
    let can_omit = |count, pin| request.can_omit(count, pin);
    let pending_snapshots =
        memory
            .jobs
            .activate_on_model_change(scope, history, &request.model, can_omit);
    let PreparedSnapshot {
        snapshot,
        peer_snapshot,
    } = pending_snapshots.await?;
    let mut candidates = vec![snapshot.meta.clone()];
    candidates.extend(peer_snapshot.map(|snapshot| snapshot.meta.clone()));
    candidates.retain(|meta| peer_memory::may_receive(meta, &request.identity));
    let mut extended = lookup.clone();
    extended.candidates.extend(candidates);
    Some(extended)
}

/// The result of [`select_available`].
struct SelectedMemory {
    selection: Selection,
    text: Option<Arc<Snapshot>>,
    fallback: Fallback,
    /// Whether the selection is reserved for equal requests. `false` if the store failed and no memory could be sent:
    /// the next equal request is selected anew.
    certain: bool,
}

fn select_for(
    request: &MemoryRequest,
    candidates: &[SnapshotMeta],
    previous_send: PreviousSend,
) -> Selection {
    match &request.alignment {
        None => select(&request.history, candidates, previous_send),
        Some(alignment) => select_aligned(alignment, candidates, previous_send),
    }
}

impl SelectedMemory {
    /// Selects nothing, since the text of the selected snapshot was refused. An older snapshot may say the same.
    fn blocked(selection: &Selection, certain: bool) -> Self {
        Self {
            selection: Selection {
                snapshot: None,
                reason: selection.reason,
            },
            text: None,
            fallback: Fallback::Blocked,
            certain,
        }
    }
}

/// Whether the selected snapshot is left out, because its text was refused. What an equal request went out with
/// goes out again (INV-SAME).
fn is_blocked(memory: &Memory, request: &MemoryRequest, selection: &Selection) -> bool {
    let (selected, capabilities) = (selection.snapshot.as_ref(), &memory.capabilities);
    selection.reason != SelectionReason::Repeated
        && selected.is_some_and(|selected| capabilities.is_blocked(&request.model, selected.id))
}

/// The observations of a blocked `selection` without the section about other conversations. That section is
/// given up before the conversation's own observations.
fn without_peer_memory(
    memory: &Memory,
    request: &MemoryRequest,
    lookup: &Lookup,
    selection: &Selection,
) -> Option<Selection> {
    let with_peers = selection.snapshot.as_ref()?;
    with_peers.peer_memory.as_ref()?;
    let same_observations =
        |other: &&SnapshotMeta| other.peer_memory.is_none() && other.parts == with_peers.parts;
    let candidates: Vec<SnapshotMeta> = lookup
        .candidates
        .iter()
        .filter(same_observations)
        .cloned()
        .collect();
    let selection = select_for(request, &candidates, PreviousSend::NotSent);
    (selection.snapshot.is_some() && !is_blocked(memory, request, &selection)).then_some(selection)
}

/// The best snapshot whose text is at hand, and the text.
async fn select_available(
    memory: &Memory,
    request: &MemoryRequest,
    lookup: &Lookup,
) -> SelectedMemory {
    let scope = &request.identity.scope;
    let mut fallback = match lookup.source {
        LookupSource::Warm | LookupSource::Cold => Fallback::NotNeeded,
        LookupSource::Degraded | LookupSource::Failed => Fallback::ProcessCache,
    };
    let mut certain = lookup.source != LookupSource::Failed;
    let mut selection = select_for(request, &lookup.candidates, lookup.to_previous_send());
    if is_blocked(memory, request, &selection) {
        let Some(plain) = without_peer_memory(memory, request, lookup, &selection) else {
            return SelectedMemory::blocked(&selection, certain);
        };
        selection = plain;
    }
    let mut text = text(memory, request, selection.snapshot.as_ref()).await;
    if selection.snapshot.is_some() && text.is_none() {
        (fallback, certain) = (Fallback::ProcessCache, false);
        let cached = memory.cache.with_cached_text(scope, &lookup.candidates);
        selection = select_for(request, &cached, PreviousSend::NotSent);
        if is_blocked(memory, request, &selection) {
            return SelectedMemory::blocked(&selection, certain);
        }
        text = self::text(memory, request, selection.snapshot.as_ref()).await;
    }
    if fallback == Fallback::ProcessCache && text.is_none() {
        fallback = Fallback::Original;
    }
    SelectedMemory {
        selection,
        text,
        fallback,
        certain: certain || fallback == Fallback::ProcessCache,
    }
}

/// The text of the selected snapshot. If a database was replaced, another snapshot may have the same number:
/// with its text, messages would be missing that it does not cover.
async fn text(
    memory: &Memory,
    request: &MemoryRequest,
    selected: Option<&SnapshotMeta>,
) -> Option<Arc<Snapshot>> {
    let selected = selected?;
    let text = memory
        .cache
        .load_snapshot(&request.identity.scope, selected.id)
        .await?;
    if text.meta != *selected {
        memory.cache.clear();
        return None;
    }
    Some(text)
}

/// Reserves the selection. Of two equal requests at the same time, the first one decides for both. `is_repeat`
/// says that the request went out like this before.
async fn reserve_selection(
    memory: &Memory,
    request: &MemoryRequest,
    proposed: OutgoingRequest,
    is_repeat: bool,
) -> (OutgoingRequest, Option<SelectionGuard>) {
    let (Some(tip), scope) = (request.history.tip(), &request.identity.scope) else {
        return (proposed, None);
    };
    let label = SentLabel {
        model: &request.model,
        thread_key: request.identity.thread.key.as_deref(),
    };
    let sent_with =
        memory
            .cache
            .begin_send(scope, tip, label, proposed.sent_with().clone(), is_repeat);
    if let Some(alignment) = &request.alignment {
        memory.cache.hold_alignment(scope, alignment);
    }
    let guard = SelectionGuard {
        cache: Arc::clone(&memory.cache),
        scope: scope.clone(),
        tip,
        model: request.model.clone(),
        accepted: AtomicBool::new(false),
    };
    let outgoing = if sent_with == *proposed.sent_with() {
        proposed
    } else {
        let equal = OutgoingRequest::from_sent_with(memory, request, &sent_with, &proposed).await;
        equal.unwrap_or(proposed)
    };
    (outgoing, Some(guard))
}
