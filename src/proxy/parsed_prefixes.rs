//! What was read of the beginnings of request bodies, so that the next request of a conversation is read only where it
//! has grown.
//!
//! A beginning is found by its hash, which is taken while the body arrives, at every [`STEP`] bytes. The hash is as
//! strong as the one that names messages: INV-TAIL and INV-COVER rest on it. Its key is random and belongs to this
//! process, and a beginning is found only by the tenant that sent it, so nobody learns by the time of an answer what
//! another tenant has sent. Used by `chat_completions` and [`super::read_request`].

use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hasher;
use foldhash::HashMap;

use crate::wire::chat::ParsedPrefix;

/// The hash is taken at every multiple of this many bytes. A shorter body is not hashed. A longer one is read again
/// from the last multiple on, which is half of this on average and takes some 10 µs.
const STEP: usize = 16 * 1024;

/// What is kept may use this many bytes. It is kept in two halves; when the younger one is full, the older one is
/// dropped. A conversation of 500 messages takes about 70 KB.
const MAX_BYTES: usize = 16 * 1024 * 1024;

type Tenant = [u8; 32];
type Hash = [u8; 32];
type Key = (Tenant, Hash);

/// Takes the hashes of the beginnings of one body.
#[derive(Debug, Default)]
pub(super) struct PrefixHasher {
    /// `None`: the body is too short to have any. Boxed, because it has two kilobytes.
    hasher: Option<Box<Hasher>>,
    step: usize,
    hashed: usize,
    hashes: Vec<Hash>,
}

impl PrefixHasher {
    pub(super) fn push(&mut self, mut data: &[u8]) {
        let Some(hasher) = &mut self.hasher else {
            return;
        };
        while !data.is_empty() {
            let room = self.step - self.hashed % self.step;
            let (now, rest) = data.split_at(room.min(data.len()));
            hasher.update(now);
            self.hashed += now.len();
            if now.len() == room {
                self.hashes.push(*hasher.finalize().as_bytes());
            }
            data = rest;
        }
    }

    pub(super) fn finish(self) -> PrefixHashes {
        PrefixHashes(self.hashes)
    }
}

/// The hashes of the beginnings of a body, each one step longer than the one before.
#[derive(Debug, Default)]
pub(super) struct PrefixHashes(Vec<Hash>);

/// The beginnings that were read.
#[derive(Debug)]
pub struct ParsedPrefixes {
    key: [u8; 32],
    step: usize,
    kept: Mutex<Kept>,
}

impl Default for ParsedPrefixes {
    fn default() -> Self {
        Self {
            key: rand::random(),
            step: STEP,
            kept: Mutex::default(),
        }
    }
}

impl ParsedPrefixes {
    /// With a hash at every `step` bytes, so that short bodies have some too.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_step(step: usize) -> Self {
        Self {
            step,
            ..Self::default()
        }
    }

    /// The hasher for a body of this many bytes, if that is known.
    pub(super) fn hasher(&self, bytes: Option<u64>) -> PrefixHasher {
        let is_short = bytes.is_some_and(|bytes| bytes < self.step as u64);
        PrefixHasher {
            hasher: (!is_short).then(|| Box::new(Hasher::new_keyed(&self.key))),
            step: self.step,
            hashed: 0,
            hashes: Vec::new(),
        }
    }

    /// The longest beginning of a body that was read before for `tenant`.
    pub(super) fn find(&self, tenant: &Tenant, hashes: &PrefixHashes) -> Option<Arc<ParsedPrefix>> {
        let mut kept = self.kept();
        let mut longest_first = hashes.0.iter().rev();
        longest_first.find_map(|hash| kept.get(&(*tenant, *hash)))
    }

    /// Keeps what was read of a body. `read` reads at most that many first bytes of it.
    pub(super) fn keep(
        &self,
        tenant: &Tenant,
        hashes: &PrefixHashes,
        read: impl FnOnce(usize) -> Option<ParsedPrefix>,
    ) {
        let Some((last, shorter)) = hashes.0.split_last() else {
            return;
        };
        let last = (*tenant, *last);
        if self.kept().contains(&last) {
            return;
        }
        let Some(prefix) = read(hashes.0.len() * self.step) else {
            return;
        };
        let mut kept = self.kept();
        // The conversation has moved on: nobody needs its shorter beginning.
        let mut longest_first = shorter.iter().rev();
        longest_first.any(|hash| kept.remove(&(*tenant, *hash)));
        kept.insert(last, Arc::new(prefix));
    }

    /// Drops everything.
    pub fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // No code panics between two changes that belong together.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Half of what is kept.
#[derive(Debug, Default)]
struct Generation {
    prefixes: HashMap<Key, Arc<ParsedPrefix>>,
    bytes: usize,
}

impl Generation {
    fn remove(&mut self, key: &Key) -> Option<Arc<ParsedPrefix>> {
        let removed = self.prefixes.remove(key)?;
        self.bytes -= size(&removed);
        Some(removed)
    }
}

