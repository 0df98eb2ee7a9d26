//! Keys by which a message is recognised without its text and without its place.
//!
//! A [`ScopedHash`] is seeded by the owner like a link, so the stores of two owners cannot be compared
//! (INV-OWN). Decides which messages are *distinctive*: no other conversation says them by chance. What
//! the user or the application says is often a template; what the model says, and the ids of its tool
//! calls, are not.

use super::message::MIN_DISTINCTIVE_BYTES;
use super::{Link, Message, Pepper, Role};

/// A short hash under one owner: of a message, of tool call ids, or of two neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopedHash([u8; ScopedHash::LEN]);

impl ScopedHash {
    /// Bytes of a hash. Within one owner's messages, 128 bits do not collide.
    pub const LEN: usize = 16;

    fn new(context: &str, root: &Link, pieces: &[&[u8]]) -> Self {
        Self::keyed(context, root.as_bytes(), pieces)
    }

    fn keyed(context: &str, key: &[u8; 32], pieces: &[&[u8]]) -> Self {
        let lengths = pieces.iter().map(|piece| 8 + piece.len()).sum::<usize>();
        let mut input = Vec::with_capacity(context.len() + lengths);
        input.extend_from_slice(context.as_bytes());
        for piece in pieces {
            input.extend_from_slice(&(piece.len() as u64).to_be_bytes());
            input.extend_from_slice(piece);
        }
        // In one call: the state of an incremental hasher is larger than all that is hashed here.
        let hash = blake3::keyed_hash(key, &input);
        let mut short = [0; Self::LEN];
        short.copy_from_slice(&hash.as_bytes()[..Self::LEN]);
        Self(short)
    }

    /// The hash of a whole answer of the model as clients bring it back: trimmed, and without the
    /// thinking at its beginning. The root is stored, so the `pepper` keys the text too.
    pub fn from_text(pepper: &Pepper, root: &Link, text: &str) -> Self {
        Self::from_answer(&pepper.key(*root.as_bytes()), without_thinking(text))
    }

    /// The same of an `answer` without its thinking.
    fn from_answer(key: &[u8; 32], answer: &str) -> Self {
        Self::keyed("text", key, &[answer.as_bytes()])
    }

    /// The same hash with its first bit set to `yes`.
    fn flagged(mut self, yes: bool) -> Self {
        self.0[0] = (self.0[0] & !1) | u8::from(yes);
        self
    }

    fn flag(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The stored form.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Reads the stored form; `None` if the length is wrong.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl std::fmt::Debug for ScopedHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mark({})", super::hex::hex(&self.0[..6]))
    }
}

/// What clients bring back of the answer `text`: trimmed, and without the thinking at its beginning.
pub fn without_thinking(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix("<think>")
        .and_then(|rest| rest.split_once("</think>"))
        .map_or(text, |(_, answer)| answer.trim())
}

/// How many bytes at the end of an answer its ending has: enough that few texts end alike by chance.
const ENDING_BYTES: usize = 64;

/// The hashes of an answer of the model that may come back in place of what it summarises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHash {
    /// The hash of the whole text ([`ScopedHash::from_text`]).
    pub text: ScopedHash,
    /// The hash of its last bytes. A text whose ending is unknown is no answer that is known, and need not be hashed
    /// as a whole.
    pub ending: ScopedHash,
}

impl AnswerHash {
    /// The hashes of `text`.
    pub fn from_text(pepper: &Pepper, root: &Link, text: &str) -> Self {
        let (key, answer) = (pepper.key(*root.as_bytes()), without_thinking(text));
        Self {
            text: ScopedHash::from_answer(&key, answer),
            ending: Self::ending_of_answer(&key, answer),
        }
    }

    /// The ending of `text` alone.
    pub fn ending_of(pepper: &Pepper, root: &Link, text: &str) -> ScopedHash {
        Self::ending_of_answer(&pepper.key(*root.as_bytes()), without_thinking(text))
    }

    fn ending_of_answer(key: &[u8; 32], answer: &str) -> ScopedHash {
        ScopedHash::keyed("ending", key, &[ending_bytes(answer)])
    }

    /// Whether `suffix`, which ends as `text` does, has the same ending.
    pub fn same_ending(text: &str, suffix: &str) -> bool {
        ending_bytes(without_thinking(text)) == ending_bytes(without_thinking(suffix))
    }
}

fn ending_bytes(answer: &str) -> &[u8] {
    let answer = answer.as_bytes();
    &answer[answer.len().saturating_sub(ENDING_BYTES)..]
}

/// The key of a message for alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageKey {
    /// The role of its author.
    pub role: Role,
    /// The hash of its content.
    pub content: ScopedHash,
    /// The hash of the ids of the calls that it makes, or of the call that it answers.
    pub ids: Option<ScopedHash>,
    /// See [`Message::distinctive_bytes`].
    pub distinctive_bytes: u32,
}

/// An answer of at least this many bytes, about thirty words, is not given twice by chance. Shorter
/// ones are: farewells and refusals of a model have about a dozen words and are the same for everybody.
pub const LONG_ANSWER_BYTES: u32 = 160;

impl MessageKey {
    /// The key of `message` under the owner whose chains begin at `root`.
    pub fn from_message(root: &Link, message: &Message) -> Self {
        let ids: Vec<&[u8]> = match &message.answers {
            Some(id) => vec![id.as_bytes()],
            None => message.calls.iter().map(|id| id.as_bytes()).collect(),
        };
        let kind = if message.answers.is_some() {
            "answer"
        } else {
            "calls"
        };
        Self {
            role: message.role,
            content: ScopedHash::new("content", root, &[message.fingerprint.as_bytes()]),
            ids: (!ids.is_empty())
                .then(|| ScopedHash::new(kind, root, &ids).flagged(message.random_ids)),
            distinctive_bytes: message.distinctive_bytes,
        }
    }

