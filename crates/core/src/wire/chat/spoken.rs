//! A message in neutral words, for counting tokens and for the Observer.
//!
//! Taken from the canonical content, so equal messages read alike. What a model thought is left
//! out, and data that is not text never poses as text: an attachment is its kind and a label.

use super::content::{self, Item, items};
use super::fields::{Answer, Fields, Function};
use super::text::Tree;
use super::url;
use crate::history::{Attachment, Detail, Media, Piece, Spoken};
use crate::wire::media;

/// From this length on, a string of an unknown part that looks like base64 is named, not quoted.
const DATA_FROM: usize = 256;

/// The words of `fields`.
pub(super) fn spoken(fields: &Fields<'_>) -> Spoken {
    of(fields, items(fields))
}

/// The same for a reader, who sees where a user's words end and a block of the client's begins.
pub(super) fn told(fields: &Fields<'_>) -> Spoken {
    of(fields, content::read(fields))
}

fn of(fields: &Fields<'_>, items: Vec<Item<'_>>) -> Spoken {
    let mut pieces = Vec::new();
    if let Some(answer) = &fields.answers {
        let (Answer::Call(id) | Answer::Function(id)) = answer;
        pieces.push(Piece::Result { id: id.to_string() });
    }
    pieces.extend(items.into_iter().map(|item| match item {
        Item::Text(text) => Piece::Text(text.into_owned()),
        Item::Part(part) => part_piece(part),
    }));
    pieces.extend(
        fields
            .refusal
            .iter()
            .map(|words| Piece::Refusal(words.to_string())),
    );
    for call in &fields.tool_calls {
        if let Some(function) = &call.function {
            pieces.push(call_piece(&call.id, function));
        } else if let Some(custom) = &call.custom {
            pieces.push(Piece::Call {
                id: call.id.to_string(),
                name: custom.name.to_string(),
                arguments: custom.input.as_deref().unwrap_or_default().to_owned(),
            });
        }
    }
    pieces.extend(fields.function_call.iter().map(|call| call_piece("", call)));
    if !fields.audio.is_empty() {
        pieces.push(attachment(Attachment::Audio, "answer", Media::default()));
    }
    Spoken {
        role: fields.role,
        name: fields.name.as_deref().map(str::to_owned),
        pieces,
    }
}

fn call_piece(id: &str, call: &Function<'_>) -> Piece {
    Piece::Call {
        id: id.to_owned(),
        name: call.name.to_string(),
        arguments: call.arguments.as_deref().unwrap_or_default().to_owned(),
    }
}

fn attachment(kind: Attachment, label: &str, media: Media) -> Piece {
    Piece::Attachment {
        kind,
        label: label.to_owned(),
        media,
    }
}

/// Whether a part is named as an attachment.
pub(super) fn is_attachment(part: &Tree<'_>) -> bool {
    // Stripped as the words are taken from it: what is left of a part without its null members.
    let mut part = part.clone();
    part.strip();
    matches!(part_piece(part), Piece::Attachment { .. })
}

fn part_piece(mut part: Tree<'_>) -> Piece {
    let known = match text_of(&part, "type") {
        Some("text") => text_of(&part, "text").map(|text| Piece::Text(text.to_owned())),
        Some("refusal") => text_of(&part, "refusal").map(|text| Piece::Refusal(text.to_owned())),
        Some("image_url") => part.get("image_url").and_then(image_url),
        Some("image") => part.get("source").and_then(image_source),
        Some("input_audio") => part.get("input_audio").map(sound),
        Some("file") => part.get("file").map(file),
        _ => None,
    };
    known.unwrap_or_else(|| {
        name_data(&mut part);
        // A tree has no member that serialising could fail on.
        Piece::Unknown(serde_json::to_string(&part).unwrap_or_default())
    })
}

fn text_of<'t>(value: &'t Tree<'_>, key: &'static str) -> Option<&'t str> {
    value.get(key).and_then(Tree::as_text)
}

/// `{"url", "detail"}`, or the URL alone.
fn image_url(image: &Tree<'_>) -> Option<Piece> {
    let url = image.as_text().or_else(|| text_of(image, "url"))?;
    let detail = match text_of(image, "detail") {
        Some("low") => Detail::Low,
        Some("high") => Detail::High,
        _ => Detail::Auto,
    };
    let media = Media {
        detail,
        ..media::of_url(url)
    };
    Some(attachment(Attachment::Image, url_label(url), media))
}

/// The form of Anthropic's own API, which gateways pass through.
fn image_source(source: &Tree<'_>) -> Option<Piece> {
    if let Some(url) = text_of(source, "url") {
        return Some(attachment(
            Attachment::Image,
            url_label(url),
            media::of_url(url),
        ));
    }
    let mime = text_of(source, "media_type")?;
    let media = media::of_base64(text_of(source, "data")?, Some(mime));
    Some(attachment(Attachment::Image, mime, media))
}

fn sound(audio: &Tree<'_>) -> Piece {
    let format = text_of(audio, "format");
    let media = match text_of(audio, "data") {
        Some(data) => media::of_base64(data, format),
        None => Media::default(),
    };
    attachment(Attachment::Audio, format.unwrap_or("audio"), media)
}

fn file(file: &Tree<'_>) -> Piece {
    let data = text_of(file, "file_data");
    let label = text_of(file, "filename")
        .or_else(|| data.map(url_label))
        .or_else(|| text_of(file, "file_id"))
        .unwrap_or("file");
    let media = match data {
        Some(url) if url.starts_with("data:") => media::of_url(url),
        Some(encoded) => media::of_base64(encoded, None),
        None => Media::default(),
    };
    attachment(Attachment::File, label, media)
}

/// The media type of a `data:` URL, the last path segment of any other.
pub(super) fn url_label(url: &str) -> &str {
    let label = match url.strip_prefix("data:") {
        Some(data) => &data[..data.find([';', ',']).unwrap_or(0)],
        None if url.contains("://") => url::basename(url),
        None => "",
    };
    if label.is_empty() { "data" } else { label }
}

/// Puts `[data]` in the place of strings that are data.
fn name_data(tree: &mut Tree<'_>) {
    match tree {
        Tree::Text(text) => {
            let encoded = text.len() >= DATA_FROM
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+/-_=\r\n".contains(&byte));
            if encoded || text.starts_with("data:") {
                text.0 = "[data]".into();
            }
        }
        Tree::List(items) => items.iter_mut().for_each(name_data),
        Tree::Map(members) => members.values_mut().for_each(name_data),
        Tree::Null | Tree::Bool(_) | Tree::Number(_) => {}
    }
}
