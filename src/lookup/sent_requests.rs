//! What each request is sent with, from the moment it is decided. Equal requests at the same time are
//! sent alike, and a repetition is sent like the first one (INV-SAME). Two requests are equal if they have one
//! history and one model.
//!
//! A request that no upstream has accepted is kept only while it is in flight. After a refusal,
//! a repetition is decided anew. Used by [`super::SnapshotCache`] only.

use super::hash_tables::{HashKeyMap, HashKeySet};
use super::sizes;
use crate::history::Link;
use crate::memory::Trim;
use crate::store::SentWith;

/// A link, with its tenant. The scope is part of every link's hash, but the tenant is in the key all the
/// same (INV-OWN).
pub(super) type Key = ([u8; 32], Link);

/// What a sent request is kept with: the model, and the thread key.
#[derive(Clone, Copy, Debug)]
pub struct SentLabel<'a> {
    /// The model, as the request names it.
    pub model: &'a str,
    /// The thread key that the client gives.
    pub thread_key: Option<&'a str>,
}

#[derive(Debug)]
struct SentRequest {
    sent_with: SentWith,
    model: Box<str>,
    /// The thread key of its conversation.
    thread_key: Option<Box<str>>,
    /// Equal requests that were sent and have no answer yet.
    in_flight: u32,
    /// Whether an upstream has accepted it, by this process or by the store.
    accepted: bool,
}

/// Sent requests by the last link of the history, one for each model.
#[derive(Debug, Default)]
pub(super) struct SentRequests {
    by_history: HashKeyMap<Key, Vec<SentRequest>>,
    /// Histories of which a request was trimmed once. Few are, and a request asks for those it continues: it need not
    /// look at the sent requests of each of its messages.
    trimmed: HashKeySet<Key>,
    /// Bytes of all of them.
    bytes: usize,
}

impl SentRequest {
    fn bytes(&self) -> usize {
        sizes::of_sent_request(&self.model, self.thread_key.as_deref())
    }
}

impl SentRequests {
    fn request(&self, key: &Key, model: &str) -> Option<&SentRequest> {
        let mut requests = self.by_history.get(key)?.iter();
        requests.find(|request| *request.model == *model)
    }

    fn request_mut(&mut self, key: &Key, model: &str) -> Option<&mut SentRequest> {
        let mut requests = self.by_history.get_mut(key)?.iter_mut();
        requests.find(|request| *request.model == *model)
    }

    /// The sent request; `new` makes it if there is none.
    fn or_insert(
        &mut self,
        key: Key,
        model: &str,
        new: impl FnOnce() -> SentRequest,
    ) -> &mut SentRequest {
        let requests = self.by_history.entry(key).or_default();
        let existing = requests.iter().position(|request| *request.model == *model);
        let at = existing.unwrap_or_else(|| {
            let request = new();
            self.bytes += request.bytes();
            requests.push(request);
            requests.len() - 1
        });
        &mut requests[at]
    }

    /// Must be called for everything that a request may be sent with.
    fn note_trim(&mut self, key: &Key, sent_with: &SentWith) {
        if sent_with.trim.is_some() {
            self.trimmed.insert(*key);
        }
    }

    pub(super) fn get(&self, key: &Key, model: &str) -> Option<&SentWith> {
        self.request(key, model).map(|request| &request.sent_with)
    }

