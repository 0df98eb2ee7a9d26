//! Messages by what they mean, and how clients spell them.

use proptest::prelude::*;
use std::collections::BTreeMap;

use crate::wire::spelling::Spelling;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    System,
    User,
    Assistant,
    Tool,
}

/// What a message means, in canonical form: equal meanings are equal values.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    speaker: Speaker,
    name: Option<String>,
    content: Vec<Bit>,
    refusal: Option<String>,
    calls: Vec<Call>,
    /// Which call is answered: its position among those of `round`.
    answers: usize,
    /// A field nobody knows, on messages that are no answers of a model.
    extra: Option<i32>,
    /// Which round of the conversation it belongs to; only tells ids apart, means nothing.
    round: usize,
}

/// A bit of content; no two texts follow one another, and texts are trimmed.
#[derive(Clone, Debug, PartialEq)]
enum Bit {
    Text(String),
    Image(u8),
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    Tool {
        name: String,
        arguments: BTreeMap<String, Value>,
    },
    /// The model wrote no JSON.
    Broken,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Null,
    Bool(bool),
    Number(i32),
    Text(String),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

impl Message {
    pub fn user(text: &str) -> Self {
        Self::plain(Speaker::User, vec![Bit::Text(text.to_owned())])
    }

    fn plain(speaker: Speaker, content: Vec<Bit>) -> Self {
        Self {
            speaker,
            name: None,
            content,
            refusal: None,
            calls: Vec::new(),
            answers: 0,
            extra: None,
            round: 0,
        }
    }

    /// Everything that counts.
    pub fn meaning(&self) -> Self {
        Self {
            round: 0,
            ..self.clone()
        }
    }

    /// The same message with one thing changed.
    pub fn changed(&self, how: u64) -> Self {
        let mut message = self.clone();
        match how % 9 {
            0 if message.speaker == Speaker::User => message.speaker = Speaker::System,
            0 if message.speaker == Speaker::System => message.speaker = Speaker::User,
            1 => {
                message.name = if message.name.is_some() {
                    None
                } else {
                    Some("Zoë".to_owned())
                }
            }
            2 if message.content.last() == Some(&Bit::Image(0)) => drop(message.content.pop()),
            2 => message.content.push(Bit::Image(0)),
            3 if message.speaker == Speaker::Assistant => {
                message.refusal = if message.refusal.is_some() {
                    None
                } else {
                    Some("No.".to_owned())
                };
            }
            3 if message.speaker != Speaker::Assistant => {
                message.extra = if message.extra.is_some() {
                    None
                } else {
                    Some(0)
                };
            }
            4 if message.calls.len() > 1 && message.calls[0] != message.calls[1] => {
                message.calls.swap(0, 1);
            }
            5 if message.speaker == Speaker::Assistant => message.calls.push(Call::Broken),
            6 => match message.calls.first_mut() {
                Some(Call::Tool { arguments, .. }) => {
                    drop(arguments.insert("zz".to_owned(), Value::Null));
                }
                Some(broken) => {
                    *broken = Call::Tool {
                        name: "f".to_owned(),
                        arguments: BTreeMap::new(),
                    }
                }
                None => message.touch_text(|text| text.push('z')),
            },
            7 => message.touch_text(|text| text.push_str(" \u{301}z")),
            _ => message.touch_text(|text| text.insert_str(0, "z ")),
        }
        if message == *self {
            message.touch_text(|text| text.push('Z'));
        }
        message
    }

    fn touch_text(&mut self, touch: impl FnOnce(&mut String)) {
        match self.content.first_mut() {
            Some(Bit::Text(text)) => touch(text),
            _ => self.content.insert(0, Bit::Text("z".to_owned())),
        }
    }