    /// Whether it has ids that no other conversation has.
    pub(super) fn has_random_ids(&self) -> bool {
        self.ids.is_some_and(ScopedHash::flag)
    }

    /// Whether the model said it, or got it as the result of its own call.
    pub(super) fn is_distinctive(&self) -> bool {
        self.has_random_ids()
            || (self.role == Role::Assistant && self.distinctive_bytes >= MIN_DISTINCTIVE_BYTES)
    }

    fn ids_or_content(&self) -> &ScopedHash {
        self.ids.as_ref().unwrap_or(&self.content)
    }
}

/// Whether the id of a call of the function `name` was drawn at random. Servers that number their calls (`call_0`,
/// `functions.read:3`) or name them after the function (`tool_0_get_weather`) give every conversation the same ids.
pub fn is_random_id(id: &str, name: &str) -> bool {
    let is_named = |piece: &str| {
        let name = name.to_ascii_lowercase();
        name.contains(&piece.to_ascii_lowercase())
    };
    let mut pieces = id.split(|letter: char| !letter.is_ascii_alphanumeric());
    pieces.any(|piece| is_random_piece(piece) && !is_named(piece))
}

/// The shortest random ids have eight characters (Ollama; Mistral's and LM Studio's have nine).
const MIN_RANDOM_PIECE: usize = 8;

/// Whether letters and digits alternate in `piece`, or it is a long number. Words have no digits, and most names have them at
/// their end (`abc123`). A number that begins with zeros is a counter, and one of 10 or 13 digits may be a time.
fn is_random_piece(piece: &str) -> bool {
    if piece.len() < MIN_RANDOM_PIECE {
        return false;
    }
    let piece = piece.as_bytes();
    if piece.iter().all(u8::is_ascii_digit) {
        let may_be_time = piece[0] == b'1' && matches!(piece.len(), 10 | 13);
        return piece[0] != b'0' && !may_be_time;
    }
    let alternates = |pair: &&[u8]| pair[0].is_ascii_digit() != pair[1].is_ascii_digit();
    piece.windows(2).filter(alternates).count() >= 2
}

/// The hash by which `item` behind `previous` is looked up; `None` if neither is distinctive. A tool
/// result counts by its id, because clients replace the text of old results.
pub fn anchor(root: &Link, previous: &MessageKey, item: &MessageKey) -> Option<ScopedHash> {
    (previous.is_distinctive() || item.is_distinctive()).then(|| {
        ScopedHash::new(
            "anchor",
            root,
            &[
                previous.ids_or_content().as_bytes(),
                item.ids_or_content().as_bytes(),
            ],
        )
    })
}

/// Acknowledgements that programs insert in the model's name, and short answers that models give to
/// everything: their first words, in lower case.
const ACKNOWLEDGEMENTS: [&str; 8] = [
    "ok",
    "got it",
    "understood",
    "sure",
    "done",
    "continue",
    "thank",
    "i updated the files",
];

/// The most bytes of an acknowledgement. The longest known one, of aider with no file in the chat, has
/// 113. A template at the end of every restored conversation would lead to the wrong one.
const MAX_ACKNOWLEDGEMENT_BYTES: usize = 120;

/// The bytes of `text` that count as evidence; none for a fixed acknowledgement of an assistant.
pub fn distinctive_bytes(role: Role, text: &str) -> u32 {
    let is_acknowledgement =
        role == Role::Assistant && text.len() <= MAX_ACKNOWLEDGEMENT_BYTES && {
            let lower = text.to_lowercase();
            ACKNOWLEDGEMENTS
                .iter()
                .any(|fixed| lower.starts_with(fixed))
        };
    if is_acknowledgement {
        return 0;
    }
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As servers give them: OpenAI, Anthropic, vLLM, Mistral, Ollama, LM Studio, Gemini, DeepSeek, Cohere.
    #[test]
    fn ids_that_were_drawn_at_random_are_told_from_numbers_and_names() {
        for id in [
            "call_WnOqUtAOD5c29CrkNhRWWNyC",
            "call_WnOqUtAOD5c29CrkNhRWWNyC_1",
            "toolu_01A09q90qw90lq917835lq9",
            "chatcmpl-tool-8f2bb12cbd1a4d5e8e8b0b9a3c1d2e3f",
            "D681PevKs",
            "call_k3j9x0qa",
            "365174485",
            "function-call-7183920465510293847",
            "call_0_9f1d2c3b-4a5e-6f70-8192-a3b4c5d6e7f8",
            "list_files_d81ynz6mv4qp",
        ] {
            assert!(is_random_id(id, "list_files"), "{id}");
        }
        for (id, name) in [
            ("", "read"),
            ("call_0", "read"),
            ("functions.get_weather:0", "get_weather"),
            ("tool_0_get_weather", "get_weather"),
            ("functions.listK8sPods:0", "listK8sPods"),
            ("tool_0_sha256sum", "sha256sum"),
            ("mcp__a1b2c3d4__read", "mcp__a1b2c3d4__read"),
            ("call-search_documents", "search_documents"),
            ("call_getWeatherForecast2", ""),
            ("call_abc123", "read"),
            ("call_abcdef123", "read"),
            ("call_000001", "read"),
            ("call_0000000000000001", "read"),
            ("call_1732838400", "read"),
            ("call_1732838400000", "read"),
            ("call_aaaaaaaa", "read"),
        ] {
            assert!(!is_random_id(id, name), "{id}");
        }
    }
}
