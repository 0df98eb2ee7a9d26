//! One message of a conversation, as a wire format understood it.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::fingerprint::{Encoder, Fingerprint};
use super::role::Role;

/// Any conversation may say a text with fewer bytes ("yes, please do that").
pub const MIN_DISTINCTIVE_BYTES: u32 = 24;

/// The fields beside the messages that are part of the prompt: tools, and the form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptFields {
    /// The hash of their JSON.
    pub fingerprint: Fingerprint,
    /// The size of their JSON.
    pub bytes: usize,
}

/// One message as a wire format understood it, not yet chained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The meaning of the message; two spellings of one message share it.
    pub fingerprint: Fingerprint,
    /// The role of its author.
    pub role: Role,
    /// Ids of the tool calls it makes, in order. Shared, because each request copies what was read of the one before.
    pub calls: Arc<[Box<str>]>,
    /// Id of the tool call it answers.
    pub answers: Option<Arc<str>>,
    /// Whether one of these ids, or another one of the same calls, was drawn at random (see
    /// [`is_random_id`](super::is_random_id)).
    pub random_ids: bool,
    /// Bytes of its text that can distinguish this conversation from others (see
    /// [`distinctive_bytes`](super::distinctive_bytes)).
    pub distinctive_bytes: u32,
    /// Bytes of its pictures, sound and files, as base64, beyond those of a text that has as many tokens. Whoever
    /// estimates tokens by bytes leaves them out.
    pub attachment_bytes: u32,
    /// The range of its bytes in the request body.
    pub span: Range<usize>,
}

impl Message {
    /// Whether it can be evidence: it says more than a few words, or has the id of a tool call.
    pub fn can_be_evidence(&self) -> bool {
        self.distinctive_bytes >= MIN_DISTINCTIVE_BYTES
            || !self.calls.is_empty()
            || self.answers.is_some()
    }

    /// A message of which only the link is known.
    pub(super) fn placeholder(role: Role) -> Self {
        // A chain may have thousands of them, and each fingerprint is a hash.
        static OF_NOTHING: LazyLock<Fingerprint> = LazyLock::new(|| Encoder::new().finish());
        Self {
            fingerprint: *OF_NOTHING,
            role,
            calls: Arc::default(),
            answers: None,
            distinctive_bytes: 0,
            random_ids: false,
            attachment_bytes: 0,
            span: 0..0,
        }
    }
}
