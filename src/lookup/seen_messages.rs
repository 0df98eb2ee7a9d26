//! How the store keeps what a process has seen: each list consists of records of one length, and each record of hashes one
//! behind the other. Used by [`super::origin_index`] only.

use super::tenant_origins::{AnsweredChain, Generation, Occurrence, SummaryAnswer, TenantOrigins};
use crate::history::{Link, ScopedHash};
use crate::memory::alignment::Origin;
use crate::store::SeenMessages;

/// What no hash is: in place of one that there is not. No origin is zero either.
const NONE: [u8; 32] = [0; 32];

/// A record of one length.
trait Record: Sized {
    /// Its bytes.
    const LEN: usize;

    /// Reads one of [`Self::LEN`] bytes.
    fn read(bytes: &[u8]) -> Option<Self>;

    /// Appends it to `list`.
    fn write(&self, list: &mut Vec<u8>);
}

/// The hash of a message, and in which conversations it occurred.
type SavedMessage = (ScopedHash, Occurrence);

/// An answer: the link before it, its hash, and its origin.
type SavedAnswer = (Link, ScopedHash, Origin);

/// The hash of an answer that may come back as a summary, and what is known of it.
type SavedSummaryAnswer = (ScopedHash, SummaryAnswer);

impl Record for SavedMessage {
    const LEN: usize = ScopedHash::LEN + 8;

    fn read(bytes: &[u8]) -> Option<Self> {
        let (mark, origin) = bytes.split_at_checked(ScopedHash::LEN)?;
        let occurrence = match i64::from_be_bytes(origin.try_into().ok()?) {
            0 => Occurrence::Several,
            origin => Occurrence::Once(Origin(origin)),
        };
        Some((ScopedHash::from_slice(mark)?, occurrence))
    }

    fn write(&self, list: &mut Vec<u8>) {
        let (mark, occurrence) = self;
        let origin = match occurrence {
            Occurrence::Once(origin) => origin.0,
            Occurrence::Several => 0,
        };
        list.extend(mark.as_bytes());
        list.extend(origin.to_be_bytes());
    }
}

impl Record for SavedAnswer {
    const LEN: usize = 32 + ScopedHash::LEN + 8;

    fn read(bytes: &[u8]) -> Option<Self> {
        let (tip, rest) = bytes.split_at_checked(32)?;
        let (mark, origin) = rest.split_at_checked(ScopedHash::LEN)?;
        let origin = Origin(i64::from_be_bytes(origin.try_into().ok()?));
        Some((
            Link::from_slice(tip)?,
            ScopedHash::from_slice(mark)?,
            origin,
        ))
    }

    fn write(&self, list: &mut Vec<u8>) {
        let (tip, mark, origin) = self;
        list.extend(tip.as_bytes());
        list.extend(mark.as_bytes());
        list.extend(origin.0.to_be_bytes());
    }
}

impl Record for SavedSummaryAnswer {
    const LEN: usize = 2 * ScopedHash::LEN + 2 * 32;

    fn read(bytes: &[u8]) -> Option<Self> {
        let (mark, rest) = bytes.split_at_checked(ScopedHash::LEN)?;
        let (ending, rest) = rest.split_at_checked(ScopedHash::LEN)?;
        let (tip, parent) = rest.split_at_checked(32)?;
        let chain = if tip == NONE {
            AnsweredChain::Several
        } else {
            AnsweredChain::To {
                tip: Link::from_slice(tip)?,
                parent: Link::from_slice(parent)?,
            }
        };
        let ending = match ending {
            none if none == &NONE[..ScopedHash::LEN] => None,
            ending => Some(ScopedHash::from_slice(ending)?),
        };
        Some((
            ScopedHash::from_slice(mark)?,
            SummaryAnswer { chain, ending },
        ))
    }

    fn write(&self, list: &mut Vec<u8>) {
        let (mark, answer) = self;
        list.extend(mark.as_bytes());
        let none = &NONE[..ScopedHash::LEN];
        let ending = answer.ending.as_ref();
        list.extend(ending.map_or(none, |ending| ending.as_bytes().as_slice()));
        let (tip, parent) = match &answer.chain {
            AnsweredChain::To { tip, parent } => (tip.as_bytes(), parent.as_bytes()),
            AnsweredChain::Several => (&NONE, &NONE),
        };
        list.extend(tip);
        list.extend(parent);
    }
}

/// The records of a list. Bytes behind the last whole one are left out.
fn read<R: Record>(list: &[u8]) -> impl Iterator<Item = R> {
    list.chunks_exact(R::LEN).filter_map(R::read)
}

/// How many entries the lists make at most.
pub(super) fn max_entries(entries: &SeenMessages) -> usize {
    // An answer is held with its origin, one that may be a summary with its ending.
    entries.messages.len() / SavedMessage::LEN
        + 2 * (entries.answers.len() / SavedAnswer::LEN)
        + 2 * (entries.summary_answers.len() / SavedSummaryAnswer::LEN)
}

/// What is not stored yet of `tenant` and may be, one for each generation, the oldest first.
pub(super) fn seal_unsaved(key: [u8; 32], tenant: &mut TenantOrigins) -> Vec<SeenMessages> {
    let unstorable = tenant.unstorable();
    let may_be_stored = |mark: &ScopedHash| !unstorable.contains(mark);
    let (generations, has_lost) = tenant.seal_unsaved();
    let lists = generations.map(|generation| {
        let mut entries = SeenMessages {
            tenant: key,
            has_lost,
            ..SeenMessages::default()
        };
        let messages = generation.messages();
        for message in messages.filter(|(mark, _)| may_be_stored(mark)) {
            message.write(&mut entries.messages);
        }
        for answer in generation.answers() {
            answer.write(&mut entries.answers);
        }
        let summary_answers = generation.summary_answers();
        for answer in summary_answers.filter(|(mark, _)| may_be_stored(mark)) {
            answer.write(&mut entries.summary_answers);
        }
        entries
    });
    let mut lists: Vec<SeenMessages> = lists.filter(|entries| entries.bytes() > 0).collect();
    if lists.is_empty() && has_lost {
        lists.push(SeenMessages {
            tenant: key,
            has_lost,
            ..SeenMessages::default()
        });
    }
    lists
}

/// A generation as the store had it.
pub(super) fn saved(entries: &SeenMessages) -> Generation {
    let mut saved = Generation::default();
    for (mark, occurrence) in read::<SavedMessage>(&entries.messages) {
        saved.add_message(mark, occurrence);
    }
    for (tip, mark, origin) in read::<SavedAnswer>(&entries.answers) {
        saved.add_answer((tip, mark), origin, true);
    }
    for (mark, answer) in read::<SavedSummaryAnswer>(&entries.summary_answers) {
        saved.add_summary_answer(mark, answer);
    }
    saved
}
