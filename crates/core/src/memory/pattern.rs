//! Patterns for names: `*` matches any characters, `?` matches one. Letter case does not matter.

/// A pattern for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<char>);

impl Pattern {
    /// Parses a pattern; every text is one.
    pub fn new(text: &str) -> Self {
        Self(text.to_lowercase().chars().collect())
    }

    /// Whether the whole `name` matches. Time is proportional to both lengths, whatever the
    /// pattern.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.to_lowercase().chars().collect();
        let (mut at, mut in_name) = (0, 0);
        // Where to continue if the text behind the last star does not match.
        let mut star: Option<(usize, usize)> = None;
        while in_name < name.len() {
            match self.0.get(at) {
                Some('*') => {
                    star = Some((at, in_name));
                    at += 1;
                }
                Some(expected) if *expected == '?' || *expected == name[in_name] => {
                    at += 1;
                    in_name += 1;
                }
                _ => {
                    let Some((after, matched)) = star else {
                        return false;
                    };
                    star = Some((after, matched + 1));
                    at = after + 1;
                    in_name = matched + 1;
                }
            }
        }
        self.0[at..].iter().all(|rest| *rest == '*')
    }

    /// Whether this pattern certainly matches every name that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        // Characters of no name: only `*` and `?` match them. A star of `other` may stand for nothing, and for much.
        let name = |stars: &str| -> String {
            let letters = other.0.iter().map(|letter| match letter {
                '*' => stars.to_owned(),
                '?' => "\u{e000}".to_owned(),
                letter => letter.to_string(),
            });
            letters.collect()
        };
        self.matches(&name("")) && self.matches(&name("\u{e000}\u{e001}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_another_that_matches_no_additional_name() {
        let covers = |one: &str, other: &str| Pattern::new(one).covers(&Pattern::new(other));
        for (one, other) in [
            ("*", "*"),
            ("*", "gpt?"),
            ("gpt*", "GPT-5*"),
            ("a", "a"),
            ("?*", "x*"),
            ("a?", "ab"),
        ] {
            assert!(covers(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("gpt*", "*"),
            ("a?", "a*"),
            ("a", "a?"),
            ("?*", "*"),
            ("*mini", "gpt*"),
            ("ab", "a?"),
        ] {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    #[test]
    fn stars_and_question_marks_match_other_characters() {
        for (pattern, name, fits) in [
            ("gpt-5", "GPT-5", true),
            ("gpt-5", "gpt-5-mini", false),
            ("gpt-5*", "gpt-5-mini", true),
            ("*claude*", "anthropic/claude-opus-4", true),
            ("gpt-?o*", "gpt-4o-mini", true),
            ("gpt-?o", "gpt-4o-mini", false),
            ("*-mini-*-x", "a-mini-b-mini-c-x", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "", false),
            ("*é", "café", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                fits,
                "{pattern} {name}"
            );
        }
        // A naive matcher takes exponential time for this.
        let hard = "*a".repeat(30) + "b";
        assert!(!Pattern::new(&hard).matches(&"a".repeat(200)));
    }
}
