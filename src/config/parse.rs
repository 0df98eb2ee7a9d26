//! One value as written, with its key and its source.
//!
//! [`FromToml`] says how a kind of value is spelled (text, whole number, number, yes or no, duration,
//! secret). It does not check what a value means: ranges and combinations come later. Values from the
//! environment and from flags are always text, so every kind can be read from text as well. Text is never
//! guessed to be something else: a key that consists of digits stays a text.

use std::borrow::Cow;
use std::time::Duration;

use config::ValueKind;
use jiff::SignedDuration;
use secrecy::SecretString;

use super::problem::Problem;
use crate::jobs::ArchivePolicy;
use crate::memory::IdleTrigger;

/// A value with its key and its source.
#[derive(Debug, Clone)]
pub(super) struct Setting<T> {
    pub(super) key: Cow<'static, str>,
    /// The source that wrote it; `None` if it is the default.
    pub(super) origin: Option<String>,
    pub(super) value: T,
}

impl<T> Setting<T> {
    /// A problem with this value.
    pub(super) fn problem(&self, what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem {
            key: self.key.clone().into_owned(),
            origin: self.origin.clone(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// Checks the value. If it is invalid, the reason is added to `problems`.
    pub(super) fn check<'a, U>(
        &'a self,
        problems: &mut Vec<Problem>,
        check: impl FnOnce(&'a T) -> Result<U, Invalid>,
    ) -> CheckResult<U> {
        check(&self.value).map_err(|Invalid { what, remedy }| {
            problems.push(self.problem(what, remedy));
            ErrorReported
        })
    }

    /// Checks each of `members`, which the value has. One invalid member does not hide the next.
    pub(super) fn check_each<M, U>(
        &self,
        problems: &mut Vec<Problem>,
        members: impl IntoIterator<Item = M>,
        mut check: impl FnMut(M) -> Result<U, Invalid>,
    ) -> CheckResult<Vec<U>> {
        let before = problems.len();
        let checked = members
            .into_iter()
            .filter_map(|member| self.check(problems, |_| check(member)).ok());
        let valid = checked.collect();
        if problems.len() > before {
            return Err(ErrorReported);
        }
        Ok(valid)
    }
}

impl<T> Setting<Option<T>> {
    /// As [`Setting::check`], for a key that may be absent. An absent key is valid.
    pub(super) fn check_some<'a, U>(
        &'a self,
        problems: &mut Vec<Problem>,
        check: impl FnOnce(&'a T) -> Result<U, Invalid>,
    ) -> CheckResult<Option<U>> {
        match &self.value {
            None => Ok(None),
            Some(value) => self.check(problems, |_| check(value)).map(Some),
        }
    }
}

/// A valid value, or the note that its problem is already in the list.
pub(super) type CheckResult<T> = Result<T, ErrorReported>;

/// The problem is already in the list of problems.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorReported;

/// Why a value is invalid: a problem without its key and source.
#[derive(Debug)]
pub(super) struct Invalid {
    what: String,
    remedy: String,
}

impl Invalid {
    pub(super) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

/// A section of the table, whose values can be visited one by one.
pub(super) trait Section {
    /// Calls `visitor` for every key of this section, in the order of the table.
    fn visit(&mut self, visitor: &mut impl SettingVisitor);
}

/// What is done with every value of a section, whatever its kind.
pub(super) trait SettingVisitor {
    /// `path` is the dotted key.
    fn visit<T: FromToml>(&mut self, path: &'static str, setting: &mut Setting<T>);
}

/// How a kind of value is spelled.
pub(super) trait FromToml: Sized {
    /// The kind in words, for "expected ...".
    const EXPECTED: &'static str;
    /// An example that a person can copy.
    const EXAMPLE: &'static str;
    /// Whether an error may show the value.
    const PRINTABLE: bool = true;

    /// Reads the value; `None` if it is of another kind. [`ValueKind::Nil`] is an absent key.
    fn from_toml(kind: &ValueKind) -> Option<Self>;
}

impl FromToml for String {
    const EXPECTED: &'static str = "text";
    const EXAMPLE: &'static str = "text in double quotes";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::String(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl FromToml for SecretString {
    const EXPECTED: &'static str = "text";
    const EXAMPLE: &'static str = "text in double quotes";
    const PRINTABLE: bool = false;

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        String::from_toml(kind).map(Self::from)
    }
}

impl FromToml for u64 {
    const EXPECTED: &'static str = "a whole number, 0 or more";
    const EXAMPLE: &'static str = "digits only, such as 30000";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::I64(number) => Self::try_from(*number).ok(),
            ValueKind::U64(number) => Some(*number),
            ValueKind::String(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
}

impl FromToml for f64 {
    const EXPECTED: &'static str = "a number";
    const EXAMPLE: &'static str = "a number such as 0.2 or 6000";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        let number = match kind {
            ValueKind::Float(number) => *number,
            ValueKind::I64(number) => f64::from(i32::try_from(*number).ok()?),
            ValueKind::String(text) => text.trim().parse().ok()?,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }
}

impl FromToml for bool {
    const EXPECTED: &'static str = "true or false";
    const EXAMPLE: &'static str = "true or false";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::Boolean(value) => Some(*value),
            ValueKind::String(text) => text.trim().to_ascii_lowercase().parse().ok(),
            _ => None,
        }
    }
}

impl FromToml for Duration {
    const EXPECTED: &'static str = "a duration with its unit";
    const EXAMPLE: &'static str =
        "a number and ms, s, m, h or d in quotes, such as \"30s\" or \"1h 30m\"";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::String(text) => {
                let text = text.trim();
                if let Some(days) = text.strip_suffix('d') {
                    // A day of 24 hours. The parser knows none, because days of calendars differ.
                    let hours = days.trim().parse::<u32>().ok()?.checked_mul(24)?;
                    return Some(Self::from_secs(u64::from(hours) * 3_600));
                }
                let signed: SignedDuration = text.parse().ok()?;
                Self::try_from(signed).ok()
            }
            _ => None,
        }
    }
}

