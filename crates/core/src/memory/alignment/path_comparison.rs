//! A path and a request side by side: what of the path need not be sent to be remembered, from where on the
//! request says something else, and from where on it says the path itself.

use super::evidence::PathEntry;
use crate::history::align::{AlignmentContext, PathAlignment, Run, align, common_runs};
use crate::history::{History, MessageKey, PositionMap};

/// How many messages from the beginning of `path` are observed, or wait for it with their words.
pub(super) fn observed_count(path: &[PathEntry]) -> usize {
    path.iter()
        .rposition(|step| step.range_end)
        .map_or(0, |at| at + 1)
}

/// A path and a request as they are compared.
pub(super) struct PathComparison<'a> {
    path: &'a [PathEntry],
    pub(super) path_keys: Vec<MessageKey>,
    pub(super) request_keys: Vec<MessageKey>,
}

impl<'a> PathComparison<'a> {
    pub(super) fn new(client: &History, path: &'a [PathEntry]) -> Option<Self> {
        let path_keys: Vec<MessageKey> = path
            .iter()
            .map(|step| step.message_key)
            .collect::<Option<_>>()?;
        let root = client.root();
        let turns = client.turns().iter();
        let request_keys = turns
            .map(|turn| MessageKey::from_message(&root, &turn.message))
            .collect();
        (!path_keys.is_empty()).then_some(Self {
            path,
            path_keys,
            request_keys,
        })
    }

    /// `puts_there` says which messages of the request the client itself puts in front of what it keeps.
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

    /// Of the path's first `reach` messages, how many from the beginning need not be sent to be
    /// remembered: what is observed, and where words are kept what the client dropped behind it.
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

/// The message of the request that stands at `place` of the path.
fn request_index(runs: &[Run], place: usize) -> Option<usize> {
    let mut runs = runs.iter();
    let run = runs.find(|run| (run.path..run.path + run.len).contains(&place))?;
    Some(run.client + (place - run.path))
}

/// Whether the client has put less in the place of a gap than it left out: else it said the same in
/// other words, and the last words count.
fn is_dropped(runs: &[Run], place: usize) -> bool {
    let before = runs.iter().rfind(|run| run.path + run.len <= place);
    let Some(behind) = runs.iter().find(|run| run.path > place) else {
        return false;
    };
    let (client, path) = before.map_or((0, 0), |run| (run.client + run.len, run.path + run.len));
    behind.client - client < behind.path - path
}

/// The first message behind what is observed that is no longer what it was: a result that was pruned
/// before anybody was shown it, a call that was repaired. From there on the chain says what the client
/// says now: a range must not count as observed without its words (INV-COVER).
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

/// From where on the client sends `path` itself behind `place`: what it kept was not summarised, and
/// would be told twice. The longest beginning of it counts, since it may have gone back since; of several
/// the last. What it changed among what it kept is not told either.
pub(super) fn tail_start(client: &History, place: usize, path: &[PathEntry]) -> Option<usize> {
    let PathComparison {
        path_keys: known,
        request_keys: sent,
        ..
    } = PathComparison::new(client, path)?;
    let behind = common_runs(&known, &sent[place..]);
    let changed = behind
        .first()
        .map(|run| run.path.saturating_sub(run.client));
    let kept_count = |from: usize| {
        let both = known[from..].iter().zip(&sent[place..]);
        both.take_while(|(known, sent)| known.content == sent.content)
            .count()
    };
    let longest = (0..known.len()).max_by_key(|from| kept_count(*from));
    let from = longest.filter(|from| kept_count(*from) > 0);
    Some(from.or(changed).unwrap_or(known.len()))
}

/// Where on `path` stands what the client sends before the last of its first `place` messages: what is told
/// of is not sent as well.
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
