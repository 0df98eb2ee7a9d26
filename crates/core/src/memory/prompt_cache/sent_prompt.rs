//! A prompt as it was sent: a hash and a size for each of its parts, in the order of the prompt.
//!
//! The hashes of messages are the beginnings of their fingerprints, so two spellings of one message are the same.

use super::rules::CacheReads;
use crate::history::{Fingerprint, Message, PromptFields};
use crate::memory::{PartId, Snapshot, render};

/// The first 64 bits of a hash: enough to see a change, and small enough to keep one per message.
type Digest = u64;

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// Tools and the form of the answer.
    Tools,
    /// The client's leading system messages.
    System,
    /// The block.
    Observations,
    /// A message behind the leading ones, counted from 1.
    Message(usize),
}

impl std::fmt::Display for PromptPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tools => f.write_str("tools"),
            Self::System => f.write_str("system"),
            Self::Observations => f.write_str("observations"),
            Self::Message(number) => write!(f, "message {number}"),
        }
    }
}

/// Bytes of each segment of a prompt, as sent, and of the messages that the block replaced. The data of attachments
/// ([`Message::attachment_bytes`]) is left out of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentBytes {
    pub tools: u64,
    pub system: u64,
    /// What stands in the block of the conversation: observations, reflections, hints, other conversations.
    pub observations: u64,
    /// Diarist's own words around them: instructions, notes, the reminder, and the JSON of their messages.
    pub reminder: u64,
    /// The raw messages: in front of the block, pinned, and behind it.
    pub messages: u64,
    /// The messages that the block replaced. They are not part of the prompt.
    pub replaced: u64,
}

impl SegmentBytes {
    /// The prompt's `tokens` divided by segment, in proportion to bytes: an estimate. What was replaced gets as many for
    /// a byte. The sum of the segments is `tokens`.
    #[must_use]
    pub fn share_of(self, tokens: u64) -> Self {
        let segments = [
            self.tools,
            self.system,
            self.observations,
            self.reminder,
            self.messages,
        ];
        let whole = segments
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let scaled = |bytes: u64| {
            let product = u128::from(bytes) * u128::from(tokens) + u128::from(whole) / 2;
            let share = product.checked_div(u128::from(whole)).unwrap_or(0);
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        // Each ends where the scaled sum of bytes ends, so nothing is lost by rounding.
        let mut end: u64 = 0;
        let [tools, system, observations, reminder, messages] = segments.map(|bytes| {
            let begin = scaled(end);
            end = end.saturating_add(bytes);
            scaled(end) - begin
        });
        Self {
            tools,
            system,
            observations,
            reminder,
            messages,
            replaced: scaled(self.replaced),
        }
    }
}

/// A part with its hash and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentPart {
    pub(super) part: PromptPart,
    pub(super) digest: Digest,
    pub(super) bytes: u64,
}

/// A block as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBlock {
    /// Its pieces: preamble, one for each part of the log, and the rest.
    pieces: Vec<(Digest, u32)>,
    /// Bytes of the pieces that are no words of Diarist itself.
    observed: u32,
    /// Whether it stands inside the client's last system message.
    pub(super) inside_system: bool,
}

impl SentBlock {
    /// The block of `snapshot`, which has `bytes` in the body. `note` distinguishes it from other blocks of the
    /// same snapshot: what was left out without being observed.
    #[must_use]
    pub fn new(
        snapshot: Option<&Snapshot>,
        note: Option<(usize, Option<usize>)>,
        bytes: usize,
        inside_system: bool,
    ) -> Self {
        let meta = snapshot.map(|snapshot| &snapshot.meta);
        let parts: &[PartId] = meta
            .filter(|_| note.is_none())
            .map_or(&[], |meta| &meta.parts);
        let texts = snapshot.map_or(&[][..], |snapshot| &snapshot.segments);
        let sizes: Vec<usize> = texts.iter().map(|text| escaped_length(text)).collect();
        let size_of = |index: usize| small(sizes.get(index).copied().unwrap_or(0));
        let is_trimmed = note.is_some();
        let observed = texts.iter().zip(&sizes).enumerate();
        let observed =
            observed.filter(|(index, (text, _))| render::is_observed(*index, text, is_trimmed));
        let observed: usize = observed.map(|(_, (_, size))| *size).sum();
        let mut pieces = Vec::with_capacity(parts.len() + 2);
        if !parts.is_empty() {
            pieces.push((PREAMBLE, size_of(0)));
        }
        for (index, part) in parts.iter().enumerate() {
            pieces.push((part.0.cast_unsigned(), size_of(index + 1)));
        }
        let before: usize = pieces.iter().map(|(_, size)| *size as usize).sum();
        pieces.push((
            rest_digest(snapshot, note),
            small(bytes.saturating_sub(before)),
        ));
        Self {
            pieces,
            observed: small(observed.min(bytes)),
            inside_system,
        }
    }
}

