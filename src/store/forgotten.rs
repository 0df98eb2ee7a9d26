//! Forgetting: what an operator deletes, the receipt of it, and the tombstones that keep it from coming back.
//!
//! A client sends its whole history with every request. Without a tombstone, its next request would bring back
//! what was deleted. A tombstone holds hashes only, each keyed by the owner. Decides which request it covers; the
//! request path looks into a table in memory, and never into the store. Values and the trait only; each backend implements
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

    /// Stores the tombstones that requests of forgotten conversations have added.
    async fn save_tombstones(&self) -> StoreResult<()>;

    /// When the last request of any conversation came; `None` if there is none.
    async fn last_use_ms(&self) -> StoreResult<Option<i64>>;

    /// Deletes the conversations whose last request came before `before_ms`, at most `limit` of them, and leaves
    /// no tombstone. Returns how many.
    async fn expire_threads(&self, before_ms: i64, limit: u32) -> StoreResult<u64>;

    /// Deletes the open jobs of conversations whose last request came before `before_ms`, with their text, at most
    /// `limit` of them. Returns how many.
    async fn expire_jobs(&self, before_ms: i64, now_ms: i64, limit: u32) -> StoreResult<u64>;

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

/// How many marks an owner may have before its later answers get none. A client that goes on with a forgotten
/// conversation for ever would fill the memory: these are some 5 MB.
const MAX_MARKS: usize = 100_000;

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

/// The mark of an answer that the model gave to a forgotten conversation afterwards. It differs from that of an answer
/// from before, which is known to have been given in that conversation alone.
fn later_answer_mark(answer: &ScopedHash) -> Mark {
    let context = "diarist 2026-11 answer to a forgotten conversation";
    let hash = blake3::derive_key(context, answer.as_bytes());
    let mut mark = [0; MARK_BYTES];
    mark.copy_from_slice(&hash[..MARK_BYTES]);
    mark
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

/// One tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tombstone {
    pub(super) owner: [u8; 32],
    /// `None`: the whole owner was deleted.
    pub(super) mark: Option<Mark>,
    pub(super) receipt: i64,
}

/// What was forgotten of one owner, with the receipts.
#[derive(Debug, Default)]
struct Buried {
    everything: Option<i64>,
    marks: HashMap<Mark, i64>,
}

#[derive(Debug, Default)]
struct TombstonesByOwner {
    owners: HashMap<[u8; 32], Buried>,
    /// Those that are held, and not stored yet.
    unsaved: Vec<Tombstone>,
}

