use serde_json::{Value, json};

use super::*;
use crate::estimate_tokens;

fn message(role: &str, text: impl Into<String>) -> Value {
    json!({"role": role, "content": text.into()})
}

fn prompt(messages: &[Value]) -> Prompt {
    Prompt::render(json!({ "messages": messages }).as_object().unwrap())
}

fn cache() -> PromptCache {
    PromptCache::new(estimate_tokens())
}

/// A paragraph of about `tokens` tokens that differs with `seed`.
fn paragraph(seed: u32, tokens: u32) -> String {
    (0..tokens / 2)
        .map(|word| format!("{:07} ", seed * 10_000 + word))
        .collect()
}

#[test]
fn a_prompt_below_the_minimum_is_never_cached() {
    let mut cache = cache();
    let short = prompt(&[message("user", paragraph(1, 900))]);
    let first = cache.read_and_write("key", "m", &short);
    let again = cache.read_and_write("key", "m", &short);
    assert!(first.prompt_tokens > 800 && first.prompt_tokens < MINIMUM_TOKENS);
    assert_eq!(again.cached_tokens, 0);
    assert_eq!(again.prompt_tokens, first.prompt_tokens);
}

#[test]
fn a_repeated_prompt_is_read_from_cache_in_whole_steps() {
    let mut cache = cache();
    let long = prompt(&[message("user", paragraph(1, 2000))]);
    assert_eq!(cache.read_and_write("key", "m", &long).cached_tokens, 0);
    let again = cache.read_and_write("key", "m", &long);
    assert_eq!(again.cached_tokens % STEP_TOKENS, 0);
    assert!(again.uncached_tokens() < STEP_TOKENS, "{again:?}");
}

#[test]
fn a_longer_history_reads_the_whole_earlier_prompt_from_cache() {
    let mut cache = cache();
    let mut history = vec![message("system", paragraph(0, 1500))];
    let mut before = 0;
    for turn in 1..60 {
        history.push(message("user", paragraph(turn, 90)));
        let measured = cache.read_and_write("key", "m", &prompt(&history));
        if before > 0 {
            assert!(
                measured.cached_tokens + STEP_TOKENS > before,
                "turn {turn}: {measured:?}"
            );
            assert!(measured.cached_tokens <= before);
        }
        before = measured.prompt_tokens;
    }
}

#[test]
fn a_longer_message_reads_its_unchanged_beginning_from_cache() {
    let mut cache = cache();
    let block = paragraph(1, 3000);
    let first = cache.read_and_write("key", "m", &prompt(&[message("system", block.as_str())]));
    let grown = prompt(&[message("system", block + &paragraph(2, 500))]);
    let measured = cache.read_and_write("key", "m", &grown);
    // One step, and the piece that the old end was in.
    assert!(
        measured.cached_tokens + 2 * STEP_TOKENS > first.prompt_tokens,
        "{measured:?}"
    );
}

#[test]
fn a_changed_first_message_leaves_nothing_to_read_from_cache() {
    let mut cache = cache();
    let mut history = vec![
        message("system", "It is 09:41."),
        message("user", paragraph(1, 3000)),
    ];
    cache.read_and_write("key", "m", &prompt(&history));
    history[0] = message("system", "It is 09:42.");
    assert_eq!(
        cache
            .read_and_write("key", "m", &prompt(&history))
            .cached_tokens,
        0
    );
}

#[test]
fn a_changed_middle_message_keeps_the_cache_before_it() {
    let mut cache = cache();
    let mut history: Vec<Value> = (0..10)
        .map(|i| message("user", paragraph(i, 500)))
        .collect();
    cache.read_and_write("key", "m", &prompt(&history));
    history[6] = message("user", paragraph(99, 500));
    let measured = cache.read_and_write("key", "m", &prompt(&history));
    let kept_tokens = prompt(&history[..6]).tokens(&estimate_tokens());
    assert!(
        measured.cached_tokens <= kept_tokens && measured.cached_tokens + STEP_TOKENS > kept_tokens
    );
}

#[test]
fn a_changed_tool_leaves_nothing_to_read_from_cache() {
    let mut cache = cache();
    let request = |description: &str| {
        let request = json!({
            "tools": [{"type": "function", "function": {"name": "f", "description": description}}],
            "messages": [message("user", paragraph(1, 2000))],
        });
        Prompt::render(request.as_object().unwrap())
    };
    cache.read_and_write("key", "m", &request("looks up"));
    assert!(
        cache
            .read_and_write("key", "m", &request("looks up"))
            .cached_tokens
            > 0
    );
    assert_eq!(
        cache
            .read_and_write("key", "m", &request("finds"))
            .cached_tokens,
        0
    );
}

