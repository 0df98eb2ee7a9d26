//! Chooses the conversations that go without memory, so that what memory saves is measured and not only estimated
//! (`audit.holdout`).
//!
//! The name of a conversation decides, or the messages before its first answer: so each request of it finds the same
//! group, in each process and after each restart. Conversations without a name that begin alike are in the same group.
//! Called by `read_request`.

use super::identify::Identity;
use crate::history::{History, Pepper, Role, ScopedHash};
use crate::lookup::Lookup;

/// The share of conversations that go without memory: from 0 (none) to [`Share::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share(f64);

impl Share {
    /// The largest share. With more, the part that shows what memory does would be the smaller one.
    pub const MAX: f64 = 0.5;

    /// This share, or the nearest one from 0 to [`Share::MAX`].
    pub fn new(share: f64) -> Self {
        Self(share.clamp(0.0, Self::MAX))
    }

    /// Whether this hash, taken as a number between 0 and 1, is below the share.
    fn contains(self, hash: [u8; 8]) -> bool {
        // 53 bits: what a float holds exactly.
        const BITS: u32 = 53;
        let number = u64::from_le_bytes(hash) >> (u64::BITS - BITS);
        (number as f64) < self.0 * (1_u64 << BITS) as f64
    }
}

/// Whether this conversation goes without memory. `None` if it belongs to neither group: there is no hold-out, or the
/// conversation was chosen for it but has memory from before.
pub(super) fn is_held_out(
    share: Share,
    identity: &Identity,
    history: &History,
    lookup: &Lookup,
) -> Option<bool> {
    if share == Share::default() {
        return None;
    }
    let chosen = share.contains(conversation_hash(identity.thread.key.as_deref(), history)?);
    let had_memory = !lookup.candidates.is_empty() || !lookup.prefix_trims.is_empty();
    (!(chosen && had_memory)).then_some(chosen)
}

fn conversation_hash(key: Option<&str>, history: &History) -> Option<[u8; 8]> {
    if let Some(key) = key {
        // It is never stored, so it needs no pepper.
        let hash = ScopedHash::from_text(&Pepper::NONE, &history.root(), key);
        return hash.as_bytes().first_chunk().copied();
    }
    let is_answer =
        |chained: &&crate::history::ChainedMessage| chained.message.role == Role::Assistant;
    let before = history
        .messages()
        .iter()
        .take_while(|chained| !is_answer(chained));
    let link = before.last().or_else(|| history.messages().first())?.link;
    link.as_bytes().first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;
    use crate::wire;

    #[test]
    fn the_holdout_share_selects_its_part_of_conversations() {
        let share = Share::new(0.25);
        let evenly = (0..=u8::MAX).map(|high| [0, 0, 0, 0, 0, 0, 0, high]);
        assert_eq!(evenly.filter(|hash| share.contains(*hash)).count(), 64);
        assert!(!Share::default().contains([0; 8]));
        let history = |number: u32| {
            let text = format!("hello {number}");
            let body = serde_json::json!({"messages": [{"role": "user", "content": text}]});
            let request = wire::Request::parse_chat(&body.to_string().into()).unwrap();
            request.history(&Scope::new(b"k", None))
        };
        let chosen = (0..4_000).map(history);
        let chosen = chosen.filter_map(|history| conversation_hash(None, &history));
        let count = chosen.filter(|hash| share.contains(*hash)).count();
        // Four standard deviations.
        assert!((890..1_110).contains(&count), "{count}");
        assert_eq!(Share::new(0.51), Share::new(Share::MAX));
    }
}
