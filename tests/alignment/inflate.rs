//! Recorded requests are short: a script made them, and texts that belong to others were cut. Here
//! each text grows, always the same text in the same way, so that what was sent again stays what
//! was sent again, and gets a mark to be known by. All else keeps its bytes: keys and their order,
//! ids, arguments, white space at the ends, how a content is spelled.

use std::collections::BTreeMap;

use diarist_provider::{Reply, ToolCall, script};
use serde_json::Value;

const WORDS: [&str; 32] = [
    "harbour", "copper", "lantern", "meadow", "violin", "glacier", "saddle", "orchard", "the",
    "under", "beside", "while", "slowly", "river", "window", "garden", "paper", "morning",
    "between", "yellow", "walks", "carries", "wooden", "quiet", "bridge", "market", "travels",
    "winter", "behind", "signal", "letter", "station",
];

/// What is put in the place of an old result is short.
const NOTICE: usize = 80;

/// An answer shorter than this is no sign of who quotes it.
const QUOTED: usize = 20;

/// Longer than this no text has to be for a test.
const LONGEST: usize = 6000;

/// Makes the texts of one conversation longer, and other than those of any other conversation. Knows
/// what the model said so far.
#[derive(Debug, Default)]
pub struct Inflate {
    conversation: String,
    replies: Vec<String>,
    /// Ids of the calls the model made.
    calls: Vec<String>,
    /// Length of the text that bears a mark.
    pub lengths: BTreeMap<String, usize>,
}

impl Inflate {
    pub fn new(conversation: &str) -> Self {
        Self {
            conversation: conversation.to_owned(),
            ..Self::default()
        }
    }

    /// The request as a client with longer texts would have sent it.
    pub fn request(&mut self, body: &mut Value) {
        let messages = body["messages"].as_array_mut().unwrap();
        let by_program: Vec<bool> = (0..messages.len())
            .map(|at| self.is_by_program(messages, at))
            .collect();
        for (message, by_program) in messages.iter_mut().zip(by_program) {
            let role = message["role"].as_str().unwrap();
            if by_program || ["system", "developer"].contains(&role) {
                continue;
            }
            // Results of two calls are two results, though they say the same.
            let id = message["tool_call_id"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            match message.get_mut("content") {
                Some(Value::String(text)) => *text = self.text(&id, text),
                Some(Value::Array(parts)) => self.parts(&id, parts),
                _ => {}
            }
        }
    }

    /// What a program writes in the model's name, and what it lets the user say before it, stand in
    /// every conversation alike.
    fn is_by_program(&self, messages: &[Value], at: usize) -> bool {
        let role = |at: usize| messages.get(at).map(|m| m["role"].as_str().unwrap());
        let trimmed_text = |at: usize| script::text(&messages[at]).trim().to_owned();
        match role(at) {
            Some("assistant") => !self.is_by_model(&trimmed_text(at)),
            Some("user") => {
                role(at + 1) == Some("assistant")
                    && !trimmed_text(at + 1).is_empty()
                    && self.is_by_program(messages, at + 1)
            }
            Some("tool") => {
                let notice = trimmed_text(at);
                notice.len() <= NOTICE && notice.starts_with('[') && notice.ends_with(']')
            }
            _ => false,
        }
    }

    /// Some clients send what the model called as a text of their own.
    fn is_by_model(&self, text: &str) -> bool {
        let mut calls = self.calls.iter();
        self.reply_in(text).is_some() || calls.any(|id| text.contains(id))
    }

    /// Text parts are one text, wherever a client cuts it.
    fn parts(&mut self, id: &str, parts: &mut [Value]) {
        let mut texts: Vec<&mut String> = parts
            .iter_mut()
            .filter_map(|part| match part.get_mut("text") {
                Some(Value::String(text)) => Some(text),
                _ => None,
            })
            .collect();
        let joined: String = texts.iter().map(|text| text.as_str()).collect();
        let grown = self.text(id, &joined);
        let Some((front, back)) = grown.split_once(joined.trim()) else {
            return;
        };
        if let [only] = texts.as_mut_slice() {
            **only = grown;
        } else if let [first, .., last] = texts.as_mut_slice() {
            first.insert_str(0, front);
            last.push_str(back);
        }
    }

    fn text(&mut self, id: &str, text: &str) -> String {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return text.to_owned();
        }
        let (quoted, reply) = match self.reply_in(trimmed) {
            Some((quoted, reply)) => (quoted.to_owned(), reply.to_owned()),
            None => (trimmed.to_owned(), trimmed.to_owned()),
        };
        let (before, after) = text.rsplit_once(quoted.as_str()).unwrap();
        format!("{before}{}{after}", self.grown(id, &reply))
    }

