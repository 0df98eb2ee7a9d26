//! INV-PREFIX: what of a prompt has to be as it was sent before. A part of [`super::Laws`].

use super::{OwnerHistory, Past, Used};
use crate::properties::conversation::PICTURE_TOKENS;
use crate::properties::kept::size;
use crate::properties::laws::{Check, Law, breaks};
use crate::properties::reading::Reading;
use diarist_provider::cache;

/// INV-PREFIX, at an activation: everything up to the end of the old observations is as it was, and
/// nothing but a reflection takes observations back.
pub(super) fn inv_prefix_of_observations(
    before: &Past,
    now: &Past,
    prompt: &[String],
    history: &OwnerHistory,
) -> Check {
    if before.used.map(|(_, placement)| placement) != now.used.map(|(_, placement)| placement) {
        // The first block, or a placement that was given up.
        return Ok(());
    }
    // How far a trim reached is no matter of observations: they take its place as they come.
    if now.covered < before.covered {
        return breaks(Law::Prefix, "a longer request covers less");
    }
    if now.marks.starts_with(&before.marks) {
        let kept = history.sent.kept(prompt).bytes;
        // Behind a changed head, or another front, nothing could be kept.
        let same = before.head == now.head && before.front == now.front;
        // A Reflector wrote of the range that code had left something out of: the mark is the same, and
        // what code left out of that, if anything, is something else.
        let (then, this) = (left_out(before), left_out(now));
        let answered = !then.is_empty() && this != then && now.marks.iter().any(|m| m.reflection);
        if kept < before.observations && same && !answered {
            return breaks(
                Law::Prefix,
                format!(
                    "keeps {kept} bytes, the observations end at {}: {:?} after {:?}",
                    before.observations, now.used, before.used
                ),
            );
        }
    } else if !now
        .marks
        .iter()
        .any(|m| m.reflection && !before.marks.contains(m))
    {
        return breaks(Law::Prefix, "observations changed without a reflection");
    }
    Ok(())
}

/// How many lines code left out, each time that a request says so.
fn left_out(past: &Past) -> Vec<String> {
    let sent = String::from_utf8_lossy(&past.sent);
    let notes = sent.split("older observations left out: ").skip(1);
    let number = |note: &str| note.chars().take_while(char::is_ascii_digit).collect();
    notes.map(number).collect()
}

/// Behind another head everything is new, and what stands in for the oldest messages is smaller by
/// the policy's account only: that is in tokens, and a picture counts there as what it costs, while
/// a prompt shows the few bytes of its digest. In tokens.
pub(super) fn allowed(
    read: &Reading<'_>,
    history: &OwnerHistory,
    used: Used,
    raw: &[String],
) -> u32 {
    if history.received_with[&used].kept(raw).segments >= read.request.leading {
        return 0;
    }
    let covered_messages = read.covered_messages();
    let covered = covered_messages
        .iter()
        .map(|turn| &read.request.turns[*turn]);
    let images = covered.filter(|turn| turn.has_image()).count();
    cache::STEP_TOKENS + u32::try_from(PICTURE_TOKENS * images).unwrap()
}

/// INV-PREFIX, between activations: of what was sent before no more is lost than the client itself
/// changed.
pub(super) fn inv_prefix(
    history: &OwnerHistory,
    read: &Reading<'_>,
    used: Used,
    raw: &[String],
    prompt: &[String],
) -> Check {
    if !history.steady(read, used, raw) {
        return Ok(());
    }
    let new = size(prompt) - history.sent.kept(prompt).bytes;
    let changed = size(raw) - history.received_with[&used].kept_of_sent(raw).bytes;
    let slack = 4 * allowed(read, history, used, raw) as usize;
    if new <= changed + slack {
        return Ok(());
    }
    breaks(
        Law::Prefix,
        format!("{new} bytes of the prompt are new, the client changed {changed}"),
    )
}
