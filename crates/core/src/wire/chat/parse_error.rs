//! Why a body is no chat-completions request that memory may touch.
//!
//! The texts of [`ParseError`] are stable names: they stand in the audit and in a response header.

use crate::wire::scan::Fault;

/// Why a body is no chat-completions request that memory may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The body is not UTF-8.
    #[error("invalid_utf8")]
    InvalidUtf8,
    /// The body is not JSON, or has a lone surrogate or a number that no double can hold.
    #[error("invalid_json")]
    InvalidJson,
    /// Brackets are nested deeper than 127 levels.
    #[error("too_deep")]
    TooDeep,
    /// The body does not begin with an object.
    #[error("not_an_object")]
    NotAnObject,
    /// A field that memory depends on stands twice in one object.
    #[error("duplicate_key")]
    DuplicateKey,
    /// There is no `messages`.
    #[error("messages_missing")]
    MessagesMissing,
    /// `messages` is not an array.
    #[error("messages_not_an_array")]
    MessagesNotAnArray,
    /// `messages` is an empty array.
    #[error("messages_empty")]
    MessagesEmpty,
    /// There are more messages than [`MAX_MESSAGES`](super::MAX_MESSAGES).
    #[error("too_many_messages")]
    TooManyMessages,
    /// A member of `messages` is not an object.
    #[error("message_not_an_object")]
    MessageNotAnObject,
    /// A message has no role, or one that this version does not know.
    #[error("unknown_role")]
    UnknownRole,
    /// A known field is missing, or has a wrong type.
    #[error("wrong_type")]
    WrongType,
}

impl ParseError {
    fn from_json_error(error: &serde_json::Error) -> Self {
        if !error.is_data() {
            Self::InvalidJson
        } else if error.to_string().starts_with("duplicate field") {
            // serde's own wording; it gives no other access to the kind.
            Self::DuplicateKey
        } else {
            Self::WrongType
        }
    }
}

impl From<Fault> for ParseError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Malformed => Self::InvalidJson,
            Fault::TooDeep => Self::TooDeep,
        }
    }
}

/// Reads one JSON value whose extent is known.
pub(super) fn read<'a, T: serde::Deserialize<'a>>(json: &'a str) -> Result<T, ParseError> {
    serde_json::from_str(json).map_err(|error| ParseError::from_json_error(&error))
}
