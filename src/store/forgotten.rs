//! Forgetting: what an operator deletes, the receipt of it, and the tombstones that keep it from coming back.
//!
//! A client sends its whole history with every request. Without a tombstone, its next request would bring back
//! what was deleted. A tombstone holds hashes only, each keyed by the owner. Decides which request it covers; the
//! request path asks a table in memory, and never the store. Values and the trait only; each backend implements
//! it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use serde_json::Value;

use super::{LookupKeys, RequestRecord, StoreResult};
use crate::history::{Link, Pepper, Scope, ScopedHash};

/// Deletes what an operator names, and what is too old.
#[async_trait]
pub trait Forgetting: Send + Sync {
    /// Deletes everything that `target` names and leaves tombstones: no process records it again, and running
    /// jobs store nothing of it. `None` if there is no such conversation.
    async fn forget_target(
        &self,
        target: &ForgetTarget,
        at_ms: i64,
    ) -> StoreResult<Option<Receipt>>;

    /// The owners with one of these `resources`, by tenant: (tenant, resource).
    async fn owners_of_resources(
        &self,
        resources: &[[u8; 32]],
    ) -> StoreResult<Vec<([u8; 32], [u8; 32])>>;

    /// Removes the tombstones of a receipt. `false` if there is no such receipt, or if they were removed before.
    async fn lift(&self, receipt: i64, at_ms: i64) -> StoreResult<bool>;

    /// All receipts, the oldest first.
    async fn receipts(&self) -> StoreResult<Vec<Receipt>>;

    /// Notes that the audit has a line of this receipt.
    async fn mark_audited(&self, receipt: i64) -> StoreResult<()>;

    /// Reads the tombstones again, if another process has changed them. Returns their version: it differs after
    /// each deletion and each lifting.
    async fn refresh_tombstones(&self) -> StoreResult<TombstoneVersion>;

    /// The tombstones in force. Clones share them.
    fn tombstones(&self) -> Tombstones;

    /// Deletes the conversations whose last request came before `before_ms`, at most `limit` of them, and leaves
    /// no tombstone. Returns how many.
    async fn expire_threads(&self, before_ms: i64, limit: u32) -> StoreResult<u64>;

    /// Deletes the open jobs of conversations whose last request came before `before_ms`, with their text.
    /// Returns how many.
    async fn expire_jobs(&self, before_ms: i64, now_ms: i64) -> StoreResult<u64>;

    /// One conversation as JSON, without text that waits for the Observer. `None` if there is none.
    async fn export_thread(&self, lineage: i64) -> StoreResult<Option<Value>>;

    /// Stores an exported conversation. No server may run meanwhile.
    async fn import_thread(&self, file: Value) -> StoreResult<ImportOutcome>;

    /// Gives free pages back to the file system, and empties the journal, which still has deleted text. Returns
    /// whether the journal is empty: a reader may need it for a moment.
    async fn shrink(&self) -> StoreResult<bool>;
}

/// The newest receipt, how many are done, and how many are lifted.
pub type TombstoneVersion = (i64, i64, i64);

/// What to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetTarget {
    /// One conversation, by its id.
    Thread(i64),
    /// All conversations of an owner.
    Owner {
        /// The tenant.
        tenant: [u8; 32],
        /// The hash of one user of the tenant; `None`: the tenant with all its users.
        resource: Option<[u8; 32]>,
    },
}

/// What an exported conversation says it is.
pub(super) const EXPORT_FORMAT: &str = "diarist conversation 1";

/// The result of importing a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    /// It has this id now.
    Imported(i64),
    /// One of its messages is stored already.
    AlreadyStored,
    /// An operator has had it forgotten.
    Forgotten,
    /// Its hashes are keyed by another pepper, so no request would find it.
    OtherPepper,
}

/// What was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its number.
    pub id: i64,
    /// `thread`, `resource` or `tenant`.
    pub kind: String,
    /// The id of the conversation, or a short hash of the user or of the tenant.
    pub subject: String,
    /// A short hash of the tenant.
    pub tenant: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// How many rows of each kind were deleted.
    pub counts: BTreeMap<String, u64>,
    /// Whether everything is deleted. `false` after a crash: the same command deletes the rest.
    pub done: bool,
    /// Whether the audit has a line of it.
    pub audited: bool,
    /// When its tombstones were removed.
    pub lifted_ms: Option<i64>,
}

/// The bytes of a mark: 128 bits of a hash do not collide within one owner.
const MARK_BYTES: usize = 16;

pub(super) type Mark = [u8; MARK_BYTES];

/// The mark of a link.
pub(super) fn link_mark(link: &Link) -> Mark {
    let mut mark = [0; MARK_BYTES];
    mark.copy_from_slice(&link.as_bytes()[..MARK_BYTES]);
    mark
}

/// The mark of a conversation's name.
pub(super) fn name_mark(pepper: &Pepper, root: &Link, thread_key: &str) -> Mark {
    *ScopedHash::from_text(pepper, root, thread_key).as_bytes()
}

/// The owner in tombstones of a whole tenant.
pub(super) fn tenant_owner(tenant: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("diarist 2026-11 forgotten tenant", tenant)
}

/// The owner in tombstones of the names that audit lines of a forgotten conversation have. No request is compared with
/// them: other conversations may have the name too.
pub(super) fn line_owner(root: &Link) -> [u8; 32] {
    blake3::derive_key("diarist 2026-11 forgotten audit lines", root.as_bytes())
}

