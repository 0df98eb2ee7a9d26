//! Reads what the refusal of a changed request blames.
//!
//! A server may refuse a request that Diarist changed under any status that it uses for a bad request:
//! also for a signature that no longer fits, or a template that cannot be rendered. Reports only what
//! the wording names and never guesses; the proxy decides what follows. Uses the same
//! [`mod@super::error_report`] as [`mod@super::refusal`].

use super::error_report::{ErrorReport, MAX_READ_BYTES, is_change_refusal_status};
use super::excess::Excess;
use super::refusal::{RefusalKind, excess, refusal_without_status};

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The prompt does not fit the model; with both sizes, if the refusal gives them.
    TooLong(Option<Excess>),
    /// Another reason.
    Declined(Blame),
}

/// The part of a changed request that its refusal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The request for usage.
    Usage,
    /// `prompt_cache_key`.
    CacheKey,
    /// `prompt_cache_breakpoint`.
    CacheBreakpoint,
    /// The place of a message: a template, roles, system messages, their order.
    Placement,
    /// The content: a content filter.
    Content,
    /// The credential, or a signature over the body.
    Credential,
    /// Nothing that Diarist could have changed.
    Nothing,
}

/// What an answer with this status refuses about a changed request; `None` if nothing. Only a status
/// for which [`super::is_refusal_status`] holds can mean that the prompt is too long.
#[must_use]
pub fn refusal_reason(status: u16, body: &[u8]) -> Option<RefusalReason> {
    if !is_change_refusal_status(status) {
        return None;
    }
    let report = ErrorReport::parse(body.get(..MAX_READ_BYTES).unwrap_or(body));
    if report.is_about_limits() {
        return None;
    }
    if report.is_too_long_with(status) {
        return Some(RefusalReason::TooLong(report.excess()));
    }
    if report.names_limits() {
        return None;
    }
    Some(RefusalReason::Declined(report.blame(status)))
}

/// The same for the first event of a stream, which has no status of its own.
#[must_use]
pub fn refusal_reason_without_status(event: &[u8]) -> Option<RefusalReason> {
    if refusal_without_status(event)? == RefusalKind::TooLong {
        return Some(RefusalReason::TooLong(excess(event)));
    }
    let report = ErrorReport::parse(event.get(..MAX_READ_BYTES).unwrap_or(event));
    let status = report.status().unwrap_or(400);
    (!report.names_limits()).then(|| RefusalReason::Declined(report.blame(status)))
}

/// Wordings for the place of a message, in lower case. `role` is matched as a whole word.
const PLACEMENT_WORDINGS: [&str; 15] = [
    "jinja",
    "chat template",
    "prompt template",
    "chat_template",
    "system message",
    "system prompt",
    "system instruction",
    "developer message",
    "developer instruction",
    "first message",
    "last message",
    "consecutive",
    "must alternate",
    "alternate between",
    "alternating",
];

/// Codes for a signature or digest that does not match the body.
const SIGNATURES: [&str; 5] = [
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "InvalidSignature",
    "AuthFailure.SignatureFailure",
    "BadDigest",
];

impl ErrorReport {
    /// The part of a changed request that it names, under this status.
    fn blame(&self, status: u16) -> Blame {
        if self.is_filtered() {
            Blame::Content
        } else if self.names_usage() {
            Blame::Usage
        } else if self.any_text(&|text| text.contains("prompt_cache_key")) {
            // Diarist adds it only if the client did not, so whoever names it means Diarist's.
            Blame::CacheKey
        } else if self.any_text(&|text| text.contains("prompt_cache_breakpoint")) {
            Blame::CacheBreakpoint
        } else if matches!(status, 401 | 403) || self.has_code(&SIGNATURES) {
            Blame::Credential
        } else if self.names_placement() {
            Blame::Placement
        } else {
            Blame::Nothing
        }
    }

    fn names_usage(&self) -> bool {
        let named = self.unknown_parameter();
        named.is_some_and(|name| name.starts_with("stream_options") || name == "include_usage")
    }

    pub(super) fn names_placement(&self) -> bool {
        self.contains_any(&PLACEMENT_WORDINGS)
            || self.any_text(&|text| has_word(text, &["role", "roles"]))
    }
}

