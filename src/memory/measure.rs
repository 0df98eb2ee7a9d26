//! What a message weighs in tokens. Counted once per message, off the request path, and stored.

use crate::history::{Piece, Spoken};
use crate::tokens::TokenCounter;

/// What a message costs beside its text: role and separators (3.8 in the published accounting).
const MESSAGE: u32 = 4;

/// What an attachment is taken for until it is measured by the provider's rules: a picture of
/// 1024 x 1024 in high detail by OpenAI's published formula (85 + 4 x 170).
const ATTACHMENT: u32 = 765;

/// Tokens of `message`.
pub fn message(spoken: &Spoken, counter: &dyn TokenCounter) -> u32 {
    let pieces = spoken.pieces.iter().map(|piece| match piece {
        Piece::Text(text) | Piece::Refusal(text) | Piece::Unknown(text) => counter.count(text),
        Piece::Call {
            name, arguments, ..
        } => counter.count(name).saturating_add(counter.count(arguments)),
        Piece::Result { .. } => 0,
        Piece::Attachment { .. } => ATTACHMENT,
    });
    let name = spoken.name.as_deref().map_or(0, |name| counter.count(name));
    pieces.fold(MESSAGE.saturating_add(name), u32::saturating_add)
}
