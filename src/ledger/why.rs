//! Explains one request in words, from its line and the line that it is compared with: see [`before_it`].

use std::time::Duration;

use serde_json::Value;

use super::line::{Line, Text};
use super::table::shown_name;
use super::text::{count, dollars, percent};
use super::{estimate, reasons, segments, text};
use crate::model_prices::PriceTable;
use crate::report::grouped;

/// After a longer pause, providers may have dropped a prompt from their cache; the shortest lifetime is five minutes.
const SHORTEST_CACHE_LIFE: Duration = Duration::from_mins(5);
/// Providers cache no shorter prompt, or only from more tokens on.
const SMALLEST_CACHED_PROMPT: u64 = 1_024;

/// What each cause means, in words.
const CAUSES: &[(&str, &str)] = &[
    (
        "activation",
        "Observations replaced more messages (an activation). The provider had to read what follows them again.",
    ),
    (
        "reflection",
        "A reflection wrote the observations anew. The provider had to read them and what follows again.",
    ),
    (
        "tools_changed",
        "The client changed its tools. They stand before everything else, so the whole prompt was new.",
    ),
    (
        "system_changed",
        "The client changed its system message, so everything behind it was new.",
    ),
    (
        "message_changed",
        "The client changed an older message, so everything behind it was new.",
    ),
    (
        "message_inserted",
        "The client inserted messages before older ones, so everything from there on was new.",
    ),
    (
        "forked",
        "The conversation went on from an earlier message, so what follows that message was new.",
    ),
    (
        "model_changed",
        "The client changed the model. Each model has a cache of its own.",
    ),
    (
        "idle",
        "The pause was longer than the provider keeps its cache.",
    ),
    (
        "below_minimum",
        "The prompt is shorter than the shortest that the provider caches.",
    ),
    (
        "memory_switched",
        "Memory was on for one request and off for the other, so the prompts differ.",
    ),
    (
        "cache_marks",
        "This provider caches up to marks in the request. One of the two requests had none, or none reached back to the end of \
         what the request before left.",
    ),
    (
        "provider",
        "The prompt had the same beginning as before. The provider did not use its cache; only the provider knows why.",
    ),
];

/// The request, what happened since the one before, and why the cache gave what it gave.
pub fn explain(line: &Line<'_>, before: Option<&Line<'_>>, prices: &PriceTable) -> String {
    let mut sentences = vec![what(line)];
    sentences.extend(body(line));
    sentences.extend(memory(line));
    sentences.extend(segments::draw(line));
    sentences.push(tokens(line, prices));
    sentences.push(answer(line));
    sentences.push(String::new());
    sentences.push(before_it(line, before));
    sentences.extend(cache_causes(line, before));
    sentences.join("\n") + "\n"
}

fn what(line: &Line<'_>) -> String {
    let name = |text: Option<&Text<'_>>| shown_name(text.map_or("", Text::as_str));
    format!(
        "Request {} of {}.\nTenant {}, conversation {}, model {}.",
        name(line.request_id.as_ref()),
        line.time.as_str(),
        shown_name(line.tenant.as_str()),
        name(line.thread.as_ref()),
        name(line.model.as_ref()),
    )
}

fn body(line: &Line<'_>) -> Option<String> {
    Some(format!(
        "The client sent {} messages in {} bytes. The provider received {} messages in {} bytes.",
        count(line.messages_received),
        grouped(line.bytes_received?),
        count(line.messages_sent),
        grouped(line.bytes_sent?),
    ))
}

fn memory(line: &Line<'_>) -> Option<String> {
    let state = line.memory.as_ref()?.as_str();
    let reason = line.reason.as_ref().map_or_else(String::new, |reason| {
        let sentence = reasons::sentence(reason.as_str()).map_or_else(
            || {
                format!(
                    "The reason in the line is `{}`.",
                    shown_name(reason.as_str())
                )
            },
            str::to_owned,
        );
        format!(" {sentence}")
    });
    let pause = pause_of_memory(line);
    let text = match (state, &line.snapshot) {
        ("active", Some(snapshot)) => format!(
            "Observations (snapshot {}) replaced {} messages.",
            shown_name(snapshot.as_str()),
            count(line.cut)
        ),
        ("active", None) => "Memory changed the request.".to_owned(),
        ("watching", _) => "Memory left all messages as they were.".to_owned(),
        ("off", _) => "Memory was off.".to_owned(),
        _ => "Memory could not be used. The original request was sent.".to_owned(),
    };
    Some(text + &reason + &pause)
}

