//! The invariants, one function each under its own name, checked on the bytes that went upstream.
//!
//! What a client meant is known from the client ([`Request`]); what was sent is read from the
//! forwarded body ([`Reading`]). Nothing here asks the code under test.

use diarist::history::Role;
use diarist_provider::{Rules, judge};

use super::conversation::{Digest, Request, Run};
use super::exchange::{Exchange, bridge, newest_user, reminder};
use super::kept::common;
use super::reading::Reading;

/// The name of an invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Law {
    Cover,
    Tail,
    Pair,
    Prefix,
    Bound,
    Open,
    Own,
    Same,
    Worth,
    Confirmed,
    Uncached,
    Early,
}

/// A law that was broken, and how.
#[derive(Clone, Debug)]
pub struct Broken {
    pub law: Law,
    pub how: String,
}

pub type Check = Result<(), Broken>;

pub fn breaks(law: Law, how: impl Into<String>) -> Check {
    let how = how.into();
    Err(Broken { law, how })
}

/// INV-COVER: every message is raw, or covered once; none is lost, none is told twice.
pub fn inv_cover(read: &Reading<'_>) -> Check {
    let turns = &read.request.turns;
    let digests: &[Digest] = &read.aligned_chain.path;
    if read.covered > digests.len() {
        let how = format!("covers {} of {}", read.covered, digests.len());
        return breaks(Law::Cover, how);
    }
    let mut at = 0;
    for mark in &read.marks {
        let end = at + mark.run.count;
        if Run::from_digests(&digests[at..end]) != mark.run {
            let how = format!("a part stands for other messages than {at}..{end}");
            return breaks(Law::Cover, how);
        }
        at = end;
    }
    let place = |turn: usize| {
        read.aligned_chain
            .sent
            .iter()
            .position(|sent| *sent == Some(turn))
    };
    let pinned = read
        .pin()
        .and_then(place)
        .is_some_and(|pin| pin >= read.covered);
    if let Some(stated_count) = read.left_out {
        // The note tells of what nobody can know any more: a pin stands raw, system messages in it.
        // It goes on to tell of what the client has dropped since, which alone leaves it open where the
        // gap ends (INV-PREFIX: the note stays as it is).
        let gone = &read.aligned_chain.sent[read.covered..read.reach()];
        let dropped = gone.iter().filter(|sent| sent.is_none()).count();
        let covered_messages = gone.iter().flatten();
        let covered_messages = covered_messages.filter(|turn| turns[**turn].role() != Role::System);
        let gone = covered_messages.count() - usize::from(pinned);
        if !(gone..=gone + dropped).contains(&stated_count) {
            let how = format!(
                "{gone} messages are left out, {dropped} are sent no more, and the block speaks of {stated_count}"
            );
            return breaks(Law::Cover, how);
        }
    }
    let between = read.between();
    let pin = read.pin();
    let covered_messages = read.covered_messages();
    for item in between.iter().skip(usize::from(pin.is_some())) {
        if covered_messages.iter().any(|turn| read.raw(*turn) == *item) {
            return breaks(Law::Cover, "a covered message is sent raw as well");
        }
    }
    let mut front = read.front.iter().peekable();
    for item in read.before() {
        front.next_if(|turn| read.raw(**turn) == &read.sent[item.clone()]);
    }
    if let Some(missing) = front.next() {
        let how = format!("message {missing} is neither covered nor sent in front");
        return breaks(Law::Cover, how);
    }
    let start = if read.appended() {
        read.request.leading + read.before().len()
    } else {
        (read.block + 1).max(read.request.leading)
    };
    let behind = read.items.len() - start.min(read.items.len());
    if read.has_block() && behind < turns.len() - read.cut {
        return breaks(Law::Cover, "a message is missing");
    }
    Ok(())
}