    /// Writes it down.
    pub fn write(&self, spelling: &mut Spelling) -> String {
        let mut members = vec![("role".to_owned(), self.role(spelling))];
        members.extend(
            self.content(spelling)
                .map(|content| ("content".to_owned(), content)),
        );
        let optional = [("name", &self.name), ("refusal", &self.refusal)];
        for (key, value) in optional {
            match value {
                Some(text) => members.push((key.to_owned(), spelling.string(text))),
                None if spelling.once_in(4) => {
                    members.push((key.to_owned(), spelling.pick(&["null", "\"\""]).to_owned()));
                }
                None => {}
            }
        }
        if !self.calls.is_empty() || spelling.once_in(4) {
            members.push(("tool_calls".to_owned(), self.calls(spelling)));
        }
        if self.speaker == Speaker::Tool {
            let id = self.id(self.answers, spelling);
            members.push(("tool_call_id".to_owned(), id));
        }
        if let Some(extra) = self.extra {
            let extra = spelling.number(extra);
            members.push(("extra".to_owned(), extra));
        }
        self.decorate(spelling, &mut members);
        spelling.shuffle(&mut members);
        spelling.object(&members)
    }

    fn role(&self, spelling: &mut Spelling) -> String {
        let role = match self.speaker {
            Speaker::System => spelling.pick(&["system", "developer"]),
            Speaker::User => "user",
            Speaker::Assistant => "assistant",
            Speaker::Tool => "tool",
        };
        spelling.string(role)
    }

    fn id(&self, position: usize, spelling: &mut Spelling) -> String {
        let id = format!("{}{}_{position}", spelling.ids, self.round);
        spelling.string(&id)
    }

