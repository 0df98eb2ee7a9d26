//! An aligned request: which of its messages stands where on a known chain, and the chain that results.
//!
//! The chain continues as if the client had sent everything: first the path as far as it was observed,
//! then the client's messages from there on. So the modules above need not know that a client drops,
//! replaces or moves messages: links, counts and ranges keep their meaning.

use std::sync::OnceLock;

use super::align::Run;
use super::{ChainedMessage, History, Link, Message, Role};
use crate::history::Cuts;

/// Where the messages of one request stand on a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionMap {
    /// Messages before the open run, in order.
    runs: Vec<Run>,
    /// From here on, request and chain are the same.
    open_client: usize,
    open_path: usize,
}

/// One message of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMessage {
    /// Its link.
    pub link: Link,
    /// The role of its author.
    pub role: Role,
}

impl PositionMap {
    /// Maps a request whose `runs` stand on a path. The first `observed` messages of the path need
    /// not be sent again. Also returns how many messages of the path the chain holds.
    ///
    /// Messages behind the observed ones that the client no longer sends are lost, unless it sends
    /// them again: the chain continues without them.
    pub fn from_runs(runs: &[Run], observed: usize) -> Option<(Self, usize)> {
        let last = runs.last()?;
        let end = (last.client + last.len, last.path + last.len);
        let open_path = observed.min(end.1);
        let open = runs.iter().find(|run| run.path + run.len > open_path);
        let (open_client, kept_len) = match open {
            // Request and path go on together up to the end of the run.
            Some(run) if run.path <= open_path => {
                (run.client + (open_path - run.path), run.path + run.len)
            }
            Some(run) => (run.client, open_path),
            None => (end.0, open_path),
        };
        let closed = runs
            .iter()
            .filter(|run| run.path < open_path)
            .map(|run| Run {
                len: run.len.min(open_path - run.path),
                ..*run
            });
        let positions = Self {
            runs: closed.collect(),
            open_client,
            open_path,
        };
        Some((positions, kept_len))
    }

    /// Makes the map from its stored form: runs, and where the open run begins.
    pub fn from_parts(runs: Vec<Run>, open_client: usize, open_path: usize) -> Option<Self> {
        let mut at = (0, 0);
        for run in &runs {
            if run.client < at.0 || run.path < at.1 {
                return None;
            }
            at = (
                run.client.checked_add(run.len)?,
                run.path.checked_add(run.len)?,
            );
        }
        (open_client >= at.0 && open_path >= at.1).then_some(Self {
            runs,
            open_client,
            open_path,
        })
    }

    /// The runs before the open run.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Where the open run begins: in the request, and on the chain.
    pub fn open_start(&self) -> (usize, usize) {
        (self.open_client, self.open_path)
    }

    /// Whether request and chain are the same.
    pub fn is_identity(&self) -> bool {
        self.open_client == self.open_path
            && (self.open_client == 0
                || matches!(&*self.runs, [run] if run.client == 0 && run.path == 0 && run.len == self.open_client))
    }

    /// Where the request's message `request_index` stands on the chain; `None` if the chain does
    /// not have it.
    pub fn chain_index(&self, request_index: usize) -> Option<usize> {
        if request_index >= self.open_client {
            return Some(self.open_path + (request_index - self.open_client));
        }
        let run = self
            .runs
            .iter()
            .rfind(|run| run.client <= request_index)
            .filter(|run| request_index - run.client < run.len)?;
        Some(run.path + (request_index - run.client))
    }

    /// The message of the request that stands at `chain_index`; `None` if the request does not hold
    /// it.
    pub fn request_index(&self, chain_index: usize) -> Option<usize> {
        if chain_index >= self.open_path {
            return Some(self.open_client + (chain_index - self.open_path));
        }
        let run = self
            .runs
            .iter()
            .rfind(|run| run.path <= chain_index)
            .filter(|run| chain_index - run.path < run.len)?;
        Some(run.client + (chain_index - run.path))
    }

    /// Where the raw tail of the request begins if the first `count` messages of the chain are
    /// covered.
    pub fn request_cut(&self, count: usize) -> usize {
        if count >= self.open_path {
            return self.open_client + (count - self.open_path);
        }
        self.runs
            .iter()
            .find(|run| run.path + run.len > count)
            .map_or(self.open_client, |run| {
                run.client + count.saturating_sub(run.path)
            })
    }

    /// The messages of the request before `cut` that the chain does not have: they stay raw in
    /// front.
    pub fn unknown_before(&self, cut: usize) -> Vec<usize> {
        (0..cut.min(self.open_client))
            .filter(|index| self.chain_index(*index).is_none())
            .collect()
    }

    /// The first place of the chain from which on the request holds everything.
    pub fn fully_sent_from(&self) -> usize {
        let mut from = self.open_path;
        for run in self.runs.iter().rev() {
            if run.path + run.len < from {
                break;
            }
            from = run.path;
        }
        from
    }

    /// Whether the messages that stay raw in front form whole tool rounds: no call without results,
    /// no result without a call.
    pub fn keeps_rounds_whole<'a>(&self, client: impl Iterator<Item = &'a Message>) -> bool {
        let is_unknown = |index: usize| self.chain_index(index).is_none();
        let mut calls: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
        for (index, message) in client.enumerate() {
            let is_split = message
                .answers
                .as_deref()
                .is_some_and(|id| match calls.get(id) {
                    Some(call) => is_unknown(*call) != is_unknown(index),
                    // The cut decides whether a tail may begin with it.
                    None => index < self.open_client,
                });
            if is_split {
                return false;
            }
            for id in message.calls.iter() {
                calls.insert(id, index);
            }
        }
        true
    }
}

impl History {
    /// The chain that `client` is aligned to. `path` has the messages of the chain that are known
    /// by their links; it reaches at least to the open run.
    pub fn aligned(positions: &PositionMap, path: &[PathMessage], client: &Self) -> Option<Self> {
        let (from, open) = positions.open_start();
        let before = path.get(..open)?;
        let mut messages: Vec<ChainedMessage> = Vec::with_capacity(path.len() + client.len());
        for (index, path_message) in before.iter().enumerate() {
            let sent = positions
                .request_index(index)
                .and_then(|index| client.messages().get(index));
            messages.push(ChainedMessage {
                // A message that is not sent is known only by its link. It is covered,
                // so its text is never needed.
                message: sent.map_or_else(
                    || Message::placeholder(path_message.role),
                    |chained| chained.message.clone(),
                ),
                link: path_message.link,
            });
        }
        let mut link = match before.last() {
            Some(stand) => stand.link,
            None => client.root(),
        };
        for (offset, chained) in client.messages().get(from..)?.iter().enumerate() {
            // A message on the path keeps its link: a result that came back as a placeholder
            // is still the original result.
            link = match path.get(open + offset) {
                Some(stand) => stand.link,
                None => link.next(&chained.message.fingerprint),
            };
            messages.push(ChainedMessage {
                message: chained.message.clone(),
                link,
            });
        }
        Some(Self::from_messages(client.root(), messages))
    }

    fn from_messages(root: Link, messages: Vec<ChainedMessage>) -> Self {
        Self {
            root,
            cuts: Cuts::new(messages.iter().map(|chained| &chained.message)),
            keys: OnceLock::new(),
            messages,
        }
    }
}
