//! What the database may hold: a filter over the keys by which a request finds something.
//!
//! Most requests that pass a gateway begin a conversation that nobody has recorded. The filter says so
//! without a query. It never misses a key that is stored: each key is added before its transaction commits,
//! and the keys of earlier runs are read in the background when the database is opened. Until they are read,
//! and if another process may write, every request is looked up. A key that is deleted stays in the filter;
//! that only costs a query. Called by `verbs` and `database`.
//!
//! It is a blocked Bloom filter. The keys are hashes already, so they are not hashed again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::history::{Link, Pepper, Scope, ScopedHash};
use crate::store::{LookupKeys, RequestRecord};

/// The size of the filter in bytes. The system gives the pages only when keys are added. With 10 million
/// keys in it, about one unknown key in 400 counts as known by chance. That costs a query.
const BYTES: usize = 16 * 1024 * 1024;

/// 64-bit words in a block. A block is one cache line.
const BLOCK_WORDS: usize = 8;

const BLOCKS: usize = BYTES / (BLOCK_WORDS * size_of::<u64>());

/// Bits that are set for each key: near the optimum for 10 to 14 bits of space for each key.
const BITS_PER_KEY: u32 = 7;

/// The keys that the database may hold.
#[derive(Debug)]
pub(super) struct KnownKeys {
    words: RwLock<Vec<u64>>,
    /// Whether every stored key is in the filter.
    complete: AtomicBool,
    /// Whether an answer is stored without its ending, by an older version.
    has_unknown_endings: AtomicBool,
}

impl KnownKeys {
    pub(super) fn new() -> Self {
        Self {
            words: RwLock::new(vec![0; BLOCKS * BLOCK_WORDS]),
            complete: AtomicBool::new(false),
            has_unknown_endings: AtomicBool::new(false),
        }
    }

    /// Whether the database certainly holds nothing that a request with this chain and these keys could find.
    pub(super) fn excludes(&self, scope: &Scope, chain: &[Link], keys: &LookupKeys) -> bool {
        if !self.complete.load(Ordering::Acquire) {
            return false;
        }
        let root = Link::root(scope);
        let links = chain.iter().chain([&root]).map(|link| &link.as_bytes()[..]);
        let anchors = keys.anchors.iter().map(|(hash, _)| &hash.as_bytes()[..]);
        let answers = keys.answers.iter().map(|(hash, _)| &hash.as_bytes()[..]);
        let name = keys.thread_key.as_ref().map(|key| name_hash(&root, key));
        let name = name.iter().map(|hash| &hash.as_bytes()[..]);
        let words = self.words.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = links.chain(anchors).chain(answers).chain(name);
        !all.any(|key| contains(&words, key))
    }

    /// Whether the database certainly holds no answer with this ending.
    pub(super) fn excludes_ending(&self, ending: &ScopedHash) -> bool {
        if !self.complete.load(Ordering::Acquire)
            || self.has_unknown_endings.load(Ordering::Relaxed)
        {
            return false;
        }
        let words = self.words.read().unwrap_or_else(PoisonError::into_inner);
        !contains(&words, ending.as_bytes())
    }

    /// Whether the database certainly holds nothing with this key.
    #[cfg(test)]
    pub(super) fn excludes_key(&self, key: &[u8]) -> bool {
        let words = self.words.read().unwrap_or_else(PoisonError::into_inner);
        self.complete.load(Ordering::Acquire) && !contains(&words, key)
    }

    /// Notes that an answer is stored whose ending is not known.
    pub(super) fn add_unknown_ending(&self) {
        self.has_unknown_endings.store(true, Ordering::Relaxed);
    }

    /// Adds what `record` is found by. Call it before the transaction that stores the record commits.
    pub(super) fn add_record(&self, scope: &Scope, record: &RequestRecord) {
        let key = record.thread_key.as_ref();
        let name = key.map(|key| name_hash(&Link::root(scope), key));
        let entries = &record.lookup_entries;
        let links = record.new_nodes.iter().map(|node| &node.link);
        let aligned_tip = entries.alignment.iter().map(|(tip, _)| tip);
        let links = links.chain(aligned_tip).map(|link| &link.as_bytes()[..]);
        let anchors = entries
            .marks
            .iter()
            .filter_map(|marks| marks.anchor.as_ref());
        let answer = entries.answer.as_ref().map(|(answer, _)| answer);
        let answers = answer
            .iter()
            .flat_map(|answer| [&answer.text, &answer.ending]);
        let hashes = anchors
            .chain(answers)
            .chain(&name)
            .map(|hash| &hash.as_bytes()[..]);
        self.add(links.chain(hashes));
    }

