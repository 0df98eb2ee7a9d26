//! What a snapshot holds of other conversations, as it is stored.

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;

use super::lists::push_hex;
use super::{Read, corrupt, get};
use crate::history::Link;
use crate::memory::Others;
use crate::memory::others::Bound;

#[derive(Serialize, Deserialize)]
struct Stored {
    lineages: Vec<i64>,
    keys: Vec<String>,
    tokens: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bound: Option<StoredBound>,
}

#[derive(Serialize, Deserialize)]
struct StoredBound {
    link: String,
    count: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// The column of a snapshot; `None` where it is NULL.
pub(in crate::store) fn others(row: &SqliteRow, column: usize) -> Read<Option<Others>> {
    let Some(text) = get::<Option<&str>>(row, column)? else {
        return Ok(None);
    };
    read(text)
        .map(Some)
        .ok_or_else(|| corrupt("what a snapshot holds of other conversations is not readable"))
}

fn read(text: &str) -> Option<Others> {
    let stored: Stored = serde_json::from_str(text).ok()?;
    let bound = match stored.bound {
        None => None,
        Some(bound) => Some(Bound {
            link: link(&bound.link)?,
            count: bound.count,
            key: bound.key,
        }),
    };
    Some(Others {
        lineages: stored.lineages,
        keys: stored.keys,
        tokens: stored.tokens,
        bound,
    })
}

/// The inverse of [`others`].
pub(in crate::store) fn others_text(others: &Others) -> Read<String> {
    let stored = Stored {
        lineages: others.lineages.clone(),
        keys: others.keys.clone(),
        tokens: others.tokens,
        bound: others.bound.as_ref().map(|bound| {
            let mut link = String::new();
            push_hex(&mut link, bound.link.as_bytes());
            StoredBound {
                link,
                count: bound.count,
                key: bound.key.clone(),
            }
        }),
    };
    serde_json::to_string(&stored)
        .map_err(|_| corrupt("what a snapshot holds of other conversations cannot be written"))
}

fn link(hex: &str) -> Option<Link> {
    let digits = hex.as_bytes();
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Option<_>>()?;
    Link::from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Scope;

    #[test]
    fn what_is_written_is_read() {
        let bound = Bound {
            link: Link::root(&Scope::of(b"tenant", Some(b"user"))),
            count: 7,
            key: Some("a \"key\"".to_owned()),
        };
        for bound in [None, Some(bound)] {
            let others = Others {
                lineages: vec![3, 1],
                keys: vec!["trip".to_owned()],
                tokens: 41,
                bound,
            };
            let text = others_text(&others).expect("a text");
            assert_eq!(read(&text), Some(others));
        }
        assert_eq!(read("{\"lineages\":[]}"), None);
        assert_eq!(link("0g"), None);
    }
}
