//! The usage report of every provider, in the form in which it comes, cut at every byte. `usage_shapes.jsonl` has one
//! answer in each line: the events of a stream or a whole body, and the numbers that must be read.

use serde_json::Value;

use super::*;

fn shapes() -> impl Iterator<Item = Value> {
    let lines = include_str!("usage_shapes.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("a line of the corpus is JSON"))
}

/// The bytes of the answer with this line ending.
fn bytes_of(shape: &Value, ending: &str) -> Vec<u8> {
    let Some(events) = shape["events"].as_array() else {
        return shape["body"].to_string().into_bytes();
    };
    let name = |event: &Value| {
        event["type"]
            .as_str()
            .map_or(String::new(), |name| format!("event: {name}{ending}"))
    };
    let events = events
        .iter()
        .map(|event| format!("{}data: {event}{ending}{ending}", name(event)));
    let done = format!("data: [DONE]{ending}{ending}");
    let done = if shape["done"] == true {
        done.as_str()
    } else {
        ""
    };
    (events.collect::<String>() + done).into_bytes()
}

fn wanted(shape: &Value) -> Option<Usage> {
    let usage = shape["usage"].as_object()?;
    let number = |name: &str| usage[name].as_u64();
    Some(Usage {
        prompt: number("prompt"),
        cached: number("cached"),
        cache_write: number("cache_write"),
        completion: number("completion"),
        reasoning: number("reasoning"),
        impossible_cache: usage.contains_key("impossible"),
    })
}

fn spec_of(shape: &Value) -> TeeSpec {
    spec(shape["events"].is_array(), Encoding::Identity)
}

#[tokio::test]
async fn the_usage_of_every_provider_is_read_however_its_answer_is_cut() {
    let mut names = Vec::new();
    for shape in shapes() {
        let name = shape["name"].as_str().unwrap().to_owned();
        let expected = wanted(&shape);
        for ending in ["\n", "\r\n"] {
            let bytes = bytes_of(&shape, ending);
            for at in 0..=bytes.len() {
                let (head, tail) = bytes.split_at(at);
                let (got, observed) = run(body(vec![head, tail]), spec_of(&shape)).await;
                assert_eq!(observed.usage, expected, "{name}, {ending:?}, cut at {at}");
                assert_eq!(got, bytes, "{name}, {ending:?}, cut at {at}");
            }
            let (_, observed) = run(body(bytes.chunks(1).collect()), spec_of(&shape)).await;
            assert_eq!(observed.usage, expected, "{name}, {ending:?}, byte by byte");
        }
        names.push(name);
    }
    for provider in [
        "openai",
        "azure",
        "anthropic",
        "deepseek",
        "xai",
        "openrouter",
        "gemini",
        "mistral",
        "groq",
        "moonshot",
        "vllm",
        "sglang",
        "llama.cpp",
        "bifrost",
    ] {
        assert!(
            names.iter().any(|name| name.starts_with(provider)),
            "{provider}"
        );
    }
}

/// What was not reported is unknown: a stream that ends too early has no other number than the whole one.
#[tokio::test]
async fn a_stream_that_ends_early_reports_no_wrong_usage() {
    for shape in shapes().filter(|shape| shape["events"].is_array()) {
        let bytes = bytes_of(&shape, "\n");
        let whole = wanted(&shape).unwrap_or_default();
        let is_known = |found: Option<u64>, whole: Option<u64>| found.is_none() || found == whole;
        for at in 0..bytes.len() {
            let (_, observed) = run(body(vec![&bytes[..at]]), spec_of(&shape)).await;
            let usage = observed.usage.unwrap_or_default();
            // The tokens of the answer grow from report to report.
            let is_right = is_known(usage.prompt, whole.prompt)
                && is_known(usage.cached, whole.cached)
                && is_known(usage.cache_write, whole.cache_write)
                && usage.completion <= whole.completion;
            assert!(is_right, "{}, {at} bytes: {usage:?}", shape["name"]);
        }
    }
}
