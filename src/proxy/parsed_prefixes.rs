//! What was read of the beginnings of request bodies, so that the next request of a conversation is read only where it
//! has grown.
//!
//! A beginning is found by its hash, which is taken while the body arrives, at every [`STEP`] bytes. What is found says
//! where the messages of the earlier body ended and what the hash is there; if this body has it too, only what follows
//! is read. If the first step is new for these credentials, the rest is not hashed: most conversations have one request
//! only. So the first two requests of a conversation are read whole. The hash is as strong as the one that names messages:
//! INV-TAIL and INV-COVER rest on it. Its key is random
//! and belongs to this process, and a beginning is found only by the tenant that sent it, so nobody learns from how
//! long an answer takes what another tenant has sent. Used by `chat_completions` and [`super::read_request`].

use std::sync::{Arc, Mutex, PoisonError};

use crate::lookup::HashKeyMap;
use crate::wire::chat::ParsedPrefix;

/// The hash is taken at every multiple of this many bytes. A shorter body is not hashed. A step is 16 chunks of
/// BLAKE3, the most that it hashes at once.
const STEP: usize = 16 * 1024;

/// What is kept may use this many bytes. It is kept in two halves; when the younger one is full, the older one is
/// dropped. A conversation of 500 messages takes about 70 KB.
const MAX_BYTES: usize = 16 * 1024 * 1024;

type Tenant = [u8; 32];
/// The hash of all credentials of a request. It is known before the tenant is, and no two tenants have the same.
type CredentialHash = [u8; 32];
type Hash = [u8; 32];
/// A tenant, and the hash of a beginning that was read; or the hash of credentials, and that of a first step.
type Key = ([u8; 32], Hash);

/// Takes the hashes of the beginnings of one body.
#[derive(Debug)]
pub(super) struct PrefixHasher<'a> {
    prefixes: &'a ParsedPrefixes,
    /// Whether more hashes are taken.
    goes_on: bool,
    taken: PrefixHashes,
}

impl PrefixHasher<'_> {
    /// Hashes the complete steps of `body` that are not hashed yet. `body` is all that has arrived. Only whole steps
    /// are hashed: the pieces as they arrive would take twice as long. `credentials` is called once, at the first step.
    pub(super) fn read(&mut self, body: &[u8], credentials: impl FnOnce() -> CredentialHash) {
        if !self.goes_on {
            return;
        }
        let prefixes = self.prefixes;
        let new = body.get(self.taken.hashes.len() * prefixes.step..);
        let mut steps = new.unwrap_or_default().chunks_exact(prefixes.step);
        if self.taken.hashes.is_empty()
            && let Some(first) = steps.next()
        {
            self.taken.hashes.push(prefixes.hash_behind(None, first));
            self.taken.credentials = credentials();
            if !prefixes.was_sent(self.taken.credentials, self.taken.hashes[0]) {
                self.goes_on = false;
                return;
            }
        }
        for bytes in steps {
            let hash = prefixes.hash_behind(self.taken.hashes.last(), bytes);
            self.taken.hashes.push(hash);
        }
    }

    pub(super) fn finish(self) -> PrefixHashes {
        self.taken
    }
}

/// The hashes of the beginnings of a body, each one step longer than the one before.
#[derive(Debug, Default)]
pub(super) struct PrefixHashes {
    credentials: CredentialHash,
    hashes: Vec<Hash>,
}

