//! Decides which snapshots with text of other conversations a request may get.
//!
//! By the request's identity, before [`super::select_memory`] looks at what fits: by content alone, a fork under
//! another name looks like the conversation that it left. Called by `read_request` and `select_memory`.

use super::identify::Identity;
use super::memory::Memory;
use crate::lookup::Lookup;
use crate::memory::{SnapshotId, SnapshotMeta};

/// Removes the candidates in `lookup` that this request must not get, and adds the introduction for a conversation
/// that begins. `writes` says whether the request is recorded: one that is not (a title, tags) begins none.
pub(super) fn filter_candidates(
    memory: &Memory,
    identity: &Identity,
    writes: bool,
    lookup: &mut Lookup,
) {
    let key = identity.thread.key.as_deref();
    // An equal request goes out as before (INV-SAME).
    let previous_send = lookup.previous_send.as_ref();
    let previous = previous_send.and_then(|previous_send| previous_send.snapshot);
    let sent_intro = lookup.sent_peer_intro.take();
    let is_admitted =
        |meta: &SnapshotMeta| may_receive(meta, identity) || previous == Some(meta.id);
    let own_prefix = lookup.own_sent_prefix(key).map(|prefix| prefix.snapshot);
    if let Some(sent) = own_prefix {
        drop_new_peer_memory(lookup, sent);
    } else {
        let starts_conversation = writes && !identity.thread.child;
        let gets_intro =
            starts_conversation && identity.shares_memory() && memory.jobs.shares_peer_memory();
        let intro = lookup.peer_intro.take().filter(|_| gets_intro);
        lookup.candidates.extend(intro);
    }
    let is_in_use = |meta: &SnapshotMeta| own_prefix.is_some() || previous == Some(meta.id);
    lookup.candidates.extend(sent_intro.filter(is_in_use));
    lookup.candidates.retain(is_admitted);
}

/// Whether a request of `identity` may get the text of other conversations in this snapshot, if it has any.
pub(super) fn may_receive(meta: &SnapshotMeta, identity: &Identity) -> bool {
    let key = identity.thread.key.as_deref();
    let peers = meta.peer_memory.as_ref();
    peers.is_none_or(|peers| peers.allows_key(key))
}

/// Keeps a conversation that went out with `sent`, without the section about other conversations, without it until
/// its next activation. The section may have been dropped because the request was too long; and adding it now
/// would change the cached prefix (INV-PREFIX).
fn drop_new_peer_memory(lookup: &mut Lookup, sent: Option<SnapshotId>) {
    let is_sent = |meta: &&SnapshotMeta| Some(meta.id) == sent && meta.peer_memory.is_none();
    let Some(sent) = lookup.candidates.iter().find(is_sent).cloned() else {
        return;
    };
    let same_observations = |meta: &SnapshotMeta| meta.to == sent.to && meta.parts == sent.parts;
    lookup
        .candidates
        .retain(|meta| meta.peer_memory.is_none() || !same_observations(meta));
}
