//! Whether a request whose chain is known may all the same stand for another one that it summarises.
//! Pure; [`super::Recall`] asks before it leaves the store alone.

use std::cmp::Ordering;
use std::ops::Deref;

use crate::history::{History, Role, ScopedHash};
use crate::memory::alignment::{Evidence, messages_before_answer, summary_positions};

/// Whether one of the texts at the beginning of `client`, behind what is known of its chain, may be an
/// answer that stands for what it summarises. What a chain was answered next, and the newest message,
/// are ordinary ones; every second turn of a conversation has them. But where the model says nothing in all
/// of it, the newest may be a summary behind what its user said. The texts are read where there may be one.
pub(super) fn may_be_compacted(
    client: &History,
    evidence: &Evidence,
    answers: &impl Deref<Target = Vec<(ScopedHash, usize)>>,
) -> bool {
    if summary_positions(client).all(|place| place < evidence.recorded_count) {
        return false;
    }
    let is_silent = messages_before_answer(client) == client.len();
    let is_ordinary = |place: usize| match place.cmp(&evidence.recorded_count) {
        Ordering::Less => true,
        Ordering::Equal => {
            place + 1 == client.len() || client.turns()[place].message.role == Role::Assistant
        }
        Ordering::Greater => place + 1 == client.len() && !is_silent,
    };
    let mut places = answers
        .iter()
        .filter_map(|(_, behind)| behind.checked_sub(1));
    places.any(|place| !is_ordinary(place))
}
