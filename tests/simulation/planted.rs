//! Planted bugs: each is one plausible mistake of the store or of those who use it, and a test asserts
//! that the simulation notices it, and by which rule.

use bytes::Bytes;
use diarist::store::NewSnapshot;
use diarist::wire::Insert;
use serde_json::Value;

use super::ledger::Ledger;
use crate::properties::conversation::Request;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A worker whose lease went to another commits all the same.
    FenceIgnored,
    /// A claimed job is free for the next worker at once.
    LeaseOfNothing,
    /// The jobs of a process that died stay its own.
    LeaseWithoutEnd,
    /// The job stays in the queue when its part is stored.
    JobKept,
    /// What is to be tried again is given up.
    RetryGivenUp,
    /// A snapshot may be used one message too early.
    EligibleTooEarly,
    /// A snapshot counts from the chain its maker knew, not from what is recorded.
    EligibleByStaleRead,
    /// What a request was sent with before is not asked for.
    RetryDecidedAnew,
    /// A part of another chain stands in the place of one's own.
    PartOfAnotherChain,
    /// A part in the middle is left out.
    GapAccepted,
    /// The last part is sent twice.
    SentTwice,
    /// The hints are those of the first part.
    HintsOfBefore,
    /// The hints are those of the last part, whatever is known since.
    HintsOfTheDone,
    /// A log may grow for as long as a Reflector takes.
    LimitIgnored,
    /// What relations of dates add to a part is in no sum.
    RelationsUncounted,
    /// An answer without a word becomes a part.
    EmptyCommitted,
    /// Nobody is told that a limit cut an answer.
    CutTakenForWhole,
    /// Messages count as confirmed when they are first seen.
    ConfirmedAtOnce,
    /// The last thing said in a range is not shown.
    WordsUnshown,
    /// The newest snapshot of a chain is not found.
    NewestUnread,
    /// What is stored counts as unknown.
    StoredKeyExcluded,
    /// Of the parts of a chain only the newest is found.
    SourceStranded,
    /// Nothing in the block says that messages were left out.
    TrimUnsaid,
    /// Where a request was trimmed is not asked for.
    TrimForgotten,
    /// What was observed while a client waited is stored as other words than it went out with.
    RescueWrittenAnew,
    /// A request that was refused is recorded like any other.
    RefusedRecorded,
    /// Behind the run that a view stands on one message too many is left out.
    ViewOneTooMany,
    /// What memory does not know of a view is left out with what it does.
    FrontForgotten,
    /// The tail of a view begins behind a call, with its results.
    ViewPartsRound,
    /// Jobs that need a registered route are claimed by processes that have none.
    RouteNotHeld,
    /// A route that was registered once is held for ever.
    RouteForEver,
    /// A timer can be taken by a second process while one acts on it.
    TimerOfNobody,
    /// A timer that was acted on stays.
    TimerKept,
    /// Requests after the first do not move the timer of their conversation.
    TimerNotMoved,
    /// A conversation counts as idle at once.
    NeverIdle,
}

/// Spoils what a worker is given to show.
pub fn spoil_words(payload: &mut String) {
    let mut words: Value = serde_json::from_str(payload).unwrap();
    let shown = words["transcript"].as_str().unwrap();
    if let Some((before, _)) = shown.rsplit_once("\nUser") {
        words["transcript"] = before.into();
        *payload = words.to_string();
    }
}

/// Spoils a request on its way to the upstream.
pub fn spoil_sent(bug: Option<Bug>, body: Bytes) -> Bytes {
    if bug != Some(Bug::TrimUnsaid) {
        return body;
    }
    let text = std::str::from_utf8(&body).unwrap();
    let Some((before, rest)) = text.split_once("<diarist-gap>") else {
        return body;
    };
    let (_, after) = rest.split_once("</diarist-gap>").unwrap();
    format!("{before}{after}").into()
}

/// Spoils what a view goes out with.
pub fn spoil_view(bug: Option<Bug>, request: &Request, insert: &mut Insert<'_>) {
    let next = request.turns.get(insert.cut);
    match bug {
        Some(Bug::ViewOneTooMany) if insert.cut + 1 < request.turns.len() => insert.cut += 1,
        Some(Bug::FrontForgotten) => insert.front = &[],
        Some(Bug::ViewPartsRound) if next.is_some_and(|next| next.calls() > 0) => insert.cut += 1,
        _ => {}
    }
}

/// Spoils a snapshot on its way to the store.
pub fn spoil(bug: Option<Bug>, new: &mut NewSnapshot, ledger: &Ledger) {
    let last = new.parts.len() - 1;
    match bug {
        Some(Bug::EligibleByStaleRead) => new.eligible_now = true,
        Some(Bug::PartOfAnotherChain) => {
            if let Some((other, text)) = ledger.other_part(new.parts[last], new.to_count) {
                new.parts[last] = other;
                new.segments[last + 1] = format!("{text}\n");
            }
        }
        Some(Bug::GapAccepted) if last > 1 => {
            new.parts.remove(1);
            new.segments.remove(2);
        }
        Some(Bug::SentTwice) => {
            new.parts.push(new.parts[last]);
            new.segments
                .insert(last + 2, new.segments[last + 1].clone());
        }
        Some(Bug::HintsOfBefore) if last > 0 => {
            if let Some(task) = ledger.current_task(new.parts[0]) {
                new.segments.truncate(last + 2);
                new.segments
                    .push(format!("<current-task>\n{task}\n</current-task>\n"));
            }
        }
        Some(Bug::HintsOfTheDone) => {
            if let Some(task) = ledger.current_task(new.parts[last]) {
                new.segments.truncate(last + 2);
                new.segments
                    .push(format!("<current-task>\n{task}\n</current-task>\n"));
            }
        }
        _ => {}
    }
}
