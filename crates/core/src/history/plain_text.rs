//! The text of a message without its wire format. Read off the request path only, for counting tokens
//! and for the Observer. A wire format fills it; nothing is written back from it.

use super::Role;

/// One message as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainText {
    /// The role of its author.
    pub role: Role,
    /// The participant's name, if the client gives one.
    pub name: Option<String>,
    /// The pieces in order.
    pub pieces: Vec<MessagePiece>,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePiece {
    /// Plain text.
    Text(String),
    /// The words in which the model declined.
    Refusal(String),
    /// A tool call.
    Call {
        /// The id its result will carry; empty in the legacy form.
        id: String,
        /// Name of the tool.
        name: String,
        /// Arguments as the model wrote them, usually JSON.
        arguments: String,
    },
    /// The result of a tool call. Its text is in the `Text` pieces that follow.
    Result {
        /// The id of the call; the tool's name in the legacy form.
        id: String,
    },
    /// Something that is not text. It is never counted as text.
    Attachment {
        /// The kind.
        kind: AttachmentKind,
        /// File name, the last path segment of its URL, or its media type.
        label: String,
        /// What the message says about it; its tokens are estimated from that.
        media: Media,
    },
    /// A part of a kind that this version does not know, as JSON.
    Unknown(String),
}

/// Kinds of attachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentKind {
    /// An image.
    Image,
    /// Sound.
    Audio,
    /// Any other file.
    File,
}

/// What a message says about an attachment, without opening it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Its media type in lower case (`image/png`); for sound the format (`wav`).
    pub mime: Option<String>,
    /// Its size in bytes, if the message contains it.
    pub bytes: Option<u64>,
    /// Width and height of an image, if its first bytes give them.
    pub pixels: Option<(u32, u32)>,
    /// How closely the model should look.
    pub detail: Detail,
}

/// How closely a model should look at an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// At a thumbnail.
    Low,
    /// At all of it.
    High,
    /// As the provider decides from its size.
    #[default]
    Auto,
}
