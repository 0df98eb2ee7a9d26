//! One line of an audit file.
//!
//! Every field but the time may be absent: older versions of Diarist write fewer fields, and an unknown value has none.

use std::borrow::Cow;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::reported::ReportedUsage;

/// Text of a line, borrowed from it where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl Text<'_> {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The fields of all kinds of lines; see `docs/audit.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Line<'a> {
    #[serde(borrow)]
    pub time: Text<'a>,
    #[serde(borrow)]
    pub request_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub wrote: Option<Text<'a>>,
    #[serde(borrow)]
    pub call: Option<Text<'a>>,
    #[serde(borrow)]
    pub forgot: Option<Text<'a>>,
    #[serde(borrow)]
    pub path: Option<Text<'a>>,
    #[serde(borrow)]
    pub tenant: Text<'a>,
    #[serde(borrow)]
    pub thread: Option<Text<'a>>,
    #[serde(borrow)]
    pub model: Option<Text<'a>>,
    pub status: Option<u16>,
    pub messages_received: Option<u64>,
    pub messages_sent: Option<u64>,
    pub bytes_received: Option<u64>,
    pub bytes_sent: Option<u64>,
    #[serde(borrow)]
    pub snapshot: Option<Text<'a>>,
    pub cut: Option<u64>,
    /// Messages that were left out because the request was too long.
    pub trimmed: Option<u64>,
    #[serde(borrow)]
    pub cause: Option<Text<'a>>,
    #[serde(borrow)]
    pub rung: Option<Text<'a>>,
    #[serde(borrow)]
    pub memory: Option<Text<'a>>,
    #[serde(borrow)]
    pub reason: Option<Text<'a>>,
    /// Since when memory's calls wait, and until when.
    #[serde(borrow)]
    pub since: Option<Text<'a>>,
    #[serde(borrow)]
    pub until: Option<Text<'a>>,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    pub total_ms: Option<u64>,
    #[serde(borrow)]
    pub ended: Option<Text<'a>>,
    #[serde(borrow)]
    pub error: Option<Text<'a>>,
    /// What an observation or a reflection kept.
    pub kept: Option<Kept>,
    /// What became of a model call.
    #[serde(borrow)]
    pub outcome: Option<Text<'a>>,
    #[serde(borrow)]
    pub verdict: Option<Text<'a>>,
    #[serde(borrow)]
    pub verdict_cause: Option<Text<'a>>,
    pub common_bytes: Option<u64>,
    /// What changed in front of the new messages, in whatever form.
    pub changed: Option<Value>,
    pub changed_by: Option<Value>,
    pub idle_ms: Option<u64>,
    pub expected_cached_tokens: Option<u64>,
    /// Whether the conversation goes without memory, for comparison.
    pub holdout: Option<bool>,
    pub segments: Option<Segments>,
    /// Of the bytes received and sent, those of attachments that no token is counted for.
    pub attachment_bytes_received: Option<u64>,
    pub attachment_bytes_sent: Option<u64>,
    /// Tokens of the prompt by segment, estimated when the line was written.
    pub segment_tokens: Option<Segments>,
    /// Tokens of a prompt that nobody reported, estimated when the line was written.
    pub estimated_prompt_tokens: Option<u64>,
    /// Tokens that the provider of the model counts where Diarist counts one.
    pub token_ratio: Option<f64>,
    /// More was reported of the cache than the prompt has.
    pub impossible_usage: Option<bool>,
    /// The report of the provider.
    pub usage: ReportedUsage,
}

/// Items of a source that a part kept, and of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// Those that must not be lost.
    pub high: Option<(u64, u64)>,
}

/// Bytes or tokens of a prompt as it was sent, by segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Segments {
    pub tools: u64,
    pub system: u64,
    pub observations: u64,
    pub messages: u64,
    /// What the observations replaced. Not part of the prompt.
    pub replaced: u64,
    /// Diarist's own words around the observations. Older lines have them in `observations`.
    pub reminder: u64,
}

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A request of a client.
    Request,
    /// A stored observation or reflection.
    Part,
    /// A model call of memory.
    Call,
    /// Memory that an operator deleted.
    Deletion,
    /// A request that passed through unread.
    Pass,
}

/// No request has so many tokens. Older versions wrote whatever was reported, and one such number is all that a sum shows.
const MOST_TOKENS: u64 = 1_000_000_000;

