//! What is wrong with a configuration, in words for the person who wrote it.
//!
//! A [`Problem`] names the key, what is wrong with it and how to put it right. Values of secret keys
//! never enter one. Called by every step of reading; printed by the command line.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The dotted key (`memory.observation.message_tokens`), or the file if the file is the problem.
    pub key: String,
    /// Where the offending value was written (a file, a variable, a flag), if it was written at all.
    pub origin: Option<String>,
    /// What is wrong, without a full stop.
    pub what: String,
    /// What to do about it, in the imperative.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.what)?;
        if let Some(origin) = &self.origin {
            write!(f, " (from {origin})")?;
        }
        write!(f, "\n    remedy: {}", self.remedy)
    }
}

/// Every problem of one configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn new(problems: Vec<Problem>) -> Self {
        debug_assert!(!problems.is_empty(), "an error without a problem");
        Self { problems }
    }

    /// The problems in the order of the reference file, those of the sources themselves first.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => write!(f, "the configuration has 1 problem")?,
            n => write!(f, "the configuration has {n} problems")?,
        }
        self.problems
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigError {}
