//! The request that goes out: a block in the place of the oldest messages, spliced into the body.
//!
//! Turns a decision into bytes and decides nothing. Built by `select_memory`, and by `retry` if something else
//! is needed after a refusal.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::capabilities::CacheAddition;
use super::fallback::Fallback;
use super::memory::{Memory, MemoryRequest};
use crate::history::{PlainText, Role};
use crate::memory::select::SelectionReason;
use crate::memory::transcript::{TranscriptMessage, system_messages};
use crate::memory::{Snapshot, Trim, render};
use crate::store::SentWith;
use crate::wire::{Additions, Insert, Placement, cache_key_member};

/// The text in the place of the oldest messages: observations, a note that some were left out, or both.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) snapshot: Option<Arc<Snapshot>>,
    pub(super) trim: Option<Trim>,
    pub(super) placement: Placement,
}

impl Block {
    /// How many of the client's messages the block replaces.
    pub(super) fn covered(&self) -> usize {
        let observed = self.snapshot.as_ref().map_or(0, |s| s.meta.to_count);
        self.trim.map_or(observed, |trim| trim.to_count)
    }

    /// The message among them that is sent raw all the same.
    pub(super) fn pin(&self) -> Option<usize> {
        match (&self.trim, &self.snapshot) {
            (Some(trim), _) => trim.pin,
            (None, Some(snapshot)) => snapshot.meta.pin,
            (None, None) => None,
        }
    }

    /// The places of the chain that are neither sent nor observed.
    fn gap(&self, trim: &Trim) -> Range<usize> {
        let observed = self.snapshot.as_ref().map_or(0, |s| s.meta.to_count);
        observed..trim.to_count
    }

    /// How many of the client's messages are neither sent nor observed.
    fn left_out(&self, request: &MemoryRequest) -> Option<usize> {
        let gone = self.gap(self.trim.as_ref()?);
        Some(
            gone.filter(|place| request.message_at(*place).is_some())
                .count(),
        )
    }

    /// How many messages the note counts: those that are nowhere in the request, neither as the pin nor word for
    /// word in the note itself.
    fn noted_count(&self, request: &MemoryRequest, trim: &Trim) -> usize {
        let is_noted = |place: &usize| {
            let role = request.history.messages()[*place].message.role;
            match request.message_at(*place) {
                Some(_) => trim.pin != Some(*place) && role != Role::System,
                None => trim.wording >= render::COUNTS_DROPPED_SINCE,
            }
        };
        self.gap(trim).filter(is_noted).count()
    }

    /// How many segments stay when the block grows: the beginning and the log. `None` without a log.
    fn lasting_segments(&self) -> Option<usize> {
        let parts = self.snapshot.as_ref()?.meta.parts.len();
        (parts > 0).then_some(1 + parts)
    }

    /// The text of the block, in order.
    fn segments(&self, request: &MemoryRequest) -> Cow<'_, [String]> {
        let observed = self.snapshot.as_ref().map(|s| s.segments.as_slice());
        let Some(trim) = self.trim else {
            return observed.unwrap_or_default().into();
        };
        let spoken: Vec<(usize, PlainText)> = self
            .gap(&trim)
            .filter(|index| request.history.messages()[*index].message.role == Role::System)
            .filter_map(|index| {
                Some((
                    index + 1,
                    request.parsed.plain_text(request.message_at(index)?)?,
                ))
            })
            .collect();
        let entries: Vec<TranscriptMessage<'_>> = spoken
            .iter()
            .map(|(count, spoken)| TranscriptMessage {
                count: *count,
                received_ms: 0,
                live: false,
                pause_ms: 0,
                content: spoken,
            })
            .collect();
        let left_out = self.noted_count(request, &trim);
        let system = system_messages(&entries);
        render::trimmed(observed, trim.wording, left_out, &system).into()
    }
}

/// What Diarist adds to a request by itself, as far as the client leaves it open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// The question for usage in the stream.
    pub(super) usage: bool,
    /// `prompt_cache_key`. Without a block nothing is added: the body stays as it came.
    pub(super) cache_key: bool,
    /// A breakpoint for the prompt cache in the block.
    pub(super) cache_breakpoint: bool,
}

