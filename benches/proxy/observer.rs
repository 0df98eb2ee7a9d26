//! What the scripted upstream answers to an Observer or a Reflector: a line for each message of the transcript, or every
//! second line of a log. Just good enough to be stored; it does not judge the request.

use serde_json::Value;

/// Characters of one observation.
const LINE_CHARS: usize = 140;

/// The text of the answer to a call of memory with this body.
pub fn reply(body: &[u8]) -> String {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let messages = parsed.get("messages").and_then(Value::as_array);
    let texts = messages.into_iter().flatten();
    let text: String = texts
        .filter(|message| message.get("role").is_some_and(|role| role == "user"))
        .filter_map(|message| message.get("content")?.as_str())
        .collect();
    let mut lines: Vec<String> = text.lines().filter_map(observation).collect();
    if lines.is_empty() {
        // No speaker in it: a log that a Reflector shortens.
        let log = text.lines().filter(|line| is_of_a_log(line));
        lines = log.step_by(2).map(str::to_owned).collect();
    }
    let lines = lines.join("\n");
    format!(
        "<observations>\n{lines}\n</observations>\n<current-task>\nPrimary: answer the newest question.\n</current-task>\n"
    )
}

/// The line for a line of the transcript that begins a message, or the date as it is.
fn observation(line: &str) -> Option<String> {
    if line.starts_with("Date: ") {
        return Some(line.to_owned());
    }
    let (speaker, words) = line.split_once(": ")?;
    let name = speaker.split([' ', '(']).next()?;
    let words: String = words.chars().take(LINE_CHARS).collect();
    match name {
        "User" => Some(format!("* 🔴 User stated: {words}")),
        "Assistant" => Some(format!("* 🟡 Assistant answered: {words}")),
        "Tool" if speaker.contains("result") => Some(format!("* 🟢 A tool returned: {words}")),
        _ => None,
    }
}

fn is_of_a_log(line: &str) -> bool {
    ["* ", "- ", "Date: "]
        .iter()
        .any(|mark| line.starts_with(mark))
}
