//! What clients say, and how they write it down: messages, their spellings, request bodies.
//!
//! Knows nothing of `wire`: bodies are put together from text here, and [`Msg::digest`] says what a
//! message means without asking the code under test.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use diarist::history::{MessagePiece, PlainText, Role};
use diarist_provider::judge::signature_for;

/// The beginning of a picture of 1,024 x 1,024.
const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABAAAAAQA";

/// What it costs by OpenAI's rules.
pub const PICTURE_TOKENS: usize = 765;

/// The prime 2^61 - 1: digests are numbers below it, so that those of a sequence can be folded.
const PRIME: u128 = (1 << 61) - 1;
const BASE: u128 = 0x1234_5678_9abc_def1 % PRIME;

/// What one message means, as a number.
pub type Digest = u64;

/// The digest of a sequence of messages: that of two halves follows from theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// How many messages.
    pub count: usize,
    /// Their digests, folded.
    pub hash: u64,
}

impl Run {
    /// The digest of this sequence and one message more.
    pub fn with(self, digest: Digest) -> Self {
        self.then(Self {
            count: 1,
            hash: digest,
        })
    }

    /// The digest of this sequence followed by `next`.
    pub fn then(self, next: Self) -> Self {
        let shift = (0..next.count).fold(1_u128, |power, _| power * BASE % PRIME);
        let hash = (u128::from(self.hash) * shift + u128::from(next.hash)) % PRIME;
        Self {
            count: self.count + next.count,
            hash: u64::try_from(hash).unwrap(),
        }
    }

    /// The digest of `digests` in order.
    pub fn from_digests(digests: &[Digest]) -> Self {
        digests.iter().fold(Self::default(), |run, d| run.with(*d))
    }
}

/// A tool call.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: String,
    pub name: &'static str,
    pub number: u32,
    pub query: String,
}

/// The content of a message, by its kind.
#[derive(Clone, Debug)]
pub enum MessageContent {
    System(String),
    User { text: String, image: bool },
    Answer(String),
    Calls { text: String, calls: Vec<Call> },
    Result { id: String, text: String },
}

impl MessageContent {
    pub fn role(&self) -> Role {
        match self {
            Self::System(_) => Role::System,
            Self::User { .. } => Role::User,
            Self::Answer(_) | Self::Calls { .. } => Role::Assistant,
            Self::Result { .. } => Role::Tool,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::System(text)
            | Self::User { text, .. }
            | Self::Answer(text)
            | Self::Calls { text, .. }
            | Self::Result { text, .. } => text,
        }
    }

    fn tokens(&self) -> usize {
        let rest = match self {
            Self::User { image: true, .. } => PICTURE_TOKENS,
            Self::Calls { calls, .. } => calls.iter().map(|call| 8 + call.query.len() / 4).sum(),
            _ => 0,
        };
        4 + self.text().len().div_ceil(4) + rest
    }

    fn digest(&self) -> Digest {
        let mut meaning = format!("{}|{}", self.role().name(), self.text());
        match self {
            Self::User { image: true, .. } => meaning.push_str("|image"),
            Self::Calls { calls, .. } => {
                for call in calls {
                    let _ = write!(
                        meaning,
                        "|{} {} {} {}",
                        call.id, call.name, call.number, call.query
                    );
                }
            }
            Self::Result { id, .. } => {
                let _ = write!(meaning, "|{id}");
            }
            _ => {}
        }
        number(&meaning)
    }
}

fn number(meaning: &str) -> Digest {
    let hash = blake3::hash(meaning.as_bytes());
    let bytes: [u8; 8] = hash.as_bytes()[..8].try_into().unwrap();
    u64::try_from(u128::from(u64::from_be_bytes(bytes)) % PRIME).unwrap()
}

/// The digest of a message as the code under test understood it.
pub fn digest_of(spoken: &PlainText) -> Digest {
    let mut text = String::new();
    let mut rest = String::new();
    for piece in &spoken.pieces {
        match piece {
            MessagePiece::Text(words) => text.push_str(words),
            MessagePiece::Attachment { .. } => rest.push_str("|image"),
            MessagePiece::Result { id } => {
                let _ = write!(rest, "|{id}");
            }
            MessagePiece::Call {
                id,
                name,
                arguments,
            } => {
                let arguments: serde_json::Value =
                    serde_json::from_str(arguments).unwrap_or_default();
                let _ = write!(
                    rest,
                    "|{id} {name} {} {}",
                    arguments["n"].as_f64().unwrap_or(-1.0),
                    arguments["q"].as_str().unwrap_or_default()
                );
            }
            other => {
                let _ = write!(rest, "|{other:?}");
            }
        }
    }
    number(&format!("{}|{}{rest}", spoken.role.name(), text.trim()))
}

