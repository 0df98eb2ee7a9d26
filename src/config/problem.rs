//! Errors of a configuration, for the person who wrote it.
//!
//! A [`Problem`] names the key, what is wrong with it, where it was written and how to correct it. It never
//! contains the value of a secret key. Every step of reading creates problems; the command line prints them.

use std::fmt;

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The dotted key (`memory.observation.message_tokens`), or the path of a file that cannot be read.
    pub key: String,
    /// Where the value was written (a file, a variable, a flag); `None` if it was not.
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

/// All errors of one configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn new(problems: Vec<Problem>) -> Self {
        debug_assert!(!problems.is_empty(), "an error without a problem");
        Self { problems }
    }

    /// The errors, those of the sources first, the others about in the order of the reference file.
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