/// Why a line counts nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkippedLine {
    /// It is no JSON: a full disk or a crash left half of it.
    Torn,
    /// It is JSON, but not a line of the audit.
    Foreign,
}

impl<'a> Line<'a> {
    /// Reads one line, without its line break.
    ///
    /// # Errors
    ///
    /// It is not a line of the audit.
    pub fn parse(bytes: &'a [u8]) -> Result<(LineKind, Self), SkippedLine> {
        let mut line: Self = serde_json::from_slice(bytes).map_err(|error| {
            let is_json = || serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
            if error.is_data() && is_json() {
                SkippedLine::Foreign
            } else {
                SkippedLine::Torn
            }
        })?;
        let kind = line.kind().ok_or(SkippedLine::Foreign)?;
        line.drop_impossible();
        Ok((kind, line))
    }

    /// Older versions wrote whatever was reported. With more from the cache than the prompt has, hit rates would be above
    /// 100 %.
    fn drop_impossible(&mut self) {
        for tokens in [
            &mut self.prompt_tokens,
            &mut self.cached_tokens,
            &mut self.cache_write_tokens,
            &mut self.completion_tokens,
            &mut self.estimated_prompt_tokens,
        ] {
            *tokens = tokens.filter(|tokens| *tokens <= MOST_TOKENS);
        }
        let of_cache = self
            .cached_tokens
            .into_iter()
            .chain(self.cache_write_tokens);
        let of_cache = of_cache.fold(0, u64::saturating_add);
        if self.prompt_tokens.is_some_and(|prompt| of_cache > prompt) {
            (self.cached_tokens, self.cache_write_tokens) = (None, None);
            self.impossible_usage = Some(true);
        }
    }

    fn kind(&self) -> Option<LineKind> {
        if !is_time(self.time.as_str()) {
            return None;
        }
        [
            (&self.wrote, LineKind::Part),
            (&self.call, LineKind::Call),
            (&self.forgot, LineKind::Deletion),
            (&self.request_id, LineKind::Request),
            (&self.path, LineKind::Pass),
        ]
        .into_iter()
        .find_map(|(field, kind)| field.as_ref().map(|_| kind))
    }

    /// The day in UTC.
    pub fn day(&self) -> &str {
        self.time.as_str().get(..10).unwrap_or_default()
    }

    /// When the request came, in UTC.
    pub fn began(&self) -> Option<DateTime> {
        self.time.as_str().strip_suffix('Z')?.parse().ok()
    }

    /// When the answer ended.
    pub fn end(&self) -> Option<DateTime> {
        let took = i64::try_from(self.total_ms.unwrap_or(0)).ok()?;
        self.began()?
            .checked_add(SignedDuration::from_millis(took))
            .ok()
    }

    /// Whether a later request of the conversation is compared with this one: it was answered without an error.
    pub fn leaves_a_prompt(&self) -> bool {
        let answered = self.status.is_some_and(|status| status / 100 == 2);
        answered && self.error.is_none()
    }

    /// Bytes of the client's request, in proportion to which its tokens are estimated.
    pub fn text_bytes_received(&self) -> Option<u64> {
        let attached = self.attachment_bytes_received.unwrap_or(0);
        Some(self.bytes_received?.saturating_sub(attached))
    }

    /// The same of the request as it was sent.
    pub fn text_bytes_sent(&self) -> Option<u64> {
        let attached = self.attachment_bytes_sent.unwrap_or(0);
        Some(self.bytes_sent?.saturating_sub(attached))
    }

    pub fn is_active(&self) -> bool {
        text_is(self.memory.as_ref(), "active")
    }

    /// The client got an error, in whatever way.
    pub fn is_error(&self) -> bool {
        self.is_refused() || self.error.is_some() || text_is(self.ended.as_ref(), "upstream_error")
    }

    /// The status of the answer is an error. Providers report no tokens then, and charge none.
    pub fn is_refused(&self) -> bool {
        self.status.is_some_and(|status| status >= 400)
    }

    /// A model call of memory whose answer could not be used.
    pub fn is_unusable_call(&self) -> bool {
        let outcomes = ["empty", "cut", "refused", "too_long", "failed"];
        outcomes
            .iter()
            .any(|outcome| text_is(self.outcome.as_ref(), outcome))
    }