/// The tombstones in force. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tombstones {
    held: Arc<RwLock<TombstonesByOwner>>,
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

    /// Whether a request with this chain and these keys belongs to something that was forgotten; see
    /// [`Tombstones::receipt_for`].
    pub fn covers(
        &self,
        scope: &Scope,
        chain: impl IntoIterator<Item = Link>,
        keys: impl FnOnce() -> LookupKeys,
    ) -> bool {
        self.receipt_for(scope, chain, keys).is_some()
    }

    /// The receipt of what was forgotten, if a request with this chain and these keys belongs to that. `keys` is
    /// called only if something of this owner was forgotten.
    pub fn receipt_for(
        &self,
        scope: &Scope,
        chain: impl IntoIterator<Item = Link>,
        keys: impl FnOnce() -> LookupKeys,
    ) -> Option<i64> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if held.owners.is_empty() {
            return None;
        }
        let tenant = held.owners.get(&tenant_owner(&scope.tenant));
        let root = Link::root(scope);
        let owner = held.owners.get(root.as_bytes());
        let everything = |buried: &Buried| buried.everything;
        if let Some(receipt) = tenant.and_then(everything).or(owner.and_then(everything)) {
            return Some(receipt);
        }
        let marks = &owner.filter(|buried| !buried.marks.is_empty())?.marks;
        let receipt = |mark: &Mark| marks.get(mark).copied();
        let mut links = chain.into_iter();
        if let Some(receipt) = links.find_map(|link| receipt(&link_mark(&link))) {
            return Some(receipt);
        }
        let keys = keys();
        let anchors = keys.anchors.iter();
        // Two conversations may have one pair of messages in common by chance.
        let mut anchors = anchors.filter_map(|(hash, _)| receipt(hash.as_bytes()));
        let mut answers = keys.answers.iter();
        // A model may give a canned answer in many conversations. There it stands as the answer of a turn; a client's
        // summary stands as a message of the user, or at the beginning.
        let mut summaries = keys.answers.iter().enumerate().filter(|(at, (_, count))| {
            let by_model = keys.answer_contents.get(*at).is_some_and(Option::is_some);
            !by_model || *count == 1
        });
        let name = keys.thread_key.as_deref();
        name.and_then(|name| receipt(&name_mark(&self.pepper, &root, name)))
            .or_else(|| answers.find_map(|(hash, _)| receipt(hash.as_bytes())))
            .or_else(|| summaries.find_map(|(_, (hash, _))| receipt(&later_answer_mark(hash))))
            .or_else(|| anchors.nth(1))
    }

    /// Adds an answer to a request that belongs to what was forgotten with this `receipt`: a summary that the model
    /// writes of a forgotten conversation does not bring it back. An owner with [`MAX_MARKS`] gets no more.
    pub fn add_answer(&self, scope: &Scope, answer: &ScopedHash, receipt: i64) {
        let owner = *Link::root(scope).as_bytes();
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let Some(buried) = held.owners.get_mut(&owner) else {
            return;
        };
        let mark = later_answer_mark(answer);
        let has_room = buried.everything.is_none() && buried.marks.len() < MAX_MARKS;
        if has_room && buried.marks.insert(mark, receipt).is_none() {
            held.unsaved.push(Tombstone {
                owner,
                mark: Some(mark),
                receipt,
            });
        }
    }

    /// Those that are not stored yet.
    pub(super) fn unsaved(&self) -> Vec<Tombstone> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.unsaved.clone()
    }

    /// Notes that these of [`Tombstones::unsaved`] are stored.
    pub(super) fn set_saved(&self, stored: &HashSet<Tombstone>) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.unsaved.retain(|tombstone| !stored.contains(tombstone));
    }

    /// Whether `record` would bring back something that was forgotten.
    pub(super) fn cover_record(&self, scope: &Scope, record: &RequestRecord) -> bool {
        let new = record.new_nodes.iter().map(|node| node.link);
        let keys = || {
            let entries = &record.lookup_entries;
            let anchors = entries.marks.iter().filter_map(|marks| marks.anchor);
            let answer = entries.answer.iter().map(|(hash, _)| hash.text);
            LookupKeys {
                anchors: anchors.map(|anchor| (anchor, 0)).collect(),
                answers: answer.clone().map(|hash| (hash, 0)).collect(),
                // It is what the model said now, and no summary.
                answer_contents: answer.map(Some).collect(),
                thread_key: record.thread_key.clone(),
                ..LookupKeys::default()
            }
        };
        self.covers(scope, new.chain([record.parent, record.tip]), keys)
    }

    /// Replaces all tombstones by the stored ones. Those that are not stored yet stay, unless their receipt has been
    /// lifted.
    pub(super) fn replace(&self, stored: &[Tombstone]) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let receipts: HashSet<i64> = stored.iter().map(|tombstone| tombstone.receipt).collect();
        held.unsaved
            .retain(|tombstone| receipts.contains(&tombstone.receipt));
        let mut owners: HashMap<[u8; 32], Buried> = HashMap::new();
        for tombstone in stored.iter().chain(&held.unsaved) {
            let buried = owners.entry(tombstone.owner).or_default();
            match tombstone.mark {
                Some(mark) => _ = buried.marks.insert(mark, tombstone.receipt),
                None => buried.everything = Some(tombstone.receipt),
            }
        }
        held.owners = owners;
    }
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

    fn tombstone(owner: [u8; 32], mark: Option<Mark>) -> Tombstone {
        Tombstone {
            owner,
            mark,
            receipt: 7,
        }
    }

    fn answered(text: &str) -> LookupKeys {
        let root = Link::root(&Scope::new(b"ada", None));
        LookupKeys {
            answers: vec![(ScopedHash::from_text(&Pepper::NONE, &root, text), 1)],
            ..LookupKeys::default()
        }
    }

    #[test]
    fn an_answer_to_a_forgotten_conversation_is_forgotten_until_its_receipt_is_lifted() {
        let held = Tombstones::default();
        let scope = Scope::new(b"ada", None);
        let root = *Link::root(&scope).as_bytes();
        let stored = || vec![tombstone(root, Some(link_mark(&link(1))))];
        held.replace(&stored());
        let covers = |text: &str| held.covers(&scope, [], || answered(text));
        assert!(!covers("a summary"));
        let receipt = held.receipt_for(&scope, [link(1)], LookupKeys::default);
        assert_eq!(receipt, Some(7));
        let (answer, _) = answered("a summary").answers[0];
        held.add_answer(&scope, &answer, 7);
        held.add_answer(&scope, &answer, 7);
        assert!(covers("a summary") && !covers("another"));
        let unsaved = held.unsaved();
        assert_eq!(unsaved.len(), 1);
        // What the model says now is no summary of what was forgotten, and may be canned.
        let by_model = LookupKeys {
            answer_contents: vec![Some(answer)],
            answers: vec![(answer, 0)],
            ..LookupKeys::default()
        };
        assert!(!held.covers(&scope, [], || by_model));
        held.replace(&stored());
        assert!(covers("a summary"), "it is not stored yet");
        held.replace(&[]);
        assert!(!covers("a summary") && held.unsaved().is_empty());
        // They were being stored meanwhile.
        held.set_saved(&unsaved.into_iter().collect());
    }

    #[test]
    fn a_tombstone_covers_its_conversation_and_no_other() {
        let held = Tombstones::default();
        let (ada, bob) = (Scope::new(b"ada", None), Scope::new(b"bob", None));
        let root = Link::root(&ada);
        held.replace(&[
            tombstone(*root.as_bytes(), Some(link_mark(&link(1)))),
            tombstone(
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
        held.replace(&[]);
        assert!(!covers(&held, &ada, &[link(1)], Some("trip")));
    }

    #[test]
    fn a_tenant_tombstone_covers_all_users_and_a_user_tombstone_only_one() {
        let held = Tombstones::default();
        let (ada, user) = (Scope::new(b"ada", None), Scope::new(b"ada", Some(b"user")));
        held.replace(&[tombstone(*Link::root(&user).as_bytes(), None)]);
        assert!(covers(&held, &user, &[link(1)], None));
        assert!(!covers(&held, &ada, &[link(1)], None));
        held.replace(&[tombstone(tenant_owner(&ada.tenant), None)]);
        assert!(covers(&held, &user, &[link(1)], None) && covers(&held, &ada, &[], None));
        assert!(!covers(
            &held,
            &Scope::new(b"bob", Some(b"user")),
            &[],
            None
        ));
    }
}
