//! Snapshots: what a request may be sent with, the parts it is made of, and what one conversation may
//! tell the others of its user. Values and the trait only; each backend implements it.

use std::sync::Arc;

use async_trait::async_trait;

use super::StoreResult;
use crate::history::{Link, Scope};
use crate::memory::peer_memory::Digest;
use crate::memory::{
    Part, PartId, PeerMemory, Rendering, Snapshot, SnapshotCause, SnapshotId, SnapshotMeta,
};

/// Snapshots, parts and digests.
#[async_trait]
pub trait Snapshots: Send + Sync {
    /// A snapshot with its text. One indexed query.
    async fn snapshot(&self, scope: &Scope, id: SnapshotId) -> StoreResult<Option<Snapshot>>;

    /// The texts of `parts`, in the given order; missing ones are left out.
    async fn parts(&self, scope: &Scope, parts: &[PartId]) -> StoreResult<Vec<Part>>;

    /// The log that ends at `to`: consecutive parts, back to where there is none, or as far as `bounds` allow. Of
    /// several parts with one end, the longest; of two equal ones, the one that a model wrote. Empty where no chunk
    /// ends at `to`.
    async fn log_before(
        &self,
        scope: &Scope,
        to: Link,
        bounds: LogBounds,
    ) -> StoreResult<EarlierLog>;

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

/// How much of a log is read.
#[derive(Clone, Copy, Debug)]
pub struct LogBounds {
    /// No further part is read when those read have so many tokens.
    pub tokens: u32,
    /// The most chunks. With it, only chunks are read. `None`: where a reflection ends, it is read in the place of the
    /// chunks that it condenses.
    pub chunks: Option<usize>,
}

/// The log before a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlierLog {
    /// The texts of its parts, the oldest first.
    pub texts: Vec<String>,
    /// The hints of its newest chunk.
    pub current_task: Option<String>,
    /// See `current_task`.
    pub suggested_response: Option<String>,
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

impl NewSnapshot {
    /// The snapshot under the id that it was given, for chains from the length `eligible_from` on.
    pub fn into_snapshot(self, id: SnapshotId, eligible_from: usize) -> Snapshot {
        Snapshot {
            meta: SnapshotMeta {
                id,
                to: self.to,
                to_count: self.to_count,
                eligible_from,
                pin: self.pin,
                parts: self.parts,
                tokens: self.tokens,
                cause: self.cause,
                placement: self.placement,
                peer_memory: self.peer_memory,
            },
            segments: self.segments,
        }
    }
}