/// A request as it goes out.
#[derive(Clone, Debug)]
pub(super) struct OutgoingRequest {
    pub(super) frames: Vec<Bytes>,
    pub(super) bytes: usize,
    pub(super) block: Option<Block>,
    pub(super) asks_usage: bool,
    /// The bytes of the `prompt_cache_key` that was added; 0 if none was.
    pub(super) cache_key_bytes: usize,
    /// The header that tells the provider which conversation it is. Only beside a block.
    pub(super) affinity: Option<(HeaderName, HeaderValue)>,
    /// Whether the block has one of the client's cache marks, since the cut removed them.
    pub(super) has_cache_mark: bool,
    pub(super) messages: Option<usize>,
    /// The client's messages that the block replaces; `None` without a block.
    pub(super) layout: Option<MessageLayout>,
    pub(super) why: &'static str,
    pub(super) fallback: Fallback,
    extras: Extras,
    sent_with: SentWith,
}

/// Which of the client's messages a block replaces. Indices count the messages behind the leading ones.
#[derive(Clone, Debug)]
pub(super) struct MessageLayout {
    /// Where the raw tail begins.
    pub(super) cut: usize,
    /// Messages before the cut that stay raw in front of the block.
    pub(super) front: Vec<usize>,
    /// The message that stands raw between block and tail.
    pub(super) pin: Option<usize>,
    /// How many messages are neither sent nor observed.
    pub(super) trimmed: Option<usize>,
}

impl MessageLayout {
    fn new(request: &MemoryRequest, block: &Block) -> Self {
        let (covered, pin) = (block.covered(), block.pin());
        let Some(alignment) = &request.alignment else {
            return Self {
                cut: covered,
                front: Vec::new(),
                pin,
                trimmed: block.left_out(request),
            };
        };
        let cut = alignment.positions.request_cut(covered);
        Self {
            cut,
            front: alignment.positions.unknown_before(cut),
            pin: pin.and_then(|pin| alignment.positions.request_index(pin)),
            trimmed: block.left_out(request),
        }
    }
}

impl OutgoingRequest {
    /// The client's bytes, unchanged.
    pub(super) fn verbatim(body: Bytes) -> Self {
        Self {
            bytes: body.len(),
            frames: vec![body],
            block: None,
            asks_usage: false,
            cache_key_bytes: 0,
            affinity: None,
            has_cache_mark: false,
            messages: None,
            layout: None,
            why: "verbatim",
            extras: Extras::default(),
            fallback: Fallback::NotNeeded,
            sent_with: SentWith::default(),
        }
    }

    /// Whether anything but the client's bytes goes out.
    pub(super) fn is_changed(&self) -> bool {
        self.block.is_some() || self.asks_usage
    }

    /// Whether Diarist added `addition`.
    pub(super) fn has(&self, addition: CacheAddition) -> bool {
        match addition {
            CacheAddition::Key => self.sent_with.cache_key,
            CacheAddition::Breakpoint => self.sent_with.cache_breakpoint,
        }
    }

    /// What was added, for another request in its place. A request without a block has no cache key, so `cache_key`
    /// says whether one that gets a block may have it.
    pub(super) fn extras(&self) -> Extras {
        self.extras
    }

    /// What was added, in the names of the audit; empty if nothing was.
    pub(super) fn added(&self) -> String {
        let names = [
            ("cache_mark", self.has_cache_mark),
            ("cache_key", self.has(CacheAddition::Key)),
            ("cache_breakpoint", self.has(CacheAddition::Breakpoint)),
            ("session_affinity", self.affinity.is_some()),
        ];
        let names = names.into_iter().filter(|(_, added)| *added);
        names.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    }