fn has_word(text: &str, words: &[&str]) -> bool {
    let mut parts = text.split(|c: char| !c.is_alphanumeric());
    parts.any(|part| words.contains(&part))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reason(status: u16, error: &Value) -> Option<RefusalReason> {
        refusal_reason(status, json!({ "error": error }).to_string().as_bytes())
    }

    #[test]
    fn only_the_statuses_of_refusals_count_as_a_refusal() {
        let error = json!({"message": "no"});
        for status in [400, 404, 405, 406, 409, 415, 418, 422, 451, 500, 501] {
            assert_eq!(
                reason(status, &error),
                Some(RefusalReason::Declined(Blame::Nothing)),
                "{status}"
            );
        }
        assert_eq!(reason(413, &error), Some(RefusalReason::TooLong(None)));
        let limited = json!({"message": "too large for your quota"});
        assert_eq!(reason(413, &limited), None);
        for status in [401, 403] {
            assert_eq!(
                reason(status, &error),
                Some(RefusalReason::Declined(Blame::Credential)),
                "{status}"
            );
        }
        let signed = json!({"message": "no", "code": "SignatureDoesNotMatch"});
        assert_eq!(
            reason(400, &signed),
            Some(RefusalReason::Declined(Blame::Credential))
        );
        for status in [200, 204, 301, 402, 407, 408, 425, 429, 502, 503, 504, 529] {
            assert_eq!(reason(status, &error), None, "{status}");
        }
    }

    /// In the wording of providers and local servers.
    #[test]
    fn only_errors_about_the_place_of_a_message_blame_the_placement() {
        for message in [
            "Error: Jinja Exception: System message must be at the beginning.",
            "System message must be at the beginning.",
            "After the optional system message, conversation roles must alternate user/assistant/...",
            "Only one system message is supported by this model.",
            "Unexpected role 'system' after role 'user'",
            "Error rendering prompt with jinja template",
            "Developer instruction is not enabled for models/gemma-3-27b-it",
            "messages: first message must use the \"user\" role",
            "Roles must alternate",
        ] {
            for status in [400, 422, 500] {
                let error = json!({"message": message, "type": "server_error"});
                assert_eq!(
                    reason(status, &error),
                    Some(RefusalReason::Declined(Blame::Placement)),
                    "{message}"
                );
            }
        }
        let at = json!({"message": "Invalid value", "param": "messages[1].role"});
        assert_eq!(
            reason(400, &at),
            Some(RefusalReason::Declined(Blame::Placement))
        );
        for message in [
            "The server had an error while processing your request.",
            "The model does not exist",
            "Internal error: controlled shutdown",
            "Function call c is missing its thought_signature",
            "It failed. Alternatively, ask again.",
        ] {
            let error = json!({"message": message});
            assert_eq!(
                reason(500, &error),
                Some(RefusalReason::Declined(Blame::Nothing)),
                "{message}"
            );
        }
    }

    #[test]
    fn an_added_field_is_blamed_only_if_the_error_names_it() {
        for message in [
            "Unknown parameter: 'stream_options'.",
            "include_usage is not supported",
        ] {
            assert_eq!(
                reason(400, &json!({"message": message})),
                Some(RefusalReason::Declined(Blame::Usage))
            );
        }
        for error in [
            json!({"message": "Unrecognized request argument supplied: prompt_cache_key"}),
            json!({"message": "Unsupported parameter", "param": "prompt_cache_key", "code": "unsupported_parameter"}),
            json!({"message": "Extra inputs are not permitted, field: 'prompt_cache_key', value: 'x'"}),
        ] {
            for status in [400, 403, 422] {
                let blame = Some(RefusalReason::Declined(Blame::CacheKey));
                assert_eq!(reason(status, &error), blame, "{error}");
            }
        }
        for error in [
            json!({"message": "Unknown parameter: 'messages[1].content[0].prompt_cache_breakpoint'."}),
            json!({"message": "Extra inputs are not permitted", "param": "messages[1].content[0].prompt_cache_breakpoint"}),
        ] {
            let blame = Some(RefusalReason::Declined(Blame::CacheBreakpoint));
            assert_eq!(reason(400, &error), blame, "{error}");
        }
        let other = json!({"message": "Unknown parameter: 'seed'."});
        assert_eq!(
            reason(400, &other),
            Some(RefusalReason::Declined(Blame::Nothing))
        );
    }

    #[test]
    fn quotas_and_rates_are_no_refusal_whatever_their_status() {
        for error in [
            json!({"message": "You exceeded your current quota, please check your plan and billing details."}),
            json!({"message": "Your credit balance is too low to access the API."}),
            json!({"message": "no", "code": "insufficient_quota"}),
            json!({"message": "Rate limit reached for requests"}),
            json!({"message": "Your team has used all available credits or reached its monthly spending limit."}),
        ] {
            for status in [400, 403, 500] {
                assert_eq!(reason(status, &error), None, "{status} {error}");
            }
        }
    }

    #[test]
    fn a_content_filter_is_recognised_under_every_status() {
        let error = json!({"message": "flagged", "code": "content_filter"});
        for status in [400, 403, 500] {
            assert_eq!(
                reason(status, &error),
                Some(RefusalReason::Declined(Blame::Content)),
                "{status}"
            );
        }
    }

    /// Only its own statuses can mean that a prompt is too long: a 500 that says so is a failure
    /// like any other.
    #[test]
    fn only_statuses_400_413_and_422_can_mean_too_long() {
        let error = json!({"message": "prompt is too long: 200251 tokens > 200000 maximum"});
        for status in [400, 413, 422] {
            assert!(matches!(
                reason(status, &error),
                Some(RefusalReason::TooLong(Some(_)))
            ));
        }
        assert_eq!(
            reason(500, &error),
            Some(RefusalReason::Declined(Blame::Nothing))
        );
    }

    #[test]
    fn an_error_code_inside_a_stream_counts_as_the_status() {
        let reason = |error: Value| {
            refusal_reason_without_status(json!({ "error": error }).to_string().as_bytes())
        };
        for code in [400, 404, 405, 415, 422, 500, 501] {
            let error = json!({"code": code, "message": "no"});
            assert_eq!(
                reason(error),
                Some(RefusalReason::Declined(Blame::Nothing)),
                "{code}"
            );
        }
        for code in [401, 403] {
            let error = json!({"code": code, "message": "no"});
            assert_eq!(
                reason(error),
                Some(RefusalReason::Declined(Blame::Credential)),
                "{code}"
            );
        }
        for code in [402, 429, 502, 503] {
            let error = json!({"code": code, "message": "no"});
            assert_eq!(reason(error), None, "{code}");
        }
        let llama = json!({"code": 500, "message": "Jinja Exception: System message must be at the beginning.", "type": "server_error"});
        assert_eq!(
            reason(llama),
            Some(RefusalReason::Declined(Blame::Placement))
        );
        let quota = json!({"code": 403, "message": "You exceeded your current quota"});
        assert_eq!(reason(quota), None);
    }
}
