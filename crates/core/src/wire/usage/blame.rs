//! What the refusal of a changed request blames, as far as its wording tells.
//!
//! A request whose bytes Diarist changed may be refused under any status that a server uses for "not
//! like this": a bad request, a signature that no longer fits, a template that cannot be rendered. Says
//! what the wording names, and never guesses beyond it: what follows decides the proxy. Reads what
//! [`mod@super::refusal`] reads of an error body.

use super::RefusalKind;
use super::excess::Excess;
use super::refusal::{READ_AT_MOST, Said, excess, may_refuse, refusal_without_status};

/// What a refusal says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The prompt does not fit the model; how much was too much, where that is said.
    TooLong(Option<Excess>),
    /// It is refused for something else.
    Declined(Blame),
}

/// What of a changed request its refusal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The question for usage.
    Usage,
    /// Which message may stand where: a template, roles, system messages, their order.
    Place,
    /// What is said in it: a content filter.
    Words,
    /// Who asks: the credential, or a signature over what was sent.
    Credential,
    /// Nothing that could have been changed.
    Nothing,
}

/// Whether an answer of this status can be the refusal of what was changed. Payment (402), time (408), the
/// rate (429) and a gateway without its server (502 to 504) are not: the same bytes would meet them again.
#[must_use]
pub fn may_decline(status: u16) -> bool {
    may_refuse(status) || matches!(status, 401 | 403 | 404 | 405 | 415 | 500 | 501)
}

/// What an answer of this status says of a changed request; `None` where it refuses nothing of it. Only
/// where a prompt may be too long by its status ([`may_refuse`]) it may be so by its words.
#[must_use]
pub fn reason(status: u16, body: &[u8]) -> Option<Reason> {
    if !may_decline(status) {
        return None;
    }
    let said = Said::read(body.get(..READ_AT_MOST).unwrap_or(body));
    if said.is_about_limits() {
        return None;
    }
    if may_refuse(status) && said.too_long() {
        return Some(Reason::TooLong(excess(body)));
    }
    if said.names_limits() {
        return None;
    }
    Some(Reason::Declined(said.blames(status)))
}

/// The same for the first event of a stream, beside which no status stands.
#[must_use]
pub fn reason_without_status(event: &[u8]) -> Option<Reason> {
    if refusal_without_status(event)? == RefusalKind::TooLong {
        return Some(Reason::TooLong(excess(event)));
    }
    let said = Said::read(event.get(..READ_AT_MOST).unwrap_or(event));
    let status = said.status().unwrap_or(400);
    (!said.names_limits()).then(|| Reason::Declined(said.blames(status)))
}

/// What a quota, a bill and a rate are told in, in lower case, where no code tells them.
const LIMITS: [&str; 10] = [
    "quota",
    "billing",
    "credit balance",
    "insufficient balance",
    "insufficient credit",
    "available credits",
    "spending limit",
    "rate limit",
    "ratelimit",
    "too many requests",
];

