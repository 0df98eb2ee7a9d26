//! Converts a message to plain text, for counting tokens and for the Observer.
//!
//! Made from the canonical content, so equal messages read alike. The model's thinking is left out.
//! Data never becomes text: an attachment is a kind and a label.

use super::content::{self, ContentItem, items};
use super::fields::{Answer, Fields, Function};
use super::text::Tree;
use super::url;
use crate::history::{AttachmentKind, Detail, Media, MessagePiece, PlainText};
use crate::wire::media;

/// A string of an unknown part that has this many bytes and looks like base64 is replaced by a name.
const MIN_DATA_BYTES: usize = 256;

/// The plain text of `fields`.
pub(super) fn plain_text(fields: &Fields<'_>) -> PlainText {
    from_items(fields, items(fields))
}

/// The same for a reader, who can see where the user's words end and a block of the client begins.
pub(super) fn reader_text(fields: &Fields<'_>) -> PlainText {
    let mut text = from_items(fields, content::reader_items(fields));
    // They are part of the fingerprint, so they may say something. They are not counted: most upstreams do not show them to
    // the model.
    text.pieces
        .extend(fields.unknown.iter().map(|(key, value)| {
            let mut value = value.clone();
            replace_data(&mut value);
            MessagePiece::Unknown(format!(
                "{}: {}",
                &**key,
                serde_json::to_string(&value).unwrap_or_default()
            ))
        }));
    text
}

fn from_items(fields: &Fields<'_>, items: Vec<ContentItem<'_>>) -> PlainText {
    let mut pieces = Vec::new();
    if let Some(answer) = &fields.answers {
        let (Answer::Call(id) | Answer::Function(id)) = answer;
        pieces.push(MessagePiece::Result { id: id.to_string() });
    }
    pieces.extend(items.into_iter().map(|item| match item {
        ContentItem::Text(text) => MessagePiece::Text(text.into_owned()),
        ContentItem::Part(part) => part_piece(part),
    }));
    pieces.extend(
        fields
            .refusal
            .iter()
            .map(|words| MessagePiece::Refusal(words.to_string())),
    );
    for call in &fields.tool_calls {
        if let Some(function) = &call.function {
            pieces.push(call_piece(&call.id, function));
        } else if let Some(custom) = &call.custom {
            pieces.push(MessagePiece::Call {
                id: call.id.to_string(),
                name: custom.name.to_string(),
                arguments: custom.input.as_deref().unwrap_or_default().to_owned(),
            });
        }
    }
    pieces.extend(fields.function_call.iter().map(|call| call_piece("", call)));
    if !fields.audio.is_empty() {
        pieces.push(attachment(
            AttachmentKind::Audio,
            "answer",
            Media::default(),
        ));
        let transcript = text_member(&fields.audio, "transcript");
        pieces.extend(transcript.map(|words| MessagePiece::Text(words.to_owned())));
    }
    PlainText {
        role: fields.role,
        name: fields.name.as_deref().map(str::to_owned),
        pieces,
    }
}

fn call_piece(id: &str, call: &Function<'_>) -> MessagePiece {
    MessagePiece::Call {
        id: id.to_owned(),
        name: call.name.to_string(),
        arguments: call.arguments.as_deref().unwrap_or_default().to_owned(),
    }
}

fn attachment(kind: AttachmentKind, label: &str, media: Media) -> MessagePiece {
    MessagePiece::Attachment {
        kind,
        label: label.to_owned(),
        media,
    }
}

/// Whether a part is named as an attachment.
pub(super) fn is_attachment(part: &Tree<'_>) -> bool {
    // Stripped like the text itself: what remains of a part without its null members.
    let mut part = part.clone();
    part.strip();
    matches!(part_piece(part), MessagePiece::Attachment { .. })
}

fn part_piece(mut part: Tree<'_>) -> MessagePiece {
    let piece = match text_member(&part, "type") {
        Some("text") => text_member(&part, "text").map(|text| MessagePiece::Text(text.to_owned())),
        Some("refusal") => {
            text_member(&part, "refusal").map(|text| MessagePiece::Refusal(text.to_owned()))
        }
        Some("image_url") => part.get("image_url").and_then(image_url),
        Some("image") => part.get("source").and_then(image_source),
        Some("input_audio") => part.get("input_audio").map(sound),
        Some("file") => part.get("file").map(file),
        _ => None,
    };
    piece.unwrap_or_else(|| {
        replace_data(&mut part);
        // A tree has no member that cannot be serialised.
        MessagePiece::Unknown(serde_json::to_string(&part).unwrap_or_default())
    })
}

fn text_member<'t>(value: &'t Tree<'_>, key: &'static str) -> Option<&'t str> {
    value.get(key).and_then(Tree::as_text)
}

/// `{"url", "detail"}`, or only the URL.
fn image_url(image: &Tree<'_>) -> Option<MessagePiece> {
    let url = image.as_text().or_else(|| text_member(image, "url"))?;
    let detail = match text_member(image, "detail") {
        Some("low") => Detail::Low,
        Some("high") => Detail::High,
        _ => Detail::Auto,
    };
    let media = Media {
        detail,
        ..media::from_url(url)
    };
    Some(attachment(AttachmentKind::Image, url_label(url), media))
}

/// The form of Anthropic's own API, which gateways pass through.
fn image_source(source: &Tree<'_>) -> Option<MessagePiece> {
    if let Some(url) = text_member(source, "url") {
        return Some(attachment(
            AttachmentKind::Image,
            url_label(url),
            media::from_url(url),
        ));
    }
    let mime = text_member(source, "media_type")?;
    let media = media::from_base64(text_member(source, "data")?, Some(mime));
    Some(attachment(AttachmentKind::Image, mime, media))
}

fn sound(audio: &Tree<'_>) -> MessagePiece {
    let format = text_member(audio, "format");
    let media = match text_member(audio, "data") {
        Some(data) => media::from_base64(data, format),
        None => Media::default(),
    };
    attachment(AttachmentKind::Audio, format.unwrap_or("audio"), media)
}

fn file(file: &Tree<'_>) -> MessagePiece {
    let data = text_member(file, "file_data");
    let label = text_member(file, "filename")
        .or_else(|| data.map(url_label))
        .or_else(|| text_member(file, "file_id"))
        .unwrap_or("file");
    let media = match data {
        Some(url) if url.starts_with("data:") => media::from_url(url),
        Some(encoded) => media::from_base64(encoded, None),
        None => Media::default(),
    };
    attachment(AttachmentKind::File, label, media)
}

/// The media type of a `data:` URL; of any other URL, the last path segment.
pub(super) fn url_label(url: &str) -> &str {
    let label = match url.strip_prefix("data:") {
        Some(data) => &data[..data.find([';', ',']).unwrap_or(0)],
        None if url.contains("://") => url::basename(url),
        None => "",
    };
    if label.is_empty() { "data" } else { label }
}

/// Replaces strings that are data by `[data]`.
fn replace_data(tree: &mut Tree<'_>) {
    match tree {
        Tree::Text(text) => {
            let encoded = text.len() >= MIN_DATA_BYTES
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+/-_=\r\n".contains(&byte));
            if encoded || text.starts_with("data:") {
                text.0 = "[data]".into();
            }
        }
        Tree::List(items) => items.iter_mut().for_each(replace_data),
        Tree::Map(members) => members.values_mut().for_each(replace_data),
        Tree::Null | Tree::Bool(_) | Tree::Number(_) | Tree::LargeInteger(_) => {}
    }
}
