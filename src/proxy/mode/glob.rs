//! Patterns of rules: `*` stands for any text, `?` for one character, case means nothing.

/// A pattern that the whole of a text has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<char>);

impl Glob {
    /// Every text is a pattern.
    pub fn new(pattern: &str) -> Self {
        Self(lower(pattern).collect())
    }

    /// Whether all of `text` matches.
    ///
    /// Walks with one place to come back to, the last `*`: time is at most the product of both
    /// lengths, whatever a client sends.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (&self.0, lower(text).collect::<Vec<char>>());
        let (mut at, mut read) = (0, 0);
        let mut star = None;
        while read < text.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, read));
                    at += 1;
                }
                Some(want) if *want == '?' || *want == text[read] => {
                    at += 1;
                    read += 1;
                }
                _ => {
                    let Some((back, taken)) = star else {
                        return false;
                    };
                    star = Some((back, taken + 1));
                    (at, read) = (back + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|left| *left == '*')
    }
}

fn lower(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|c| c.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything/at all", true),
            ("gpt-4*", "GPT-4o-mini", true),
            ("gpt-4*", "xgpt-4", false),
            ("*mini", "gpt-mini-mini", true),
            ("*mini", "gpt-mini-x", false),
            ("a*b*c", "a--b--b-c", true),
            ("a*b*c", "a--c--b", false),
            ("?", "é", true),
            ("?", "", false),
            ("a?c", "abbc", false),
            ("**", "x", true),
        ];
        for (pattern, text, matches) in cases {
            assert_eq!(
                Glob::new(pattern).matches(text),
                matches,
                "{pattern} {text}"
            );
        }
        let hostile = "a".repeat(10_000);
        assert!(!Glob::new("*a*a*a*a*a*b").matches(&hostile));
    }
}
