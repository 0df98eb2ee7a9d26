//! Chains that requests were aligned to, each as a list. A client that dropped messages once needs its whole chain for
//! each request from then on, and to walk a chain of thousands of messages takes longer than the rest of its look-up.
//! Used by [`super::state`] only.

use std::sync::Arc;

use super::hash_tables::HashKeyMap;
use super::origin_index::Tenant;
use super::sent_requests::Key;
use crate::history::{Link, PathMessage, Scope};
use crate::memory::alignment::{BaseChain, Origin, PathEntry};

/// What a message of a list needs.
const MESSAGE_BYTES: usize = size_of::<PathMessage>() + size_of::<Origin>();

/// The lists by their last link. Recorded messages never change, so a list is right as long as its messages are cached.
#[derive(Debug, Default)]
pub(super) struct BaseChains(HashKeyMap<Key, Arc<BaseChain>>);

impl BaseChains {
    /// The chain that ends with `end`, and how many bytes more are held; `None` unless all its messages are in `path_entries`.
    /// The list of its beginning is continued, so each conversation has one list.
    pub(super) fn chain(
        &mut self,
        path_entries: &HashKeyMap<Key, PathEntry>,
        scope: &Scope,
        end: Link,
    ) -> Option<(Arc<BaseChain>, usize)> {
        let root = Link::root(scope);
        let (mut at, mut newer) = (end, Vec::new());
        let mut chain = loop {
            if at == root {
                break Arc::default();
            }
            let key = (scope.tenant, at);
            if let Some(beginning) = self.0.remove(&key) {
                break beginning;
            }
            let entry = path_entries.get(&key)?;
            newer.push(entry);
            at = entry.parent;
        };
        let added = newer.len() * MESSAGE_BYTES;
        if !newer.is_empty() {
            let chain = Arc::make_mut(&mut chain);
            newer.into_iter().rev().for_each(|entry| chain.push(entry));
        }
        self.0.insert((scope.tenant, end), Arc::clone(&chain));
        Some((chain, added))
    }

    /// Drops the lists of these tenants; returns how many bytes they held.
    pub(super) fn drop_tenants(&mut self, is_dropped: impl Fn(&Tenant) -> bool) -> usize {
        let dropped = self.0.extract_if(|(tenant, _), _| is_dropped(tenant));
        dropped
            .map(|(_, chain)| chain.messages().len() * MESSAGE_BYTES)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::align::MessageOrigin;
    use crate::history::{ChainedMessage, History, Role};
    use crate::wire;

    fn history(scope: &Scope, count: usize) -> History {
        let messages: Vec<String> = (0..count)
            .map(|at| format!(r#"{{"role":"user","content":"Message {at}."}}"#))
            .collect();
        let body = format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","));
        let request = wire::Request::parse_chat(&body.into_bytes().into());
        request.expect("a request").history(scope)
    }

    fn path_entries(scope: &Scope, history: &History) -> HashKeyMap<Key, PathEntry> {
        let mut parent = history.root();
        let entry = |chained: &ChainedMessage| {
            let entry = PathEntry {
                message: PathMessage {
                    link: chained.link,
                    role: Role::User,
                },
                parent,
                message_key: None,
                anchor: None,
                range_end: false,
                live: true,
                text_kept: false,
                lineage: 7,
                origin: Origin::for_link(&chained.link),
                message_origin: MessageOrigin::default(),
                summary_start: None,
                pending: false,
            };
            parent = chained.link;
            ((scope.tenant, chained.link), entry)
        };
        history.messages().iter().map(entry).collect()
    }

    fn links(chain: &BaseChain) -> Vec<Link> {
        let messages = chain.messages().iter();
        messages.map(|message| message.link).collect()
    }

    #[test]
    fn a_chain_grows_in_one_list_until_it_forks() {
        let scope = Scope::new(b"key", None);
        let history = history(&scope, 5);
        let path_entries = path_entries(&scope, &history);
        let all: Vec<Link> = history
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect();
        let mut chains = BaseChains::default();
        for (count, added) in [(3, 3), (3, 0), (5, 2)] {
            let (chain, bytes) = chains
                .chain(&path_entries, &scope, all[count - 1])
                .expect("known");
            assert_eq!(links(&chain), all[..count]);
            assert_eq!(bytes, added * MESSAGE_BYTES);
            assert_eq!(chains.0.len(), 1);
        }
        // A request that forks off makes a list of its own; the longer one stays.
        let (fork, _) = chains.chain(&path_entries, &scope, all[1]).expect("known");
        assert_eq!(links(&fork), all[..2]);
        assert_eq!(chains.0.len(), 2);
        assert_eq!(chains.drop_tenants(|_| false), 0);
        assert_eq!(
            chains.drop_tenants(|tenant| *tenant == scope.tenant),
            7 * MESSAGE_BYTES
        );
        assert!(chains.0.is_empty());
    }

    #[test]
    fn a_chain_with_a_missing_message_is_not_found() {
        let scope = Scope::new(b"key", None);
        let history = history(&scope, 4);
        let mut path_entries = path_entries(&scope, &history);
        path_entries.remove(&(scope.tenant, history.messages()[1].link));
        let end = history.messages()[3].link;
        let mut chains = BaseChains::default();
        assert!(chains.chain(&path_entries, &scope, end).is_none());
        assert!(chains.chain(&HashKeyMap::default(), &scope, end).is_none());
    }
}
