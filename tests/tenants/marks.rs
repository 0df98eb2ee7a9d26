//! Marks: what only one owner says, in shapes that are found again whatever was done to them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::bytes::Regex;

/// Where a mark stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Credential,
    Resource,
    Header,
    /// A field beside the messages.
    User,
    System,
    Word,
    Argument,
    Result,
}

const KINDS: [(Kind, char); 8] = [
    (Kind::Credential, 'c'),
    (Kind::Resource, 'r'),
    (Kind::Header, 'h'),
    (Kind::User, 'u'),
    (Kind::System, 's'),
    (Kind::Word, 'w'),
    (Kind::Argument, 'a'),
    (Kind::Result, 't'),
];

/// What stands between the letters of a mark: nothing, or something that JSON escapes, once for each time
/// it is quoted.
pub const SEPARATORS: [&str; 5] = ["", "\"", "\\", "é", "\u{1}"];

/// One of the owners, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub usize);

impl Owner {
    /// Half of them share a credential, ten each.
    fn tenant(self) -> usize {
        if self.0.is_multiple_of(2) {
            self.0
        } else {
            self.0 - self.0 % 20 + 1
        }
    }

    pub fn credential(self) -> String {
        format!(
            "Bearer sk-{}",
            Owner(self.tenant()).plain_mark(Kind::Credential, 0)
        )
    }

    pub fn resource(self) -> Option<String> {
        (self.0 % 2 == 1).then(|| self.plain_mark(Kind::Resource, 0))
    }

    /// For messages; `place` tells several of a kind apart.
    pub fn mark(self, kind: Kind, place: usize) -> String {
        self.spelled(kind, place, SEPARATORS[self.0 % SEPARATORS.len()])
    }

    /// For headers, which hold no such characters.
    pub fn plain_mark(self, kind: Kind, place: usize) -> String {
        self.spelled(kind, place, "")
    }

    pub fn spelled(self, kind: Kind, place: usize, separator: &str) -> String {
        let letter = KINDS.iter().find(|(known, _)| *known == kind).unwrap().1;
        let letters = format!("Zq{letter}{:04}x{place}", self.0);
        let letters: Vec<String> = letters.chars().map(String::from).collect();
        letters.join(separator)
    }
}

/// The separators in whatever way they may have been escaped, or replaced by one that shows nothing.
static MARK: LazyLock<Regex> = LazyLock::new(|| {
    let between = r#"(?:\\*"|é|\\+u00e9|\\+u0001|\x01|\x{FFFD}|\\+|\s)?"#;
    let parts = [
        "Z",
        "q",
        "([crhuswat])",
        r"(\d)",
        r"(\d)",
        r"(\d)",
        r"(\d)",
        "x",
    ];
    Regex::new(&parts.join(between)).unwrap()
});

/// The marks in `bytes`.
pub fn found(bytes: &[u8]) -> BTreeSet<(Kind, Owner)> {
    let captures = MARK.captures_iter(bytes);
    let mark = captures.map(|captures| {
        let part = |at: usize| captures.get(at).unwrap().as_bytes()[0];
        let kind = KINDS
            .iter()
            .find(|(_, letter)| *letter as u8 == part(1))
            .unwrap()
            .0;
        let digits = (2..6).fold(0, |sum, at| sum * 10 + usize::from(part(at) - b'0'));
        (kind, Owner(digits))
    });
    mark.collect()
}

/// Whose marks of words they are. A credential is shared by several.
pub fn owners(bytes: &[u8]) -> BTreeSet<Owner> {
    found(bytes)
        .into_iter()
        .filter(|(kind, _)| *kind != Kind::Credential)
        .map(|(_, owner)| owner)
        .collect()
}

#[test]
fn a_mark_is_found_however_it_is_spelled() {
    let owner = Owner(123);
    for separator in SEPARATORS {
        let mark = owner.spelled(Kind::Word, 2, separator);
        let once = serde_json::to_string(&mark).unwrap();
        let twice = serde_json::to_string(&once).unwrap();
        let ascii = twice.replace('é', "\\u00e9");
        for text in [
            &mark,
            &once,
            &twice,
            &ascii,
            &format!("before {mark} behind"),
        ] {
            let expected = BTreeSet::from([(Kind::Word, owner)]);
            assert_eq!(found(text.as_bytes()), expected, "{text:?}");
        }
    }
    assert!(found(b"Zqw12x0 Zqz0123x0 Zqw 01 23").is_empty());
}