impl SentBlock {
    /// Whether it begins with all parts of `previous`: then nothing was written anew. The cause of its snapshot does not
    /// say so, since a conversation can skip snapshots.
    pub(super) fn begins_with_parts_of(&self, previous: &Self) -> bool {
        let parts = |block: &Self| {
            let parts = block
                .pieces
                .split_last()
                .map_or(&[][..], |(_rest, parts)| parts);
            parts.iter().map(|(part, _)| *part).collect::<Vec<_>>()
        };
        parts(self).starts_with(&parts(previous))
    }
}

/// Bytes of `text` inside a JSON string. Plain counts in one byte each, so 255 bytes at a time, which the compiler turns
/// into vector code: a block has up to some hundred kilobytes, and each request with one is measured.
pub(super) fn escaped_length(text: &str) -> usize {
    fn count(text: &str, is: impl Fn(u8) -> bool) -> usize {
        let chunks = text.as_bytes().chunks(usize::from(u8::MAX));
        let counts = chunks.map(|chunk| chunk.iter().map(|byte| u8::from(is(*byte))).sum::<u8>());
        counts.map(usize::from).sum()
    }
    // `\u0000` has five bytes more than its character.
    let controls = count(text, |byte| byte < 0x20);
    let short = count(text, |byte| {
        matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c)
    });
    let quotes = count(text, |byte| matches!(byte, b'"' | b'\\'));
    text.len() + short + 5 * (controls + quotes - short)
}

/// Stands for the text before the first part of a log, which all blocks share.
const PREAMBLE: Digest = 1 << 63;

/// What distinguishes a block from others with the same parts.
fn rest_digest(snapshot: Option<&Snapshot>, note: Option<(usize, Option<usize>)>) -> Digest {
    let of_snapshot = snapshot.map_or(0, |snapshot| {
        // A snapshot that is not stored has no number of its own.
        let id = snapshot.meta.id.0.cast_unsigned();
        id.rotate_left(17) ^ leading_bytes(snapshot.meta.to.as_bytes())
    });
    let of_note = note.map_or(0, |(count, pin)| {
        (count as u64 + 1).rotate_left(32) ^ pin.map_or(0, |pin| pin as u64 + 1)
    });
    of_snapshot ^ of_note.rotate_left(7)
}

/// How the client's messages were laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentLayout {
    /// How many messages behind the leading ones the block replaced.
    pub cut: usize,
    /// Those among them that stood raw in front of the block.
    pub front: Vec<usize>,
    /// The one among them that stood raw behind it.
    pub pin: Option<usize>,
    /// The block; `None` if every message was sent.
    pub block: Option<SentBlock>,
}

impl SentLayout {
    /// Whether the message at `index` behind the leading ones was sent raw.
    fn sends(&self, index: usize) -> bool {
        index >= self.cut || self.pin == Some(index) || self.front.contains(&index)
    }
}

/// Bytes of the data of attachments ([`Message::attachment_bytes`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachmentBytes {
    /// In the client's request.
    pub received: u64,
    /// In the request as it was sent.
    pub sent: u64,
}

impl AttachmentBytes {
    fn new(leading: &[Message], messages: &[Message], layout: &SentLayout) -> Self {
        let mut bytes = Self::default();
        let leading = leading.iter().map(|message| (message, true));
        let indexed = messages.iter().enumerate();
        let others = indexed.map(|(index, message)| (message, layout.sends(index)));
        for (message, is_sent) in leading.chain(others) {
            let attached = u64::from(message.attachment_bytes);
            bytes.received += attached;
            bytes.sent += if is_sent { attached } else { 0 };
        }
        bytes
    }
}

