//! The messages that this process has seen, recorded or not: the origin of each, answers that the upstream
//! gave, and answers that may come back as summaries.
//!
//! A message proves a conversation only as long as no other conversation holds it. So every message is added
//! here before anything is decided by it, also if the request has no memory, was refused, or was dropped by
//! the recorder. Holds only hashes.
//!
//! Each tenant has its own entries. All together have a bound; at the bound the tenant that holds most loses its oldest
//! entries. So what one tenant says pushes out nothing of another that holds less. Very many tenants together can: then
//! what is no longer held of a tenant proves nothing ([`SeenOrigins::is_contested`]).
//!
//! Says what the next process is to know of it, and takes over what earlier ones have seen; it never reads or writes the store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;

use super::hash_tables::{HashKeyMap, HashKeySet};
use super::tenant_origins::{
    AnsweredChain, Generation, Occurrence, Saving, SummaryAnswer, TenantOrigins,
};
use super::{Sender, seen_messages};
use crate::history::{AnswerHash, History, Link, Scope, ScopedHash};
use crate::memory::alignment::{Origin, Witness};
use crate::store::{DROPPED_TENANTS, SeenMessages, fitting_rows};

/// A tenant, as in [`Scope::tenant`].
pub(super) type Tenant = [u8; 32];

/// Entries of all tenants. An exchange adds about five: its two messages, the answer with its origin, and for a long
/// answer two more. They need 20 to 130 bytes each, so some 60 MB in all at most.
const MAX_ENTRIES: usize = 500_000;

/// A tenant counts as this many entries more, for the room that it takes itself. So their number is bounded too.
const TENANT_ENTRIES: usize = 32;

/// Messages of tenants that the upstream has not accepted yet, in two generations. New entries go into the younger one;
/// when it is full, the older one is dropped. Anybody can send them, so all of them together push out only each other.
#[derive(Debug)]
struct StrangerMessages {
    /// Entries of one generation.
    most: usize,
    young: HashKeyMap<ScopedHash, Occurrence>,
    old: HashKeyMap<ScopedHash, Occurrence>,
}

impl StrangerMessages {
    fn new(most: usize) -> Self {
        Self {
            most,
            young: HashKeyMap::default(),
            old: HashKeyMap::default(),
        }
    }

    fn get(&self, mark: &ScopedHash) -> Option<Occurrence> {
        let found = self.young.get(mark).or_else(|| self.old.get(mark));
        found.copied()
    }

    fn insert(&mut self, mark: ScopedHash, occurrence: Occurrence) {
        if self.young.len() >= self.most && !self.young.contains_key(&mark) {
            // Cleared, so that it keeps its room: a table that grows moves all its entries, which takes milliseconds.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.young.insert(mark, occurrence);
    }
}

/// What is known of all tenants.
#[derive(Debug)]
pub(super) struct OriginIndex {
    tenants: HashKeyMap<Tenant, TenantOrigins>,
    strangers: StrangerMessages,
    max_entries: usize,
    /// Entries of all tenants, with the tenants themselves.
    held: usize,
    additions: u64,
    evicted: HashKeySet<Tenant>,
    /// Whether a tenant was dropped as a whole, and whether that is stored. One that is not here may be that one.
    dropped_tenants: Option<Saving>,
    /// Whether it is not known yet what earlier processes have seen.
    awaits_saved: bool,
}

impl Default for OriginIndex {
    fn default() -> Self {
        Self::with_max_entries(MAX_ENTRIES)
    }
}

impl OriginIndex {
    /// An empty index that holds about this many entries.
    pub(super) fn with_max_entries(max_entries: usize) -> Self {
        Self {
            tenants: HashKeyMap::default(),
            // Two generations, in at most 10 MB.
            strangers: StrangerMessages::new(max_entries / 5),
            max_entries,
            held: 0,
            additions: 0,
            evicted: HashKeySet::default(),
            dropped_tenants: None,
            awaits_saved: false,
        }
    }

    /// What is known of the tenant of `scope`.
    pub(super) fn origins_of(&self, scope: &Scope) -> SeenOrigins<'_> {
        let tenant = self.tenants.get(&scope.tenant);
        SeenOrigins {
            tenant,
            strangers: &self.strangers,
            has_lost: tenant.map_or(self.dropped_tenants.is_some(), TenantOrigins::has_lost),
            awaits_saved: self.awaits_saved,
        }
    }

    /// The tenants that lost entries since the last call. The cache no longer knows which of their messages are unique to
    /// one conversation.
    pub(super) fn take_evicted(&mut self) -> HashKeySet<Tenant> {
        std::mem::take(&mut self.evicted)
    }

