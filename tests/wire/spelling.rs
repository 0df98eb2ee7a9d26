//! One of the many ways to write a JSON value down: spaces, key order, escapes, number forms.

/// A source of spellings; one seed is one way to write.
pub struct Spelling {
    state: u64,
    /// How tool call ids begin in this spelling.
    pub ids: String,
}

impl Spelling {
    pub fn seeded(seed: u64) -> Self {
        Self {
            state: seed,
            ids: format!("call_{:x}_", seed % 1000),
        }
    }

    /// A number below `bound` (SplitMix64).
    pub fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.below(options.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", "", "", " ", "\n", "\r\n\t "])
    }

    /// `members` as an object, in their order.
    pub fn object(&mut self, members: &[(String, String)]) -> String {
        let items: Vec<String> = members
            .iter()
            .map(|(key, value)| {
                let key = self.string(key);
                format!("{key}{}:{}{value}", self.space(), self.space())
            })
            .collect();
        self.bracket('{', &items, '}')
    }

    pub fn list(&mut self, items: &[String]) -> String {
        self.bracket('[', items, ']')
    }

    fn bracket(&mut self, open: char, items: &[String], close: char) -> String {
        let mut out = String::from(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(self.space());
            out.push_str(item);
            out.push_str(self.space());
        }
        out.push(close);
        out
    }

    /// `text` as a string, some characters escaped that need not be.
    pub fn string(&mut self, text: &str) -> String {
        let mut out = String::from('"');
        for c in text.chars() {
            let named = match c {
                '"' => Some("\\\""),
                '\\' => Some("\\\\"),
                '\n' => Some("\\n"),
                '\t' => Some("\\t"),
                _ => None,
            };
            match named {
                Some(escape) if self.below(4) > 0 => out.push_str(escape),
                None if c == '/' && self.once_in(2) => out.push_str("\\/"),
                None if c >= ' ' && self.below(8) > 0 => out.push(c),
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&if self.once_in(2) {
                            format!("\\u{unit:04x}")
                        } else {
                            format!("\\u{unit:04X}")
                        });
                    }
                }
            }
        }
        out.push('"');
        out
    }

    /// A whole number in one of its spellings.
    pub fn number(&mut self, value: i32) -> String {
        match self.below(5) {
            0 => format!("{value}.0"),
            1 => format!("{value}e0"),
            2 if value != 0 => format!("{value}0E-1"),
            3 if value == 0 => "-0".to_owned(),
            _ => value.to_string(),
        }
    }
}