    /// Adds the end of a snapshot. Peer intros end at the root of their owner, which no record holds.
    pub(super) fn add_snapshot_end(&self, to: &Link) {
        self.add([&to.as_bytes()[..]]);
    }

    /// Adds keys: hashes of at least 16 bytes.
    pub(super) fn add<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) {
        let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            add(&mut words, key);
        }
    }

    /// Marks the filter as complete: every key of earlier runs has been added.
    pub(super) fn mark_complete(&self) {
        self.complete.store(true, Ordering::Release);
    }
}

/// The key of a conversation that its client names. It is never stored, so it needs no pepper.
pub(super) fn name_hash(root: &Link, thread_key: &str) -> ScopedHash {
    ScopedHash::from_text(&Pepper::NONE, root, thread_key)
}

/// The bit of a block that stands for probe `number` of a key.
fn bit(hash: u64, number: u32) -> (usize, u64) {
    // Nine bits select one of the 512 bits of a block: seven probes use 63 of 64 bits.
    let index = (hash >> (9 * number)) & 511;
    let word = (index / 64) as usize;
    (word, 1 << (index % 64))
}

/// Where the block of a key begins, and the bits that are its probes. Keys are hashes of 16 bytes or more.
fn block(key: &[u8]) -> Option<(usize, u64)> {
    let place = u64::from_le_bytes(key.get(..8)?.try_into().ok()?);
    let probes = u64::from_le_bytes(key.get(8..16)?.try_into().ok()?);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the number of blocks"
    )]
    let block = (place % BLOCKS as u64) as usize;
    Some((block * BLOCK_WORDS, probes))
}

fn add(words: &mut [u64], key: &[u8]) {
    let Some((start, probes)) = block(key) else {
        return;
    };
    for number in 0..BITS_PER_KEY {
        let (word, mask) = bit(probes, number);
        words[start + word] |= mask;
    }
}

