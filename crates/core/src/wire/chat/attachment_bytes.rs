//! How many bytes of a message are the data of attachments, which no tokenizer reads.
//!
//! Rough on purpose: it looks at lengths only, because it runs for each new message on the request path. Called when a
//! message is read.

use super::text::Tree;

/// The bytes of text that have as many tokens as a picture: a thousand tokens of four bytes. Providers count 85 to 1,600
/// for one, by its pixels.
const PICTURE: usize = 4_000;
/// A page of a PDF has some 100 KB and 2,000 tokens: 64 bytes of base64 a token, where text has four.
const FILE_BYTES: usize = 16;
/// A second of sound has 21 KB (compressed) to 64 KB and ten tokens, which are 40 bytes of text.
const SOUND_BYTES: usize = 1_000;

/// The bytes of data in a content part, beyond those of text that has as many tokens.
pub(super) fn attachment_bytes(part: &Tree<'_>) -> usize {
    let member = |name: &'static str, field: &'static str| part.get(name)?.get(field)?.as_text();
    let beyond = |data: &str, text: usize| data.len().saturating_sub(text);
    let text = |name: &'static str| part.get(name).and_then(Tree::as_text);
    let sound = |data: &str| beyond(data, data.len() / SOUND_BYTES);
    let in_sound = |url: &str| {
        if url.starts_with("data:") {
            sound(url)
        } else {
            0
        }
    };
    let picture = |data: &str| beyond(data, PICTURE);
    let in_url = |url: &str| {
        if url.starts_with("data:") {
            picture(url)
        } else {
            0
        }
    };
    match part.get("type").and_then(Tree::as_text) {
        Some("image_url") => text("image_url")
            .or_else(|| member("image_url", "url"))
            .map_or(0, in_url),
        Some("input_image") => text("image_url").map_or(0, in_url),
        Some("video_url") => member("video_url", "url").map_or(0, in_sound),
        Some("audio_url") => member("audio_url", "url").map_or(0, in_sound),
        Some("image") => match member("source", "data") {
            Some(data) => picture(data),
            None => member("source", "url").map_or(0, in_url),
        },
        Some("input_audio") => member("input_audio", "data").map_or(0, sound),
        Some("file") => member("file", "file_data").map_or(0, |data| {
            if data.starts_with("data:image/") {
                picture(data)
            } else {
                beyond(data, PICTURE.max(data.len() / FILE_BYTES))
            }
        }),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(part: &str) -> usize {
        attachment_bytes(&serde_json::from_str(part).unwrap())
    }

    #[test]
    fn the_data_of_attachments_is_counted_and_their_names_are_not() {
        let data = "A".repeat(1_000_000);
        for (part, expected) in [
            (
                format!(
                    r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}"#
                ),
                996_022,
            ),
            (
                format!(r#"{{"type":"image_url","image_url":"data:image/png;base64,{data}"}}"#),
                996_022,
            ),
            (
                format!(r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}"#),
                996_000,
            ),
            (
                format!(
                    r#"{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}"#
                ),
                999_000,
            ),
            (
                format!(r#"{{"type":"file","file":{{"file_data":"{data}"}}}}"#),
                937_500,
            ),
            (
                format!(
                    r#"{{"type":"file","file":{{"file_data":"data:image/png;base64,{data}"}}}}"#
                ),
                996_022,
            ),
            // Small data, other places, and text.
            (
                r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}"#
                    .to_owned(),
                0,
            ),
            (
                r#"{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}"#
                    .to_owned(),
                0,
            ),
            (r#"{"type":"file","file":{"file_id":"a"}}"#.to_owned(), 0),
            (format!(r#"{{"type":"text","text":"{data}"}}"#), 0),
        ] {
            assert_eq!(bytes_of(&part), expected, "{}", &part[..part.len().min(60)]);
        }
    }
}
