//! Finds where JSON values begin and end, fast and without recursion.
//!
//! Looks only at what separates values: quotes, brackets, commas and colons. Does not validate: `{]` or
//! `tru` get an extent like any other value. Callers pass each extent to `serde_json`. A document is
//! valid JSON if this file accepts its separators and `serde_json` accepts every extent.

use std::ops::Range;

use memchr::memchr;

/// The most levels of brackets in a value. One less than the limit of `serde_json` (which refuses at
/// 128), so that a body that is too deep gets that name and is never called a syntax error.
pub(super) const MAX_DEPTH: usize = 127;

/// Why no extent was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Separators are not where JSON has them, or the text ends too early.
    Malformed,
    /// More than [`MAX_DEPTH`] nested brackets.
    TooDeep,
}

/// Walks over the members of an object or the elements of an array.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    close: u8,
    started: bool,
}

impl<'a> Walk<'a> {
    /// The object that begins at `at`, if there is one.
    pub(super) fn object(text: &'a str, at: usize) -> Option<Self> {
        Self::open(text.as_bytes(), at, b'{', b'}')
    }

    /// The array that begins at `at`, if there is one.
    pub(super) fn array(text: &'a str, at: usize) -> Option<Self> {
        Self::open(text.as_bytes(), at, b'[', b']')
    }

    /// The rest of an array, at `at` behind one of its elements.
    pub(super) fn in_array(text: &'a str, at: usize) -> Self {
        Self::behind_item(text.as_bytes(), at, b']')
    }

    /// The rest of an object, at `at` behind one of its values.
    pub(super) fn in_object(text: &'a str, at: usize) -> Self {
        Self::behind_item(text.as_bytes(), at, b'}')
    }

    fn behind_item(text: &'a [u8], at: usize, close: u8) -> Self {
        Self {
            text,
            at,
            close,
            started: true,
        }
    }

    fn open(text: &'a [u8], at: usize, open: u8, close: u8) -> Option<Self> {
        (text.get(at) == Some(&open)).then_some(Self {
            text,
            at: at + 1,
            close,
            started: false,
        })
    }

    /// The current position: at a value after [`Walk::key`], behind the closing bracket after the
    /// last item.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Continues behind a value that another walk went through.
    pub(super) fn resume(&mut self, at: usize) {
        self.at = at;
    }

    /// The next element of an array.
    pub(super) fn element(&mut self) -> Result<Option<Range<usize>>, Fault> {
        if self.next_item()? {
            self.value().map(Some)
        } else {
            Ok(None)
        }
    }

    /// The next key of an object, with its quotes. The walk then stands at its value.
    pub(super) fn key(&mut self) -> Result<Option<Range<usize>>, Fault> {
        if !self.next_item()? {
            return Ok(None);
        }
        if self.text.get(self.at) != Some(&b'"') {
            return Err(Fault::Malformed);
        }
        let key = self.value()?;
        self.at = skip_space(self.text, self.at);
        if self.text.get(self.at) != Some(&b':') {
            return Err(Fault::Malformed);
        }
        self.at = skip_space(self.text, self.at + 1);
        Ok(Some(key))
    }

    /// The value at the current position.
    pub(super) fn value(&mut self) -> Result<Range<usize>, Fault> {
        let start = self.at;
        self.at = value_end(self.text, start)?;
        Ok(start..self.at)
    }

    /// Steps to the next item. Returns false, behind the closing bracket, if there is none.
    pub(super) fn next_item(&mut self) -> Result<bool, Fault> {
        self.at = skip_space(self.text, self.at);
        match self.text.get(self.at) {
            Some(byte) if *byte == self.close => {
                self.at += 1;
                return Ok(false);
            }
            Some(b',') if self.started => self.at = skip_space(self.text, self.at + 1),
            Some(_) if !self.started => self.started = true,
            _ => return Err(Fault::Malformed),
        }
        match self.text.get(self.at) {
            Some(b',' | b':' | b'}' | b']') | None => Err(Fault::Malformed),
            Some(_) => Ok(true),
        }
    }
}