fn contains(words: &[u64], key: &[u8]) -> bool {
    // A key that is too short cannot have been added, but the filter must never exclude what it does not know.
    let Some((start, probes)) = block(key) else {
        return true;
    };
    (0..BITS_PER_KEY).all(|number| {
        let (word, mask) = bit(probes, number);
        words[start + word] & mask != 0
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::{AnswerHash, History, MessageKey, PositionMap, Role};
    use crate::memory::alignment::{Origin, StoredAlignment};
    use crate::store::sqlite::{SqliteStore, fault_tests};
    use crate::store::testing::SingleRequest as _;
    use crate::store::{Admin as _, Chains as _, MessageMarks, StoreError};
    use sqlx::Connection as _;

    fn key(number: u32) -> Link {
        Link::root(&Scope::new(&number.to_le_bytes(), None))
    }

    fn scope() -> Scope {
        Scope::new(b"alice", None)
    }

    #[test]
    fn an_incomplete_key_filter_excludes_no_key() {
        let known = KnownKeys::new();
        assert!(!known.excludes(&scope(), &[key(1)], &LookupKeys::default()));
        known.mark_complete();
        assert!(known.excludes(&scope(), &[key(1)], &LookupKeys::default()));
    }

    #[test]
    fn the_key_filter_never_excludes_an_added_key_and_rarely_keeps_others() {
        let known = KnownKeys::new();
        known.mark_complete();
        let keys: Vec<Link> = (0..20_000).map(key).collect();
        known.add(keys.iter().map(|key| &key.as_bytes()[..]));
        let excluded = |number| known.excludes(&scope(), &[key(number)], &LookupKeys::default());
        assert!(!(0..20_000).any(excluded));
        let by_chance = (20_000..40_000).filter(|number| !excluded(*number)).count();
        assert!(
            by_chance < 5,
            "{by_chance} of 20,000 in a nearly empty filter"
        );
    }

    /// A record with every kind of key, and each of them alone as a request that looks for it.
    fn record_and_keys() -> (RequestRecord, Vec<(Vec<Link>, LookupKeys)>) {
        let (_, links, mut record) = fault_tests::request("hello", 1);
        let root = Link::root(&scope());
        let hash = |text| ScopedHash::from_text(&Pepper::NONE, &root, text);
        let (anchor, answer, aligned) = (hash("an anchor"), hash("an answer"), key(7));
        record.thread_key = Some("a name".to_owned());
        record.lookup_entries.marks = vec![MessageMarks {
            item: MessageKey {
                role: Role::User,
                content: hash("hello"),
                ids: None,
                distinctive_bytes: 0,
            },
            anchor: Some(anchor),
            origin: Origin::default(),
            from_upstream: false,
            summary_start: None,
        }];
        let history = History::chain(&scope(), Vec::new());
        let hashes = AnswerHash {
            text: answer,
            ending: hash("an ending"),
        };
        record.lookup_entries.answer = Some((hashes, Arc::new(history)));
        let alignment = StoredAlignment {
            count: 1,
            base: links[0],
            positions: PositionMap::from_parts(Vec::new(), 0, 0).expect("a map"),
            proof: Vec::new(),
            withheld: None,
        };
        record.lookup_entries.alignment = Some((aligned, alignment));
        let keys = |thread_key: Option<&str>, anchors, answers| LookupKeys {
            thread_key: thread_key.map(str::to_owned),
            anchors,
            answers,
            ..LookupKeys::default()
        };
        let requests = vec![
            (links, LookupKeys::default()),
            (vec![aligned], LookupKeys::default()),
            (Vec::new(), keys(Some("a name"), Vec::new(), Vec::new())),
            (Vec::new(), keys(None, vec![(anchor, 0)], Vec::new())),
            (Vec::new(), keys(None, Vec::new(), vec![(answer, 0)])),
        ];
        (record, requests)
    }

    #[test]
    fn a_record_is_known_by_each_of_its_keys() {
        let known = KnownKeys::new();
        known.mark_complete();
        let (record, requests) = record_and_keys();
        for (chain, keys) in &requests {
            assert!(known.excludes(&scope(), chain, keys), "before: {keys:?}");
        }
        let ending = |record: &RequestRecord| {
            let answer = record.lookup_entries.answer.as_ref();
            answer.expect("an answer").0.ending
        };
        assert!(known.excludes_ending(&ending(&record)), "before");
        known.add_record(&scope(), &record);
        for (chain, keys) in &requests {
            assert!(!known.excludes(&scope(), chain, keys), "after: {keys:?}");
        }
        assert!(!known.excludes_ending(&ending(&record)), "after");
    }

    #[tokio::test]
    async fn a_recorded_request_is_known_to_the_filter_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
        let store = SqliteStore::open_alone(&url).await.expect("a store");
        let (scope, links, record) = fault_tests::request("hello", 3);
        let may_know = || store.may_know(&scope, &links, &LookupKeys::default());
        // Until the keys of earlier runs are read, everything may be known.
        while may_know() {
            tokio::task::yield_now().await;
        }
        store.record(&scope, &record).await.expect("recorded");
        assert!(may_know());
        // A busy machine may need longer than a request waits.
        let found = loop {
            match store.find_on_chain(&scope, &links).await {
                Err(StoreError::Busy(_)) => {}
                found => break found.expect("found"),
            }
        };
        assert_eq!(found.depth, links.len());
    }

    /// Answers of an older version have no ending, so nothing can be excluded by it.
    #[tokio::test]
    async fn answer_endings_are_known_after_a_restart_unless_one_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
        let hash = |text| ScopedHash::from_text(&Pepper::NONE, &Link::root(&scope()), text);
        let [stored, other] = ["stored", "other"].map(hash);
        let may_know = async || {
            let store = SqliteStore::open_alone(&url).await.expect("a store");
            // Until the keys of earlier runs are read, everything may be known.
            while store.may_know(&scope(), &[key(1)], &LookupKeys::default()) {
                tokio::task::yield_now().await;
            }
            let known = [&stored, &other].map(|ending| store.may_know_ending(ending));
            store.close().await;
            known
        };
        let (_, _, mut record) = fault_tests::request("hello", 1);
        let answer = AnswerHash {
            text: hash("an answer"),
            ending: stored,
        };
        let history = Arc::new(History::chain(&scope(), Vec::new()));
        record.lookup_entries.answer = Some((answer, history));
        let store = SqliteStore::open_alone(&url).await.expect("a store");
        store.record(&scope(), &record).await.expect("recorded");
        store.close().await;
        assert_eq!(may_know().await, [true, false]);
        let mut database = sqlx::SqliteConnection::connect(&url).await.expect("open");
        let statement = "UPDATE answers SET ending = NULL";
        let rows = sqlx::query(statement)
            .execute(&mut database)
            .await
            .expect("set");
        assert_eq!(rows.rows_affected(), 1);
        database.close().await.expect("closed");
        assert_eq!(may_know().await, [true, true]);
    }

    #[test]
    fn the_root_of_the_owner_counts_as_a_key() {
        let known = KnownKeys::new();
        known.mark_complete();
        known.add_snapshot_end(&Link::root(&scope()));
        assert!(!known.excludes(&scope(), &[key(1)], &LookupKeys::default()));
    }
}