    /// A model call of memory that got no answer.
    pub fn is_unanswered_call(&self) -> bool {
        let outcomes = ["refused", "too_long", "failed", "abandoned"];
        outcomes
            .iter()
            .any(|outcome| text_is(self.outcome.as_ref(), outcome))
    }

    pub fn model_name(&self) -> &str {
        self.model.as_ref().map_or("", Text::as_str)
    }

    pub fn thread_name(&self) -> &str {
        self.thread.as_ref().map_or("", Text::as_str)
    }
}

fn text_is(text: Option<&Text<'_>>, expected: &str) -> bool {
    text.is_some_and(|text| text.as_str() == expected)
}

/// Whether a text is a time as audit lines have it: `2026-11-23T11:20:14.295Z`. Such times sort as text.
fn is_time(text: &str) -> bool {
    let form = b"dddd-dd-ddTdd:dd:dd";
    let fits = |(byte, form): (&u8, &u8)| match form {
        b'd' => byte.is_ascii_digit(),
        _ => byte == form,
    };
    text.len() >= 20 && text.ends_with('Z') && text.as_bytes().iter().zip(form).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cached_tokens_than_prompt_tokens_count_as_unknown() {
        let numbers = |fields: &str| {
            let text =
                format!(r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a",{fields}}}"#);
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            let numbers = (line.cached_tokens, line.cache_write_tokens);
            (numbers, line.impossible_usage)
        };
        for (fields, expected) in [
            (
                r#""prompt_tokens":10,"cached_tokens":99999"#,
                ((None, None), Some(true)),
            ),
            (
                r#""prompt_tokens":10,"cached_tokens":6,"cache_write_tokens":5"#,
                ((None, None), Some(true)),
            ),
            (
                r#""prompt_tokens":10,"cached_tokens":6,"cache_write_tokens":4"#,
                ((Some(6), Some(4)), None),
            ),
            (r#""cached_tokens":6"#, ((Some(6), None), None)),
            // No request has so many.
            (
                r#""prompt_tokens":18446744073709551615,"cached_tokens":6,"cache_write_tokens":2000000000"#,
                ((Some(6), None), None),
            ),
        ] {
            assert_eq!(numbers(fields), expected, "{fields}");
        }
    }

    #[test]
    fn each_kind_of_audit_line_is_recognised() {
        let kind = |text: &'static str| Line::parse(text.as_bytes()).map(|(kind, _)| kind);
        let at = r#""time":"2026-11-23T11:20:14.295Z""#;
        assert_eq!(
            kind(r#"{"time":"2026-11-23T11:20:14.295Z","request_id":"a"}"#),
            Ok(LineKind::Request)
        );
        assert_eq!(
            kind(r#"{"time":"2026-11-23T11:20:14.295Z","wrote":"observation"}"#),
            Ok(LineKind::Part)
        );
        assert_eq!(
            kind(r#"{"time":"2026-11-23T11:20:14.295Z","call":"observe"}"#),
            Ok(LineKind::Call)
        );
        assert_eq!(
            kind(r#"{"time":"2026-11-23T18:07:11.000Z","forgot":"thread","deleted":{"parts":4}}"#),
            Ok(LineKind::Deletion)
        );
        assert_eq!(
            kind(r#"{"time":"2026-11-23T18:07:11.000Z","method":"GET","path":"/v1/models"}"#),
            Ok(LineKind::Pass)
        );
        for foreign in [
            "{}",
            "[1]",
            "7",
            r#"{"time":"yesterday","request_id":"a"}"#,
            r#"{"time":"2026-11-23T11:20:14.295Z","level":"info"}"#,
            r#"{"time":"2026-11-23T11:20:14.295Z","request_id":"a","status":"two hundred"}"#,
        ] {
            assert_eq!(kind(foreign), Err(SkippedLine::Foreign), "{foreign}");
        }
        for torn in ["", "x", r#"{"time":"2026-11-2"#, r#"{"time":{"time":"#] {
            assert_eq!(kind(torn), Err(SkippedLine::Torn), "{torn}");
        }
        assert_eq!(
            Line::parse(&[b'"', 0xff, b'"']).err(),
            Some(SkippedLine::Torn)
        );
        let escaped = format!(r#"{{{at},"request_id":"a","thread":"caf\u00e9"}}"#);
        let (_, line) = Line::parse(escaped.as_bytes()).unwrap();
        assert_eq!((line.thread_name(), line.day()), ("café", "2026-11-23"));
    }
}