    /// Adds a message with its origin. What a tenant says before the upstream has accepted it is kept apart.
    pub(super) fn add_message(
        &mut self,
        scope: &Scope,
        mark: ScopedHash,
        origin: Origin,
        sender: Sender,
    ) {
        let seen_origins = self.origins_of(scope);
        let own = seen_origins.own_occurrence(&mark);
        let occurrence = seen_origins.occurrence_beside(own, &mark);
        let updated = match occurrence {
            None => Occurrence::Once(origin),
            Some(Occurrence::Once(other)) if other == origin => Occurrence::Once(origin),
            Some(_) => Occurrence::Several,
        };
        if sender.is_stranger {
            if occurrence != Some(updated) {
                self.strangers.insert(mark, updated);
            }
        } else {
            let becomes_storable = self.set_storable(scope, mark, own.is_none(), sender);
            if own != Some(updated) || becomes_storable {
                self.add(scope, |entries| entries.add_message(mark, updated));
            }
        }
    }

    /// Adds an answer of the upstream behind `tip`: its hash and its origin.
    pub(super) fn add_answer(
        &mut self,
        scope: &Scope,
        tip: Link,
        mark: ScopedHash,
        origin: Origin,
        sender: Sender,
    ) {
        let may_be_stored = sender.may_be_stored;
        self.add(scope, |entries| {
            entries.add_answer((tip, mark), origin, may_be_stored);
        });
    }

    /// Adds an answer to `chain` that may come back as a summary. One conversation may get the same answer
    /// twice; an answer that two conversations got identifies neither.
    pub(super) fn add_summary_answer(
        &mut self,
        scope: &Scope,
        answer: AnswerHash,
        chain: &History,
        sender: Sender,
    ) {
        let mark = answer.text;
        let is_known = self.origins_of(scope).has_summary_answer(&mark);
        self.update_summary_answer(scope, answer, chain);
        let updated = self.origins_of(scope).summary_answer(&mark);
        let names_chain = updated.is_some_and(|answer| answer.chain != AnsweredChain::Several);
        self.set_storable(scope, mark, !is_known || names_chain, sender);
    }

    fn update_summary_answer(&mut self, scope: &Scope, answer: AnswerHash, chain: &History) {
        let Some(tip) = chain.tip() else {
            // Given to a request that cannot be read, or that has no message: it identifies no conversation.
            return self.insert_summary_answer(
                scope,
                answer.text,
                Some(answer.ending),
                AnsweredChain::Several,
            );
        };
        let mut links = chain.messages().iter().rev().map(|chained| chained.link);
        let before = links.clone().nth(1).unwrap_or_else(|| chain.root());
        let now = AnsweredChain::To {
            tip,
            parent: before,
        };
        let now = match self
            .origins_of(scope)
            .summary_answer(&answer.text)
            .map(|known| known.chain)
        {
            None => now,
            Some(AnsweredChain::Several) => return,
            Some(AnsweredChain::To {
                tip,
                parent: before,
            }) => {
                let continues = links.any(|link| link == tip || link == before);
                if continues {
                    now
                } else {
                    AnsweredChain::Several
                }
            }
        };
        self.insert_summary_answer(scope, answer.text, Some(answer.ending), now);
    }

    /// Marks an answer as quoted: a request contains it without continuing the chain that got it.
    pub(super) fn mark_quoted(&mut self, scope: &Scope, mark: ScopedHash) {
        let ending = self
            .origins_of(scope)
            .summary_answer(&mark)
            .and_then(|known| known.ending);
        self.insert_summary_answer(scope, mark, ending, AnsweredChain::Several);
    }

    fn insert_summary_answer(
        &mut self,
        scope: &Scope,
        mark: ScopedHash,
        ending: Option<ScopedHash>,
        chain: AnsweredChain,
    ) {
        self.add(scope, |entries| {
            entries.add_summary_answer(mark, SummaryAnswer { chain, ending });
        });
    }

    fn add(&mut self, scope: &Scope, add: impl FnOnce(&mut Generation)) {
        let (tenant, sizes) = (self.tenants.entry(scope.tenant), self.max_entries);
        let sizes = generation_sizes(sizes);
        let (held, has_lost) = (&mut self.held, self.dropped_tenants.is_some());
        let tenant = tenant.or_insert_with(|| {
            *held += TENANT_ENTRIES;
            TenantOrigins::new(has_lost)
        });
        let before = tenant.len();
        tenant.add(&sizes, add);
        self.additions += 1;
        tenant.last_added = self.additions;
        self.held = self.held - before + tenant.len();
        if self.held > self.max_entries {
            self.evict();
        }
    }

