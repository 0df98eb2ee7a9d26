//! Reads the body of an answer that is not quite a chat completion in JSON: invalid UTF-8, half a character in an escape,
//! or a stream that nobody asked for. Small servers send all of these, and a model has worked for each.
//!
//! Decides nothing. Called by [`super::reply`] only.

use serde_json::{Value, json};

/// The answer in `body`; `None` if there is none.
pub(super) fn read(body: &[u8]) -> Option<Value> {
    if let Ok(answer) = serde_json::from_slice(body) {
        return Some(answer);
    }
    let text = String::from_utf8_lossy(body);
    let text = replace_lone_surrogates(text.trim_start_matches('\u{feff}'));
    serde_json::from_str(&text)
        .ok()
        .or_else(|| read_stream(&text))
}

/// `json` with U+FFFD for each escape of half a surrogate pair: it is no character, and no JSON reader of Rust takes it.
fn replace_lone_surrogates(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let unit = utf16_escape(rest);
        let is_pair = matches!(unit, Some(0xd800..=0xdbff))
            && matches!(utf16_escape(&rest[6..]), Some(0xdc00..=0xdfff));
        // Anything else is a backslash and the character that it escapes.
        let length = match unit {
            _ if is_pair => 12,
            Some(0xd800..=0xdfff) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            Some(_) => 6,
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

/// The number in an escape `\uXXXX` at the start of `text`.
fn utf16_escape(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u32::from_str_radix(digits, 16).ok()
}

/// The whole answer of a stream of server-sent events; `None` if it was cut, or one of them cannot be read.
fn read_stream(text: &str) -> Option<Value> {
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let (mut chunks, mut is_done) = (Vec::new(), false);
    for data in events.map(str::trim).filter(|data| !data.is_empty()) {
        match serde_json::from_str::<Value>(data) {
            Ok(chunk) => chunks.push(chunk),
            Err(_) if data == "[DONE]" => is_done = true,
            // Half of an event, as opposed to a sign of life.
            Err(_) if data.starts_with('{') => return None,
            Err(_) => {}
        }
    }
    let newest = |path: &str| {
        let mut found = chunks.iter().rev().filter_map(|chunk| chunk.pointer(path));
        found.find(|value| !value.is_null()).cloned()
    };
    let joined = |path: &str| -> Option<String> {
        let pieces = chunks
            .iter()
            .filter_map(|chunk| chunk.pointer(path)?.as_str());
        pieces.map(str::to_owned).reduce(|all, piece| all + &piece)
    };
    if let Some(error) = newest("/error") {
        return Some(json!({ "error": error }));
    }
    let finish_reason = newest("/choices/0/finish_reason");
    // Some gateways write an empty one into each event.
    let is_finished = finish_reason.as_ref().is_some_and(|reason| *reason != "");
    if !is_done && !is_finished {
        return None;
    }
    let content = joined("/choices/0/delta/content");
    let refusal = joined("/choices/0/delta/refusal");
    if content.is_none() && refusal.is_none() {
        return None;
    }
    Some(json!({
        "model": newest("/model"),
        "usage": newest("/usage"),
        "choices": [{
            "message": {"content": content, "refusal": refusal},
            "finish_reason": finish_reason,
        }],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(body: &[u8]) -> Option<String> {
        let answer = read(body)?;
        let content = answer.pointer("/choices/0/message/content")?;
        content.as_str().map(str::to_owned)
    }

    fn whole(content: &str) -> Vec<u8> {
        format!(r#"{{"choices":[{{"message":{{"content":"{content}"}}}}]}}"#).into_bytes()
    }

    #[test]
    fn half_a_character_is_replaced_and_a_whole_one_stays() {
        for (written, expected) in [
            (r"a\ud83db", "a\u{fffd}b"),
            (r"\udc00", "\u{fffd}"),
            (r"\ud83d\ud83d\ude00", "\u{fffd}\u{1f600}"),
            (r"\\ud83d \u00e9\n\ud800", "\\ud83d \u{e9}\n\u{fffd}"),
            (r"\ud800é", "\u{fffd}é"),
        ] {
            assert_eq!(
                content(&whole(written)).as_deref(),
                Some(expected),
                "{written}"
            );
        }
        let mut invalid = whole("a?b");
        let at = invalid.iter().position(|byte| *byte == b'?').unwrap();
        invalid[at] = 0xff;
        assert_eq!(content(&invalid).as_deref(), Some("a\u{fffd}b"));
    }

    #[test]
    fn a_stream_that_nobody_asked_for_is_read_as_one_answer() {
        let stream = concat!(
            "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"a \"}}]}\n\n",
            ": a comment\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n",
        );
        let answer = read(stream.as_bytes()).unwrap();
        assert_eq!(content(stream.as_bytes()).as_deref(), Some("a b"));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["prompt_tokens"], 3);
        assert_eq!(answer["model"], "m");
        let failed = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"message\":\"x\"}}\n";
        assert_eq!(read(failed.as_bytes()).unwrap()["error"]["message"], "x");
    }

    #[test]
    fn what_is_no_answer_stays_none() {
        let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let torn = format!("{cut}data: {{\"choices\":[{{\"del\n\ndata: [DONE]\n");
        assert_eq!(read(cut.as_bytes()), None);
        assert_eq!(read(torn.as_bytes()), None);
        for body in [
            "",
            "<html>",
            "data: [DONE]\n",
            "{\"choices\":[",
            "\\",
            "\\u12",
        ] {
            assert_eq!(read(body.as_bytes()), None, "{body}");
        }
    }
}
