//! The peer memory of a snapshot, as it is stored: a JSON object.

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;

use super::column::{corrupt, get};
use super::lists::{hex_bytes, push_hex};
use crate::history::Link;
use crate::memory::PeerMemory;
use crate::memory::peer_memory::ConversationBinding;
use crate::store::StoreResult;

#[derive(Serialize, Deserialize)]
struct StoredPeerMemory {
    lineages: Vec<i64>,
    keys: Vec<String>,
    tokens: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bound: Option<StoredBinding>,
}

#[derive(Serialize, Deserialize)]
struct StoredBinding {
    link: String,
    count: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// The column of a snapshot; `None` where it is NULL.
pub(in crate::store) fn peer_memory(
    row: &SqliteRow,
    column: usize,
) -> StoreResult<Option<PeerMemory>> {
    let Some(text) = get::<Option<&str>>(row, column)? else {
        return Ok(None);
    };
    parse_peer_memory(text)
        .map(Some)
        .ok_or_else(|| corrupt("the peer memory of a snapshot is not readable"))
}

fn parse_peer_memory(text: &str) -> Option<PeerMemory> {
    let stored: StoredPeerMemory = serde_json::from_str(text).ok()?;
    let bound = match stored.bound {
        None => None,
        Some(bound) => Some(ConversationBinding {
            link: parse_link(&bound.link)?,
            count: bound.count,
            key: bound.key,
        }),
    };
    Some(PeerMemory {
        lineages: stored.lineages,
        keys: stored.keys,
        tokens: stored.tokens,
        binding: bound,
    })
}

/// The value of the column, as [`peer_memory`] reads it.
pub(in crate::store) fn peer_memory_json(memory: &PeerMemory) -> StoreResult<String> {
    let stored = StoredPeerMemory {
        lineages: memory.lineages.clone(),
        keys: memory.keys.clone(),
        tokens: memory.tokens,
        bound: memory.binding.as_ref().map(|bound| {
            let mut link = String::new();
            push_hex(&mut link, bound.link.as_bytes());
            StoredBinding {
                link,
                count: bound.count,
                key: bound.key.clone(),
            }
        }),
    };
    serde_json::to_string(&stored)
        .map_err(|_| corrupt("the peer memory of a snapshot cannot be written"))
}

fn parse_link(hex: &str) -> Option<Link> {
    Link::from_slice(&hex_bytes(hex)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;

    #[test]
    fn stored_peer_memory_is_read_back_unchanged() {
        let bound = ConversationBinding {
            link: Link::root(&Scope::new(b"tenant", Some(b"user"))),
            count: 7,
            key: Some("a \"key\"".to_owned()),
        };
        for bound in [None, Some(bound)] {
            let others = PeerMemory {
                lineages: vec![3, 1],
                keys: vec!["trip".to_owned()],
                tokens: 41,
                binding: bound,
            };
            let text = peer_memory_json(&others).expect("a text");
            assert_eq!(parse_peer_memory(&text), Some(others));
        }
        assert_eq!(parse_peer_memory("{\"lineages\":[]}"), None);
        assert_eq!(parse_link("0g"), None);
    }
}