/// One message of a client, written down.
#[derive(Clone, Debug)]
pub struct Msg {
    pub content: Arc<MessageContent>,
    pub json: Arc<str>,
    pub digest: Digest,
    /// Its tokens by the published accounting: words and calls, no ids, a picture as one in high
    /// detail.
    pub tokens: usize,
}

impl Msg {
    pub fn new(content: MessageContent, spelling: Spelling) -> Self {
        let json = write(&content, spelling).into();
        Self {
            json,
            digest: content.digest(),
            tokens: content.tokens(),
            content: content.into(),
        }
    }

    /// The same message in another spelling.
    pub fn respelled(&self, spelling: Spelling) -> Self {
        Self {
            json: write(&self.content, spelling).into(),
            ..self.clone()
        }
    }

    pub fn role(&self) -> Role {
        self.content.role()
    }

    pub fn has_image(&self) -> bool {
        matches!(&*self.content, MessageContent::User { image: true, .. })
    }

    /// How many tools it calls.
    pub fn calls(&self) -> usize {
        match &*self.content {
            MessageContent::Calls { calls, .. } => calls.len(),
            _ => 0,
        }
    }
}

/// How a message is written: a set of habits seen with real clients, none of which changes what
/// the message means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spelling(pub u8);

impl Spelling {
    const PARTS: u8 = 1;
    const SPACED: u8 = 2;
    const ASCII: u8 = 4;
    const REVERSED: u8 = 8;
    const NULLS: u8 = 16;
    const PADDED: u8 = 32;
    const ARGUMENTS: u8 = 64;
    const THOUGHTS: u8 = 128;

    fn has(self, habit: u8) -> bool {
        self.0 & habit != 0
    }
}

fn write(message_content: &MessageContent, spelling: Spelling) -> String {
    let mut fields: Vec<(&str, String)> =
        vec![("role", quote(message_content.role().name(), spelling))];
    match message_content {
        MessageContent::Calls { text, calls } => {
            if !text.is_empty() {
                fields.push(("content", content(text, None, spelling)));
            } else if spelling.has(Spelling::NULLS) {
                fields.push(("content", "null".into()));
            }
            let calls: Vec<String> = calls
                .iter()
                .enumerate()
                .map(|(index, call)| write_call(index, call, spelling))
                .collect();
            fields.push(("tool_calls", format!("[{}]", calls.join(","))));
        }
        MessageContent::Result { id, text } => {
            fields.push(("tool_call_id", quote(id, spelling)));
            fields.push(("content", content(text, None, spelling)));
        }
        MessageContent::User { text, image } => {
            // As many bytes as the message is counted for, so that sizes in bytes tell the truth.
            let url = image.then(|| format!("{PICTURE}{}", "AAAA".repeat(742)));
            fields.push(("content", content(text, url, spelling)));
        }
        MessageContent::System(text) | MessageContent::Answer(text) => {
            fields.push(("content", content(text, None, spelling)));
        }
    }
    let assistant = message_content.role() == Role::Assistant;
    if spelling.has(Spelling::NULLS) {
        if assistant {
            fields.push(("refusal", "null".into()));
            fields.push(("annotations", "[]".into()));
        } else {
            fields.push(("name", "null".into()));
        }
    }
    if spelling.has(Spelling::THOUGHTS) && assistant {
        fields.push(("reasoning_content", quote("let me see", spelling)));
    }
    object(&fields, spelling)
}

fn write_call(index: usize, call: &Call, spelling: Spelling) -> String {
    let query = serde_json::to_string(&call.query).unwrap();
    let arguments = if spelling.has(Spelling::ARGUMENTS) {
        format!("{{ \"q\" : {query}, \"n\" : {}.0 }}", call.number)
    } else {
        format!("{{\"n\":{},\"q\":{query}}}", call.number)
    };
    let function = object(
        &[
            ("name", quote(call.name, spelling)),
            ("arguments", quote(&arguments, spelling)),
        ],
        spelling,
    );
    let signature = format!(
        "{{\"google\":{{\"thought_signature\":\"{}\"}}}}",
        signature_for(&call.id)
    );
    let mut fields = vec![
        ("id", quote(&call.id, spelling)),
        ("type", "\"function\"".to_owned()),
        ("function", function),
        ("extra_content", signature),
    ];
    if spelling.has(Spelling::NULLS) {
        fields.push(("index", index.to_string()));
    }
    object(&fields, spelling)
}

