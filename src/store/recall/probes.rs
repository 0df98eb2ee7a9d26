//! Whether a request whose chain is known may all the same stand for another one that it summarises.
//! Pure; [`super::Recall`] asks before it leaves the store alone.

use crate::history::{History, Mark, Role};
use crate::memory::place::Evidence;

/// Whether one of the texts at the beginning of `client`, behind what is known of its chain, may be an
/// answer that stands for what it summarises. What a chain was answered next, and the newest message,
/// are ordinary ones; every second turn of a conversation has them.
pub(super) fn may_replace(client: &History, here: &Evidence, answers: &[(Mark, usize)]) -> bool {
    let places = answers
        .iter()
        .filter_map(|(_, behind)| behind.checked_sub(1));
    let mut unknown = places.filter(|place| *place >= here.depth && place + 1 < client.len());
    unknown.any(|place| place > here.depth || client.turns()[place].message.role != Role::Assistant)
}
