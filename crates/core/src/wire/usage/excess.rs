//! Reads from a refusal by how much a request was too long.
//!
//! Decides which number of a message is the model's limit and which one was sent. Does not decide
//! whether the request was too long at all: that is done by [`mod@super::refusal`] and
//! [`mod@super::blame`].

/// By how much a request was too long, if the refusal says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The most tokens that the model reads.
    pub window: u64,
    /// The tokens of the request.
    pub sent: u64,
}

/// A smaller number is no window of a model, but a position, a status or a version.
const MIN_WINDOW: u64 = 256;

/// A larger number is no token count, but a request id or a time.
const MAX_TOKEN_COUNT: u64 = 100_000_000;

/// How many numbers are read.
const MAX_NUMBERS: usize = 16;

/// A number in a message, and the text between it and its neighbours.
#[derive(Debug)]
struct Number<'a> {
    value: u64,
    before: &'a str,
    after: &'a str,
}

impl Excess {
    /// `None` if `sent` is not more than a possible window.
    pub(super) fn new(window: u64, sent: u64) -> Option<Self> {
        (MIN_WINDOW <= window && window < sent).then_some(Self { window, sent })
    }

    /// The excess in `message`; `None` if it does not give both numbers. A number that is called a
    /// window is preferred to any guess, because messages often repeat what was sent in parts, and
    /// a part may be larger than the window.
    pub(super) fn from_message(message: &str) -> Option<Self> {
        let message = message.to_ascii_lowercase();
        let numbers = numbers(&message);
        if let Some(excess) = from_comparison(&numbers) {
            return Some(excess);
        }
        let values = || numbers.iter().map(|number| number.value);
        // The window, and what is left of it for the prompt.
        let windows = numbers.iter().filter(|number| number.is_window());
        match windows.map(|number| number.value).min() {
            Some(window) => Self::new(window, values().max()?),
            None => from_largest(values().collect()),
        }
    }
}

/// Reads "`sent > window`", as some servers write it.
fn from_comparison(numbers: &[Number<'_>]) -> Option<Excess> {
    numbers.windows(2).find_map(|pair| {
        let [sent, window] = pair else { return None };
        let greater = window.before.trim_end().ends_with('>');
        greater.then(|| Excess::new(window.value, sent.value))?
    })
}

/// If no number is called a window: the two largest ones, without those that add up to the largest.
fn from_largest(mut values: Vec<u64>) -> Option<Excess> {
    values.sort_unstable();
    values.dedup();
    let sent = values.pop()?;
    let whole: Vec<u64> = match summands(&values, sent) {
        Some(parts) => {
            let not_parts = values.iter().filter(|value| !parts.contains(value));
            not_parts.copied().collect()
        }
        None => values.clone(),
    };
    let window = whole.last().filter(|value| **value >= MIN_WINDOW);
    Excess::new(*window.or(values.last())?, sent)
}

/// The two or three of `values` that add up to `whole`.
fn summands(values: &[u64], whole: u64) -> Option<Vec<u64>> {
    for (at, first) in values.iter().enumerate() {
        let behind = &values[at + 1..];
        for (at, second) in behind.iter().enumerate() {
            let Some(rest) = whole.checked_sub(first + second) else {
                break;
            };
            if rest == 0 {
                return Some(vec![*first, *second]);
            }
            if behind[at + 1..].contains(&rest) {
                return Some(vec![*first, *second, rest]);
            }
        }
    }
    None
}

/// The whole numbers in `message` (in lower case), with or without commas. A sum counts as one number.
fn numbers(message: &str) -> Vec<Number<'_>> {
    let in_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, ',' | '_' | '.' | '-');
    let mut numbers: Vec<Number<'_>> = Vec::new();
    let (mut at, mut last_end) = (0, 0);
    while let Some(begin) = message[at..].find(in_word).map(|found| at + found) {
        let rest = &message[begin..];
        let word = &rest[..rest.find(|c| !in_word(c)).unwrap_or(rest.len())];
        at = begin + word.len();
        let digits = word.trim_start_matches([',', '.']);
        let start = at - digits.len();
        let digits = digits.trim_end_matches([',', '.']);
        let digits = digits.strip_suffix("-token").unwrap_or(digits);
        let Some(value) = digits
            .replace(',', "")
            .parse()
            .ok()
            .filter(|it| *it <= MAX_TOKEN_COUNT)
        else {
            continue;
        };
        let (before, end) = (&message[last_end..start], start + digits.len());
        last_end = end;
        if let Some(last) = numbers.last_mut() {
            if before.trim() == "+" {
                last.value += value;
                continue;
            }
            last.after = before;
        }
        if numbers.len() == MAX_NUMBERS {
            return numbers;
        }
        let after = "";
        numbers.push(Number {
            value,
            before,
            after,
        });
    }
    if let Some(last) = numbers.last_mut() {
        last.after = &message[last_end..];
    }
    numbers
}

impl Number<'_> {
    /// Whether it is called the model's limit: "maximum context length is 8192", "exceeds the limit
    /// of 8192", "8192 maximum".
    fn is_window(&self) -> bool {
        self.value >= MIN_WINDOW && (self.is_named_before() || self.is_named_after())
    }

    fn is_named_before(&self) -> bool {
        const FILLERS: [&str; 4] = ["is", "of", "only", "to"];
        let mut words = words(self.before)
            .rev()
            .skip_while(|word| FILLERS.contains(word));
        match words.next() {
            Some("limit" | "maximum" | "max" | "allowed") => true,
            Some("window" | "size") => words.next() == Some("context"),
            Some("length") => match words.next() {
                Some("context") => true,
                // Without that word, it is the length of the prompt.
                Some("prompt" | "input") => words.next() == Some("maximum"),
                _ => false,
            },
            _ => false,
        }
    }

    fn is_named_after(&self) -> bool {
        let clause = self.after.split([',', '.', ';', ':', '(', ')', '>']);
        let clause = clause.take(1).flat_map(words);
        let mut words = clause.skip_while(|word| matches!(*word, "token" | "tokens"));
        match words.next() {
            Some("maximum" | "limit") => true,
            Some("context") => matches!(words.next(), Some("length" | "window" | "size")),
            _ => false,
        }
    }
}

fn words(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests;