/// A prompt as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPrompt {
    /// The model that was asked.
    pub(super) model: Box<str>,
    fields: Option<(Digest, u32)>,
    leading_count: usize,
    /// All of the client's messages, the leading ones first: what the block replaced is among them.
    digests: Box<[Digest]>,
    sizes: Box<[u32]>,
    attachment_bytes: AttachmentBytes,
    pub(super) layout: SentLayout,
    /// Whether memory applied to the request.
    pub(super) has_memory: bool,
    /// How many blocks the client's messages are, as far as it is known: a message, or each of its tool calls.
    pub(super) blocks: u32,
    /// Its size as the provider counted it, if it did.
    pub prompt_tokens: Option<u64>,
    /// How much of it the provider's cache holds, if it reports what it wrote.
    pub stored_tokens: Option<u64>,
    /// Where stored beginnings end, its own among them: bytes and tokens, in order. Only for caches that read no others.
    ends: Vec<(u64, u64)>,
}

/// The newest ends that are kept: OpenAI compares with so many.
const MAX_ENDS: usize = 80;

impl SentPrompt {
    /// The prompt of a request with these messages. `has_memory` says whether memory applied to it.
    #[must_use]
    pub fn new(
        model: &str,
        fields: Option<PromptFields>,
        leading: &[Message],
        messages: &[Message],
        layout: SentLayout,
        has_memory: bool,
    ) -> Self {
        let all = || leading.iter().chain(messages);
        let text_bytes =
            |message: &Message| small(message.span.len()).saturating_sub(message.attachment_bytes);
        Self {
            model: model.into(),
            fields: fields.map(|fields| (digest(&fields.fingerprint), small(fields.bytes))),
            leading_count: leading.len(),
            digests: all().map(|message| digest(&message.fingerprint)).collect(),
            sizes: all().map(text_bytes).collect(),
            attachment_bytes: AttachmentBytes::new(leading, messages, &layout),
            layout,
            has_memory,
            blocks: small(all().map(|message| message.calls.len().max(1)).sum()),
            prompt_tokens: None,
            stored_tokens: None,
            ends: Vec::new(),
        }
    }

