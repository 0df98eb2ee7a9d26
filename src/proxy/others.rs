//! Which snapshots with other conversations' text a request may be sent with.
//!
//! Decided by who the request says it is, before [`super::choose`] looks at what fits it: by content alone
//! a fork under another name could not be told from the conversation that it left.

use super::identify::Identity;
use super::memory::Memory;
use crate::memory::{SnapshotId, SnapshotMeta};
use crate::store::recall::Lookup;

/// Leaves in `lookup` what may be told this request, and adds what a conversation that begins is told.
/// `writes` says whether anything of it is remembered: what is not (a title, tags) begins none.
pub(super) fn admit(memory: &Memory, identity: &Identity, writes: bool, lookup: &mut Lookup) {
    let key = identity.thread.key.as_deref();
    // What it went out with before it goes out with again (INV-SAME).
    let before = lookup.before.as_ref().and_then(|used| used.snapshot);
    let opened = lookup.opened.take();
    let admits = |meta: &SnapshotMeta| may_hold(meta, identity) || before == Some(meta.id);
    let own = lookup.own_beginning(key).map(|begun| begun.snapshot);
    if let Some(sent) = own {
        without_what_it_lacked(lookup, sent);
    } else {
        let begins = writes && !identity.thread.child;
        let may = begins && identity.shares() && memory.jobs.tells_others();
        let opener = lookup.opener.take().filter(|_| may);
        lookup.candidates.extend(opener);
    }
    let keeps = |meta: &SnapshotMeta| own.is_some() || before == Some(meta.id);
    lookup.candidates.extend(opened.filter(keeps));
    lookup.candidates.retain(admits);
}

/// Whether a request of `identity` may be told what the snapshot holds of other conversations, if anything.
pub(super) fn may_hold(meta: &SnapshotMeta, identity: &Identity) -> bool {
    let key = identity.thread.key.as_deref();
    let others = meta.others.as_ref();
    others.is_none_or(|others| others.admits(key))
}

/// A conversation that went out with `sent`, without what others know, goes on without it until its next
/// activation: something may have been too long with it, and what now came before it would cost the
/// provider's cache (INV-PREFIX).
fn without_what_it_lacked(lookup: &mut Lookup, sent: Option<SnapshotId>) {
    let known = |meta: &&SnapshotMeta| Some(meta.id) == sent && meta.others.is_none();
    let Some(sent) = lookup.candidates.iter().find(known).cloned() else {
        return;
    };
    let twin = |meta: &SnapshotMeta| meta.to == sent.to && meta.parts == sent.parts;
    lookup
        .candidates
        .retain(|meta| meta.others.is_none() || !twin(meta));
}