/// Since when memory's calls wait, and until when.
fn pause_of_memory(line: &Line<'_>) -> String {
    let shown = |time: Option<&Text<'_>>| time.map(|time| shown_name(time.as_str()));
    match (shown(line.since.as_ref()), shown(line.until.as_ref())) {
        (Some(since), Some(until)) => format!(" They wait since {since}, until {until}."),
        (Some(since), None) => format!(" They wait since {since}."),
        (None, Some(until)) => format!(" They wait until {until}."),
        (None, None) => String::new(),
    }
}

fn tokens(line: &Line<'_>, prices: &PriceTable) -> String {
    let Some(prompt) = line.prompt_tokens else {
        let about = line.estimated_prompt_tokens;
        let about = about.map_or_else(String::new, |tokens| {
            format!(
                " By its bytes, the prompt had about {} tokens.",
                grouped(tokens)
            )
        });
        return format!(
            "The provider reported no token counts, so cache and cost are not known.{about}"
        );
    };
    let cached = match line.cached_tokens {
        Some(cached) => {
            let share = (prompt > 0).then(|| cached as f64 / prompt as f64);
            format!(
                "{} of them came from its cache ({}).",
                grouped(cached),
                percent(share)
            )
        }
        None => "It did not report how many came from its cache.".to_owned(),
    };
    let price = prices.find(line.model_name());
    let cost = estimate::billed(line).zip(price);
    let cost = match (cost, line.usage.cost().filter(|_| price.is_none())) {
        (Some((tokens, price)), _) => format!("They cost {}.", dollars(Some(price.cost(&tokens)))),
        (None, Some(reported)) => {
            format!(
                "The provider says that they cost {}.",
                dollars(Some(reported))
            )
        }
        (None, None) => "The price is not known.".to_owned(),
    };
    let ratio = line.token_ratio.map_or_else(String::new, |ratio| {
        format!(" Where Diarist counts one token of a message, it counts {ratio:.2}.")
    });
    format!(
        "The provider counted {} tokens of prompt and {} of answer. {cached} {cost}{ratio}",
        grouped(prompt),
        count(line.completion_tokens)
    )
}

fn answer(line: &Line<'_>) -> String {
    let status = line.status.map_or_else(
        || "The client left before an answer".to_owned(),
        |status| format!("The answer had status {status}"),
    );
    let time = line.total_ms.map_or_else(String::new, |ms| {
        format!(" after {}", pause(Duration::from_millis(ms)))
    });
    let end = match line.ended.as_ref().map(Text::as_str) {
        Some("hung_up") => " The client left or did not read, or its body was refused.",
        Some("upstream_error") => " The upstream broke off, or did not answer.",
        _ => "",
    };
    let error = line.error.as_ref().map_or(String::new(), |error| {
        format!(" It held an error: {}.", shown_name(error.as_str()))
    });
    format!("{status}{time}.{end}{error}")
}

/// The request that ended last before this one did. Requests of one conversation may overlap, so it is not always the
/// one that came last.
fn before_it(line: &Line<'_>, before: Option<&Line<'_>>) -> String {
    let Some(before) = before else {
        return "No earlier request of this tenant and conversation has a line.".to_owned();
    };
    let since = idle(line, before).map_or_else(String::new, |idle| match idle.as_millis() {
        0 => " and ended while this one was in progress".to_owned(),
        _ => format!(" and ended {} before this one came", pause(idle)),
    });
    let tokens = before.prompt_tokens.map_or_else(
        || "with unknown tokens".to_owned(),
        |tokens| format!("with {} tokens of prompt", grouped(tokens)),
    );
    format!(
        "It is compared with the request that came at {}{since}, {tokens}.",
        before.time.as_str()
    )
}

/// Why the cache gave what it gave: what the line says itself, or else what a comparison shows.
fn cache_causes(line: &Line<'_>, before: Option<&Line<'_>>) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(expected) = line.expected_cached_tokens {
        reasons.push(format!(
            "About {} tokens were expected from the cache.",
            grouped(expected)
        ));
    }
    match line.verdict.as_ref().map(Text::as_str) {
        Some("warm") => reasons.push("The cache worked as expected.".to_owned()),
        Some("cold_start") => {
            reasons.push(
                "Diarist knew no earlier request of this conversation: it is the first one, or the first since Diarist \
                 started."
                    .to_owned(),
            );
        }
        Some("unknown") => reasons.push("Whether the cache was used is not known.".to_owned()),
        _ => {}
    }
    if let Some(cause) = line.verdict_cause.as_ref() {
        let known = CAUSES.iter().find(|(name, _)| *name == cause.as_str());
        reasons.push(known.map_or_else(
            || format!("The cause in the line is `{}`.", shown_name(cause.as_str())),
            |(_, text)| (*text).to_owned(),
        ));
        reasons.extend(changed(line));
    } else if line.verdict.is_none() {
        reasons.extend(
            before
                .map(|before| compared(line, before))
                .unwrap_or_default(),
        );
    }
    reasons
}