fn content(text: &str, image: Option<String>, spelling: Spelling) -> String {
    let text = if spelling.has(Spelling::PADDED) {
        format!("{text} \n")
    } else {
        text.to_owned()
    };
    let part = |text: &str| {
        object(
            &[("type", "\"text\"".into()), ("text", quote(text, spelling))],
            spelling,
        )
    };
    match image {
        Some(url) => format!(
            "[{},{{\"type\":\"image_url\",\"image_url\":{{\"url\":\"{url}\"}}}}]",
            part(&text)
        ),
        None if spelling.has(Spelling::PARTS) => {
            let middle = text.floor_char_boundary(text.len() / 2);
            let (one, two) = text.split_at(middle);
            format!("[{},{}]", part(one), part(two))
        }
        None => quote(&text, spelling),
    }
}

fn object(fields: &[(&str, String)], spelling: Spelling) -> String {
    let (colon, comma) = if spelling.has(Spelling::SPACED) {
        (" : ", ", ")
    } else {
        (":", ",")
    };
    let mut members: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("\"{key}\"{colon}{value}"))
        .collect();
    if spelling.has(Spelling::REVERSED) {
        members.reverse();
    }
    format!("{{{}}}", members.join(comma))
}

fn quote(text: &str, spelling: Spelling) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    if !spelling.has(Spelling::ASCII) {
        return quoted;
    }
    let mut out = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// Words enough for about `tokens` tokens; different for every `name`, the same for the same one.
pub fn words(name: &str, tokens: usize) -> String {
    const FILL: &str = "the path \"north\" is closed\tuntil the second \\ thaw; Grüße 🙂 from the hut\n\
        we walked on past the lake and counted forty {boats} [and, one: oar] before noon while the \
        wind turned and nobody said <a> word about tomorrow's long way home again ";
    let wanted = tokens * 4;
    let mut out = String::from(name);
    let mut at = usize::from(blake3::hash(name.as_bytes()).as_bytes()[0]) % FILL.len();
    while out.len() < wanted {
        at = FILL.ceil_char_boundary(at);
        let end = FILL.ceil_char_boundary((at + wanted - out.len()).min(FILL.len()));
        out.push(' ');
        out.push_str(&FILL[at..end]);
        at = 0;
    }
    out.trim().to_owned()
}

/// Who sends: a credential, and a resource within it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub tenant: &'static str,
    pub resource: Option<&'static str>,
}

impl Owner {
    pub fn label(&self) -> String {
        format!("{}/{}", self.tenant, self.resource.unwrap_or("-"))
    }
}

/// One request as a client sends it.
#[derive(Clone, Debug)]
pub struct Request {
    pub owner: Owner,
    pub body: Bytes,
    /// How many leading system messages there are.
    pub leading: usize,
    /// The messages after them.
    pub turns: Vec<Msg>,
}

impl Request {
    /// Digests of the first 0, 1, 2, ... messages.
    pub fn prefixes(&self) -> Vec<Run> {
        let mut run = Run::default();
        let mut all = vec![run];
        for turn in &self.turns {
            run = run.with(turn.digest);
            all.push(run);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diarist::wire::chat::parse;

    #[test]
    fn a_digest_of_parts_equals_the_digest_of_the_whole() {
        let all = [3, 5, 8, 13, 21];
        let halves = Run::from_digests(&all[..2]).then(Run::from_digests(&all[2..]));
        assert_eq!(halves, Run::from_digests(&all));
        assert_ne!(halves, Run::from_digests(&[3, 5, 8, 21, 13]));
    }

    #[test]
    fn every_spelling_has_the_same_digest() {
        let call = Call {
            id: "call_1".into(),
            name: "look",
            number: 7,
            query: "gré \"x\"".into(),
        };
        let all = [
            MessageContent::User {
                text: words("u1", 40),
                image: false,
            },
            MessageContent::User {
                text: words("u2", 10),
                image: true,
            },
            MessageContent::Answer(words("a1", 30)),
            MessageContent::Calls {
                text: String::new(),
                calls: vec![call],
            },
            MessageContent::Result {
                id: "call_1".into(),
                text: words("r1", 30),
            },
        ];
        for spelling in (0..=255).map(Spelling) {
            let msgs: Vec<Msg> = all
                .iter()
                .map(|content| Msg::new(content.clone(), spelling))
                .collect();
            let json: Vec<&str> = msgs.iter().map(|m| &*m.json).collect();
            let body = format!(r#"{{"model":"m","messages":[{}]}}"#, json.join(","));
            let parsed = parse(&Bytes::from(body)).unwrap();
            for (index, msg) in msgs.iter().enumerate() {
                let spoken = parsed.plain_text(index).unwrap();
                assert_eq!(digest_of(&spoken), msg.digest, "{}", msg.json);
            }
        }
    }
}
