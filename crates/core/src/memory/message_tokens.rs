//! Counts the tokens of a message. Done once for each message, off the request path, and stored. Later
//! cuts and activations are a function of these counts, so they never change, whichever model is asked
//! next.
//!
//! Text goes through the tokenizer. Everything else is counted by the published rules of its provider
//! ([`media`]); its encoding is never counted as text, and counts that a client sends are ignored.

mod media;

use crate::history::{MessagePiece, PlainText};
use crate::tokens::{Estimate, TokenCounter};

/// Tokens of a message besides its text: role and separators (3.8 in the published accounting). A tool
/// result is a message of its own.
const MESSAGE_OVERHEAD: u32 = 4;

/// An estimate of the tokens of a message from its length, for comparing messages where no tokenizer
/// may be used.
pub fn estimate_message(spoken: &PlainText, model: &str) -> u32 {
    count_message(spoken, model, &Estimate)
}

/// An estimate of the tokens of this many bytes of JSON.
pub fn estimate_bytes(bytes: usize) -> u32 {
    Estimate::from_bytes(bytes)
}

/// The tokens of a message for `model`.
pub fn count_message(spoken: &PlainText, model: &str, counter: &dyn TokenCounter) -> u32 {
    let pieces = spoken.pieces.iter().map(|piece| match piece {
        MessagePiece::Text(text) | MessagePiece::Refusal(text) | MessagePiece::Unknown(text) => {
            counter.count(text)
        }
        MessagePiece::Call {
            name, arguments, ..
        } => counter.count(name).saturating_add(counter.count(arguments)),
        MessagePiece::Result { .. } => 0,
        MessagePiece::Attachment { kind, label, media } => media::tokens(*kind, media, model)
            // The provider fetches it; only its name is known.
            .unwrap_or_else(|| counter.count(label)),
    });
    let name = spoken.name.as_deref().map_or(0, |name| counter.count(name));
    pieces.fold(MESSAGE_OVERHEAD.saturating_add(name), u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{AttachmentKind, Media, Role};
    use crate::tokens::Estimate;

    fn count_tokens(pieces: Vec<MessagePiece>) -> u32 {
        let spoken = PlainText {
            role: Role::User,
            name: None,
            pieces,
        };
        count_message(&spoken, "gpt-4o", &Estimate)
    }

    /// A message has more tokens than its text, a call those of its content, a result none besides
    /// its text.
    #[test]
    fn a_message_has_more_tokens_than_its_text() {
        let text = "tell me of the pass".repeat(100);
        let words = Estimate.count(&text);
        assert_eq!(count_tokens(vec![]), MESSAGE_OVERHEAD);
        assert_eq!(
            count_tokens(vec![MessagePiece::Text(text.clone())]),
            words + MESSAGE_OVERHEAD
        );
        let call = MessagePiece::Call {
            id: "a long id that is not counted".to_owned(),
            name: "look".to_owned(),
            arguments: text.clone(),
        };
        assert_eq!(
            count_tokens(vec![call]),
            words + Estimate.count("look") + MESSAGE_OVERHEAD
        );
        let result = MessagePiece::Result {
            id: "a long id that is not counted".to_owned(),
        };
        let large = "x".repeat(100_000);
        let counted = count_tokens(vec![result, MessagePiece::Text(large.clone())]);
        assert_eq!(counted, Estimate.count(&large) + MESSAGE_OVERHEAD);
    }

    #[test]
    fn a_file_without_data_counts_the_tokens_of_its_name() {
        let file = MessagePiece::Attachment {
            kind: AttachmentKind::File,
            label: "file-123".to_owned(),
            media: Media::default(),
        };
        assert_eq!(
            count_tokens(vec![file]),
            Estimate.count("file-123") + MESSAGE_OVERHEAD
        );
    }
}
