//! Text as people and programs write it: sentences, code, lines of a log. The same seed gives the same text, so the
//! upstream and the client that appends its answer write the same words without a talk about them.

/// Written into ordinary sentences; about two thousand ordinary words would compress and count no differently.
const WORDS: &str = "the a of to and in that it is was for on with as at by from this be are have not but which or an \
    they one all there when we can more if no out so what up time them then about would other into could these two may \
    first than some people over new only year work such through much before also well back where must our state most \
    between never after again place part right still small number house program problem fact hand high group turn \
    follow point system change world during without however result question report build file server request answer \
    memory history conversation token budget table column index cache latency measurement quartile morning deploy \
    branch commit review customer invoice Thursday garden kitchen violin harbour winter bread coffee train ticket \
    passport letter neighbour grandmother recipe mountain bicycle repair window weather";

/// A source of text. The generator of numbers is SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Writer {
    state: u64,
    words: std::sync::Arc<[&'static str]>,
}

impl Writer {
    /// A writer whose text differs from that of every other seed.
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0xD1A2_15B7,
            words: words(),
        }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.number() % end.max(1) as u64).unwrap_or(0)
    }

    /// Text of about `bytes` bytes. It begins with a number that no other text has.
    pub fn text(&mut self, bytes: usize) -> String {
        let mut text = format!("Case {:012x}: ", self.number() >> 16);
        while text.len() < bytes {
            match self.below(12) {
                0 => self.code(&mut text),
                1 => self.log(&mut text),
                _ => self.sentence(&mut text),
            }
        }
        text.truncate(text.floor_char_boundary(bytes.max(20)));
        text
    }

    fn word(&mut self) -> &'static str {
        let place = self.below(self.words.len());
        self.words[place]
    }

    fn sentence(&mut self, text: &mut String) {
        let count = 6 + self.below(14);
        for place in 0..count {
            let word = self.word();
            if place == 0 {
                let (first, rest) = word.split_at(1);
                text.push_str(&first.to_uppercase());
                text.push_str(rest);
            } else {
                text.push(' ');
                text.push_str(word);
            }
        }
        match self.below(8) {
            0 => text.push_str(&format!(" {}.\n\n", self.below(100_000))),
            1 => text.push_str(&format!(", \"{} naïve\"? ", self.word())),
            _ => text.push_str(". "),
        }
    }

    fn code(&mut self, text: &mut String) {
        let (one, two, three) = (self.word(), self.word(), self.below(4096));
        text.push_str(&format!(
            "\n```\nfn {one}_{two}(limit: usize) -> Option<&'static str> {{\n    if limit > {three} {{\n        return None;\n    }}\n    names.get(\"{two}\").copied()\n}}\n```\n"
        ));
    }

    fn log(&mut self, text: &mut String) {
        for _ in 0..=self.below(4) {
            let (hour, minute, code) = (self.below(24), self.below(60), self.below(0xFFFF));
            let (unit, event) = (self.word(), self.word());
            text.push_str(&format!(
                "2026-03-0{} {hour:02}:{minute:02}:07Z WARN {unit}::{event} code=0x{code:04x} took={}ms\n",
                1 + code % 9,
                code % 971,
            ));
        }
    }
}

/// The list of words, split once.
fn words() -> std::sync::Arc<[&'static str]> {
    static SPLIT: std::sync::OnceLock<std::sync::Arc<[&'static str]>> = std::sync::OnceLock::new();
    SPLIT
        .get_or_init(|| WORDS.split_whitespace().collect())
        .clone()
}