    /// Notes whether the hash `mark` may be stored: if one request that had it may be. Returns whether it may be now, and
    /// might not before.
    fn set_storable(
        &mut self,
        scope: &Scope,
        mark: ScopedHash,
        is_new: bool,
        sender: Sender,
    ) -> bool {
        if !sender.may_be_stored {
            // Also what was forbidden before: an older generation is dropped before this one.
            let tenant = self.tenants.get(&scope.tenant);
            let is_forbidden = tenant.is_some_and(|tenant| !tenant.may_be_stored(&mark));
            if is_new || is_forbidden {
                self.add(scope, |entries| entries.forbid_storing(mark));
            }
            return false;
        }
        let Some(tenant) = self.tenants.get_mut(&scope.tenant) else {
            return false;
        };
        let before = tenant.len();
        let becomes_storable = tenant.allow_storing(&mark);
        self.held -= before - tenant.len();
        becomes_storable
    }

    /// What is not stored yet and may be. Each call has it again, until [`OriginIndex::mark_saved`].
    pub(super) fn seal_unsaved(&mut self) -> Vec<SeenMessages> {
        let mut unsaved = Vec::new();
        if self
            .dropped_tenants
            .is_some_and(|dropped| dropped != Saving::Saved)
        {
            self.dropped_tenants = Some(Saving::Sealed);
            unsaved.push(SeenMessages {
                tenant: DROPPED_TENANTS,
                has_lost: true,
                ..SeenMessages::default()
            });
        }
        for (key, tenant) in &mut self.tenants {
            unsaved.extend(seen_messages::seal_unsaved(*key, tenant));
        }
        unsaved
    }

    /// Notes that what was sealed is stored.
    pub(super) fn mark_saved(&mut self) {
        if self.dropped_tenants == Some(Saving::Sealed) {
            self.dropped_tenants = Some(Saving::Saved);
        }
        for tenant in self.tenants.values_mut() {
            tenant.mark_saved();
        }
    }

    /// From now on nothing proves a conversation, until [`OriginIndex::restore`]: also an answer of now may have been given to
    /// somebody before.
    pub(super) fn await_saved(&mut self) {
        self.awaits_saved = true;
    }

    /// Adds what processes before this one have seen, the newest first. If that is too much, the tenants that have most lose
    /// their oldest entries.
    pub(super) fn restore(&mut self, saved: &[SeenMessages]) {
        self.awaits_saved = false;
        let sizes = generation_sizes(self.max_entries);
        let sizes_of_rows = saved.iter().map(|entries| {
            let size = TENANT_ENTRIES + seen_messages::max_entries(entries);
            (entries.tenant, size)
        });
        let fitting = fitting_rows(sizes_of_rows, self.max_entries.saturating_sub(self.held));
        let mut losers: HashKeySet<Tenant> = HashKeySet::default();
        // Tenants that were dropped later than this.
        let mut were_dropped = false;
        for (at, entries) in saved.iter().enumerate() {
            if entries.tenant == DROPPED_TENANTS {
                were_dropped = true;
                self.dropped_tenants.get_or_insert(Saving::Saved);
                continue;
            }
            if !fitting.contains(&at) {
                losers.insert(entries.tenant);
                continue;
            }
            let held = &mut self.held;
            let tenant = self.tenants.entry(entries.tenant).or_insert_with(|| {
                *held += TENANT_ENTRIES;
                TenantOrigins::new(were_dropped)
            });
            let before = tenant.len();
            tenant.restore(seen_messages::saved(entries), entries.has_lost, &sizes);
            self.held = self.held - before + tenant.len();
        }
        for key in losers {
            match self.tenants.get_mut(&key) {
                Some(tenant) => tenant.set_has_lost(),
                // The next process finds the same in the store.
                None => {
                    self.dropped_tenants.get_or_insert(Saving::Saved);
                }
            }
        }
    }

