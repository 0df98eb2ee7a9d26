//! A message in neutral words, for counting tokens and for the Observer.
//!
//! Taken from the canonical content, so equal messages read alike. What a model thought is left
//! out, and data that is not text never poses as text: an attachment is its kind and a label.

use super::content::{Item, items};
use super::fields::{Answer, Fields, Function};
use super::text::Tree;
use super::url;
use crate::history::{Attachment, Piece, Spoken};

/// From this length on, a string of an unknown part that looks like base64 is named, not quoted.
const DATA_FROM: usize = 256;

/// The words of `fields`.
pub(super) fn spoken(fields: &Fields<'_>) -> Spoken {
    let mut pieces = Vec::new();
    if let Some(answer) = &fields.answers {
        let (Answer::Call(id) | Answer::Function(id)) = answer;
        pieces.push(Piece::Result { id: id.to_string() });
    }
    pieces.extend(items(fields).into_iter().map(|item| match item {
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
        pieces.push(attachment(Attachment::Audio, "answer"));
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

fn attachment(kind: Attachment, label: &str) -> Piece {
    Piece::Attachment {
        kind,
        label: label.to_owned(),
    }
}

fn part_piece(mut part: Tree<'_>) -> Piece {
    let field = |value: &Tree<'_>, key| value.get(key).and_then(Tree::as_text).map(str::to_owned);
    let known = match field(&part, "type").as_deref() {
        Some("text") => field(&part, "text").map(Piece::Text),
        Some("refusal") => field(&part, "refusal").map(Piece::Refusal),
        Some("image_url") => part
            .get("image_url")
            .and_then(|image| {
                image
                    .as_text()
                    .map(str::to_owned)
                    .or_else(|| field(image, "url"))
            })
            .map(|url| attachment(Attachment::Image, url_label(&url))),
        Some("input_audio") => part
            .get("input_audio")
            .map(|audio| field(audio, "format").unwrap_or_else(|| "audio".to_owned()))
            .map(|format| attachment(Attachment::Audio, &format)),
        Some("file") => part.get("file").map(|file| {
            let label = field(file, "filename")
                .or_else(|| field(file, "file_data").map(|data| url_label(&data).to_owned()))
                .or_else(|| field(file, "file_id"));
            attachment(Attachment::File, label.as_deref().unwrap_or("file"))
        }),
        _ => None,
    };
    known.unwrap_or_else(|| {
        name_data(&mut part);
        // A tree has no member that serialising could fail on.
        Piece::Unknown(serde_json::to_string(&part).unwrap_or_default())
    })
}

/// The media type of a `data:` URL, the last path segment of any other.
fn url_label(url: &str) -> &str {
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