/// What names the place of a message, in lower case. `role` is looked for as a word of its own.
const PLACES: [&str; 15] = [
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

/// Codes of a signature, or a digest, that does not fit what was sent.
const SIGNATURES: [&str; 5] = [
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "InvalidSignature",
    "AuthFailure.SignatureFailure",
    "BadDigest",
];

impl Said {
    /// Whether it names a quota, a bill or a rate in words.
    fn names_limits(&self) -> bool {
        self.any_of(&LIMITS)
    }

    /// What of a changed request it names, under this status.
    fn blames(&self, status: u16) -> Blame {
        if self.is_filtered() {
            Blame::Words
        } else if self.names_usage() {
            Blame::Usage
        } else if matches!(status, 401 | 403) || self.has_code(&SIGNATURES) {
            Blame::Credential
        } else if self.names_place() {
            Blame::Place
        } else {
            Blame::Nothing
        }
    }

    fn names_usage(&self) -> bool {
        let named = self.unknown_parameter();
        named.is_some_and(|name| name.starts_with("stream_options") || name == "include_usage")
    }

    fn names_place(&self) -> bool {
        self.any_of(&PLACES) || self.any(&|text| has_word(text, &["role", "roles"]))
    }

    fn any_of(&self, wordings: &[&str]) -> bool {
        self.any(&|text| wordings.iter().any(|wording| text.contains(wording)))
    }

    /// Whether something that it says, in lower case, is so.
    fn any(&self, is_so: &dyn Fn(&str) -> bool) -> bool {
        let mut told = self.messages.iter().chain(&self.params);
        told.any(|text| is_so(&text.to_lowercase()))
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

    fn told(status: u16, error: &Value) -> Option<Reason> {
        reason(status, json!({ "error": error }).to_string().as_bytes())
    }

    #[test]
    fn every_status_of_a_refusal_is_one_and_no_other() {
        let error = json!({"message": "no"});
        for status in [400, 404, 405, 413, 415, 422, 500, 501] {
            assert_eq!(
                told(status, &error),
                Some(Reason::Declined(Blame::Nothing)),
                "{status}"
            );
        }
        for status in [401, 403] {
            assert_eq!(
                told(status, &error),
                Some(Reason::Declined(Blame::Credential)),
                "{status}"
            );
        }
        let signed = json!({"message": "no", "code": "SignatureDoesNotMatch"});
        assert_eq!(
            told(400, &signed),
            Some(Reason::Declined(Blame::Credential))
        );
        for status in [200, 204, 301, 402, 408, 409, 429, 502, 503, 504, 529] {
            assert_eq!(told(status, &error), None, "{status}");
        }
    }

    /// As providers and local servers word it.
    #[test]
    fn what_names_the_place_of_a_message_is_told_from_what_does_not() {
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
                    told(status, &error),
                    Some(Reason::Declined(Blame::Place)),
                    "{message}"
                );
            }
        }
        let at = json!({"message": "Invalid value", "param": "messages[1].role"});
        assert_eq!(told(400, &at), Some(Reason::Declined(Blame::Place)));
        for message in [
            "The server had an error while processing your request.",
            "The model does not exist",
            "Internal error: controlled shutdown",
            "Function call c is missing its thought_signature",
            "It failed. Alternatively, ask again.",
        ] {
            let error = json!({"message": message});
            assert_eq!(
                told(500, &error),
                Some(Reason::Declined(Blame::Nothing)),
                "{message}"
            );
        }
    }

    #[test]
    fn the_question_for_usage_is_blamed_by_its_name_alone() {
        for message in [
            "Unknown parameter: 'stream_options'.",
            "include_usage is not supported",
        ] {
            assert_eq!(
                told(400, &json!({"message": message})),
                Some(Reason::Declined(Blame::Usage))
            );
        }
        let other = json!({"message": "Unknown parameter: 'seed'."});
        assert_eq!(told(400, &other), Some(Reason::Declined(Blame::Nothing)));
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
                assert_eq!(told(status, &error), None, "{status} {error}");
            }
        }
    }

    #[test]
    fn a_filter_is_one_under_every_status() {
        let error = json!({"message": "flagged", "code": "content_filter"});
        for status in [400, 403, 500] {
            assert_eq!(
                told(status, &error),
                Some(Reason::Declined(Blame::Words)),
                "{status}"
            );
        }
    }

    /// A prompt is too long by its own statuses alone: a 500 that says so is a failure like any other.
    #[test]
    fn too_long_keeps_its_own_statuses() {
        let error = json!({"message": "prompt is too long: 200251 tokens > 200000 maximum"});
        for status in [400, 413, 422] {
            assert!(matches!(
                told(status, &error),
                Some(Reason::TooLong(Some(_)))
            ));
        }
        assert_eq!(told(500, &error), Some(Reason::Declined(Blame::Nothing)));
    }

    #[test]
    fn inside_a_stream_the_code_stands_for_the_status() {
        let told =
            |error: Value| reason_without_status(json!({ "error": error }).to_string().as_bytes());
        for code in [400, 404, 405, 415, 422, 500, 501] {
            let error = json!({"code": code, "message": "no"});
            assert_eq!(
                told(error),
                Some(Reason::Declined(Blame::Nothing)),
                "{code}"
            );
        }
        for code in [401, 403] {
            let error = json!({"code": code, "message": "no"});
            assert_eq!(
                told(error),
                Some(Reason::Declined(Blame::Credential)),
                "{code}"
            );
        }
        for code in [402, 429, 502, 503] {
            let error = json!({"code": code, "message": "no"});
            assert_eq!(told(error), None, "{code}");
        }
        let llama = json!({"code": 500, "message": "Jinja Exception: System message must be at the beginning.", "type": "server_error"});
        assert_eq!(told(llama), Some(Reason::Declined(Blame::Place)));
        let quota = json!({"code": 403, "message": "You exceeded your current quota"});
        assert_eq!(told(quota), None);
    }
}
