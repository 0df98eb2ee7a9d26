//! The counts of one conversation, request by request.

/// The counts of a provider for one request; `None` where it reported none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The whole prompt, its cached part included.
    pub prompt: Option<u64>,
    /// The part of the prompt that the provider read from its cache.
    pub cached: Option<u64>,
    /// The answer.
    pub completion: Option<u64>,
}

impl Tokens {
    /// The part of the prompt that was not in the cache.
    pub fn uncached(&self) -> Option<u64> {
        Some(self.prompt?.saturating_sub(self.cached?))
    }
}

/// What changed in the block of observations that the provider received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryChange {
    /// Observations were added and replaced messages.
    Activation,
    /// The observations were rewritten, shorter.
    Reflection,
}

/// One request of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportStep {
    /// The request as the client sent it, if it was also played without Diarist.
    pub direct: Option<Tokens>,
    /// The same request as Diarist forwarded it.
    pub forwarded: Tokens,
    /// What was new in its block.
    pub mark: Option<MemoryChange>,
}

/// One conversation, or several in a row.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// The client's requests in order.
    pub steps: Vec<ReportStep>,
    /// The Observer's own calls.
    pub observer: Vec<Tokens>,
    /// The Reflector's own calls.
    pub reflector: Vec<Tokens>,
}

impl Story {
    /// Adds what happened in another conversation.
    pub fn append(&mut self, other: Self) {
        self.steps.extend(other.steps);
        self.observer.extend(other.observer);
        self.reflector.extend(other.reflector);
    }

    /// How many requests had this change.
    pub fn count(&self, mark: MemoryChange) -> usize {
        let marks = self.steps.iter().filter_map(|step| step.mark);
        marks.filter(|found| *found == mark).count()
    }

    /// Whether any request was also played without Diarist.
    pub fn has_baseline(&self) -> bool {
        self.steps.iter().any(|step| step.direct.is_some())
    }

    /// The tokens of the largest request: as the client sent it, and as it reached the provider.
    pub fn peaks(&self) -> (Option<u64>, Option<u64>) {
        let direct = self.steps.iter().filter_map(|step| step.direct?.prompt);
        let forwarded = self.steps.iter().filter_map(|step| step.forwarded.prompt);
        (direct.max(), forwarded.max())
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let texts = [0, 7, 999, 1_000, 12_345, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn unreported_token_counts_stay_unknown() {
        let tokens = |prompt, cached| Tokens {
            prompt,
            cached,
            completion: None,
        };
        assert_eq!(tokens(Some(10), Some(4)).uncached(), Some(6));
        assert_eq!(tokens(Some(10), None).uncached(), None);
        assert_eq!(tokens(None, Some(4)).uncached(), None);
        assert_eq!(Story::default().peaks(), (None, None));
    }
}