    /// Whether the history was sent to any model.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.by_history.contains_key(key)
    }

    /// Whether a request with the history has no answer yet.
    pub(super) fn is_in_flight(&self, key: &Key) -> bool {
        let mut requests = self.by_history.get(key).into_iter().flatten();
        requests.any(|request| request.in_flight > 0)
    }

    /// How far requests with the history were trimmed, for each model.
    pub(super) fn trims(&self, key: &Key) -> impl Iterator<Item = (Trim, &str)> {
        let requests = self.trimmed.get(key).map(|key| self.by_label(key));
        let requests = requests.into_iter().flatten();
        requests.filter_map(|(used, model, _)| Some((used.trim?, model)))
    }

    /// What the history was sent with, for each model, with the thread key.
    pub(super) fn by_label(
        &self,
        key: &Key,
    ) -> impl Iterator<Item = (&SentWith, &str, Option<&str>)> {
        let requests = self.by_history.get(key).into_iter().flatten();
        requests.map(|request| {
            (
                &request.sent_with,
                &*request.model,
                request.thread_key.as_deref(),
            )
        })
    }

    /// What a request is sent with that is now in flight: the first caller decides, with `proposed`. `accepted` says that
    /// an upstream has accepted `proposed` before. It changes nothing for an equal request, because one in flight also
    /// counts as sent before.
    pub(super) fn begin_send(
        &mut self,
        key: Key,
        label: SentLabel<'_>,
        proposed: SentWith,
        accepted: bool,
    ) -> SentWith {
        self.note_trim(&key, &proposed);
        let request = self.or_insert(key, label.model, || SentRequest {
            sent_with: proposed,
            model: label.model.into(),
            thread_key: label.thread_key.map(Into::into),
            in_flight: 0,
            accepted,
        });
        request.in_flight += 1;
        request.sent_with.clone()
    }

    /// Adds what a request was recorded with, if it is not known. So what was decided while the store
    /// failed binds repetitions only once it is recorded.
    pub(super) fn add_recorded(&mut self, key: Key, label: SentLabel<'_>, sent_with: SentWith) {
        self.note_trim(&key, &sent_with);
        self.or_insert(key, label.model, || SentRequest {
            sent_with,
            model: label.model.into(),
            thread_key: label.thread_key.map(Into::into),
            in_flight: 0,
            accepted: true,
        });
    }

    /// Replaces what a refused request is sent with, unless another request has changed it. What an upstream has
    /// accepted before stays, although the upstream refused it this time.
    pub(super) fn replace_refused(
        &mut self,
        key: &Key,
        model: &str,
        refused: &SentWith,
        replacement: SentWith,
    ) -> SentWith {
        self.note_trim(key, &replacement);
        match self.request_mut(key, model) {
            Some(request) if request.sent_with.is_alike(refused) && !request.accepted => {
                request.sent_with = replacement.clone();
                replacement
            }
            Some(request) => request.sent_with.clone(),
            None => replacement,
        }
    }

    /// Replaces the id of a snapshot that was stored after it was sent. The bytes stay the same.
    pub(super) fn renumber(
        &mut self,
        key: &Key,
        model: &str,
        unstored: &SentWith,
        stored: SentWith,
    ) {
        self.note_trim(key, &stored);
        if let Some(request) = self
            .request_mut(key, model)
            .filter(|request| request.sent_with == *unstored)
        {
            request.sent_with = stored;
        }
    }

    /// Takes the requests in flight. The others are dropped with `self`.
    pub(super) fn take_in_flight(&mut self) -> Self {
        let Self {
            mut by_history,
            mut trimmed,
            ..
        } = std::mem::take(self);
        by_history.retain(|_, requests| {
            requests.retain(|request| request.in_flight > 0);
            !requests.is_empty()
        });
        trimmed.retain(|key| by_history.contains_key(key));
        let bytes = by_history.values().flatten().map(SentRequest::bytes).sum();
        Self {
            by_history,
            trimmed,
            bytes,
        }
    }

    /// How many bytes all of them need.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts one request in flight less; removes it if none is left and no upstream accepted it.
    pub(super) fn release(&mut self, key: &Key, model: &str, accepted: bool) {
        let Some(request) = self.request_mut(key, model) else {
            return;
        };
        request.in_flight = request.in_flight.saturating_sub(1);
        request.accepted |= accepted;
        if request.in_flight > 0 || request.accepted {
            return;
        }
        if let Some(requests) = self.by_history.get_mut(key) {
            let gone = requests.extract_if(.., |request| *request.model == *model);
            self.bytes -= gone.map(|request| request.bytes()).sum::<usize>();
            if requests.is_empty() {
                self.by_history.remove(key);
                self.trimmed.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trimmed(to_count: usize) -> SentWith {
        SentWith {
            trim: Some(Trim {
                to_count,
                pin: None,
                wording: 0,
            }),
            ..SentWith::default()
        }
    }

    /// A request that streams is refused. An equal one that does not stream was sent alike, so none has replaced it.
    #[test]
    fn a_request_that_cannot_request_usage_counts_as_alike() {
        let sent_with = |usage_requested| SentWith {
            usage_requested,
            ..trimmed(1)
        };
        for (one, other) in [
            (None, Some(true)),
            (Some(false), None),
            (Some(true), Some(true)),
        ] {
            assert!(
                sent_with(one).is_alike(&sent_with(other)),
                "{one:?} {other:?}"
            );
        }
        assert!(!sent_with(Some(true)).is_alike(&sent_with(Some(false))));
        assert!(!sent_with(None).is_alike(&SentWith::default()));
    }

    /// A request that goes on without the cut of the one before would bring back what its model had no room for.
    #[test]
    fn a_trim_is_found_from_every_source() {
        let label = SentLabel {
            model: "m",
            thread_key: None,
        };
        let keys: Vec<Key> = (1..=5)
            .map(|byte| ([0; 32], Link::from_slice(&[byte; 32]).expect("32")))
            .collect();
        let plain = SentWith::default;
        let mut requests = SentRequests::default();
        requests.begin_send(keys[0], label, trimmed(1), false);
        requests.add_recorded(keys[1], label, trimmed(2));
        requests.begin_send(keys[2], label, plain(), false);
        requests.replace_refused(&keys[2], "m", &plain(), trimmed(3));
        requests.begin_send(keys[3], label, plain(), false);
        requests.renumber(&keys[3], "m", &plain(), trimmed(4));
        requests.begin_send(keys[4], label, plain(), false);
        let counts = |requests: &SentRequests| -> Vec<usize> {
            let trims = keys.iter().flat_map(|key| requests.trims(key));
            trims.map(|(trim, _)| trim.to_count).collect()
        };
        assert_eq!(counts(&requests), [1, 2, 3, 4]);
        let mut in_flight = requests.take_in_flight();
        assert_eq!(counts(&in_flight), [1, 3, 4]);
        assert_eq!(counts(&requests), [0; 0]);
        in_flight.release(&keys[0], "m", false);
        assert_eq!(counts(&in_flight), [3, 4]);
    }
}
