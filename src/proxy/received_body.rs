//! The body of a chat completion, read whole, and what is read of it.
//!
//! Decides nothing. Called by `chat_completions`, `dry_run` and [`super::read_request`].

use bytes::Bytes;

use super::memory::Memory;
use super::parsed_prefixes::PrefixHashes;
use crate::history::{History, Scope};
use crate::wire::chat::ParseError;
use crate::wire::{self, Outline};

/// Bodies of which this much is to be read are parsed in the pool. Parsing takes about a millisecond per megabyte: a
/// smaller body is parsed sooner than handed over, and a larger one would delay other requests.
const PARSE_BLOCKING_BYTES: usize = 256 * 1024;

/// A request's body, read whole.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) body: Bytes,
    /// The hashes by which the beginning of its body is found once it was parsed.
    pub(super) prefix_hashes: PrefixHashes,
}

impl ReceivedBody {
    /// The request that it is, and its history as `scope` sees it. Where its beginning was parsed before, only the rest is
    /// parsed.
    pub(super) async fn parse(
        &self,
        memory: &Memory,
        scope: &Scope,
    ) -> Result<(wire::Request, History), ParseError> {
        let (body, owner) = (self.body.clone(), scope.clone());
        let hashes = &self.prefix_hashes;
        let prefix = memory.parsed_prefixes.find(&scope.tenant, hashes, &body);
        let bytes_to_read = match &prefix {
            // The messages of the prefix are copied.
            Some(prefix) => body.len() - prefix.bytes() + prefix.held_bytes(),
            None => body.len(),
        };
        let pepper = memory.pepper();
        let read = move || {
            let Some(prefix) = prefix else {
                let parsed = wire::Request::parse_chat_peppered(&body, &pepper)?;
                let history = parsed.history(&owner);
                return Ok((parsed, history));
            };
            let parsed = wire::Request::parse_grown(&body, &prefix)?;
            let history = parsed.history_behind(&prefix, &owner);
            Ok((parsed, history))
        };
        if bytes_to_read < PARSE_BLOCKING_BYTES {
            return read();
        }
        // If it panicked, the request passes like one that is not valid JSON.
        let parsed = memory.parse_pool.run(bytes_to_read, read).await;
        parsed.unwrap_or(Err(ParseError::InvalidJson))
    }

    /// The few fields that are known of a body that is no request which memory can work with.
    pub(super) async fn outline(&self, memory: &Memory) -> Option<Outline> {
        let body = self.body.clone();
        let read = move || Outline::read(&body);
        if self.body.len() < PARSE_BLOCKING_BYTES {
            return read();
        }
        memory.parse_pool.run(self.body.len(), read).await.flatten()
    }
}