    /// About how many bytes of memory it takes.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        let block = self.layout.block.as_ref();
        size_of::<Self>()
            + self.model.len()
            + self.digests.len() * (size_of::<Digest>() + size_of::<u32>())
            + self.layout.front.len() * size_of::<usize>()
            + self.ends.len() * size_of::<(u64, u64)>()
            + block.map_or(0, |block| block.pieces.len() * size_of::<(Digest, u32)>())
    }

    /// Notes which of its beginnings the cache holds from now on. `before` is the prompt before, with the bytes that are
    /// the same; `marked` are the client's messages with a mark, the leading ones counted.
    pub fn set_stored_ends(
        &mut self,
        reads: CacheReads,
        before: Option<(&Self, u64)>,
        marked: &[usize],
    ) {
        let own = match reads {
            CacheReads::AnyBeginning => return,
            CacheReads::WholePrompts => self.prompt_tokens.map(|tokens| (self.bytes(), tokens)),
            CacheReads::UpToMarks { .. } => None,
        };
        let kept = before.into_iter().flat_map(|(before, common)| {
            let kept = before
                .ends
                .iter()
                .filter(move |(bytes, _)| *bytes <= common);
            kept.copied()
        });
        self.ends = kept.chain(self.marked_ends(marked)).chain(own).collect();
        self.ends.sort_unstable();
        self.ends.dedup_by_key(|(bytes, _)| *bytes);
        let surplus = self.ends.len().saturating_sub(MAX_ENDS);
        self.ends.drain(..surplus);
    }

    /// Where the marked messages that were sent end. Their tokens are estimated by bytes, except those of the last one.
    fn marked_ends(&self, marked: &[usize]) -> Vec<(u64, u64)> {
        // An end without a number of tokens would hide the earlier ones that have one.
        let Some(tokens) = self.prompt_tokens else {
            return Vec::new();
        };
        let (whole, mut leading, mut end) = (self.bytes().max(1), 0, 0);
        let mut ends = Vec::new();
        for sent in self.parts().take_while(|_| !marked.is_empty()) {
            end += sent.bytes;
            let index = match sent.part {
                PromptPart::System => {
                    leading += 1;
                    leading - 1
                }
                PromptPart::Message(number) => self.leading_count + number - 1,
                PromptPart::Tools | PromptPart::Observations => continue,
            };
            if marked.contains(&index) {
                let share = u128::from(tokens) * u128::from(end) / u128::from(whole);
                ends.push((end, u64::try_from(share).unwrap_or(tokens)));
            }
        }
        if let Some((last, stored)) = ends.last_mut().zip(self.stored_tokens) {
            last.1 = stored;
        }
        ends
    }

    /// Tokens of the longest stored beginning within `bytes`.
    pub(super) fn stored_within(&self, bytes: u64) -> u64 {
        let mut ends = self.ends.iter().rev();
        ends.find(|(end, _)| *end <= bytes)
            .map_or(0, |(_, tokens)| *tokens)
    }

    /// Bytes of the data of its attachments, which no other size has.
    #[must_use]
    pub fn attachment_bytes(&self) -> AttachmentBytes {
        self.attachment_bytes
    }

    /// Bytes of the whole prompt.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().map(|part| part.bytes).sum()
    }

    /// Its size, by segment.
    #[must_use]
    pub fn segment_bytes(&self) -> SegmentBytes {
        let mut bytes = SegmentBytes::default();
        for sent in self.parts() {
            let segment = match sent.part {
                PromptPart::Tools => &mut bytes.tools,
                PromptPart::System => &mut bytes.system,
                PromptPart::Observations => &mut bytes.observations,
                PromptPart::Message(_) => &mut bytes.messages,
            };
            *segment += sent.bytes;
        }
        let block = self.layout.block.as_ref();
        let observed = block.map_or(0, |block| u64::from(block.observed));
        bytes.reminder = bytes.observations.saturating_sub(observed);
        bytes.observations -= bytes.reminder;
        let all = self.sizes[self.leading_count..].iter();
        let all: u64 = all.map(|size| u64::from(*size)).sum();
        // A front or a pin stands once in the prompt.
        bytes.replaced = all.saturating_sub(bytes.messages);
        bytes
    }

    /// The hashes of the client's messages behind the leading ones.
    pub(super) fn client_messages(&self) -> &[Digest] {
        &self.digests[self.leading_count..]
    }

    /// The parts that were sent, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = SentPart> {
        let layout = &self.layout;
        let inside_system = layout
            .block
            .as_ref()
            .is_some_and(|block| block.inside_system);
        let leading = (0..self.leading_count).map(|index| self.message(index, PromptPart::System));
        let front = layout.front.iter().map(|index| self.raw(*index));
        let tail = self.client_messages().len();
        let tail = layout.pin.into_iter().chain(layout.cut..tail);
        self.tools()
            .into_iter()
            .chain(leading)
            .chain(self.block(inside_system))
            .chain(front)
            .chain(self.block(!inside_system))
            .chain(tail.map(|index| self.raw(index)))
    }

    fn tools(&self) -> Option<SentPart> {
        self.fields.map(|(digest, bytes)| SentPart {
            part: PromptPart::Tools,
            digest,
            bytes: bytes.into(),
        })
    }

    fn block(&self, here: bool) -> impl Iterator<Item = SentPart> {
        let block = self.layout.block.as_ref().filter(|_| here);
        let pieces = block.map_or(&[][..], |block| &block.pieces);
        pieces.iter().map(|(digest, bytes)| SentPart {
            part: PromptPart::Observations,
            digest: *digest,
            bytes: (*bytes).into(),
        })
    }

    /// The message at `index` behind the leading ones.
    fn raw(&self, index: usize) -> SentPart {
        self.message(self.leading_count + index, PromptPart::Message(index + 1))
    }

    fn message(&self, index: usize, part: PromptPart) -> SentPart {
        SentPart {
            part,
            digest: self.digests.get(index).copied().unwrap_or_default(),
            bytes: self.sizes.get(index).copied().unwrap_or_default().into(),
        }
    }
}

fn digest(fingerprint: &Fingerprint) -> Digest {
    leading_bytes(fingerprint.as_bytes())
}

fn leading_bytes(hash: &[u8; 32]) -> Digest {
    hash.first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