#[derive(Debug, Default)]
struct Kept {
    young: Generation,
    old: Generation,
}

impl Kept {
    fn contains(&self, key: &Key) -> bool {
        self.young.prefixes.contains_key(key) || self.old.prefixes.contains_key(key)
    }

    /// The prefix, which counts as young again.
    fn get(&mut self, key: &Key) -> Option<Arc<ParsedPrefix>> {
        if let Some(found) = self.young.prefixes.get(key) {
            return Some(Arc::clone(found));
        }
        let found = self.old.remove(key)?;
        self.insert(*key, Arc::clone(&found));
        Some(found)
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.young.remove(key).is_some() || self.old.remove(key).is_some()
    }

    fn insert(&mut self, key: Key, prefix: Arc<ParsedPrefix>) {
        let bytes = size(&prefix);
        if bytes > MAX_BYTES / 2 {
            return;
        }
        if self.young.bytes + bytes > MAX_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.remove(&key);
        self.young.bytes += bytes;
        self.young.prefixes.insert(key, prefix);
    }
}

/// The memory of an entry, with the space that the table keeps free.
fn size(prefix: &ParsedPrefix) -> usize {
    prefix.held_bytes() + 2 * size_of::<(Key, Arc<ParsedPrefix>)>()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::chat::{ChatRequest, parse};

    const ME: Tenant = [1; 32];

    fn body(words: &str, count: usize) -> Bytes {
        let text = words.repeat(1000);
        let message = format!(r#"{{"role":"user","content":"{text}"}}"#);
        let messages = vec![message; count].join(",");
        format!(r#"{{"messages":[{messages}]}}"#).into()
    }

    fn hash(prefixes: &ParsedPrefixes, body: &[u8], piece: usize) -> PrefixHashes {
        let mut hasher = prefixes.hasher(Some(body.len() as u64));
        body.chunks(piece).for_each(|piece| hasher.push(piece));
        hasher.finish()
    }

    fn keep(prefixes: &ParsedPrefixes, body: &Bytes) -> ChatRequest {
        let request = parse(body).expect("a request");
        let hashes = hash(prefixes, body, 1000);
        prefixes.keep(&ME, &hashes, |most| request.prefix(most));
        request
    }

    fn found(prefixes: &ParsedPrefixes, body: &Bytes) -> Option<usize> {
        let hashes = hash(prefixes, body, 70_000);
        prefixes.find(&ME, &hashes).map(|prefix| prefix.bytes())
    }

    #[test]
    fn a_body_that_grows_is_found_by_its_longest_beginning() {
        let prefixes = ParsedPrefixes::default();
        // 6 KB each: the last hash is taken within the sixth one, and within the eleventh.
        let (short, long) = (body("abcdef", 7), body("abcdef", 12));
        assert_eq!(found(&prefixes, &short), None);
        let first = keep(&prefixes, &short);
        let five = first.messages()[4].span.end;
        assert_eq!(found(&prefixes, &long), Some(five));
        assert_eq!(found(&prefixes, &short), Some(five));
        let ten = keep(&prefixes, &long).messages()[9].span.end;
        assert_eq!(found(&prefixes, &long), Some(ten));
        assert_eq!(found(&prefixes, &short), None, "the conversation went on");
        assert_eq!(found(&prefixes, &body("abcdeg", 12)), None);
        assert_eq!(
            found(&prefixes, &body("abcdef", 3)),
            None,
            "short bodies are not hashed"
        );
        let hashes = hash(&prefixes, &long, 1);
        assert!(prefixes.find(&[2; 32], &hashes).is_none(), "another tenant");
        let mut chunked = prefixes.hasher(None);
        chunked.push(&long);
        assert_eq!(chunked.finish().0, hashes.0, "a body of unknown length");
        let other_process = ParsedPrefixes::default();
        assert_ne!(hash(&other_process, &long, 1).0, hashes.0);
        prefixes.clear();
        assert_eq!(found(&prefixes, &long), None);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays() {
        let prefixes = ParsedPrefixes::default();
        let used = body("abcdef", 7);
        keep(&prefixes, &used);
        let each = size(
            &parse(&used)
                .expect("a request")
                .prefix(STEP)
                .expect("a prefix"),
        );
        let many = MAX_BYTES / each + 10;
        for number in 0..many {
            keep(&prefixes, &body(&format!("{number:06}"), 7));
            if number % 100 == 0 {
                assert!(found(&prefixes, &used).is_some(), "after {number}");
            }
        }
        let kept = prefixes.kept();
        let (young, old) = (&kept.young, &kept.old);
        assert!(young.bytes + old.bytes <= MAX_BYTES);
        for half in [young, old] {
            let sizes = half.prefixes.values().map(|prefix| size(prefix));
            assert_eq!(half.bytes, sizes.sum::<usize>());
        }
        drop(kept);
        assert_eq!(
            found(&prefixes, &body("000000", 7)),
            None,
            "never used again"
        );
    }
}
