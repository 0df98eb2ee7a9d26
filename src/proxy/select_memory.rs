//! Which snapshot a request goes out with, and where its block stands. How that looks is in `choice`.
//!
//! Only chooses among what exists. The order of preference is INV-OPEN's: what the store says, what
//! this process knows, the client's own bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::{AskUsage, Memory, MemoryRequest};
use super::outgoing_request::{Block, Fallback, OutgoingRequest};
use super::peer_memory;
use crate::history::{Link, Scope};
use crate::jobs::Prepared;
use crate::memory::select::{PreviousSend, Selection, SelectionReason, select, select_aligned};
use crate::memory::{Snapshot, SnapshotMeta};
use crate::store::SentWith;
use crate::store::cache::{Lookup, LookupSource, PinLabel, SnapshotCache};
use crate::wire::Placement;

/// A request that was settled. Dropped without an answer of the upstream, or with one that is no
/// success, it leaves no trace: the same request is decided anew.
#[derive(Debug)]
pub(super) struct SelectionGuard {
    cache: Arc<SnapshotCache>,
    scope: Scope,
    tip: Link,
    model: String,
    accepted: AtomicBool,
}

impl SelectionGuard {
    /// The upstream has taken it.
    pub(super) fn accept(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }
}

impl Drop for SelectionGuard {
    fn drop(&mut self) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        let (cache, model) = (&self.cache, &self.model);
        cache.release_pin(&self.scope, self.tip, model, accepted);
    }
}

/// Chooses for `asked`, and settles the choice so that a repetition goes out alike (INV-SAME).
pub(super) async fn select_memory(
    memory: &Memory,
    request: &MemoryRequest,
) -> (OutgoingRequest, Option<SelectionGuard>) {
    let changed = on_model_change(memory, request).await;
    let lookup = changed.as_ref().unwrap_or(&request.lookup);
    let selected = select_available(memory, request, lookup).await;
    let (selection, fallback) = (selected.selection, selected.fallback);
    let observed = selection.cut();
    let trim = match &lookup.previous_send {
        Some(before) => before.trim,
        None => lookup.trim_for(&request.model),
    };
    // What is passed over is the client's own, whole.
    let unchanged = fallback == Fallback::Blocked;
    let trim =
        trim.filter(|trim| !unchanged && trim.to_count > observed && request.allows_trim(trim));
    let before = lookup.previous_send.as_ref();
    let placement = before
        .and_then(|used| Placement::from_name(&used.placement))
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
    let asks_usage = asks_usage(memory, request, lookup.previous_send.as_ref());
    let outgoing = OutgoingRequest::new(request, block, asks_usage, why, fallback);
    // What only a failing store kept from a request must not be held against its repetition.
    if selected.certain {
        reserve_selection(memory, request, outgoing, lookup.previous_send.is_some()).await
    } else {
        (outgoing, None)
    }
}

/// Where the block stands: where its snapshot was made to stand, unless the model refuses that.
pub(super) fn block_placement(
    memory: &Memory,
    request: &MemoryRequest,
    snapshot: Option<&Snapshot>,
) -> Option<Placement> {
    let (capabilities, asker) = (&memory.capabilities, request.tenant_model());
    match snapshot {
        Some(snapshot) => capabilities.placement_for(asker, &snapshot.meta.placement),
        None => capabilities.placement(asker),
    }
}

/// Whether the stream is asked for its usage: as it was before, else where the upstream takes that, or the
/// operator wants it asked whether or not that is known.
fn asks_usage(memory: &Memory, request: &MemoryRequest, before: Option<&SentWith>) -> bool {
    let (capabilities, asker) = (&memory.capabilities, request.tenant_model());
    let always = request.policy.ask_usage == AskUsage::Always;
    let before = before.and_then(|used| used.usage_requested);
    let ask = before.unwrap_or_else(|| always || capabilities.may_ask_usage(asker));
    request.may_ask_usage() && ask && !capabilities.refuses_usage(asker)
}

/// What is known of a request that asks another model than its conversation did before, with what was
/// committed because of it.
async fn on_model_change(memory: &Memory, request: &MemoryRequest) -> Option<Lookup> {
    let original = &request.lookup;
    // A store in trouble is not waited for.
    let new = original.previous_send.is_none()
        && matches!(original.source, LookupSource::Warm | LookupSource::Cold);
    if !new || !request.writes {
        return None;
    }
    let (scope, history) = (&request.identity.scope, &request.history);
    let can_omit = |count, pin| request.can_omit(count, pin);
    let committed = memory
        .jobs
        .activate_on_model_change(scope, history, &request.model, can_omit);
    let mut lookup = original.clone();
    let Prepared {
        snapshot,
        peer_snapshot: bound,
    } = committed.await?;
    let mut new = vec![snapshot.meta.clone()];
    new.extend(bound.map(|bound| bound.meta.clone()));
    new.retain(|meta| peer_memory::may_receive(meta, &request.identity));
    lookup.candidates.extend(new);
    Some(lookup)
}

/// What [`pick`] found.
struct SelectedMemory {
    selection: Selection,
    text: Option<Arc<Snapshot>>,
    fallback: Fallback,
    /// A store that works would not have found better.
    certain: bool,
}

fn select_for(
    request: &MemoryRequest,
    candidates: &[SnapshotMeta],
    before: PreviousSend,
) -> Selection {
    match &request.alignment {
        None => select(&request.history, candidates, before),
        Some(alignment) => select_aligned(alignment, candidates, before),
    }
}

impl SelectedMemory {
    /// Nothing, instead of what was selected; nor an older one, which may say the same.
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

/// Whether what was selected is left out, since its words were refused. What went out with it before goes
/// out with it again (INV-SAME).
fn is_blocked(memory: &Memory, request: &MemoryRequest, selection: &Selection) -> bool {
    let (selected, capabilities) = (selection.snapshot.as_ref(), &memory.capabilities);
    selection.reason != SelectionReason::Repeated
        && selected.is_some_and(|selected| capabilities.is_blocked(&request.model, selected.id))
}

/// What is sent instead of `selection`, whose words were refused: its observations alone, where it told of
/// other conversations beside them. What others know goes first, here as well.
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

/// The snapshot and its text, or the next best of which both are at hand.
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
        let Some(observations) = without_peer_memory(memory, request, lookup, &selection) else {
            return SelectedMemory::blocked(&selection, certain);
        };
        selection = observations;
    }
    let mut text = text(memory, request, selection.snapshot.as_ref()).await;
    if selection.snapshot.is_some() && text.is_none() {
        (fallback, certain) = (Fallback::ProcessCache, false);
        let at_hand = memory.cache.with_cached_text(scope, &lookup.candidates);
        selection = select_for(request, &at_hand, PreviousSend::NotSent);
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

/// The text of the snapshot that was selected. Another one under the same number, as a database put
/// in the place of the old one may hold, would leave out what it does not cover.
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

/// Two equal requests at one moment: the first to settle decides for both. `before` says that this is
/// how it went out before.
async fn reserve_selection(
    memory: &Memory,
    request: &MemoryRequest,
    proposed: OutgoingRequest,
    is_repeat: bool,
) -> (OutgoingRequest, Option<SelectionGuard>) {
    let (Some(tip), scope) = (request.history.tip(), &request.identity.scope) else {
        return (proposed, None);
    };
    let asks = PinLabel {
        model: &request.model,
        thread_key: request.identity.thread.key.as_deref(),
    };
    let sent_with =
        memory
            .cache
            .get_or_pin(scope, tip, asks, proposed.sent_with().clone(), is_repeat);
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
