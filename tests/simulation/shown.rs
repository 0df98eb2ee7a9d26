//! Which messages an Observer is shown, told from what it is shown: by the names that begin whatever
//! these clients say. Knows the form of a transcript and nothing of how it is written.

use crate::properties::conversation::{MessageContent, Msg};

/// How the lines begin that a message becomes; none for what is not shown.
pub fn lines(msg: &Msg) -> Vec<String> {
    match &*msg.content {
        MessageContent::System(_) => Vec::new(),
        MessageContent::User { text, .. }
        | MessageContent::Answer(text)
        | MessageContent::Result { text, .. } => {
            vec![first_word(text)]
        }
        MessageContent::Calls { text, calls } => {
            let words = (!text.is_empty()).then(|| first_word(text));
            let calls = calls.iter().map(|call| format!("call {}", call.number));
            words.into_iter().chain(calls).collect()
        }
    }
}

/// The range of `messages` (place, lines) whose lines are exactly those of `transcript`.
pub fn find(messages: &[(usize, Vec<String>)], transcript: &str) -> Option<(usize, usize)> {
    let shown: Vec<String> = transcript.lines().filter_map(line).collect();
    (0..messages.len()).find_map(|first| {
        let mut rest = &shown[..];
        if messages[first].1.is_empty() || rest.is_empty() {
            return None;
        }
        for (at, (place, lines)) in messages[first..].iter().enumerate() {
            // What stands between two that are shown is shown, or says nothing.
            if at > 0 && messages[first + at - 1].0 + 1 != *place {
                return None;
            }
            rest = rest.strip_prefix(&lines[..])?;
            if rest.is_empty() {
                return Some((messages[first].0, place + 1));
            }
        }
        None
    })
}

/// How a line of a transcript begins that somebody says.
pub fn line(line: &str) -> Option<String> {
    let speaker = line.starts_with("User") || line.starts_with("Assistant");
    if !speaker && !line.starts_with("Tool") {
        return None;
    }
    let (_, text) = line.split_once(": ")?;
    if line.starts_with("Tool call") {
        let (_, number) = text.split_once("\"n\"")?;
        let number: String = number
            .chars()
            .skip_while(|c| !c.is_ascii_digit())
            .take_while(char::is_ascii_digit)
            .collect();
        return Some(format!("call {number}"));
    }
    Some(first_word(text))
}

fn first_word(text: &str) -> String {
    let word = text.split([' ', '\n', '.', ',']).next();
    word.unwrap_or_default().to_owned()
}
