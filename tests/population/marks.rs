//! Marks: words that one conversation alone can have said. Whoever finds one knows who said it.

use std::collections::BTreeSet;

use memchr::memmem;

/// One saying of one conversation of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    pub user: usize,
    pub conversation: usize,
    pub number: usize,
}

impl std::fmt::Display for Mark {
    /// The last letter says that the number was not cut.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "fact-u{}-c{}-m{}z",
            self.user, self.conversation, self.number
        )
    }
}

/// All marks in `bytes`.
pub fn found(bytes: &[u8]) -> BTreeSet<Mark> {
    memmem::find_iter(bytes, b"fact-u")
        .filter_map(|at| mark(&bytes[at + b"fact-u".len()..]))
        .collect()
}

fn mark(bytes: &[u8]) -> Option<Mark> {
    let (user, rest) = number(bytes)?;
    let (conversation, rest) = number(rest.strip_prefix(b"-c")?)?;
    let (number, rest) = number(rest.strip_prefix(b"-m")?)?;
    rest.starts_with(b"z").then_some(Mark {
        user,
        conversation,
        number,
    })
}

fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let digits = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((digits.parse().ok()?, &bytes[end..]))
}

#[test]
fn only_whole_marks_are_found() {
    let mark = Mark {
        user: 17,
        conversation: 2,
        number: 305,
    };
    let text = format!("before {mark}. behind \"{mark}\"");
    assert_eq!(found(text.as_bytes()), BTreeSet::from([mark]));
    assert!(found(b"fact-u17-c2-m30 fact-u17-c2 fact-u").is_empty());
}