#[test]
fn credentials_and_models_share_no_cache() {
    let mut cache = cache();
    let long = prompt(&[message("user", paragraph(1, 2000))]);
    cache.read_and_write("key", "m", &long);
    assert_eq!(cache.read_and_write("other", "m", &long).cached_tokens, 0);
    assert_eq!(cache.read_and_write("key", "n", &long).cached_tokens, 0);
}

#[test]
fn the_cache_keeps_no_prompt_that_was_only_read() {
    let mut cache = cache();
    let long = prompt(&[message("user", paragraph(1, 2000))]);
    let (_, path) = cache.read("key", "m", &long);
    assert_eq!(cache.read("key", "m", &long).0.cached_tokens, 0);
    cache.store(&path);
    assert!(cache.read("key", "m", &long).0.cached_tokens > 0);
}

#[test]
fn a_known_history_is_not_counted_again() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let counted = Arc::new(AtomicUsize::new(0));
    let tally = Arc::clone(&counted);
    let mut cache = PromptCache::new(Arc::new(move |text: &str| {
        tally.fetch_add(text.len(), Ordering::Relaxed);
        u32::try_from(text.len() / 4).unwrap()
    }));
    let mut history = Vec::new();
    for turn in 0..200 {
        history.push(message("user", paragraph(turn, 60)));
        cache.read_and_write("key", "m", &prompt(&history));
    }
    let total: usize = prompt(&history).segments().iter().map(String::len).sum();
    assert_eq!(counted.load(Ordering::Relaxed), total);
}

#[test]
fn a_unit_cache_reads_prompts_from_one_unit_on() {
    let mut cache = cache();
    cache.set_kind(CacheKind::Units);
    let mut history = vec![message("user", paragraph(1, 150))];
    let first = cache.read_and_write("key", "m", &prompt(&history));
    history.push(message("assistant", paragraph(2, 150)));
    let second = cache.read_and_write("key", "m", &prompt(&history));
    assert_eq!(second.cached_tokens % UNIT_TOKENS, 0);
    assert!(
        second.cached_tokens > 0
            && second.cached_tokens + UNIT_TOKENS > first.prompt_tokens - UNIT_TOKENS
    );
    assert_eq!(second.written_tokens(), None);
    let tiny = prompt(&[message("user", "hello")]);
    cache.read_and_write("key", "m", &tiny);
    assert_eq!(cache.read_and_write("key", "m", &tiny).cached_tokens, 0);
}

#[test]
fn text_before_an_explicit_breakpoint_is_read_from_cache_whatever_follows() {
    let block = |behind: &str, seed: u32| {
        let first = json!({"type": "text", "text": paragraph(0, 1500), "prompt_cache_breakpoint": {"mode": "explicit"}});
        let parts = json!([first, {"type": "text", "text": behind}]);
        let history = [
            json!({"role": "system", "content": parts}),
            message("user", paragraph(seed, 500)),
        ];
        let request = json!({"messages": history});
        Prompt::render(request.as_object().unwrap())
    };
    let mut cache = cache();
    cache.set_kind(CacheKind::Breakpoints);
    assert_eq!(
        cache
            .read_and_write("key", "m", &block("one", 1))
            .cached_tokens,
        0
    );
    let second = cache.read_and_write("key", "m", &block("another", 2));
    assert!(second.cached_tokens >= 1_408, "{second:?}");
    assert!(
        second.cached_tokens < second.prompt_tokens - 400,
        "{second:?}"
    );
}

#[test]
fn a_breakpoint_cache_reads_only_whole_prefixes_and_writes_the_rest() {
    let mut cache = cache();
    cache.set_kind(CacheKind::Breakpoints);
    let mut history = vec![message("system", paragraph(0, 1500))];
    history.push(message("user", paragraph(1, 500)));
    let first = cache.read_and_write("key", "m", &prompt(&history));
    assert_eq!(
        (first.cached_tokens, first.written_tokens()),
        (0, Some(first.prompt_tokens))
    );
    history.push(message("assistant", paragraph(2, 500)));
    let grown = cache.read_and_write("key", "m", &prompt(&history));
    assert_eq!(
        grown.cached_tokens,
        first.prompt_tokens - first.prompt_tokens % STEP_TOKENS
    );
    assert_eq!(grown.written_tokens(), Some(grown.uncached_tokens()));
    // The beginning is the same, and no breakpoint is in it.
    let other = [history[0].clone(), message("user", paragraph(9, 500))];
    assert_eq!(
        cache
            .read_and_write("key", "m", &prompt(&other))
            .cached_tokens,
        0
    );
    cache.set_kind(CacheKind::Steps);
    assert!(
        cache
            .read_and_write("key", "m", &prompt(&other))
            .cached_tokens
            >= 1408
    );
    let short = cache.read_and_write("key", "m", &prompt(&[message("user", "hello")]));
    assert_eq!(short.written_tokens(), None);
}