    /// The part of `text` that is an answer of the model, at its end or all of it, and how the answer was spelled.
    fn reply_in<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let replies = self.replies.iter().map(String::as_str);
        let whole = |reply: &&str| *reply == text || is_cut_alike(reply, text);
        if let Some(reply) = replies.clone().find(whole) {
            return Some((text, reply));
        }
        replies
            .filter(|reply| reply.len() >= QUOTED && text.ends_with(reply))
            .max_by_key(|reply| reply.len())
            .map(|reply| (reply, reply))
    }

    /// `text` between its mark and words that follow from it alone.
    fn grown(&mut self, id: &str, text: &str) -> String {
        let hash = blake3::hash(format!("{}\0{id}\0{text}", self.conversation).as_bytes());
        let mark = format!("m#{}", &hash.to_hex()[..8]);
        let wanted = recorded_length(text).unwrap_or(0).min(LONGEST);
        let mut random = blake3::Hasher::new().update(hash.as_bytes()).finalize_xof();
        let mut grown = format!("({mark}) {text}");
        let words = 150 + usize::from(hash.as_bytes()[0]) / 4;
        let mut count = 0;
        while count < words || grown.len() < wanted {
            let mut byte = [0];
            random.fill(&mut byte);
            grown.push(' ');
            grown.push_str(WORDS[usize::from(byte[0]) % WORDS.len()]);
            count += 1;
        }
        grown.push('.');
        self.lengths.insert(mark, grown.len());
        grown
    }

    /// What the model replied, longer by the same words with which the client will bring it back.
    pub fn reply(&mut self, message: &Value) -> Reply {
        let content = message["content"].as_str();
        if let Some(content) = content {
            self.replies.push(content.trim().to_owned());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let calls = message["tool_calls"].as_array();
        let ids = calls.into_iter().flatten().map(|call| text(&call["id"]));
        self.calls.extend(ids.filter(|id| !id.is_empty()));
        Reply {
            content: content.map(|content| self.text("", content)),
            calls: calls
                .into_iter()
                .flatten()
                .map(|call| ToolCall {
                    id: text(&call["id"]),
                    name: text(&call["function"]["name"]),
                    arguments: text(&call["function"]["arguments"]),
                })
                .collect(),
            reasoning: message["reasoning_content"].as_str().map(str::to_owned),
            ..Reply::default()
        }
    }
}

/// Whether two texts, of which the recording keeps the beginnings, differ in white space at their ends.
fn is_cut_alike(a: &str, b: &str) -> bool {
    let (Some(length_a), Some(length_b)) = (recorded_length(a), recorded_length(b)) else {
        return false;
    };
    let beginning = |text: &str| text.chars().take(40).collect::<String>();
    beginning(a) == beginning(b) && length_a.abs_diff(length_b) <= 4
}

/// How long a text was of which the recording keeps the beginning.
fn recorded_length(text: &str) -> Option<usize> {
    let (_, rest) = text.rsplit_once("<text ")?;
    rest.split_once(" chars, sha256")?.0.parse().ok()
}

/// The mark of a message: of its own text, the last one where it quotes another.
pub fn mark(message: &Value) -> Option<String> {
    marks(&script::text(message)).pop()
}

/// All marks in `text`, as often as they stand there.
pub fn marks(text: &str) -> Vec<String> {
    text.split("m#")
        .skip(1)
        .filter_map(|rest| rest.get(..8))
        .filter(|mark| mark.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .map(|mark| format!("m#{mark}"))
        .collect()
}