/// A list. In the environment and on the command line, commas separate its members, or it is spelled as in
/// the file.
impl FromToml for Vec<String> {
    const EXPECTED: &'static str = "a list of texts";
    const EXAMPLE: &'static str = "a list such as [\"one\", \"two\"]";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::Array(members) => members
                .iter()
                .map(|member| String::from_toml(&member.kind))
                .collect(),
            ValueKind::String(text) if text.trim_start().starts_with('[') => {
                serde_json::from_str(text).ok()
            }
            ValueKind::String(text) => Some(
                text.split(',')
                    .map(|member| member.trim().to_owned())
                    .filter(|member| !member.is_empty())
                    .collect(),
            ),
            _ => None,
        }
    }
}

/// A number, or `false` for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberOrFalse(pub(super) Option<u64>);

impl FromToml for NumberOrFalse {
    const EXPECTED: &'static str = "a whole number, 0 or more, or false";
    const EXAMPLE: &'static str = "digits only, such as 2000, or false";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match bool::from_toml(kind) {
            Some(false) => Some(Self(None)),
            Some(true) => None,
            None => u64::from_toml(kind).map(|number| Self(Some(number))),
        }
    }
}

/// Yes, no, a single word, or a list of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BoolOrList {
    Bool(bool),
    Keyword(String),
    List(Vec<String>),
}

impl FromToml for BoolOrList {
    const EXPECTED: &'static str = "true, false, or a list of texts";
    const EXAMPLE: &'static str = "true, false, or a list such as [\"one\", \"two\"]";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        if let Some(all) = bool::from_toml(kind) {
            return Some(Self::Bool(all));
        }
        match kind {
            // Only lower-case letters: a single word such as `auto`. Anything else is a list: `image/*`,
            // or several members between commas.
            ValueKind::String(text)
                if text.trim().bytes().all(|byte| byte.is_ascii_lowercase()) =>
            {
                Some(Self::Keyword(text.trim().to_owned()))
            }
            kind => Vec::from_toml(kind).map(Self::List),
        }
    }
}