fn changed(line: &Line<'_>) -> Option<String> {
    let written = |value: &Value| match value {
        Value::String(text) => shown_name(text),
        other => other.to_string(),
    };
    let what = written(line.changed.as_ref()?);
    let by = line
        .changed_by
        .as_ref()
        .map_or(String::new(), |by| format!(", by {}", written(by)));
    let common = line.common_bytes.map_or(String::new(), |bytes| {
        format!(
            " The first {} bytes are the same as before.",
            grouped(bytes)
        )
    });
    Some(format!("Changed: {what}{by}.{common}"))
}

/// What differs between the two lines.
fn compared(line: &Line<'_>, before: &Line<'_>) -> Vec<String> {
    let cause = |name: &str| {
        let found = CAUSES.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, text)| text).to_owned()
    };
    if worked(line, before) {
        return vec![
            "The cache worked: most of what the two prompts can have in common came from it."
                .to_owned(),
        ];
    }
    let mut found = Vec::new();
    if line.model != before.model {
        found.push(cause("model_changed"));
    }
    let is_off = |line: &Line<'_>| line.memory.as_ref().map(Text::as_str) == Some("off");
    if is_off(line) != is_off(before) {
        found.push(cause("memory_switched"));
    } else if line.snapshot != before.snapshot {
        let reflected = line.cause.as_ref().map(Text::as_str) == Some("reflection");
        found.push(cause(if reflected {
            "reflection"
        } else {
            "activation"
        }));
    }
    if line
        .prompt_tokens
        .is_some_and(|tokens| tokens < SMALLEST_CACHED_PROMPT)
    {
        found.push(cause("below_minimum"));
    }
    if idle(line, before).is_some_and(|idle| idle > SHORTEST_CACHE_LIFE) {
        found.push("The pause may have been longer than the provider keeps its cache.".to_owned());
    }
    if found.is_empty() {
        found.push(
            "The two lines show no cause of a miss. If there was one, the client changed its system message, tools or \
             history, or the provider did not use its cache."
                .to_owned(),
        );
    }
    found
}

/// At least four fifths of the shorter of both prompts came from the cache.
fn worked(line: &Line<'_>, before: &Line<'_>) -> bool {
    let shorter = line.prompt_tokens.zip(before.prompt_tokens);
    let shorter = shorter.map(|(this, other)| this.min(other));
    let cached = line.cached_tokens.zip(shorter);
    cached.is_some_and(|(cached, shorter)| {
        u128::from(cached) * 5 >= u128::from(shorter) * 4 && cached > 0
    })
}

fn idle(line: &Line<'_>, before: &Line<'_>) -> Option<Duration> {
    if let Some(ms) = line.idle_ms {
        return Some(Duration::from_millis(ms));
    }
    let idle = line.began()?.duration_since(before.end()?);
    Some(idle.try_into().unwrap_or(Duration::ZERO))
}

