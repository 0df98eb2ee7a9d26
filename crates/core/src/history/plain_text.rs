//! What a message says, as plain text: read off the request path only, for counting tokens and for
//! showing history to the Observer. A wire format fills it; nothing is ever written back from it.

use super::Role;

/// One message in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainText {
    /// Who speaks.
    pub role: Role,
    /// The participant's name where the client gives one.
    pub name: Option<String>,
    /// What is said, in order.
    pub pieces: Vec<MessagePiece>,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePiece {
    /// Plain text.
    Text(String),
    /// The model declined, in these words.
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
    /// Something that is not text and is never counted as text.
    Attachment {
        /// What it is.
        kind: AttachmentKind,
        /// File name, the last path segment of its URL, or its media type.
        label: String,
        /// What the message tells of it, for weighing it.
        media: Media,
    },
    /// A part this version does not know, as its JSON.
    Unknown(String),
}

/// Kinds of attachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentKind {
    /// A picture.
    Image,
    /// Sound.
    Audio,
    /// Any other file.
    File,
}

/// What a message tells of an attachment without anybody opening it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Its media type in lower case (`image/png`); for sound the format (`wav`).
    pub mime: Option<String>,
    /// Its size, where the message carries it along.
    pub bytes: Option<u64>,
    /// Width and height of a picture, where its first bytes say so.
    pub pixels: Option<(u32, u32)>,
    /// How closely the model is asked to look.
    pub detail: Detail,
}

/// How closely a model is asked to look at a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// At a thumbnail.
    Low,
    /// At all of it.
    High,
    /// As the provider thinks fit for its size.
    #[default]
    Auto,
}
