//! Which snapshots with other conversations' text a request may be sent with.
//!
//! Decided by who the request says it is, before [`super::choose`] looks at what fits it: by content alone
//! a fork under another name could not be told from the conversation that it left.

use super::identify::Identity;
use super::memory::Memory;
use crate::store::recall::Lookup;

/// Leaves in `lookup` what may be told this request, and adds what a conversation that begins is told.
/// `writes` says whether anything of it is remembered: what is not (a title, tags) begins none.
pub(super) fn admit(memory: &Memory, identity: &Identity, writes: bool, lookup: &mut Lookup) {
    let key = identity.thread.key.as_deref();
    // What it went out with before it goes out with again (INV-SAME).
    let before = lookup.before.as_ref().and_then(|used| used.snapshot);
    lookup.candidates.retain(|meta| {
        let others = meta.others.as_ref();
        others.is_none_or(|others| others.admits(key)) || before == Some(meta.id)
    });
    let begins = writes && !identity.thread.child;
    let may = begins && identity.shares() && memory.jobs.tells_others();
    let opener = lookup.opener.take().filter(|_| may);
    lookup.candidates.extend(opener.filter(|meta| {
        let others = meta.others.as_ref();
        others.is_some_and(|others| others.admits(key))
    }));
}