/// What was read of one body: of its beginning, and of what follows up to the end of its messages.
#[derive(Debug)]
struct ReadBody {
    prefix: ParsedPrefix,
    /// The hash of the whole prefix, which ends less than a step behind the hash by which it is found.
    hash: Hash,
    /// The memory that the prefix holds.
    held_bytes: usize,
}

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
    pub(super) fn hasher(&self, bytes: Option<u64>) -> PrefixHasher<'_> {
        let is_short = bytes.is_some_and(|bytes| bytes < self.step as u64);
        PrefixHasher {
            prefixes: self,
            goes_on: !is_short,
            taken: PrefixHashes::default(),
        }
    }

    /// The hash of a beginning: of `bytes`, and of all that precedes them, which has the hash `before`.
    fn hash_behind(&self, before: Option<&Hash>, bytes: &[u8]) -> Hash {
        let hash = *blake3::keyed_hash(&self.key, bytes).as_bytes();
        let Some(before) = before else {
            return hash;
        };
        *blake3::keyed_hash(&self.key, [*before, hash].as_flattened()).as_bytes()
    }

    /// The hash of the first `end` bytes of `body`, of which `hashes` covers the first `steps` steps.
    fn hash_to(
        &self,
        hashes: &PrefixHashes,
        body: &[u8],
        steps: usize,
        end: usize,
    ) -> Option<Hash> {
        let before = hashes.hashes.get(steps.checked_sub(1)?)?;
        let rest = body.get(steps * self.step..end)?;
        Some(self.hash_behind(Some(before), rest))
    }

    /// Whether a body with this first step came with these credentials.
    fn was_sent(&self, credentials: CredentialHash, first: Hash) -> bool {
        self.kept().get(&(credentials, first)).is_some()
    }

    /// The longest beginning of `body` that was read before for `tenant`.
    pub(super) fn find(
        &self,
        tenant: &Tenant,
        hashes: &PrefixHashes,
        body: &[u8],
    ) -> Option<ParsedPrefix> {
        let (steps, found) = {
            let mut kept = self.kept();
            let mut longest_first = hashes.hashes.iter().enumerate().rev();
            longest_first.find_map(|(at, hash)| match kept.get(&(*tenant, *hash))? {
                Beginning::Sent => None,
                Beginning::Read(body) => Some((at + 1, body)),
            })?
        };
        // Without the lock: this hashes up to a step.
        let whole = self.hash_to(hashes, body, steps, found.prefix.bytes());
        if whole == Some(found.hash) {
            return Some(found.prefix.clone());
        }
        // It goes on in another way than the earlier body did.
        found.prefix.first(steps * self.step)
    }

    /// Keeps what was read of `body`. `read` reads at most that many first bytes of it.
    pub(super) fn keep(
        &self,
        tenant: &Tenant,
        hashes: &PrefixHashes,
        body: &[u8],
        read: impl FnOnce(usize) -> Option<ParsedPrefix>,
    ) {
        let Some(first) = hashes.hashes.first() else {
            return;
        };
        self.kept().add_sent((hashes.credentials, *first));
        if hashes.hashes.len() < body.len() / self.step {
            return;
        }
        let Some(prefix) = read(body.len()) else {
            return;
        };
        // Clients may write other fields behind the messages, which are as long as several steps.
        let steps = (prefix.bytes() / self.step).min(hashes.hashes.len());
        let Some((last, shorter)) = hashes.hashes[..steps].split_last() else {
            return;
        };
        let Some(hash) = self.hash_to(hashes, body, steps, prefix.bytes()) else {
            return;
        };
        let read = ReadBody {
            held_bytes: prefix.held_bytes(),
            prefix,
            hash,
        };
        let last = (*tenant, *last);
        let mut kept = self.kept();
        // The conversation has moved on: nobody needs its shorter beginning.
        let mut longest_first = shorter.iter().rev();
        let _ = kept.remove(&last) || longest_first.any(|hash| kept.remove(&(*tenant, *hash)));
        kept.insert(last, Beginning::Read(Arc::new(read)));
        kept.add_sent((hashes.credentials, *first));
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

/// What is known of a beginning.
#[derive(Clone, Debug)]
enum Beginning {
    /// It has one step, and was sent.
    Sent,
    Read(Arc<ReadBody>),
}

impl Beginning {
    /// The memory of an entry, with the space that the table keeps free.
    fn size(&self) -> usize {
        let entry = 2 * size_of::<(Key, Self)>();
        match self {
            Self::Sent => entry,
            Self::Read(body) => entry + body.held_bytes + size_of::<ReadBody>(),
        }
    }
}

/// Half of what is kept.
#[derive(Debug, Default)]
struct Generation {
    beginnings: HashKeyMap<Key, Beginning>,
    bytes: usize,
}

impl Generation {
    fn remove(&mut self, key: &Key) -> Option<Beginning> {
        let removed = self.beginnings.remove(key)?;
        self.bytes -= removed.size();
        Some(removed)
    }
}

#[derive(Debug, Default)]
struct Kept {
    young: Generation,
    old: Generation,
}

impl Kept {
    /// The entry, which counts as young again.
    fn get(&mut self, key: &Key) -> Option<Beginning> {
        if let Some(found) = self.young.beginnings.get(key) {
            return Some(found.clone());
        }
        let found = self.old.remove(key)?;
        self.insert(*key, found.clone());
        Some(found)
    }

    /// Adds that this first step was sent, if nothing is known of it.
    fn add_sent(&mut self, key: Key) {
        if self.get(&key).is_none() {
            self.insert(key, Beginning::Sent);
        }
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.young.remove(key).is_some() || self.old.remove(key).is_some()
    }

    /// Adds what is not there.
    fn insert(&mut self, key: Key, beginning: Beginning) {
        let bytes = beginning.size();
        if bytes > MAX_BYTES / 2 {
            return;
        }
        if self.young.bytes + bytes > MAX_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += bytes;
        self.young.beginnings.insert(key, beginning);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::chat::{ChatRequest, parse};

    const ME: Tenant = [1; 32];
    const MY_KEY: CredentialHash = [9; 32];

    fn body(words: &str, count: usize) -> Bytes {
        let text = words.repeat(1000);
        let message = format!(r#"{{"role":"user","content":"{text}"}}"#);
        let messages = vec![message; count].join(",");
        format!(r#"{{"messages":[{messages}]}}"#).into()
    }

    fn hash(prefixes: &ParsedPrefixes, body: &[u8], piece: usize) -> PrefixHashes {
        let mut hasher = prefixes.hasher(Some(body.len() as u64));
        let ends = (0..body.len()).step_by(piece).chain([body.len()]);
        ends.for_each(|end| hasher.read(&body[..end], || MY_KEY));
        hasher.finish()
    }

    fn keep_once(prefixes: &ParsedPrefixes, body: &Bytes) -> ChatRequest {
        let request = parse(body).expect("a request");
        let hashes = hash(prefixes, body, 1000);
        prefixes.keep(&ME, &hashes, body, |most| request.prefix(most));
        request
    }

    /// The first time, it is only kept that it was sent.
    fn keep(prefixes: &ParsedPrefixes, body: &Bytes) -> ChatRequest {
        keep_once(prefixes, body);
        keep_once(prefixes, body)
    }

    fn found(prefixes: &ParsedPrefixes, body: &Bytes) -> Option<usize> {
        let hashes = hash(prefixes, body, 70_000);
        let found = prefixes.find(&ME, &hashes, body);
        found.map(|prefix| prefix.bytes())
    }

    #[test]
    fn a_growing_body_is_found_by_its_longest_known_prefix() {
        let prefixes = ParsedPrefixes::default();
        // 6 KB each: the last hash is taken within the sixth one, and within the eleventh.
        let (short, long) = (body("abcdef", 7), body("abcdef", 12));
        assert_eq!(found(&prefixes, &short), None);
        let first = keep(&prefixes, &short);
        let end = |request: &ChatRequest, count: usize| request.messages()[count - 1].span.end;
        assert_eq!(found(&prefixes, &short), Some(end(&first, 7)));
        assert_eq!(found(&prefixes, &long), Some(end(&first, 7)));
        let second = keep(&prefixes, &long);
        assert_eq!(found(&prefixes, &long), Some(end(&second, 12)));
        assert_eq!(found(&prefixes, &short), None, "the conversation went on");
        assert_eq!(found(&prefixes, &body("abcdeg", 12)), None);
        assert_eq!(
            found(&prefixes, &body("abcdef", 3)),
            None,
            "short bodies are not hashed"
        );
        let hashes = hash(&prefixes, &long, 1);
        let other = prefixes.find(&[2; 32], &hashes, &long);
        assert!(other.is_none(), "another tenant");
        let mut chunked = prefixes.hasher(None);
        chunked.read(&long, || MY_KEY);
        let chunked = chunked.finish();
        assert_eq!(chunked.hashes, hashes.hashes, "a body of unknown length");
        let other_process = ParsedPrefixes::default();
        assert_ne!(hash(&other_process, &long, 1).hashes[0], hashes.hashes[0]);
        prefixes.clear();
        assert_eq!(found(&prefixes, &long), None);
    }

    #[test]
    fn a_body_with_an_unknown_beginning_is_hashed_no_further() {
        let prefixes = ParsedPrefixes::default();
        let steps = |body: &Bytes| hash(&prefixes, body, 1000).hashes.len();
        let long = body("abcdef", 12);
        assert_eq!(steps(&long), 1);
        keep_once(&prefixes, &long);
        assert_eq!(found(&prefixes, &long), None, "sent once");
        assert_eq!(steps(&long), long.len() / STEP);
        keep_once(&prefixes, &long);
        assert!(found(&prefixes, &long).is_some(), "sent twice");

        let mut stranger = prefixes.hasher(Some(long.len() as u64));
        stranger.read(&long, || [2; 32]);
        assert_eq!(stranger.finish().hashes.len(), 1, "other credentials");

        // It has only its first step, so nothing of it is left to hash.
        let short = body("ghijkl", 4);
        keep_once(&prefixes, &short);
        assert!(found(&prefixes, &short).is_some());
    }

    /// Where credentials and tenant have the same hash, what was read under a first step also says that it was sent.
    #[test]
    fn a_stored_one_step_body_survives_a_repeated_first_step() {
        let prefixes = ParsedPrefixes::default();
        let hash = |body: &Bytes| {
            let mut hasher = prefixes.hasher(Some(body.len() as u64));
            hasher.read(body, || ME);
            hasher.finish()
        };
        for count in [4, 4, 7, 12, 12] {
            let body = body("abcdef", count);
            let request = parse(&body).expect("a request");
            let hashes = hash(&body);
            prefixes.keep(&ME, &hashes, &body, |most| request.prefix(most));
            let found = prefixes.find(&ME, &hash(&body), &body);
            let end = request.messages().last().map(|message| message.span.end);
            assert_eq!(found.map(|prefix| prefix.bytes()), end, "{count}");
        }
    }

    /// The hash of the last step says nothing of what follows it.
    #[test]
    fn messages_after_the_last_hashed_step_are_reused_only_if_equal() {
        let prefixes = ParsedPrefixes::default();
        let earlier = body("abcdef", 7);
        let request = keep(&prefixes, &earlier);
        let end = |count: usize| Some(request.messages()[count - 1].span.end);
        // The second step ends within the sixth message.
        let changed_behind = |place: usize| {
            let mut changed = body("abcdef", 8).to_vec();
            changed[place] = b'x';
            found(&prefixes, &changed.into())
        };
        let seventh = end(7).expect("seven messages");
        assert_eq!(changed_behind(seventh + 100), end(7));
        assert_eq!(changed_behind(seventh - 100), end(5));
        assert_eq!(changed_behind(2 * STEP), end(5));
        assert_eq!(changed_behind(2 * STEP - 1), None);
        assert_eq!(found(&prefixes, &body("abcdef", 10)), end(7));
    }

    /// A hash stands for all that precedes it, not for its own step alone.
    #[test]
    fn a_body_that_differs_before_equal_steps_is_not_found() {
        let prefixes = ParsedPrefixes::default();
        let earlier = body("abcdef", 12);
        let request = keep(&prefixes, &earlier);
        let end = request.messages().last().map(|message| message.span.end);
        assert_eq!(found(&prefixes, &earlier), end);
        let mut changed = earlier.to_vec();
        changed[STEP + 100] = b'x';
        assert_eq!(found(&prefixes, &changed.into()), None);
    }

    /// Tools, for example, which are as long as the messages.
    #[test]
    fn fields_after_the_messages_are_not_part_of_a_stored_prefix() {
        let prefixes = ParsedPrefixes::default();
        let with_field = |count: usize, field: &str| {
            let body = String::from_utf8(body("abcdef", count).to_vec()).expect("text");
            let body = body.strip_suffix('}').expect("an object");
            let field = field.repeat(3 * STEP);
            Bytes::from(format!(r#"{body},"tools":"{field}"}}"#))
        };
        let request = keep(&prefixes, &with_field(7, "x"));
        let seven = request.messages()[6].span.end;
        assert_eq!(found(&prefixes, &with_field(8, "y")), Some(seven));
    }

    #[test]
    fn stored_prefixes_are_bounded_and_used_ones_stay() {
        let prefixes = ParsedPrefixes::default();
        let used = body("abcdef", 7);
        keep(&prefixes, &used);
        let request = parse(&used).expect("a request");
        let prefix = request.prefix(STEP).expect("a prefix");
        let hash = Hash::default();
        let read = ReadBody {
            held_bytes: prefix.held_bytes(),
            prefix,
            hash,
        };
        let sent = Beginning::Sent;
        let each = Beginning::Read(Arc::new(read)).size() + sent.size();
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
            let sizes = half.beginnings.values().map(Beginning::size);
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
