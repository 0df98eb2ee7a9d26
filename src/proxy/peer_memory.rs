//! Which snapshots with other conversations' text a request may be sent with.
//!
//! Decided by who the request says it is, before [`super::choose`] looks at what fits it: by content alone
//! a fork under another name could not be told from the conversation that it left.

use super::identify::Identity;
use super::memory::Memory;
use crate::memory::{SnapshotId, SnapshotMeta};
use crate::store::cache::Lookup;

/// Leaves in `lookup` what may be told this request, and adds what a conversation that begins is told.
/// `writes` says whether anything of it is remembered: what is not (a title, tags) begins none.
pub(super) fn filter_candidates(
    memory: &Memory,
    identity: &Identity,
    writes: bool,
    lookup: &mut Lookup,
) {
    let key = identity.thread.key.as_deref();
    // What it went out with before it goes out with again (INV-SAME).
    let before = lookup.previous_send.as_ref().and_then(|used| used.snapshot);
    let opened_with = lookup.sent_peer_intro.take();
    let is_admitted = |meta: &SnapshotMeta| may_receive(meta, identity) || before == Some(meta.id);
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
    let is_in_use = |meta: &SnapshotMeta| own_prefix.is_some() || before == Some(meta.id);
    lookup.candidates.extend(opened_with.filter(is_in_use));
    lookup.candidates.retain(is_admitted);
}

/// Whether a request of `identity` may be told what the snapshot holds of other conversations, if anything.
pub(super) fn may_receive(meta: &SnapshotMeta, identity: &Identity) -> bool {
    let key = identity.thread.key.as_deref();
    let peers = meta.peer_memory.as_ref();
    peers.is_none_or(|peers| peers.allows_key(key))
}

/// A conversation that went out with `sent`, without what others know, goes on without it until its next
/// activation: something may have been too long with it, and what now came before it would cost the
/// provider's cache (INV-PREFIX).
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