    /// What clients add to messages and take away again.
    fn decorate(&self, spelling: &mut Spelling, members: &mut Vec<(String, String)>) {
        let anywhere: &[(&str, &str)] = &[
            ("cache_control", r#"{"type":"ephemeral"}"#),
            ("prompt_cache_breakpoint", "true"),
            ("function_call", "null"),
            ("audio", "null"),
            ("other", "null"),
            ("reasoning_content", r#""""#),
        ];
        let echoed: &[(&str, &str)] = &[
            ("reasoning", r#""I \ud83d\ude00 think""#),
            ("reasoning_details", r#"[{"a":1}]"#),
            ("annotations", "[]"),
            ("parsed", r#"{"a":[1,2]}"#),
            ("provider_specific_fields", r#"{"x":"y"}"#),
            ("index", "0"),
        ];
        let echoed = if self.speaker == Speaker::Assistant {
            echoed
        } else {
            &[]
        };
        for (key, value) in anywhere.iter().chain(echoed) {
            if spelling.once_in(6) {
                members.push(((*key).to_owned(), (*value).to_owned()));
            }
        }
    }

    fn content(&self, spelling: &mut Spelling) -> Option<String> {
        let mut bits = self.content.clone();
        if self.speaker == Speaker::Assistant && spelling.once_in(3) {
            let thought = spelling.pick(&["<think></think>", " <think>a\nb <think> c</think>\n\n"]);
            match bits.first_mut() {
                Some(Bit::Text(text)) => text.insert_str(0, thought),
                _ => bits.insert(0, Bit::Text(thought.to_owned())),
            }
        }
        match &*bits {
            [] => match spelling.below(5) {
                0 => None,
                1 => Some("null".to_owned()),
                2 => Some("[]".to_owned()),
                3 => Some(spelling.list(&[r#"{"type":"text","text":""}"#.to_owned()])),
                _ => Some(spelling.pick(&["\"\"", "\" \\n\""]).to_owned()),
            },
            [Bit::Text(text)] if spelling.once_in(2) => {
                let padded = pad(text, spelling);
                Some(spelling.string(&padded))
            }
            bits => {
                let mut parts = Vec::new();
                for bit in bits {
                    match bit {
                        Bit::Text(text) => text_parts(text, spelling, &mut parts),
                        Bit::Image(which) => parts.push(image(*which, spelling)),
                    }
                }
                if self.speaker == Speaker::Assistant && spelling.once_in(4) {
                    parts.insert(
                        0,
                        r#"{"type":"thinking","thinking":"t","signature":"s"}"#.to_owned(),
                    );
                }
                Some(spelling.list(&parts))
            }
        }
    }

    fn calls(&self, spelling: &mut Spelling) -> String {
        let calls: Vec<String> = (0..self.calls.len())
            .map(|position| {
                let (name, arguments) = match &self.calls[position] {
                    Call::Tool { name, arguments } => {
                        (name.clone(), arguments_text(arguments, spelling))
                    }
                    Call::Broken => (
                        "f".to_owned(),
                        spelling.pick(&["{broken", " {broken\n"]).to_owned(),
                    ),
                };
                let arguments = spelling.string(&arguments);
                let name = spelling.string(&name);
                let mut function = vec![
                    ("name".to_owned(), name),
                    ("arguments".to_owned(), arguments),
                ];
                spelling.shuffle(&mut function);
                let mut call = vec![
                    ("id".to_owned(), self.id(position, spelling)),
                    ("function".to_owned(), spelling.object(&function)),
                ];
                for (key, value) in [
                    ("type", "\"function\""),
                    ("index", "7"),
                    ("cache_control", "{}"),
                ] {
                    if spelling.once_in(2) {
                        call.push((key.to_owned(), value.to_owned()));
                    }
                }
                spelling.shuffle(&mut call);
                spelling.object(&call)
            })
            .collect();
        spelling.list(&calls)
    }
}

fn pad(text: &str, spelling: &mut Spelling) -> String {
    let spaces = ["", "", " ", "\n", "\u{a0}\t", "\u{feff}"];
    format!("{}{text}{}", spelling.pick(&spaces), spelling.pick(&spaces))
}

/// `text` in one or more adjacent parts.
fn text_parts(text: &str, spelling: &mut Spelling, parts: &mut Vec<String>) {
    let padded = pad(text, spelling);
    let mut rest = &*padded;
    loop {
        let mut end = rest.len();
        if spelling.once_in(2) {
            end = rest.floor_char_boundary(spelling.below(rest.len() + 1));
        }
        let mut members = vec![
            ("type".to_owned(), spelling.string("text")),
            ("text".to_owned(), spelling.string(&rest[..end])),
        ];
        for (key, value) in [
            ("cache_control", r#"{"type":"ephemeral"}"#),
            ("annotations", "null"),
        ] {
            if spelling.once_in(5) {
                members.push((key.to_owned(), value.to_owned()));
            }
        }
        spelling.shuffle(&mut members);
        parts.push(spelling.object(&members));
        rest = &rest[end..];
        if rest.is_empty() {
            return;
        }
    }
}

fn image(which: u8, spelling: &mut Spelling) -> String {
    let signature = spelling.pick(&[
        "",
        "&X-Amz-Date=1&X-Amz-Signature=ab",
        "&Expires=2&Signature=c",
        "&se=1&sig=d",
    ]);
    let url = spelling.string(&format!("https://host/{which}.png?v={which}{signature}"));
    let mut members = vec![("url".to_owned(), url)];
    if spelling.once_in(2) {
        members.push(("detail".to_owned(), "null".to_owned()));
    }
    let image = spelling.object(&members);
    let mut members = vec![
        ("type".to_owned(), spelling.string("image_url")),
        ("image_url".to_owned(), image),
    ];
    if spelling.once_in(3) {
        members.push((
            "cache_control".to_owned(),
            r#"{"type":"ephemeral"}"#.to_owned(),
        ));
    }
    spelling.shuffle(&mut members);
    spelling.object(&members)
}

fn arguments_text(arguments: &BTreeMap<String, Value>, spelling: &mut Spelling) -> String {
    if arguments.is_empty() && spelling.once_in(2) {
        return spelling.pick(&["", " ", "{ }"]).to_owned();
    }
    map(arguments, spelling)
}

fn map(members: &BTreeMap<String, Value>, spelling: &mut Spelling) -> String {
    let mut written: Vec<(String, String)> = members
        .iter()
        .map(|(key, value)| (key.clone(), value_text(value, spelling)))
        .collect();
    spelling.shuffle(&mut written);
    spelling.object(&written)
}

fn value_text(value: &Value, spelling: &mut Spelling) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => spelling.number(*value),
        Value::Text(text) => spelling.string(text),
        Value::List(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| value_text(item, spelling))
                .collect();
            spelling.list(&items)
        }
        Value::Map(members) => map(members, spelling),
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec!["yes", "no", "Yes", "a b", "a  b", "é", "e\u{301}", "a/b"]).prop_map(str::to_owned),
        2 => "[\\PC\n\t\"\\\\/]{1,24}".prop_map(|text| match text.trim() {
            "" => "x".to_owned(),
            trimmed => trimmed.to_owned(),
        }),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-2..3_i32).prop_map(Value::Number),
        text().prop_map(Value::Text),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::List),
            prop::collection::btree_map("[abé]{0,2}", inner, 0..3).prop_map(Value::Map),
        ]
    })
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        5 => (prop::sample::select(vec!["f", "g", "F"]), prop::collection::btree_map("[abé]{1,2}", value(), 0..3))
            .prop_map(|(name, arguments)| Call::Tool { name: name.to_owned(), arguments }),
        1 => Just(Call::Broken),
    ]
}

fn content() -> impl Strategy<Value = Vec<Bit>> {
    let bit = prop_oneof![3 => text().prop_map(Bit::Text), 1 => (0..3_u8).prop_map(Bit::Image)];
    prop::collection::vec(bit, 0..4).prop_map(|mut bits| {
        bits.dedup_by(|next, last| matches!((next, last), (Bit::Text(_), Bit::Text(_))));
        bits
    })
}

fn spoken_by(speaker: Speaker) -> impl Strategy<Value = Message> {
    let name = prop::option::weighted(0.2, prop::sample::select(vec!["Ann", "Bob"]));
    let extra = prop::option::weighted(0.1, -1..2_i32);
    (content(), name, extra).prop_map(move |(content, name, extra)| Message {
        name: name.map(str::to_owned),
        extra: extra.filter(|_| speaker != Speaker::Assistant),
        ..Message::plain(speaker, content)
    })
}

fn assistant(calls: std::ops::Range<usize>) -> impl Strategy<Value = Message> {
    let calls = prop::collection::vec(call(), calls);
    let refusal = prop::option::weighted(0.1, text());
    (spoken_by(Speaker::Assistant), calls, refusal).prop_map(|(message, calls, refusal)| Message {
        refusal,
        calls,
        ..message
    })
}

/// One message of any kind; a result answers nothing.
pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        2 => spoken_by(Speaker::User),
        1 => spoken_by(Speaker::System),
        1 => spoken_by(Speaker::Tool),
        3 => assistant(0..3),
    ]
}

