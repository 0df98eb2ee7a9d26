//! Facts planted in conversations: each stands in one message, in one sentence that asks to be
//! remembered, and nowhere else.

use diarist_provider::Conversation;
use serde_json::Value;

/// What a fact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Name,
    Number,
    Date,
    Path,
    Identifier,
    Quote,
    Url,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Name,
        Self::Number,
        Self::Date,
        Self::Path,
        Self::Identifier,
        Self::Quote,
        Self::Url,
    ];

    /// As a part's retention calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Number => "number",
            Self::Date => "date",
            Self::Path => "path",
            Self::Identifier => "identifier",
            Self::Quote => "quote",
            Self::Url => "url",
        }
    }
}

/// One planted fact.
#[derive(Clone, Debug)]
pub struct Planted {
    /// Its number, from 0.
    pub number: usize,
    /// Index of the message that says it.
    pub at: usize,
    /// Whether a user says it.
    pub by_user: bool,
    pub kind: Kind,
    /// What must survive, word for word.
    pub words: String,
}

/// A fact in every `step`th message of `conversation`, at its start, in its middle or at its end, by
/// whomever it is said: users, models (in what they say or in what they call a tool with), tools.
pub fn plant(conversation: &Conversation, step: usize) -> (Conversation, Vec<Planted>) {
    let mut planted = conversation.clone();
    let json_text = Value::Array(conversation.messages.clone()).to_string();
    let mut facts: Vec<Planted> = Vec::new();
    for (at, message) in planted.messages.iter_mut().enumerate() {
        let role = message["role"].as_str().unwrap_or_default().to_owned();
        if !at.is_multiple_of(step) || ["system", "developer"].contains(&role.as_str()) {
            continue;
        }
        let number = facts.len();
        let kind = Kind::ALL[number % Kind::ALL.len()];
        let words = words(kind, number);
        assert!(!says(&json_text, &words), "{words:?} was there before");
        if put(message, number, &sentence(kind, number, &words)) {
            facts.push(Planted {
                number,
                at,
                by_user: role == "user",
                kind,
                words,
            });
        }
    }
    for fact in &facts {
        let same = facts
            .iter()
            .filter(|other| other.words.contains(&fact.words));
        assert_eq!(same.count(), 1, "{:?} is not unique", fact.words);
    }
    (planted, facts)
}

/// `false` where the message has no place for a sentence.
fn put(message: &mut Value, number: usize, sentence: &str) -> bool {
    let result = message["role"] == "tool";
    if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
        // Of a long result only both ends are shown to the Observer.
        let place = if result { number % 2 * 2 } else { number % 3 };
        message["content"] = insert(text, place, sentence).into();
        return true;
    }
    let Some(call) = message.pointer_mut("/tool_calls/0/function") else {
        return false;
    };
    let arguments = call["arguments"].as_str().unwrap_or_default();
    let Ok(Value::Object(mut arguments)) = arguments.parse() else {
        return false;
    };
    arguments.insert("remark".to_owned(), sentence.into());
    call["arguments"] = Value::Object(arguments).to_string().into();
    true
}

fn insert(text: &str, place: usize, sentence: &str) -> String {
    let middle = text.floor_char_boundary(text.len() / 2);
    // Between words, and not inside of a quote, which would be another without the sentence.
    let bare = |at: &usize| {
        let line = text[..*at].rsplit('\n').next().unwrap_or_default();
        let quotes = line.matches(['"', '`', '\'', '“', '„', '«']).count();
        quotes == 0
    };
    let blank = text[middle..].match_indices(' ').map(|(at, _)| middle + at);
    match (place, blank.into_iter().find(bare)) {
        (0, _) => format!("{sentence} {text}"),
        (1, Some(at)) => {
            let (before, after) = text.split_at(at);
            format!("{before} {sentence}{after}")
        }
        _ => format!("{text} {sentence}"),
    }
}

const OPEN: &str = "Remember note ";
const CLOSE: &str = " That was note ";

fn sentence(kind: Kind, number: usize, words: &str) -> String {
    let statement = match kind {
        Kind::Name => format!("the contact is {words}."),
        Kind::Number => format!("exactly {words} crates are left."),
        Kind::Date => format!("the audit is on {words} at the latest."),
        Kind::Path => format!("the ledger is kept in {words} now."),
        Kind::Identifier => format!("the ticket is {words} again."),
        Kind::Quote => format!("the motto is \"{words}\" as before."),
        Kind::Url => format!("the form is at {words} for all."),
    };
    format!("{OPEN}{number}: {statement}{CLOSE}{number}.")
}

/// The sentences in `text` that ask to be remembered: their numbers, and what they say.
pub fn notes(text: &str) -> Vec<(usize, &str)> {
    let mut notes = Vec::new();
    for (at, _) in text.match_indices(OPEN) {
        let rest = &text[at..];
        let digits = &rest[OPEN.len()..];
        let Some((number, _)) = digits.split_once(':') else {
            continue;
        };
        let end = format!("{CLOSE}{number}.");
        if let (Ok(number), Some(length)) = (number.parse(), rest.find(&end)) {
            notes.push((number, &rest[..length + end.len()]));
        }
    }
    notes
}

const FIRST: [&str; 12] = [
    "bral", "kest", "dron", "vilm", "zork", "malb", "quen", "osth", "jurn", "pilk", "thav", "ryss",
];
const SECOND: [&str; 12] = [
    "amo", "eku", "ivo", "ola", "uri", "esko", "anto", "ilde", "orma", "usta", "enk", "arvi",
];

/// Words that no language has, another for every number below 20,736.
fn word(number: usize) -> String {
    let (a, b) = (number % 12, number / 12 % 12);
    let (c, d) = (number / 144 % 12, number / 1_728 % 12);
    format!("{}{}{}{}", FIRST[a], SECOND[b], FIRST[c], SECOND[d])
}

fn words(kind: Kind, number: usize) -> String {
    let word = word(number);
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    match kind {
        // A surname that is a word of its own might stand in any log: "uri" did.
        Kind::Name => format!(
            "{} {}",
            capital(&word),
            capital(&self::word(number + 5_003))
        ),
        Kind::Number => {
            let number = 100_003 + 7_919 * number;
            format!("{},{:03}", number / 1_000, number % 1_000)
        }
        Kind::Date => format!(
            "{}-{:02}-{:02}",
            2_031 + number / 336,
            number / 28 % 12 + 1,
            number % 28 + 1
        ),
        Kind::Path => format!("/srv/{word}/north.toml"),
        Kind::Identifier => format!("QX-{number:04}-{}", FIRST[number % 12]),
        Kind::Quote => format!("{word} under grey water"),
        Kind::Url => format!("https://{word}.example/form"),
    }
}

/// Whether `text` has these words. Every text is searched for every fact, which `str::contains` without optimisation is
/// slow at.
pub fn says(text: &str, words: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), words.as_bytes()).is_some()
}

/// Every string in `body`, and what calls are made with.
pub fn strings(body: &Value) -> String {
    let mut all = String::new();
    let mut left = vec![body];
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => {
                all.push_str(text);
                all.push('\n');
            }
            Value::Array(values) => left.extend(values),
            Value::Object(values) => left.extend(values.values()),
            _ => {}
        }
    }
    all
}