    /// The snapshot whose observations are sent.
    pub(super) fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.block.as_ref()?.snapshot.as_ref()
    }

    /// How many of the client's messages the block replaces.
    pub(super) fn covered(&self) -> usize {
        self.block.as_ref().map_or(0, Block::covered)
    }

    /// What the request is sent with, as the store keeps it.
    pub(super) fn sent_with(&self) -> &SentWith {
        &self.sent_with
    }

    /// The request with `block` and with `extras`.
    pub(super) fn new(
        request: &MemoryRequest,
        block: Option<Block>,
        extras: Extras,
        why: &'static str,
        fallback: Fallback,
    ) -> Self {
        let segments = block.as_ref().map(|block| block.segments(request));
        let insert = block.as_ref().zip(segments.as_deref());
        let layout = block
            .as_ref()
            .map(|block| MessageLayout::new(request, block));
        let insert = insert.zip(layout.as_ref());
        let insert = insert.map(|((block, segments), layout)| Insert {
            cut: layout.cut,
            front: &layout.front,
            pin: layout.pin,
            segments,
            placement: block.placement,
            reminder: render::REMINDER,
            bridge: render::BRIDGE,
        });
        let cache_key = (extras.cache_key && insert.is_some()).then(|| request.cache_key());
        let lasting = block.as_ref().and_then(Block::lasting_segments);
        let additions = Additions {
            usage: extras.usage,
            cache_mark: request.policy.cache_marks,
            cache_key: cache_key.as_deref(),
            cache_breakpoint: lasting.filter(|_| extras.cache_breakpoint),
        };
        let splice = request.parsed.splice(insert.as_ref(), additions);
        let has_cache_mark = additions.cache_mark
            && insert
                .as_ref()
                .is_some_and(|insert| request.parsed.takes_over_mark(insert));
        let messages = splice.message_count();
        let sent_with = SentWith {
            snapshot: block
                .as_ref()
                .and_then(|b| Some(b.snapshot.as_ref()?.meta.id)),
            placement: block
                .as_ref()
                .map_or_else(String::new, |b| b.placement.name().to_owned()),
            usage_requested: request.may_ask_usage().then_some(extras.usage),
            cache_key: cache_key.is_some(),
            cache_breakpoint: additions.cache_breakpoint.is_some(),
            trim: block.as_ref().and_then(|block| block.trim),
        };
        drop(segments);
        let affinity = block.as_ref().and_then(|_| request.affinity());
        Self {
            layout,
            frames: splice.frames(request.parsed.body()),
            bytes: splice.len(),
            block,
            asks_usage: extras.usage,
            cache_key_bytes: cache_key.map_or(0, |key| cache_key_member(&key).len()),
            affinity,
            extras,
            has_cache_mark,
            messages: Some(messages),
            why,
            fallback,
            sent_with,
        }
    }

    /// This request, which goes out in the place of `refused`; or, if an equal request has replaced it
    /// meanwhile, the one that went out there (INV-SAME).
    pub(super) async fn or_equal_request(
        self,
        memory: &Memory,
        request: &MemoryRequest,
        refused: &Self,
    ) -> Self {
        let Some(tip) = request.history.tip() else {
            return self;
        };
        let (previous_send, next_send) = (refused.sent_with(), self.sent_with().clone());
        let sent_with = memory.cache.replace_refused_send(
            &request.identity.scope,
            (tip, &request.model),
            previous_send,
            next_send,
        );
        if sent_with == *self.sent_with() || sent_with.is_alike(previous_send) {
            return self;
        }
        let equal = Self::from_sent_with(memory, request, &sent_with, &self).await;
        equal.unwrap_or(self)
    }

    /// The request that an equal one went out as, with `sent_with`. `None` if its snapshot is no longer there.
    pub(super) async fn from_sent_with(
        memory: &Memory,
        request: &MemoryRequest,
        sent_with: &SentWith,
        proposed: &Self,
    ) -> Option<Self> {
        let snapshot = match sent_with.snapshot {
            None => None,
            Some(id) => {
                let text = memory
                    .cache
                    .load_snapshot(&request.identity.scope, id)
                    .await;
                Some(text.filter(|snapshot| covers_prefix(request, snapshot))?)
            }
        };
        let trim = sent_with.trim;
        if trim.is_some_and(|trim| !request.allows_trim(&trim)) {
            return None;
        }
        let block = if snapshot.is_some() || trim.is_some() {
            Some(Block {
                snapshot,
                trim,
                placement: Placement::from_name(&sent_with.placement)?,
            })
        } else {
            None
        };
        let usage = sent_with.usage_requested.unwrap_or(proposed.asks_usage);
        let extras = Extras {
            usage: usage && request.may_ask_usage(),
            cache_key: sent_with.cache_key && request.may_add(CacheAddition::Key),
            cache_breakpoint: sent_with.cache_breakpoint
                && request.may_add(CacheAddition::Breakpoint),
        };
        let why = SelectionReason::Repeated.name();
        let fallback = match proposed.fallback {
            // The equal request went out before the block was left out.
            Fallback::Blocked if block.is_some() => Fallback::NotNeeded,
            fallback => fallback,
        };
        Some(Self::new(request, block, extras, why, fallback))
    }
}

/// Whether `snapshot` stands for a prefix of this very history.
fn covers_prefix(request: &MemoryRequest, snapshot: &Snapshot) -> bool {
    let cut = snapshot.meta.to_count;
    snapshot.meta.is_peer_intro()
        || request.history.count_through(&snapshot.meta.to, cut) == Some(cut)
}