    /// Drops an eighth of all entries, so that the search for those that hold most is rare: the oldest ones of the tenant
    /// that holds most, again and again. Below a share of 1 in 1,024 tenants count as equal; of those the one that was
    /// silent for longest goes first. So very many tiny tenants push out no small one that is in use.
    fn evict(&mut self) {
        let goal = self.max_entries - self.max_entries / 8;
        let small = self.max_entries / 1024;
        let rank = |key: &Tenant, tenant: &TenantOrigins| {
            let size = tenant.len().max(small);
            (size, Reverse(tenant.last_added), *key)
        };
        let tenants = self.tenants.iter();
        let mut largest: BinaryHeap<_> = tenants.map(|(key, tenant)| rank(key, tenant)).collect();
        while self.held > goal
            && let Some((_, _, key)) = largest.pop()
            && let Some(tenant) = self.tenants.get_mut(&key)
        {
            let before = tenant.len();
            // One that holds so much loses to itself. Its older conversations go on with their memory: what was recorded
            // of them is read from the database.
            if before < self.max_entries / 4 {
                tenant.set_has_lost();
            }
            tenant.drop_oldest();
            self.held -= before - tenant.len();
            if tenant.len() > 0 {
                largest.push(rank(&key, tenant));
            } else {
                self.tenants.remove(&key);
                self.dropped_tenants = Some(Saving::Unsaved);
                self.held -= TENANT_ENTRIES;
            }
            self.evicted.insert(key);
        }
    }
}

/// The smallest and the largest size of a generation. A table of the largest size that grows moves its entries in about a
/// millisecond. A tenant that counts as small has at least two of the smallest before it loses one.
fn generation_sizes(max_entries: usize) -> RangeInclusive<usize> {
    max_entries.div_ceil(2048)..=max_entries.div_ceil(8)
}

/// What is known of one tenant, and of the messages of strangers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenOrigins<'a> {
    tenant: Option<&'a TenantOrigins>,
    /// Hashes are scoped to their owner, so one of another tenant is never found here.
    strangers: &'a StrangerMessages,
    /// Whether something that was seen of the tenant may be gone because of what other tenants said.
    has_lost: bool,
    awaits_saved: bool,
}

impl SeenOrigins<'_> {
    /// In which conversations the message was seen. What a tenant said before it was accepted counts too.
    fn occurrence(&self, mark: &ScopedHash) -> Option<Occurrence> {
        self.occurrence_beside(self.own_occurrence(mark), mark)
    }

    /// The same without what the tenant said before it was accepted.
    fn own_occurrence(&self, mark: &ScopedHash) -> Option<Occurrence> {
        self.tenant.and_then(|tenant| tenant.message(mark))
    }

    fn occurrence_beside(&self, own: Option<Occurrence>, mark: &ScopedHash) -> Option<Occurrence> {
        match [own, self.strangers.get(mark)] {
            [Some(one), Some(other)] if one != other => Some(Occurrence::Several),
            [one, other] => one.or(other),
        }
    }

    fn summary_answer(&self, mark: &ScopedHash) -> Option<SummaryAnswer> {
        self.tenant.and_then(|tenant| tenant.summary_answer(mark))
    }

    /// The origin of the message with this hash, if the upstream gave it behind `tip`.
    pub(super) fn answer_origin(&self, tip: Link, mark: ScopedHash) -> Option<Origin> {
        self.tenant?.answer_origin(tip, mark)
    }

    /// Whether this process has seen the upstream give the message of this origin.
    pub(super) fn is_from_upstream(&self, origin: Origin) -> bool {
        let tenant = self.tenant;
        tenant.is_some_and(|tenant| tenant.is_from_upstream(origin))
    }

    /// Whether a text with this ending may be one of the answers that may come back as summaries.
    pub(super) fn has_answer_ending(&self, ending: &ScopedHash) -> bool {
        let tenant = self.tenant;
        tenant.is_some_and(|tenant| tenant.has_answer_ending(ending))
    }

    pub(super) fn has_summary_answer(&self, mark: &ScopedHash) -> bool {
        self.summary_answer(mark).is_some()
    }

    /// Whether this process has seen the witness of a proof in another conversation, or may have: if other tenants pushed
    /// entries of this one out, a witness counts only while it is held itself. The oldest are dropped first, so all that was seen
    /// after it is held too.
    pub(super) fn is_contested(&self, witness: &Witness) -> bool {
        let message = self.occurrence(&witness.hash);
        let answered = self
            .summary_answer(&witness.hash)
            .map(|answer| answer.chain);
        let is_held =
            message.is_some() || answered.is_some() || self.is_from_upstream(witness.origin);
        if self.awaits_saved || (self.has_lost && !is_held) {
            return true;
        }
        let is_elsewhere = match answered {
            None => false,
            Some(AnsweredChain::Several) => true,
            Some(AnsweredChain::To { tip, .. }) => Origin::for_link(&tip) != witness.origin,
        };
        is_elsewhere || message.is_some_and(|occurrence| occurrence.is_outside(witness.origin))
    }
}

#[cfg(test)]
mod tests;