fn pause(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", text::count(Some(seconds / 3_600))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"{"time":"2026-11-23T11:20:00.000Z","request_id":"a","tenant":"t","thread":"c","model":"m","memory":"watching","prompt_tokens":9000}"#;

    fn explained(fields: &str) -> String {
        let memory = if fields.contains(r#""memory":"#) {
            ""
        } else {
            r#""memory":"active","#
        };
        let text = format!(
            r#"{{"time":"2026-11-23T11:23:00.000Z","request_id":"b","tenant":"t","thread":"c",{memory}"cut":39,"status":200,"total_ms":1500,{fields}}}"#
        );
        let (_, line) = Line::parse(text.as_bytes()).unwrap();
        let (_, before) = Line::parse(BEFORE.as_bytes()).unwrap();
        let prices = PriceTable::new(["m=2,0.5,10".parse().unwrap()]);
        explain(&line, Some(&before), &prices)
    }

    #[test]
    fn an_activation_is_recognised_by_comparing_two_lines() {
        let text = explained(
            r#""model":"m","snapshot":"12","cause":"threshold","prompt_tokens":2000,"cached_tokens":500,"completion_tokens":100,"token_ratio":1.3"#,
        );
        for expected in [
            "it counts 1.30.",
            "Observations (snapshot 12) replaced 39 messages.",
            "500 of them came from its cache (25.0 %). They cost $0.0043.",
            "The answer had status 200 after 1 s.",
            "came at 2026-11-23T11:20:00.000Z and ended 3 min before this one came, with 9,000 tokens",
            "(an activation)",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("pause"), "{text}");
        let text =
            explained(r#""model":"n","snapshot":"12","cause":"reflection","prompt_tokens":9"#);
        for expected in [
            "A reflection",
            "changed the model",
            "shorter than",
            "price is not",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn no_cause_is_given_if_the_cache_worked() {
        let text =
            explained(r#""model":"m","snapshot":"12","prompt_tokens":9900,"cached_tokens":7200"#);
        assert!(
            text.contains("The cache worked") && !text.contains("activation"),
            "{text}"
        );
        let text =
            explained(r#""model":"m","snapshot":"12","prompt_tokens":9900,"cached_tokens":7199"#);
        assert!(
            text.contains("activation") && !text.contains("worked"),
            "{text}"
        );
    }

    #[test]
    fn the_verdict_in_the_line_overrides_the_comparison() {
        let text = explained(
            r#""model":"n","verdict":"miss","verdict_cause":"tools_changed","changed":"tools","changed_by":"client","common_bytes":1200,"idle_ms":9000000,"expected_cached_tokens":8000"#,
        );
        for expected in [
            "The client changed its tools.",
            "Changed: tools, by client. The first 1,200 bytes",
            "ended 2 h before",
            "About 8,000 tokens were expected",
            "reported no token counts",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("changed the model"), "{text}");
        let text = explained(r#""model":"m","verdict":"warm""#);
        assert!(text.contains("worked as expected"), "{text}");
        let text = explained(r#""model":"m","verdict":"miss","verdict_cause":"new_one""#);
        assert!(text.contains("`new_one`"), "{text}");
    }

    /// After a restart, the cache still holds what the process has forgotten.
    #[test]
    fn a_cold_start_explanation_makes_no_claim_about_the_cache() {
        let text = explained(
            r#""model":"m","verdict":"cold_start","prompt_tokens":4883,"cached_tokens":4352"#,
        );
        let expected = "Diarist knew no earlier request of this conversation: it is the first one, or the first since \
                        Diarist started.";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("nothing was in"), "{text}");
    }

    #[test]
    fn a_reason_is_explained_in_words_with_its_times() {
        let text = explained(
            r#""model":"m","memory":"watching","reason":"observer_resting","since":"2026-11-23T11:20:00.000Z","until":"2026-11-23T11:30:00.000Z""#,
        );
        let expected = "Memory makes no calls with the client's credential for now, because of its rate limit. They wait \
                        since 2026-11-23T11:20:00.000Z, until 2026-11-23T11:30:00.000Z.";
        assert!(text.contains(expected), "{text}");
        let text = explained(r#""model":"m","memory":"bypass","reason":"new_one""#);
        assert!(
            text.contains("The reason in the line is `new_one`."),
            "{text}"
        );
    }

    #[test]
    fn every_documented_reason_and_cause_has_an_explanation() {
        let document = include_str!("../../docs/audit.md");
        let names = |heading: &str| {
            let (_, section) = document
                .split_once(&format!("\n### `{heading}`\n"))
                .unwrap();
            let section = section.split("\n#").next().unwrap();
            let rows = section.lines().filter(|line| line.starts_with("| `"));
            let cells = rows.map(|row| row.split('|').nth(1).unwrap().to_owned());
            let names = cells.flat_map(|cell| {
                let quoted: Vec<String> = cell
                    .split('`')
                    .skip(1)
                    .step_by(2)
                    .map(str::to_owned)
                    .collect();
                quoted
            });
            names.collect::<Vec<_>>()
        };
        let reasons = names("reason");
        assert!(reasons.len() > 40, "{reasons:?}");
        for reason in reasons {
            let text = explained(&format!(
                r#""model":"m","memory":"watching","reason":"{reason}""#
            ));
            assert!(!text.contains(&format!("`{reason}`")), "{text}");
        }
        let causes = names("verdict_cause");
        assert!(causes.len() > 10, "{causes:?}");
        for cause in causes {
            let text = explained(&format!(
                r#""model":"m","verdict":"miss","verdict_cause":"{cause}""#
            ));
            assert!(!text.contains(&format!("`{cause}`")), "{text}");
        }
    }

    #[test]
    fn an_explanation_reports_that_no_line_shows_a_cause() {
        let (_, line) = Line::parse(BEFORE.as_bytes()).unwrap();
        let prices = PriceTable::new([]);
        assert!(explain(&line, None, &prices).contains("No earlier request"));
        let same = explain(&line, Some(&line), &prices);
        assert!(same.contains("show no cause"), "{same}");
    }
}
