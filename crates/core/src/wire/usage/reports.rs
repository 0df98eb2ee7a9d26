//! Where providers report usage in an answer, and which report counts if there are several. Says nothing of what the
//! numbers of a report mean: [`super`] does. Called by the proxy and by `llm`.

use serde_json::Value;

use super::{RawUsage, Usage, at, member, raw};

/// What an answer, or one chunk of a stream, reports about usage: every place that a provider uses. An answer fills one or
/// two of them.
#[derive(Clone, Debug, Default)]
pub struct UsageReports {
    /// The member `usage`.
    pub usage: Option<Value>,
    /// Gemini's `usageMetadata`.
    pub usage_metadata: Option<Value>,
    /// In Responses, `usage` of the member `response`.
    pub response: Option<Value>,
    /// In Anthropic's first event, `usage` of the member `message`.
    pub message: Option<Value>,
    /// Groq's `usage` of the member `x_groq`.
    pub x_groq: Option<Value>,
    /// In some versions of Kimi, `usage` of the last choice.
    pub last_choice: Option<Value>,
    /// llama.cpp's `timings`.
    pub timings: Option<Value>,
}

impl UsageReports {
    /// The reports in `answer`.
    #[must_use]
    pub fn in_answer(answer: &Value) -> Self {
        let choices = member(answer, "choices").and_then(Value::as_array);
        let last_choice = choices.and_then(|choices| choices.last());
        Self {
            usage: member(answer, "usage").cloned(),
            usage_metadata: member(answer, "usageMetadata").cloned(),
            response: at(answer, "response/usage").cloned(),
            message: at(answer, "message/usage").cloned(),
            x_groq: at(answer, "x_groq/usage").cloned(),
            last_choice: last_choice
                .and_then(|choice| member(choice, "usage"))
                .cloned(),
            timings: member(answer, "timings").cloned(),
        }
    }

    /// The tokens, and the report as it came; `None` for each that no report has. The first report that has it counts.
    #[must_use]
    pub fn read(self) -> (Option<Usage>, Option<RawUsage>) {
        let reports = [
            self.usage,
            self.usage_metadata,
            self.response,
            self.message,
            self.x_groq,
            self.last_choice,
        ];
        let mut usage = reports.iter().flatten().find_map(Usage::from_json);
        // llama.cpp reports its cache beside the usage in older builds, and has only this in a stream that was not
        // asked for usage.
        if let Some(timings) = self.timings.as_ref().and_then(Usage::from_timings) {
            let usage = usage.get_or_insert(timings);
            usage.cached = usage.cached.or(timings.cached);
        }
        (usage, reports.into_iter().flatten().find_map(raw::read))
    }
}