/// The position behind the white space at `at`.
pub(super) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

/// The position behind the value at `at`.
fn value_end(text: &[u8], at: usize) -> Result<usize, Fault> {
    match text.get(at) {
        Some(b'"') => string_end(text, at),
        Some(b'{' | b'[') => nested_end(text, at),
        Some(b',' | b':' | b'}' | b']') | None => Err(Fault::Malformed),
        Some(_) => Ok(text[at..]
            .iter()
            .position(|byte| {
                matches!(
                    byte,
                    b',' | b':' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'
                )
            })
            .map_or(text.len(), |length| at + length)),
    }
}

/// The position behind the bracket that closes the one at `at`, of whatever kind both are.
fn nested_end(text: &[u8], mut at: usize) -> Result<usize, Fault> {
    let mut depth = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = string_end(text, at)?;
                continue;
            }
            b'{' | b'[' if depth == MAX_DEPTH => return Err(Fault::TooDeep),
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Ok(at + 1),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    Err(Fault::Malformed)
}

/// The position behind the quote that closes the string at `at`.
///
/// Stops only at quotes and then looks back for backslashes, because in code `
/// ` is more frequent than a quote.
fn string_end(text: &[u8], at: usize) -> Result<usize, Fault> {
    let start = at + 1;
    let mut from = start;
    while let Some(length) = memchr(b'"', &text[from..]) {
        let quote = from + length;
        // Escapes before `from` end at `from - 1`, which is a quote, so each byte is counted
        // once.
        let slashes = text[from..quote]
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        if slashes % 2 == 0 {
            return Ok(quote + 1);
        }
        from = quote + 1;
    }
    Err(Fault::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(text: &str) -> Result<Vec<&str>, Fault> {
        let mut walk = Walk::array(text, 0).ok_or(Fault::Malformed)?;
        let mut found = Vec::new();
        while let Some(span) = walk.element()? {
            found.push(&text[span]);
        }
        assert_eq!(walk.at(), text.len());
        Ok(found)
    }

    #[test]
    fn elements_keep_their_bytes() {
        assert_eq!(elements("[]"), Ok(vec![]));
        assert_eq!(
            elements(r#"[ 1e5 , "a\"]" ,{"b":[{},"}"]},null]"#),
            Ok(vec!["1e5", r#""a\"]""#, r#"{"b":[{},"}"]}"#, "null"])
        );
    }

    #[test]
    fn pairs_of_backslashes_do_not_escape_a_quote() {
        assert_eq!(
            elements(r#"["\\","\\\"",""]"#),
            Ok(vec![r#""\\""#, r#""\\\"""#, r#""""#])
        );
    }

    #[test]
    fn missing_or_extra_separators_are_refused() {
        for text in [
            "[1 2]", "[1,]", "[,1]", "[1", "[\"a]", "[1:2]", "[{]", "[\"\\\"]",
        ] {
            assert_eq!(elements(text), Err(Fault::Malformed), "{text}");
        }
        for text in [
            "{1:2}",
            "{\"a\" 1}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "{\"a\"}",
        ] {
            let mut walk = Walk::object(text, 0).unwrap();
            let outcome = walk
                .key()
                .and_then(|_| walk.value())
                .and_then(|_| walk.key());
            assert_eq!(outcome, Err(Fault::Malformed), "{text}");
        }
    }

    #[test]
    fn the_depth_limit_equals_that_of_serde_json() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let good = nested(MAX_DEPTH);
        assert_eq!(value_end(good.as_bytes(), 0), Ok(good.len()));
        assert!(serde_json::from_str::<serde_json::Value>(&good).is_ok());
        let deep = nested(MAX_DEPTH + 1);
        assert_eq!(value_end(deep.as_bytes(), 0), Err(Fault::TooDeep));
        assert!(serde_json::from_str::<serde_json::Value>(&deep).is_err());
        assert_eq!(
            value_end("[".repeat(100_000).as_bytes(), 0),
            Err(Fault::TooDeep)
        );
    }
}