/// INV-TAIL: head, pin, tail and every other field go out byte for byte, in their order.
pub fn inv_tail(read: &Reading<'_>) -> Check {
    if !read.has_block() {
        return if read.is_raw() {
            Ok(())
        } else {
            breaks(Law::Tail, "changed without a block")
        };
    }
    let (request, body) = (read.request, &read.request.body[..]);
    let first = request.leading + read.cut;
    let Some(tail) = read.raw_items.get(first) else {
        return breaks(Law::Tail, "nothing is left of the tail");
    };
    if !read.sent.ends_with(&body[tail.start..]) {
        return breaks(
            Law::Tail,
            "the tail or a field behind it is not as received",
        );
    }
    let whole = |at: usize| &body[..read.raw_items[at].end];
    let head = match request.leading {
        0 => &body[..read.raw_items[0].start],
        1 if read.appended() => &body[..read.raw_items[0].start],
        leading if read.appended() => whole(leading - 2),
        leading => whole(leading - 1),
    };
    if !read.sent.starts_with(head) {
        return breaks(
            Law::Tail,
            "the head or a field before it is not as received",
        );
    }
    let block = &read.sent[read.items[read.block].clone()];
    if read.appended() {
        let raw = &body[read.raw_items[read.block].clone()];
        let (raw, sent) = (text(raw), text(block));
        let same = common(raw, sent);
        if !sent.ends_with(&raw[same..]) {
            return breaks(Law::Tail, "the system message was not only appended to");
        }
    } else {
        let role = match request.leading.checked_sub(1) {
            Some(last) if text(&body[read.raw_items[last].clone()]).contains("\"developer\"") => {
                "{\"role\":\"developer\""
            }
            _ => "{\"role\":\"system\"",
        };
        if !block.starts_with(role.as_bytes()) {
            return breaks(
                Law::Tail,
                "the block has another role than the client's head",
            );
        }
    }
    let (reminder, bridge) = (reminder(), bridge());
    let mut front = read.front.iter().peekable();
    let before = read.before().iter().map(|item| &read.sent[item.clone()]);
    let before = before.filter(|item| front.next_if(|turn| read.raw(**turn) == *item).is_none());
    let strange = before
        .chain(
            read.between()
                .into_iter()
                .skip(usize::from(read.pin().is_some())),
        )
        .find(|item| *item != reminder.as_bytes() && *item != bridge.as_bytes());
    match strange {
        Some(item) => breaks(Law::Tail, format!("nobody said {}", text(item))),
        None => Ok(()),
    }
}

/// INV-PAIR: what goes out is as good a request as what came in; the newest question and the newest
/// round are raw.
pub fn inv_pair(read: &Reading<'_>) -> Check {
    if !read.has_block() {
        return Ok(());
    }
    let turns = &read.request.turns;
    if let Some(newest) = newest_user(read.request)
        && newest < read.cut
        && !read.front.contains(&newest)
        && read
            .between()
            .first()
            .is_none_or(|item| *item != read.raw(newest))
    {
        return breaks(
            Law::Pair,
            "the newest user message is neither raw nor pinned",
        );
    }
    if let Some(pin) = read.pin()
        && turns[pin].role() != Role::User
    {
        return breaks(Law::Pair, "something else than a user message is pinned");
    }
    if turns.last().map(super::conversation::Msg::role) == Some(Role::Tool) {
        let call = turns.iter().rposition(|turn| turn.calls() > 0);
        if call.is_some_and(|call| call < read.cut && !read.front.contains(&call)) {
            return breaks(Law::Pair, "the newest round is not raw");
        }
    }
    let alternate = Rules {
        alternate: true,
        ..Rules::default()
    };
    for rules in [Rules::default(), alternate] {
        if let Err(refusal) = judge(&read.sent, &rules)
            && judge(&read.request.body, &rules).is_ok()
        {
            return breaks(Law::Pair, refusal.message);
        }
    }
    Ok(())
}

/// INV-OWN: nothing of another tenant or resource is ever sent.
pub fn inv_own(read: &Reading<'_>) -> Check {
    let mine = read.request.owner.label();
    match read.marks.iter().find(|mark| mark.owner != mine) {
        Some(mark) => breaks(Law::Own, format!("{mine} got memory of {}", mark.owner)),
        None => Ok(()),
    }
}

/// INV-OPEN: what the upstream accepts from the client itself is never refused because of memory.
pub fn inv_open(request: &Request, exchange: &Exchange, rules: &Rules) -> Check {
    if exchange.accepted.is_some() || judge(&request.body, rules).is_err() {
        return Ok(());
    }
    breaks(Law::Open, "refused, but the original is accepted")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
