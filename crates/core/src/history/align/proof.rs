//! Decides what proves that a request belongs to the conversation of a path.
//!
//! A request that lacks messages of the path gets memory of text that it does not hold. So no other
//! conversation of the same owner may be able to hold the proof: templates, few-shot examples, canned
//! and cached answers prove nothing. Only an answer counts that the upstream gave in this very
//! conversation, with the messages next to it, and only while no other conversation is known to hold
//! it.

use super::matcher::{Matcher, Run};
use crate::history::message::MIN_DISTINCTIVE_BYTES;
use crate::history::message_key::LONG_ANSWER_BYTES;
use crate::history::{MessageKey, Role};

/// Where a message of a path came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageOrigin {
    /// Whether the upstream gave it as an answer in this conversation.
    pub from_upstream: bool,
    /// Whether no other conversation of the owner is known to hold it.
    pub unshared: bool,
}

/// The messages of one run that can prove something: each is distinctive, stands once on each side and
/// is in no other known conversation. The newest ones are taken: conversations that have something in common often begin
/// alike, and a proof ends when another conversation says one of its messages.
#[derive(Default)]
struct Witnesses {
    places: Vec<usize>,
    /// The newest one that the upstream gave.
    from_upstream: Option<usize>,
    /// The newest one that is a long answer or has tool call ids.
    strong: Option<usize>,
    /// The newest one with the ids of a tool call that the upstream gave.
    upstream_call: Option<usize>,
}

/// How many messages of one run are a proof, without and with a long answer or a tool call among them.
const MIN_WEAK_WITNESSES: usize = 3;
const MIN_STRONG_WITNESSES: usize = 2;

impl Witnesses {
    /// The messages that prove it; empty if there are too few.
    fn sufficient_proof(&self, same_thread_key: bool) -> Vec<usize> {
        let Some(from_upstream) = self.from_upstream else {
            return Vec::new();
        };
        let needed = match self.strong {
            _ if same_thread_key => 1,
            Some(_) => MIN_STRONG_WITNESSES,
            None => MIN_WEAK_WITNESSES,
        };
        if self.places.len() < needed {
            return Vec::new();
        }
        let required = [Some(from_upstream), self.strong].into_iter().flatten();
        let newest = self.places.iter().rev().copied();
        let mut proof: Vec<usize> = required.chain(newest).collect();
        proof.truncate(MIN_WEAK_WITNESSES + 2);
        proof.sort_unstable();
        proof.dedup();
        proof
    }
}

/// What is known about a path and a request besides their messages.
#[derive(Clone, Copy, Debug)]
pub struct AlignmentContext<S, P> {
    /// The origin of the message at a place of the path.
    pub origin: S,
    /// Whether both have the same thread key, and it names one conversation.
    pub same_thread_key: bool,
    /// Whether the client itself put the message at an index of the request in front of what it
    /// kept, such as its summary.
    pub is_client_summary: P,
}

impl Matcher<'_> {
    /// The places on the path that prove that it is the same conversation; empty without proof.
    ///
    /// If the client has messages of its own before or between the runs, it may be another
    /// conversation that holds the same passage. Then only a tool call counts: its id is new with
    /// each answer.
    pub(super) fn find_proof<S, P>(
        &self,
        runs: &[Run],
        context: &AlignmentContext<S, P>,
    ) -> Vec<usize>
    where
        S: Fn(usize) -> MessageOrigin,
        P: Fn(usize) -> bool,
    {
        let has_unknown = self.has_unknown_before_end(runs, &context.is_client_summary);
        for run in runs.iter().rev() {
            let witnesses = self.witnesses(*run, &context.origin);
            let proof = match witnesses.upstream_call {
                Some(call) if has_unknown => vec![call],
                None if has_unknown => Vec::new(),
                _ => witnesses.sufficient_proof(context.same_thread_key),
            };
            if !proof.is_empty() {
                return proof;
            }
        }
        Vec::new()
    }

    /// Whether the request holds a message before the end of `runs` that the path does not have.
    fn has_unknown_before_end(
        &self,
        runs: &[Run],
        is_client_summary: impl Fn(usize) -> bool,
    ) -> bool {
        let mut from = 0;
        for run in runs {
            if (from..run.client).any(|at| self.is_unknown(at) && !is_client_summary(at)) {
                return true;
            }
            from = run.client_end();
        }
        false
    }

    /// Whether the message at `at` of the request is nowhere on the path.
    pub(super) fn is_unknown(&self, at: usize) -> bool {
        let item = &self.client.items[at];
        !self.path.contents.contains_key(&item.content)
    }

    fn witnesses(&self, run: Run, origin: impl Fn(usize) -> MessageOrigin) -> Witnesses {
        let mut witnesses = Witnesses::default();
        for (path, client) in run.pairs() {
            let origin = origin(path);
            let (path_item, client_item) = (&self.path.items[path], &self.client.items[client]);
            // Only the result of a call may come back with another content. A call with other arguments is another call, whose id
            // is not as random as it looks.
            let call = self.has_same_random_ids(path_item, client_item)
                && (path_item.role == Role::Tool || path_item.content == client_item.content);
            if !origin.unshared || !(call || self.is_distinctive_once(path_item, client_item)) {
                continue;
            }
            witnesses.places.push(path);
            if call
                || (path_item.role == Role::Assistant
                    && path_item.distinctive_bytes >= LONG_ANSWER_BYTES)
            {
                witnesses.strong = Some(path);
            }
            if origin.from_upstream && path_item.role == Role::Assistant {
                witnesses.from_upstream = Some(path);
                if call {
                    witnesses.upstream_call = Some(path);
                }
            }
        }
        witnesses
    }

    fn is_distinctive_once(&self, path_item: &MessageKey, client_item: &MessageKey) -> bool {
        path_item.ids.is_none()
            && client_item.ids.is_none()
            && path_item.content == client_item.content
            && path_item.distinctive_bytes >= MIN_DISTINCTIVE_BYTES
            && self.is_unique_on_both(path_item, client_item)
    }
}
