//! Compares a path with a request: how much of the path can be sent as memory, where the request
//! differs from it, and from where on the request repeats it.

use super::known_chains::PathEntry;
use crate::history::align::{AlignmentContext, PathAlignment, Run, align, common_runs};
use crate::history::{History, LONG_ANSWER_BYTES, MessageKey, PositionMap, Role};

/// How many messages from the beginning of `path` are observed, or wait for observation with stored
/// text.
pub(super) fn observed_count(path: &[PathEntry]) -> usize {
    path.iter()
        .rposition(|step| step.range_end)
        .map_or(0, |at| at + 1)
}

/// A path and a request, by the keys of their messages.
pub(super) struct PathComparison<'a> {
    path: &'a [PathEntry],
    pub(super) path_keys: Vec<MessageKey>,
    pub(super) request_keys: Vec<MessageKey>,
}

impl<'a> PathComparison<'a> {
    pub(super) fn new(client: &History, path: &'a [PathEntry]) -> Option<Self> {
        if path.is_empty() {
            return None;
        }
        let path_keys: Vec<MessageKey> = path
            .iter()
            .map(|step| step.message_key)
            .collect::<Option<_>>()?;
        let request_keys = (0..client.len()).map(|at| client.message_key(at)).collect();
        Some(Self {
            path,
            path_keys,
            request_keys,
        })
    }

    /// Finds the shared runs. `is_client_summary` says which messages of the request the client
    /// itself put in front of what it kept.
    pub(super) fn align(
        &self,
        same_name: bool,
        is_client_summary: impl Fn(usize) -> bool,
    ) -> Option<PathAlignment> {
        let message_origin = |place: usize| self.path[place].message_origin;
        let context = AlignmentContext {
            origin: message_origin,
            same_thread_key: same_name,
            is_client_summary,
        };
        align(&self.path_keys, &context, &self.request_keys)
    }

    /// How many of the first `reach` messages of the path need not be in the request to be
    /// remembered: observed messages, and dropped ones behind them whose text is stored.
    pub(super) fn restorable_count(&self, runs: &[Run], reach: usize) -> usize {
        let is_restorable = |place: usize| {
            let has_text = self.path[place].text_kept;
            match request_index(runs, place) {
                Some(client) => {
                    has_text || self.request_keys[client].content == self.path_keys[place].content
                }
                None => has_text && is_dropped(runs, place),
            }
        };
        let observed = observed_count(&self.path[..reach]);
        (observed..reach)
            .find(|place| !is_restorable(*place))
            .unwrap_or(reach)
    }
}

/// The index in the request of the message at `place` of the path.
fn request_index(runs: &[Run], place: usize) -> Option<usize> {
    let mut runs = runs.iter();
    let run = runs.find(|run| (run.path..run.path + run.len).contains(&place))?;
    Some(run.client + (place - run.path))
}

/// Whether the client put fewer messages into a gap than it left out. Otherwise it said the same in
/// other words, and the new words count.
fn is_dropped(runs: &[Run], place: usize) -> bool {
    let before = runs.iter().rfind(|run| run.path + run.len <= place);
    let Some(behind) = runs.iter().find(|run| run.path > place) else {
        return false;
    };
    let (client, path) = before.map_or((0, 0), |run| (run.client + run.len, run.path + run.len));
    behind.client - client < behind.path - path
}

/// The first message behind the observed ones whose content has changed, such as a pruned tool result
/// or a repaired call. From there on, the chain holds what the client says now: a range must not count
/// as observed without its text (INV-COVER).
pub(super) fn first_changed(
    view: &PositionMap,
    path_keys: &[MessageKey],
    request_keys: &[MessageKey],
) -> usize {
    let (client, open) = view.open_start();
    (open..path_keys.len())
        .find(|place| {
            let sent = request_keys.get(client + (place - open));
            sent.is_none_or(|sent| sent.content != path_keys[*place].content)
        })
        .unwrap_or(path_keys.len())
}

/// From this many repeated messages on, they count as kept, wherever they stand on the path.
const MIN_KEPT: usize = 3;

/// So many messages at the end of the path may be left out of what is kept, such as a reminder in front of the question for
/// a summary.
const MAX_LEFT_OUT: usize = 2;

/// The longest acknowledgement of a summary, in distinctive bytes. Those of known clients have 11 to 42.
const MAX_ACKNOWLEDGEMENT: u32 = 48;

/// What a client goes on with behind its summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptTail {
    /// Where it begins in the request.
    pub(super) client: usize,
    /// The place of the path from which on the client repeats it; the length of the path if it repeats nothing. The client
    /// kept these messages raw, so memory must not cover them as well.
    pub(super) path: usize,
    /// How many messages from there on are those of the path, unchanged. Their links are those of the path too, so
    /// observations that end among them can be used.
    unchanged: usize,
}

