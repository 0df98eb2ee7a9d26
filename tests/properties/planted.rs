//! Planted bugs: each is one plausible mistake in the decision path, and a test asserts that the
//! laws notice it, and which law does.

use bytes::Bytes;
use diarist::history::Role;
use diarist::memory::{Part, PartKind, Policy, Rendering, Snapshot, render};
use diarist::tokens::TokenCounter as _;
use diarist::wire;
use diarist::wire::{Insert, Placement};

use super::exchange::{Quarters, insert, reminder};
use super::world::Known;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The cut parts a call from its results.
    CutInsideRound,
    /// The last covered message is sent raw as well.
    OneTooFew,
    /// The first message of the tail is left out.
    OneTooMany,
    /// The body is read into a tree and written again.
    TailReserialised,
    /// The leading system message goes with the oldest messages.
    HeadSwallowed,
    /// The user message that is asked for is covered and not pinned.
    PinForgotten,
    /// The pinned message is sent twice.
    PinTwice,
    /// The pin goes when the user has spoken again, instead of with its snapshot.
    PinFollows,
    /// The block is a system message whatever the client calls its own.
    RoleIgnored,
    /// Nothing stands between the block and a tail that begins with the assistant.
    ReminderMissing,
    /// Resources share their memory.
    AnotherResource,
    /// Tenants share their memory.
    AnotherTenant,
    /// Parts are looked up by their place, not by their link.
    AnotherBranch,
    /// A chunk in the middle of the log is not sent.
    ChunkSkipped,
    /// What came after a reflection is dropped with what it condenses.
    ReflectionDropsLater,
    /// The block is written anew for every request, with the time in it.
    BlockRewritten,
    /// Every snapshot relates the dates of the whole log to its own day.
    DatesCountedAnew,
    /// The hints stand before the observations.
    HintsInTheMiddle,
    /// A snapshot may be used by requests that were sent without it.
    EligibleIgnored,
    /// A request that comes again is decided anew.
    RetryNotPinned,
    /// The newest messages are observed before anybody confirmed them.
    UnconfirmedObserved,
    /// What a client confirms again on another chain may be shown again.
    ConfirmedByChain,
    /// A snapshot is used even where it makes the request larger.
    ActivationNotSmaller,
    /// What relations of dates add to a part is in no sum.
    RelationsUncounted,
    /// What waits for idleness is used at once.
    EarlyThoughNotIdle,
    /// Snapshots are never prepared.
    NeverActivates,
    /// Observations are never condensed.
    NeverReflects,
    /// Nor does code shorten a log that no model condensed.
    NeverShortens,
    /// The refusal of a changed request is the client's answer.
    RefusalPassedOn,
}

/// Splices as the product does, or not quite.
pub fn splice(
    bug: Option<Bug>,
    parsed: &wire::Request,
    snapshot: &Snapshot,
    placement: Placement,
    requests: usize,
    joined: &dyn Fn(&Insert<'_>) -> Bytes,
) -> Bytes {
    let mut snapshot = snapshot.clone();
    if bug == Some(Bug::BlockRewritten) {
        snapshot.segments[0].push_str(&format!("It is {requests} o'clock.\n"));
    }
    let mut insert = insert(&snapshot, placement);
    match bug {
        Some(Bug::CutInsideRound)
            if parsed
                .messages()
                .get(insert.cut)
                .is_some_and(|message| !message.calls.is_empty()) =>
        {
            insert.cut += 1;
        }
        Some(Bug::OneTooFew) => insert.cut -= 1,
        Some(Bug::OneTooMany) => insert.cut += 1,
        Some(Bug::PinForgotten) => insert.pin = None,
        Some(Bug::PinFollows)
            if parsed.messages()[insert.cut..]
                .iter()
                .any(|message| message.role == Role::User) =>
        {
            insert.pin = None;
        }
        _ => {}
    }
    let body = joined(&insert);
    match bug {
        Some(Bug::TailReserialised) => {
            let tree: serde_json::Value = serde_json::from_slice(&body).unwrap();
            tree.to_string().into()
        }
        Some(Bug::PinTwice) => match insert.pin {
            Some(pin) => {
                let pin = text(&parsed.body()[parsed.messages()[pin].span.clone()]);
                text(&body)
                    .replacen(&pin, &format!("{pin},{pin}"), 1)
                    .into()
            }
            None => body,
        },
        Some(Bug::RoleIgnored) => {
            let block = r#"{"role":"developer","content":"<diarist"#;
            let system = block.replace("developer", "system");
            text(&body).replacen(block, &system, 1).into()
        }
        Some(Bug::ReminderMissing) => {
            let reminder = reminder();
            text(&body).replacen(&format!("{reminder},"), "", 1).into()
        }
        Some(Bug::HeadSwallowed) => match parsed.leading_messages().messages().first() {
            Some(head) => {
                let (before, after) = (&body[..head.span.start], &body[head.span.end..]);
                let next = after.iter().position(|byte| *byte == b'{').unwrap();
                [before, &after[next..]].concat().into()
            }
            None => body,
        },
        _ => body,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What the decisions are told of a chain.
pub fn before_advance(bug: Option<Bug>, known: &mut Known) {
    match bug {
        Some(Bug::UnconfirmedObserved) => {
            for node in &mut known.nodes {
                node.confirmed = true;
            }
        }
        Some(Bug::ActivationNotSmaller) => {
            for part in &mut known.parts {
                part.tokens = 0;
            }
        }
        _ => {}
    }
}

/// Tokens of a part.
pub fn weigh(bug: Option<Bug>, text: &str) -> u32 {
    match bug {
        Some(Bug::RelationsUncounted) => Quarters.count(text),
        _ => render::max_tokens(text, |text| Quarters.count(text)),
    }
}

/// The policy the decisions follow.
pub fn policy(bug: Option<Bug>, policy: Policy) -> Policy {
    match bug {
        Some(Bug::ActivationNotSmaller) => Policy {
            block_overhead: 0,
            ..policy
        },
        _ => policy,
    }
}

/// The text of a snapshot.
pub fn segments(
    bug: Option<Bug>,
    parts: &[Part],
    today: Rendering,
    (hints, saves): (Option<render::Hints<'_>>, u32),
) -> Vec<String> {
    let mut texts: Vec<render::BlockPart<'_>> = parts
        .iter()
        .map(|part| render::BlockPart {
            text: &part.body.text,
            rendering: match bug {
                Some(Bug::DatesCountedAnew) => today,
                _ => part.rendering.unwrap(),
            },
        })
        .collect();
    match bug {
        Some(Bug::ChunkSkipped) if texts.len() > 2 => {
            texts.remove(1);
        }
        Some(Bug::ReflectionDropsLater) if parts[0].body.kind == PartKind::Reflection => {
            texts.truncate(1);
        }
        _ => {}
    }
    let mut segments = render::affordable_segments(&texts, hints, saves);
    if bug == Some(Bug::HintsInTheMiddle) && segments.len() > texts.len() + 1 {
        let hints = segments.pop().unwrap();
        segments.insert(1, hints);
    }
    segments
}
