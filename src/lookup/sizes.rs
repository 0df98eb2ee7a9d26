//! How many bytes the entries of the cache need, roughly: what each one points to counts, so that the limit of the
//! cache is one of memory. Used by [`super::state`] and [`super::SnapshotCache`] only.

use crate::memory::alignment::{Alignment, LineageName, StoredAlignment, Witness};
use crate::memory::{PartId, Snapshot, SnapshotMeta};

/// The size of one index entry, without what it points to.
pub(super) const ENTRY_BYTES: usize = 160;

/// A sent request with this model and thread key. Placement and trim of what was sent are in the same entry.
pub(super) fn of_sent_request(model: &str, thread_key: Option<&str>) -> usize {
    2 * ENTRY_BYTES + model.len() + thread_key.map_or(0, str::len)
}

pub(super) fn of_name(name: &LineageName) -> usize {
    // A shared key is kept once more.
    ENTRY_BYTES + 2 * name.key.as_ref().map_or(0, String::len)
}

pub(super) fn of_snapshot_meta(meta: &SnapshotMeta) -> usize {
    let peer_memory = meta.peer_memory.as_ref();
    let peers = peer_memory.map_or(0, |memory| {
        let keys: usize = memory.keys.iter().map(String::len).sum();
        ENTRY_BYTES
            + keys
            + memory.keys.len() * size_of::<String>()
            + memory.lineages.len() * size_of::<i64>()
    });
    ENTRY_BYTES + size_of::<SnapshotMeta>() + meta.parts.len() * size_of::<PartId>() + peers
}

pub(super) fn of_snapshot_text(snapshot: &Snapshot) -> usize {
    let segments = snapshot.segments.iter();
    let text: usize = segments
        .map(|segment| segment.len() + size_of::<String>())
        .sum();
    of_snapshot_meta(&snapshot.meta) + text
}

pub(super) fn of_stored_alignment(alignment: &StoredAlignment) -> usize {
    ENTRY_BYTES
        + size_of::<StoredAlignment>()
        + size_of_val(alignment.positions.runs())
        + alignment.proof.len() * size_of::<Witness>()
}

/// An alignment of a request that was sent and is not recorded: two chains.
pub(super) fn of_alignment(alignment: &Alignment) -> usize {
    let messages = alignment.client.len() + alignment.history.len() + 1;
    ENTRY_BYTES * messages
        + size_of_val(alignment.positions.runs())
        + alignment.proof.len() * size_of::<Witness>()
        + size_of_val(alignment.origins.as_slice())
}