/// From here on a number without a unit is taken as milliseconds, as in the published method. A smaller one
/// is more likely a forgotten unit.
const MIN_BARE_MILLIS: u64 = 1_000;

impl FromToml for IdleTrigger {
    const EXPECTED: &'static str =
        "a duration with its unit, milliseconds from 1000, \"auto\" or false";
    const EXAMPLE: &'static str =
        "a number and ms, s, m or h in quotes, such as \"5m\" or \"1.5h\", or \"auto\", or false";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::Boolean(false) => Some(Self::Never),
            ValueKind::String(text) => match text.trim() {
                "auto" => Some(Self::Auto),
                text if text.eq_ignore_ascii_case("false") => Some(Self::Never),
                _ => Duration::from_toml(kind)
                    .or_else(|| bare_millis(kind))
                    .map(Self::After),
            },
            kind => bare_millis(kind).map(Self::After),
        }
    }
}

fn bare_millis(kind: &ValueKind) -> Option<Duration> {
    u64::from_toml(kind)
        .filter(|millis| *millis >= MIN_BARE_MILLIS)
        .map(Duration::from_millis)
}

impl FromToml for ArchivePolicy {
    const EXPECTED: &'static str = "\"until_observed\", \"always\" or a duration with its unit";
    const EXAMPLE: &'static str =
        "\"until_observed\", \"always\", or a number and ms, s, m or h in quotes, such as \"720h\"";

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::String(text) => match text.trim() {
                "until_observed" => Some(Self::UntilObserved),
                "always" => Some(Self::Always),
                _ => Duration::from_toml(kind).map(Self::For),
            },
            _ => None,
        }
    }
}

impl<T: FromToml> FromToml for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const EXAMPLE: &'static str = T::EXAMPLE;
    const PRINTABLE: bool = T::PRINTABLE;

    fn from_toml(kind: &ValueKind) -> Option<Self> {
        match kind {
            ValueKind::Nil => Some(None),
            kind => T::from_toml(kind).map(Some),
        }
    }
}

/// A value of another kind than `T`, for "found ...".
pub(super) fn found<T: FromToml>(kind: &ValueKind) -> String {
    if T::PRINTABLE {
        to_toml(kind)
    } else {
        "a value of another kind".to_owned()
    }
}

/// What stands in the place of a secret.
pub(super) const REDACTED: &str = "\"[redacted]\"";

/// Parts of names whose values may be secrets, in lower case.
const SECRET_NAMES: [&str; 6] = ["key", "token", "secret", "passw", "auth", "credential"];

fn names_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|name| text.contains(name))
}

/// A value as a person would write it in TOML. What a table has under the name of a secret is hidden, unless it is a
/// number, true or false: `max_tokens = 100` is none. So is a table or a list that is written as text and has such a name.
pub(super) fn to_toml(kind: &ValueKind) -> String {
    match kind {
        ValueKind::String(text)
            if text.trim_start().starts_with(['{', '[']) && names_secret(text) =>
        {
            REDACTED.to_owned()
        }
        // JSON's escapes are a subset of those of TOML's basic strings.
        ValueKind::String(text) => serde_json::Value::from(text.as_str()).to_string(),
        ValueKind::Table(table) => {
            let mut entries: Vec<_> = table
                .iter()
                .map(|(key, value)| {
                    let is_secret = names_secret(key) && may_hold_text(&value.kind);
                    let value = if is_secret {
                        REDACTED.to_owned()
                    } else {
                        to_toml(&value.kind)
                    };
                    let key = serde_json::Value::from(key.as_str());
                    format!("{key} = {value}")
                })
                .collect();
            entries.sort_unstable();
            format!("{{ {} }}", entries.join(", "))
        }
        ValueKind::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| to_toml(&value.kind)).collect();
            format!("[{}]", values.join(", "))
        }
        kind => kind.to_string(),
    }
}

fn may_hold_text(kind: &ValueKind) -> bool {
    matches!(
        kind,
        ValueKind::String(_) | ValueKind::Table(_) | ValueKind::Array(_)
    )
}