impl KeptTail {
    /// Finds what the client kept of `path` behind its first `place` messages. The place with the most repeated messages
    /// wins, and of equal ones the last. A kept message that the client changed is not covered either.
    ///
    /// What a client keeps are the newest messages, or several, or a long one. One short older message, such as "continue",
    /// is said again.
    pub(super) fn find(client: &History, place: usize, path: &[PathEntry]) -> Option<Self> {
        let PathComparison {
            path_keys: known,
            request_keys: sent,
            ..
        } = PathComparison::new(client, path)?;
        let is_kept = |from: usize, end: usize, count: usize| {
            let is_newest = end + MAX_LEFT_OUT >= known.len();
            let is_long = || known[from].distinctive_bytes >= LONG_ANSWER_BYTES;
            count >= MIN_KEPT || (count > 0 && (is_newest || is_long()))
        };
        let contents = |keys: &[MessageKey]| keys.iter().map(|key| key.content).collect::<Vec<_>>();
        let unchanged_from = |begin: usize| {
            let kept_counts = matching_prefixes(&contents(&sent[begin..]), &contents(&known));
            let places = (0..known.len())
                .filter(|from| is_kept(*from, from + kept_counts[*from], kept_counts[*from]));
            places
                .max_by_key(|from| kept_counts[*from])
                .map(|path| Self {
                    client: begin,
                    path,
                    unchanged: kept_counts[path],
                })
        };
        let behind_acknowledgement = || {
            let begin = place + 1;
            is_acknowledgement(client, place)
                .then(|| unchanged_from(begin))
                .flatten()
        };
        if let Some(unchanged) = unchanged_from(place).or_else(behind_acknowledgement) {
            return Some(unchanged);
        }
        let behind = common_runs(&known, &sent[place..]);
        let repeated = behind.iter().map(|run| run.len).sum();
        let changed = behind
            .first()
            .zip(behind.last())
            .filter(|(first, last)| is_kept(first.path, last.path + last.len, repeated))
            .map(|(first, _)| first.path.saturating_sub(first.client));
        Some(Self {
            client: place,
            path: changed.unwrap_or(known.len()),
            unchanged: 0,
        })
    }

    /// How many messages from the beginning of `path` the chain of the request begins with: those in front of what was kept,
    /// if an observation ends there or among the unchanged messages behind them. Otherwise up to the last observation that
    /// ends before. An observation that ends behind a change is of another chain, so what it began with would be neither
    /// observed nor sent, and every later range would have to begin with it.
    pub(super) fn base_len(&self, path: &[PathEntry]) -> usize {
        let observed = observed_count(&path[..self.path + self.unchanged]);
        if observed >= self.path {
            self.path
        } else {
            observed
        }
    }
}

/// Whether the message at `place`, the first one behind a summary, is what a client lets the model answer to it: "Understood.",
/// or a sentence more. No model said it, so it stands for no message of the conversation. An answer that its user has edited
/// to a few words looks alike, and its original would count as still said; so only a few words are an acknowledgement.
fn is_acknowledgement(client: &History, place: usize) -> bool {
    let before = place
        .checked_sub(1)
        .and_then(|at| client.messages().get(at));
    let answer = client.messages().get(place).map(|it| &it.message);
    before.is_some_and(|before| before.message.role == Role::User)
        && answer.is_some_and(|answer| {
            let is_short = answer.distinctive_bytes <= MAX_ACKNOWLEDGEMENT;
            answer.role == Role::Assistant && answer.calls.is_empty() && is_short
        })
}

/// For each place of `text`, how many items from there on are the first ones of `pattern`. Linear in both, also where one
/// item is repeated thousands of times: the Z function of pattern and text.
fn matching_prefixes<T: Copy + PartialEq>(pattern: &[T], text: &[T]) -> Vec<usize> {
    let items = [pattern, text].concat();
    let mut matches = vec![0; items.len()];
    // The match that reaches furthest: where it begins and ends.
    let (mut begin, mut end) = (0, 0);
    for at in 1..items.len() {
        let known = if at < end {
            matches[at - begin].min(end - at)
        } else {
            0
        };
        let more = items[at + known..].iter().zip(&items[known..]);
        let count = known + more.take_while(|(one, other)| one == other).count();
        matches[at] = count;
        if at + count > end {
            (begin, end) = (at, at + count);
        }
    }
    let behind = matches[pattern.len()..].iter();
    behind.map(|count| *count.min(&pattern.len())).collect()
}

/// The runs of `path` that the client repeats in front of the last of its first `place` messages; they
/// need not be sent again.
pub(super) fn runs_before(client: &History, place: usize, path: &[PathEntry]) -> Option<Vec<Run>> {
    let Some(before) = place.checked_sub(1) else {
        return Some(Vec::new());
    };
    let PathComparison {
        path_keys: known,
        request_keys: sent,
        ..
    } = PathComparison::new(client, path)?;
    Some(common_runs(&known, &sent[..before]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::matching_prefixes;

    proptest! {
        #[test]
        fn matching_prefixes_equal_a_count_one_by_one(
            pattern in prop::collection::vec(0_u8..3, 0..12),
            text in prop::collection::vec(0_u8..3, 0..30),
        ) {
            let counted: Vec<usize> = (0..text.len())
                .map(|from| {
                    let both = text[from..].iter().zip(&pattern);
                    both.take_while(|(one, other)| one == other).count()
                })
                .collect();
            prop_assert_eq!(matching_prefixes(&pattern, &text), counted);
        }
    }
}
