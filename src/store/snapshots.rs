//! Snapshots: what a request may be sent with, the parts it is made of, and what one conversation may
//! tell the others of its user. Values and the trait only; each backend implements it.

use std::sync::Arc;

use async_trait::async_trait;

use super::StoreResult;
use crate::history::{Link, Scope};
use crate::memory::peer_memory::Digest;
use crate::memory::{
    Part, PartId, PartKind, PeerMemory, Rendering, Snapshot, SnapshotCause, SnapshotId,
};

/// Snapshots, parts and digests.
#[async_trait]
pub trait Snapshots: Send + Sync {
    /// A snapshot with its text. One indexed query.
    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> StoreResult<Option<Snapshot>>;

    /// The texts of `parts`, in the given order; missing ones are left out.
    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> StoreResult<Vec<Part>>;

    /// The part of this kind whose range ends at `to`. Of several, the longest; of two equal ones, the
    /// one that a Reflector wrote.
    async fn part_ending(
        &self,
        scope: &Scope,
        kind: PartKind,
        to: Link,
    ) -> StoreResult<Option<Part>>;

    /// The parts in the given order, with the rendering that every block uses for them; missing ones
    /// are left out. A part that no block has held gets `rendering` now. The rendering of a part never
    /// changes after that.
    async fn fix_rendering(
        &self,
        scope: &Scope,
        parts: &[PartId],
        rendering: Rendering,
    ) -> StoreResult<Vec<Part>>;

    /// Stores a snapshot and sets its id and `eligible_from`. If a stored snapshot sends the same (same
    /// `to`, parts, pin, placement, text and peer memory) and is eligible no later, returns that one.
    ///
    /// # Errors
    /// [`StoreError::Forgotten`](super::StoreError::Forgotten) if `to`, a part, or a conversation in its
    /// peer memory is not recorded under this owner.
    async fn commit_snapshot(&self, scope: &Scope, snapshot: &NewSnapshot)
    -> StoreResult<Snapshot>;

    /// Stores a snapshot for every request with its prefix, and the same snapshot with peer memory for
    /// one conversation. One transaction, so a crash never leaves one without the other. The second is
    /// left out if a conversation in its peer memory was forgotten.
    async fn commit_snapshot_pair(
        &self,
        scope: &Scope,
        snapshot: &NewSnapshot,
        peer_snapshot: &NewSnapshot,
    ) -> StoreResult<(Snapshot, Option<Snapshot>)>;

    /// Replaces the digest of a lineage: the text that other conversations of the owner may read.
    /// Changes nothing if the lineage was forgotten.
    async fn publish_digest(&self, scope: &Scope, lineage: i64, text: &str) -> StoreResult<()>;

    /// The digests of the owner's latest conversations, the latest first, at most
    /// [`MAX_CONVERSATIONS`](crate::memory::peer_memory::MAX_CONVERSATIONS). Leaves out the lineages
    /// `except` with their branches, and those with the thread key `key`.
    async fn peer_digests(
        &self,
        scope: &Scope,
        except: &[i64],
        key: Option<&str>,
    ) -> StoreResult<Vec<Digest>>;
}

/// A snapshot before the store gave it an id and a first eligible length.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// The last link it covers.
    pub to: Link,
    /// How many messages it covers.
    pub to_count: usize,
    /// See [`SnapshotMeta::pin`](crate::memory::SnapshotMeta::pin).
    pub pin: Option<usize>,
    /// Its parts in order.
    pub parts: Vec<PartId>,
    /// Tokens of its parts as they are sent ([`crate::memory::render::log_tokens`]).
    pub tokens: u32,
    /// Why it was made.
    pub cause: SnapshotCause,
    /// The text of the block. It never changes.
    pub segments: Vec<String>,
    /// See [`SnapshotMeta::placement`](crate::memory::SnapshotMeta::placement).
    pub placement: String,
    /// See [`SnapshotMeta::peer_memory`](crate::memory::SnapshotMeta::peer_memory).
    pub peer_memory: Option<Arc<PeerMemory>>,
    /// The settings it was made with, as a JSON object; only people read it.
    pub settings_json: String,
    /// The tip of the chain it was made for. It is eligible for requests that are longer than the
    /// longest recorded chain that extends this tip.
    pub tip: Link,
    /// Length of that chain.
    pub tip_count: usize,
    /// Whether it is eligible at `tip_count` itself: the upstream refused the current request as too
    /// long, and the request is sent again with this snapshot.
    pub eligible_now: bool,
    /// When it was made, in milliseconds since 1970.
    pub at_ms: i64,
}
