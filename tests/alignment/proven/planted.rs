//! The mistakes that are planted: in what is known of the chains, and in what was decided.

use std::sync::Arc;

use diarist::history::{History, MessageKey, PathMessage, PositionMap, Role};
use diarist::memory::alignment::{Alignment, KnownChains};

use crate::alignment::compose::Ask;
use crate::alignment::model_store::{ModelStore, StoredNode};

/// A mistake of whoever decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Two messages prove, however short.
    TwoProve,
    /// An acknowledgement that a program writes counts as said by the model.
    FixedProves,
    /// The request is placed one message too far.
    OneTooFar,
    /// What was never observed counts as observed.
    UnseenCovered,
    /// An answer proves that nobody saw being given, as in a template.
    GivenIgnored,
    /// What other conversations say as well proves.
    AloneIgnored,
    /// A message that the client has reworded counts as the old message.
    RewrittenCounts,
    /// The chain of another conversation is taken.
    AnotherConversation,
    /// That of another key.
    AnotherKey,
    /// A repetition is decided anew, by what is known since.
    DecidedAnew,
}

/// What is told to whoever decides.
pub fn spoil(bug: Option<Bug>, known_chains: &mut KnownChains, sent: &[MessageKey]) {
    let path = &mut known_chains.path;
    let items = path.iter_mut().filter_map(|step| step.message_key.as_mut());
    match bug {
        Some(Bug::TwoProve) => {
            for item in items.filter(|item| item.distinctive_bytes > 0 && item.ids.is_none()) {
                item.distinctive_bytes = item.distinctive_bytes.max(200);
            }
        }
        Some(Bug::FixedProves) => {
            for item in
                items.filter(|item| item.role == Role::Assistant && item.distinctive_bytes == 0)
            {
                item.distinctive_bytes = 200;
            }
        }
        Some(Bug::UnseenCovered) => {
            if let Some(step) = path.last_mut() {
                step.range_end = true;
            }
        }
        Some(Bug::GivenIgnored) => path
            .iter_mut()
            .for_each(|step| step.message_origin.from_upstream = true),
        Some(Bug::AloneIgnored) => path
            .iter_mut()
            .for_each(|step| step.message_origin.unshared = true),
        Some(Bug::RewrittenCounts) => {
            for (step, sent) in path.iter_mut().zip(sent) {
                let known = step.message_key.as_mut().unwrap();
                if known.role == sent.role && known.ids.is_none() && sent.ids.is_none() {
                    *known = *sent;
                }
            }
        }
        _ => {}
    }
}

/// What was decided, or what a mistake makes of it.
pub fn misplaced(
    bug: Option<Bug>,
    alignment: Alignment,
    ask: &Ask,
    store: &ModelStore,
) -> Alignment {
    let messages = alignment.history.messages().iter();
    let path: Vec<PathMessage> = messages
        .map(|chained| PathMessage {
            link: chained.link,
            role: chained.message.role,
        })
        .collect();
    let (open, at) = alignment.positions.open_start();
    let other = |is_wanted: &dyn Fn(&StoredNode) -> bool| {
        let tip = store
            .nodes
            .values()
            .find(|known| is_wanted(known) && known.node.count >= at.max(1))?;
        let path = store.path(tip.step.message.link);
        Some(path.iter().map(|step| step.message).collect::<Vec<_>>())
    };
    let (view, path) = match bug {
        Some(Bug::OneTooFar) => {
            let runs = alignment.positions.runs().to_vec();
            (PositionMap::from_parts(runs, open, at + 1), Some(path))
        }
        Some(Bug::AnotherConversation) => {
            let may = ask.allowed.iter().copied().collect();
            let strange = |known: &StoredNode| {
                let has_origin = !known.origins.is_empty();
                known.tenant == ask.tenant && has_origin && known.origins.is_disjoint(&may)
            };
            (Some(alignment.positions.clone()), other(&strange))
        }
        Some(Bug::AnotherKey) => {
            let strange = |known: &StoredNode| known.tenant != ask.tenant;
            (Some(alignment.positions.clone()), other(&strange))
        }
        _ => return alignment,
    };
    let wrong = view.zip(path).and_then(|(view, path)| {
        let history = Arc::new(History::aligned(&view, &path, &alignment.client)?);
        Some(Alignment {
            history,
            positions: view,
            ..alignment.clone()
        })
    });
    wrong.unwrap_or(alignment)
}
