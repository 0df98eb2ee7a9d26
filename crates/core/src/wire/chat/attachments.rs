//! The attachments of a message as content parts that can be sent again, without cache markers and
//! other additions of the client. In the order in which [`super::plain_text`] names them.

use serde_json::{Value, json};

use super::content::other_parts;
use super::fields::Fields;
use super::plain_text::{is_attachment, url_label};
use super::text::Tree;
use super::url;

/// An image, a sound or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `image/png`; `image/*` if only the kind is known.
    pub media_type: String,
    /// The part; `None` if a model could not be shown it: a file that only the upstream has, or a
    /// sound that the model made itself.
    pub part: Option<Value>,
}

/// The attachments of `fields`.
pub(super) fn attachments(fields: &Fields<'_>) -> Vec<Attachment> {
    let mut attachments: Vec<Attachment> = other_parts(fields)
        .filter(|part| is_attachment(part))
        .map(attachment)
        .collect();
    if !fields.audio.is_empty() {
        attachments.push(Attachment {
            media_type: "audio/*".to_owned(),
            part: None,
        });
    }
    attachments
}

fn attachment(part: &Tree<'_>) -> Attachment {
    let text = |value: Option<&Tree<'_>>| value.and_then(Tree::as_text).map(str::to_owned);
    match part.get("type").and_then(Tree::as_text) {
        Some("input_audio") => {
            let audio = part.get("input_audio");
            let field = |name| text(audio.and_then(|audio| audio.get(name)));
            let (data, format) = (field("data"), field("format"));
            Attachment {
                media_type: format!("audio/{}", format.as_deref().unwrap_or("*")),
                part: data.map(|data| {
                    json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
                }),
            }
        }
        Some("file") => {
            let file = part.get("file");
            let field = |name| text(file.and_then(|file| file.get(name)));
            let (data, name) = (field("file_data"), field("filename"));
            let media_type = data
                .as_deref()
                .and_then(data_type)
                .or_else(|| media_type_of_name(name.as_deref()?))
                .unwrap_or_else(|| "application/octet-stream".to_owned());
            Attachment {
                media_type,
                part: data.map(|data| {
                    json!({"type": "file", "file": {"filename": name.unwrap_or_else(|| "file".to_owned()), "file_data": data}})
                }),
            }
        }
        _ => {
            let image = part.get("image_url");
            let url = text(image)
                .or_else(|| text(image?.get("url")))
                .or_else(|| source_url(part.get("source")?))
                .unwrap_or_default();
            let media_type = data_type(&url).or_else(|| media_type_of_name(url::basename(&url)));
            let mut image_url = json!({"url": url});
            if let Some(detail) = text(image.and_then(|image| image.get("detail"))) {
                image_url["detail"] = json!(detail);
            }
            Attachment {
                media_type: media_type.unwrap_or_else(|| "image/*".to_owned()),
                part: Some(json!({"type": "image_url", "image_url": image_url})),
            }
        }
    }
}

/// A source in the form of Anthropic's own API, as a URL.
fn source_url(source: &Tree<'_>) -> Option<String> {
    let field = |name| source.get(name).and_then(Tree::as_text);
    match field("url") {
        Some(url) => Some(url.to_owned()),
        None => Some(format!(
            "data:{};base64,{}",
            field("media_type")?,
            field("data")?
        )),
    }
}

/// The media type of a `data:` URL.
fn data_type(url: &str) -> Option<String> {
    let label = url.starts_with("data:").then(|| url_label(url))?;
    label.contains('/').then(|| label.to_ascii_lowercase())
}

fn media_type_of_name(name: &str) -> Option<String> {
    let (_, ending) = name.rsplit_once('.')?;
    let media_type = match ending.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "csv" => "text/csv",
        "txt" | "md" => "text/plain",
        _ => return None,
    };
    Some(media_type.to_owned())
}
