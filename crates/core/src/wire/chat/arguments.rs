//! The meaning of a tool call's arguments, for its fingerprint.
//!
//! The Observer is told the arguments as they were written. So only spellings that say the same may have the same
//! meaning here: nothing that a [`Tree`] would lose. Called by [`super::fingerprint`].

use super::text::Tree;

/// Two decimal numbers of at most so many digits are never the same double.
const EXACT_DIGITS: usize = f64::DIGITS as usize;

/// The meaning of arguments; no text at all is an empty object. `None` if they are no JSON, or if a tree loses something
/// of them: a member whose name stands twice, or digits of a number.
pub(super) fn parse(text: &str) -> Option<Tree<'_>> {
    if text.trim().is_empty() {
        return Some(Tree::Map(std::collections::BTreeMap::new()));
    }
    let tree: Tree<'_> = serde_json::from_str(text).ok()?;
    (members_without_loss(text) == Some(tree.members())).then_some(tree)
}

/// How many members the objects of this JSON have, each counted as often as it stands there. `None` if one of its numbers
/// is not exact.
fn members_without_loss(json: &str) -> Option<usize> {
    let (bytes, mut at, mut members) = (json.as_bytes(), 0, 0);
    while let Some(byte) = bytes.get(at) {
        let length = match byte {
            b'"' => string_length(&bytes[at..]),
            b'-' | b'0'..=b'9' => {
                let rest = &json[at..];
                let is_inside = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
                let length = rest.find(|c| !is_inside(c)).unwrap_or(rest.len());
                if !is_exact(&rest[..length]) {
                    return None;
                }
                length
            }
            b':' => {
                members += 1;
                1
            }
            _ => 1,
        };
        at += length;
    }
    Some(members)
}

/// The bytes of the string at the beginning of `json`, with its quotes.
fn string_length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Whether no other number has the same value in a tree.
fn is_exact(number: &str) -> bool {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return true;
    }
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits = mantissa.replace(['-', '.'], "");
    let significant = digits.trim_matches('0').len();
    // Below the normal doubles digits are lost.
    let is_normal = number.parse::<f64>().is_ok_and(f64::is_normal);
    significant == 0 || (significant <= EXACT_DIGITS && is_normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_a_tree_would_change_have_no_meaning() {
        for exact in [
            "",
            "{}",
            r#"{"a":1,"b":{"a":[1.5,-2e3,{"a":":\"1234567890123456789012"}]}}"#,
            r#"{"a":18446744073709551615,"b":-9223372036854775808,"c":0.000,"d":1e300}"#,
            r#"{"a":123456789.012345,"b":1000000000000000000000}"#,
            r#"{"a":0.00123456789012345,"b":1.23456789012345e100}"#,
        ] {
            assert!(parse(exact).is_some(), "{exact}");
        }
        for lossy in [
            r#"{"a":1,"a":2}"#,
            r#"{"b":[{"a":1,"\u0061":1}]}"#,
            r#"{"a":12345678901234567890123}"#,
            r#"{"a":1234567.1234567890123}"#,
            r#"{"a":1.234567890123456}"#,
            r#"{"a":1e-400}"#,
            r#"{"a":1e-310}"#,
            r#"{"a":1e400}"#,
            "{",
            "print(1)",
        ] {
            assert!(parse(lossy).is_none(), "{lossy}");
        }
    }
}