/// A tool round: parallel calls and their results, in any order.
fn round() -> impl Strategy<Value = Vec<Message>> {
    assistant(1..4).prop_flat_map(|call| {
        let count = call.calls.len();
        let results = prop::collection::vec(spoken_by(Speaker::Tool), count);
        let order = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
        (Just(call), results, order).prop_map(|(call, results, order)| {
            let results = results
                .into_iter()
                .zip(order)
                .map(|(message, answers)| Message { answers, ..message });
            std::iter::once(call).chain(results).collect()
        })
    })
}

/// A conversation: leading system messages, then turns, duplicates among them.
pub fn conversation() -> impl Strategy<Value = Vec<Message>> {
    let leading = prop::collection::vec(spoken_by(Speaker::System), 0..3);
    let turn = prop_oneof![
        3 => message().prop_filter("a result follows its call", |message| message.speaker != Speaker::Tool)
            .prop_map(|message| vec![Message { calls: Vec::new(), ..message }]),
        1 => Just(vec![Message::user("yes"), Message::user("yes")]),
        2 => round(),
    ];
    (leading, prop::collection::vec(turn, 1..6)).prop_map(|(mut messages, turns)| {
        for (round, turn) in turns.into_iter().enumerate() {
            messages.extend(turn.into_iter().map(|message| Message { round, ..message }));
        }
        messages
    })
}