/// One tombstone: the owner, and a mark, or `None` if the whole owner was deleted.
pub(super) type Tombstone = ([u8; 32], Option<Mark>);

#[derive(Debug, Default)]
struct Buried {
    everything: bool,
    marks: HashSet<Mark>,
}

/// The tombstones in force. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tombstones {
    held: Arc<RwLock<HashMap<[u8; 32], Buried>>>,
    pepper: Pepper,
}

impl Tombstones {
    /// None yet, of a database with this pepper.
    pub(super) fn new(pepper: Pepper) -> Self {
        Self {
            held: Arc::default(),
            pepper,
        }
    }

    /// Whether a request with this chain and these keys belongs to something that was forgotten. `keys` is called
    /// only if something of this owner was.
    pub fn covers(
        &self,
        scope: &Scope,
        chain: impl IntoIterator<Item = Link>,
        keys: impl FnOnce() -> LookupKeys,
    ) -> bool {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            return false;
        }
        if is_buried(&held, &tenant_owner(&scope.tenant)) {
            return true;
        }
        let root = Link::root(scope);
        let Some(buried) = held.get(root.as_bytes()) else {
            return false;
        };
        if buried.everything {
            return true;
        }
        if buried.marks.is_empty() {
            return false;
        }
        let has = |mark: &Mark| buried.marks.contains(mark);
        if chain.into_iter().any(|link| has(&link_mark(&link))) {
            return true;
        }
        let keys = keys();
        // Two conversations may have one pair of messages in common by chance.
        let mut anchors = keys.anchors.iter().filter(|(hash, _)| has(hash.as_bytes()));
        let mut answers = keys.answers.iter();
        let name = keys.thread_key.as_deref();
        name.is_some_and(|name| has(&name_mark(&self.pepper, &root, name)))
            || answers.any(|(hash, _)| has(hash.as_bytes()))
            || anchors.nth(1).is_some()
    }

    /// Whether `record` would bring back something that was forgotten.
    pub(super) fn cover_record(&self, scope: &Scope, record: &RequestRecord) -> bool {
        let new = record.new_nodes.iter().map(|node| node.link);
        let keys = || {
            let entries = &record.lookup_entries;
            let anchors = entries.marks.iter().filter_map(|marks| marks.anchor);
            LookupKeys {
                anchors: anchors.map(|anchor| (anchor, 0)).collect(),
                answers: entries
                    .answer
                    .iter()
                    .map(|(hash, _)| (hash.text, 0))
                    .collect(),
                thread_key: record.thread_key.clone(),
                ..LookupKeys::default()
            }
        };
        self.covers(scope, new.chain([record.parent, record.tip]), keys)
    }

    /// Replaces all tombstones.
    pub(super) fn replace(&self, tombstones: impl IntoIterator<Item = Tombstone>) {
        let mut next: HashMap<[u8; 32], Buried> = HashMap::new();
        for (owner, mark) in tombstones {
            let buried = next.entry(owner).or_default();
            match mark {
                Some(mark) => _ = buried.marks.insert(mark),
                None => buried.everything = true,
            }
        }
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

fn is_buried(held: &HashMap<[u8; 32], Buried>, owner: &[u8; 32]) -> bool {
    held.get(owner).is_some_and(|buried| buried.everything)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(number: u8) -> Link {
        Link::root(&Scope::new(&[number], None))
    }

    fn covers(held: &Tombstones, scope: &Scope, chain: &[Link], name: Option<&str>) -> bool {
        held.covers(scope, chain.iter().copied(), || LookupKeys {
            thread_key: name.map(str::to_owned),
            ..LookupKeys::default()
        })
    }

    #[test]
    fn a_tombstone_covers_its_conversation_and_no_other() {
        let held = Tombstones::default();
        let (ada, bob) = (Scope::new(b"ada", None), Scope::new(b"bob", None));
        let root = Link::root(&ada);
        held.replace([
            (*root.as_bytes(), Some(link_mark(&link(1)))),
            (
                *root.as_bytes(),
                Some(name_mark(&Pepper::NONE, &root, "trip")),
            ),
        ]);
        assert!(covers(&held, &ada, &[link(9), link(1), link(2)], None));
        assert!(covers(&held, &ada, &[link(9)], Some("trip")));
        assert!(!covers(&held, &ada, &[link(2)], Some("other")));
        assert!(!covers(&held, &bob, &[link(1)], Some("trip")));
        let user = Scope::new(b"ada", Some(b"user"));
        assert!(!covers(&held, &user, &[link(1)], Some("trip")));
        held.replace([]);
        assert!(!covers(&held, &ada, &[link(1)], Some("trip")));
    }

    #[test]
    fn a_whole_tenant_is_covered_with_its_users_and_a_user_alone() {
        let held = Tombstones::default();
        let (ada, user) = (Scope::new(b"ada", None), Scope::new(b"ada", Some(b"user")));
        held.replace([(*Link::root(&user).as_bytes(), None)]);
        assert!(covers(&held, &user, &[link(1)], None));
        assert!(!covers(&held, &ada, &[link(1)], None));
        held.replace([(tenant_owner(&ada.tenant), None)]);
        assert!(covers(&held, &user, &[link(1)], None) && covers(&held, &ada, &[], None));
        assert!(!covers(
            &held,
            &Scope::new(b"bob", Some(b"user")),
            &[],
            None
        ));
    }
}
