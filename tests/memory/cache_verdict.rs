//! The audit says why a request hit or missed the provider's prompt cache. The scripted provider simulates such a
//! cache, and what it did is the measure.

use std::time::Duration;

use diarist_provider::{CallerKind, FixedReply, OBSERVER_MODEL, Options};
use serde_json::{Value, json};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually, metric, refusing};

const ME: &str = "Bearer sk-test";

/// Turns after which the prompt is several times the minimum of the cache.
const LONG: usize = 12;

/// What of an audit line is about the cache.
#[derive(Debug, PartialEq, Eq)]
struct Receipt {
    verdict: String,
    cause: Option<String>,
    changed: Option<String>,
    changed_by: Option<String>,
}

fn receipt(
    verdict: &str,
    cause: impl Into<Option<&'static str>>,
    changed: impl Into<Option<&'static str>>,
    changed_by: impl Into<Option<&'static str>>,
) -> Receipt {
    Receipt {
        verdict: verdict.to_owned(),
        cause: cause.into().map(str::to_owned),
        changed: changed.into().map(str::to_owned),
        changed_by: changed_by.into().map(str::to_owned),
    }
}

impl Rig {
    /// Thresholds that no test reaches.
    async fn without_activation() -> Self {
        Self::with(Options::default(), &[]).await
    }

    /// Sends `body`, and returns its audit line. The line says of the cache what the provider measured.
    async fn receipt_of(&self, headers: &[(&str, &str)], body: &Value) -> (Receipt, Value) {
        let answer = self.send_as(ME, headers, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.quiet().await;
        let line = self.audit_entry(&answer).await;
        let usage = self.last().prompt_usage.unwrap();
        assert_eq!(line["prompt_tokens"], usage.prompt_tokens, "{line}");
        assert_eq!(line["cached_tokens"], usage.cached_tokens, "{line}");
        let expected = match line["verdict"].as_str() {
            Some("miss") => usage.cached_tokens == 0,
            Some("partial") => usage.cached_tokens > 0,
            Some("warm") => {
                line["expected_cached_tokens"].as_u64()
                    <= Some(u64::from(usage.cached_tokens) + 128)
            }
            _ => true,
        };
        assert!(expected, "{line}");
        let text = |field: &str| line[field].as_str().map(str::to_owned);
        let receipt = Receipt {
            verdict: text("verdict").unwrap(),
            cause: text("verdict_cause"),
            changed: text("changed"),
            changed_by: text("changed_by"),
        };
        (receipt, line)
    }

    async fn receipt(&self, body: &Value) -> Receipt {
        self.receipt_of(&[], body).await.0
    }

    /// The receipt of `body` after a long conversation that was sent as it is.
    async fn after(&self, conversation: &SampleConversation, body: &Value) -> Receipt {
        self.play_turns(conversation, LONG..=LONG).await;
        self.receipt(body).await
    }
}

fn with_tools(mut body: Value, name: &str) -> Value {
    body["tools"] =
        json!([{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_only_grows_is_warm_as_soon_as_it_is_long_enough() {
    let rig = Rig::without_activation().await;
    let conversation = SampleConversation::new("ada");
    let mut verdicts = Vec::new();
    let mut before = 0;
    for turn in 1..=LONG {
        let (receipt, line) = rig.receipt_of(&[], &conversation.body(turn)).await;
        assert_eq!(line["changed"], Value::Null, "{line}");
        // Every part of the request before is in this one.
        assert_eq!(line["common_bytes"].as_u64().unwrap_or(0), before, "{line}");
        assert_eq!(line["idle_ms"].is_u64(), turn > 1, "{line}");
        let spans = conversation
            .messages(turn)
            .into_iter()
            .map(|message| message.to_string().len() as u64);
        before = spans.sum();
        verdicts.push(receipt);
    }
    assert_eq!(verdicts[0], receipt("cold_start", None, None, None));
    assert_eq!(verdicts[1], receipt("miss", "below_minimum", None, None));
    assert_eq!(verdicts[LONG - 1], receipt("warm", None, None, None));
    let short = |verdict: &&Receipt| verdict.cause.as_deref() == Some("below_minimum");
    let warm = |verdict: &&Receipt| verdict.verdict == "warm";
    let counts = (
        verdicts.iter().filter(short).count(),
        verdicts.iter().filter(warm).count(),
    );
    assert_eq!(counts.0 + counts.1, LONG - 1, "{verdicts:?}");
    // The same again is warm too.
    assert_eq!(
        rig.receipt(&conversation.body(LONG)).await,
        verdicts[LONG - 1]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verdict_names_each_change_by_the_client() {
    let rig = Rig::without_activation().await;
    let next = |name: &str| SampleConversation::new(name).body(LONG + 1);

    let body = with_tools(next("ada"), "look_up");
    let found = rig.after(&SampleConversation::new("ada"), &body).await;
    assert_eq!(found, receipt("miss", "tools_changed", "tools", "client"));
    assert_eq!(rig.receipt(&body).await, receipt("warm", None, None, None));
    let found = rig.receipt(&with_tools(next("ada"), "find")).await;
    assert_eq!(found, receipt("miss", "tools_changed", "tools", "client"));

    let mut body = next("bob");
    body["messages"][0]["content"] = json!("You are an impatient assistant.");
    let found = rig.after(&SampleConversation::new("bob"), &body).await;
    assert_eq!(found, receipt("miss", "system_changed", "system", "client"));

    let mut body = next("cleo");
    body["messages"][12]["content"] = json!("What was said here is different now.");
    let found = rig.after(&SampleConversation::new("cleo"), &body).await;
    assert_eq!(
        found,
        receipt("partial", "message_changed", "message 12", "client")
    );

    let mut body = next("dora");
    let inserted = json!({"role": "user", "content": "By the way, one more thing."});
    body["messages"]
        .as_array_mut()
        .unwrap()
        .insert(14, inserted);
    let found = rig.after(&SampleConversation::new("dora"), &body).await;
    assert_eq!(
        found,
        receipt("partial", "message_inserted", "message 14", "client")
    );

    // An early change leaves less than the cache's minimum.
    let mut body = next("emil");
    body["messages"][3]["content"] = json!("What was said here is different now.");
    let found = rig.after(&SampleConversation::new("emil"), &body).await;
    assert_eq!(
        found,
        receipt("miss", "message_changed", "message 3", "client")
    );

    let mut body = SampleConversation::new("fred").body(LONG - 2);
    let newest = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
    newest["content"] = json!(format!(
        "Back to here. {}",
        "And now to something else. ".repeat(60)
    ));
    let found = rig.after(&SampleConversation::new("fred"), &body).await;
    assert_eq!(found, receipt("partial", "forked", "message 19", "client"));

    let conversation = SampleConversation {
        model: "gpt-other",
        ..SampleConversation::new("gina")
    };
    let found = rig
        .after(
            &SampleConversation::new("gina"),
            &conversation.body(LONG + 1),
        )
        .await;
    assert_eq!(found, receipt("miss", "model_changed", None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_miss_of_an_unchanged_prefix_names_provider_or_idle_time() {
    let rig = Rig::without_activation().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, LONG..=LONG).await;
    rig.provider.forget_prompts();
    let found = rig.receipt(&conversation.body(LONG + 1)).await;
    assert_eq!(found, receipt("miss", "provider", None, None));
    rig.provider.forget_prompts();
    rig.skip_time(Duration::from_mins(6));
    let (found, line) = rig.receipt_of(&[], &conversation.body(LONG + 2)).await;
    assert_eq!(found, receipt("miss", "idle", None, None));
    assert!(line["idle_ms"].as_u64().unwrap() >= 360_000, "{line}");
    // A cache that held longer than promised is warm.
    rig.skip_time(Duration::from_mins(6));
    let found = rig.receipt(&conversation.body(LONG + 3)).await;
    assert_eq!(found, receipt("warm", None, None, None));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_verdict_names_each_change_by_memory() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut causes = Vec::new();
    let mut snapshot = Value::Null;
    for turn in 1..=ACTIVE * 4 {
        let (found, line) = rig.receipt_of(&[], &conversation.body(turn)).await;
        let made = line["snapshot"] != snapshot;
        snapshot = line["snapshot"].clone();
        let by_memory = found.changed_by.as_deref() == Some("memory");
        assert_eq!(made, by_memory, "turn {turn}: {line}");
        if !made {
            assert_eq!(found.changed, None, "turn {turn}: {line}");
            continue;
        }
        assert_eq!(found.changed.as_deref(), Some("observations"), "{line}");
        let by_reflection = line["cause"] == "reflection";
        let cause = if by_reflection {
            "reflection"
        } else {
            "activation"
        };
        // Where a short block stays the same, the cache may still give back all that the new prompt has.
        if found.verdict != "warm" && found.cause.as_deref() != Some("below_minimum") {
            assert_eq!(found.cause.as_deref(), Some(cause), "turn {turn}: {line}");
            causes.push(cause);
        }
    }
    assert!(causes.contains(&"activation"), "{causes:?}");
    assert!(causes.contains(&"reflection"), "{causes:?}");
    // Without memory for one request, and with it again.
    let turn = ACTIVE * 4 + 1;
    rig.receipt(&conversation.body(turn)).await;
    let off = [("x-diarist-memory", "off")];
    let (found, line) = rig.receipt_of(&off, &conversation.body(turn + 1)).await;
    assert_eq!(line["memory"], "off");
    assert_eq!(found.changed_by.as_deref(), Some("memory"), "{line}");
    assert_eq!(found.cause.as_deref(), Some("memory_switched"), "{line}");
    rig.provider.forget_prompts();
    let (found, line) = rig.receipt_of(&[], &conversation.body(turn + 2)).await;
    assert_eq!(found.cause.as_deref(), Some("memory_switched"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_reported_usage_the_verdict_is_unknown() {
    let rig = Rig::with(Options::default(), &[("AUDIT__ASK_USAGE", "never")]).await;
    let conversation = SampleConversation::new("ada");
    for turn in LONG..=LONG + 1 {
        let answer = rig.send(&conversation.streamed(turn)).await;
        let line = rig.audit_entry(&answer).await;
        assert_eq!(line["verdict"], "unknown", "{line}");
        assert_eq!(line["verdict_cause"], Value::Null, "{line}");
        assert_eq!(line["expected_cached_tokens"], Value::Null, "{line}");
    }
    let line = rig.audited(2).await.pop().unwrap();
    assert!(line["common_bytes"].as_u64().unwrap() > 0, "{line}");
}

/// Two conversations, two owners and a side task never stand for each other's request before.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_compared_with_themselves_only() {
    let rig = Rig::without_activation().await;
    let named = [("x-diarist-thread", "trip")];
    let conversation = SampleConversation::new("ada");
    let cold = || receipt("cold_start", None, None, None);
    let warm = || receipt("warm", None, None, None);
    assert_eq!(
        rig.receipt_of(&named, &conversation.body(LONG)).await.0,
        cold()
    );
    assert_eq!(rig.receipt(&conversation.body(LONG + 1)).await, cold());
    assert_eq!(
        rig.receipt(&SampleConversation::new("bob").body(LONG))
            .await,
        cold()
    );
    let other = rig
        .send_as("Bearer sk-other", &named, &conversation.body(LONG))
        .await;
    assert_eq!(rig.audit_entry(&other).await["verdict"], "cold_start");
    let title = [named[0], ("x-diarist-task", "title")];
    let mut body = conversation.body(LONG);
    body["messages"][0]["content"] = json!("Write a title for this conversation.");
    assert_eq!(rig.receipt_of(&title, &body).await.0, cold());
    assert_eq!(
        rig.receipt_of(&named, &conversation.body(LONG + 1)).await.0,
        warm()
    );
    assert_eq!(rig.receipt_of(&title, &body).await.0, warm());
}

/// Every series is there from the start, and counts what the lines say.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_have_every_series_from_the_start() {
    let rig = Rig::without_activation().await;
    let page = rig.metrics().await;
    for kind in ["input", "cache_read", "cache_write", "output", "reasoning"] {
        let series = format!("diarist_prompt_tokens_total{{model=\"other\",kind=\"{kind}\"}} ");
        assert!(page.contains(&series), "{series}");
    }
    for segment in ["tools", "system", "observations", "messages", "replaced"] {
        let series = format!("diarist_prompt_bytes_total{{segment=\"{segment}\"}} ");
        assert!(page.contains(&series), "{series}");
    }
    let verdicts = |page: &str| {
        let lines = page.lines();
        lines
            .filter(|line| line.starts_with("diarist_cache_verdicts_total{"))
            .count()
    };
    // Three without a cause, and thirteen causes of two.
    assert_eq!(verdicts(&page), 3 + 2 * 13, "{page}");
    let series = [
        "diarist_prompt_tokens_total{model=\"gpt-test\",kind=\"input\"}",
        "diarist_prompt_tokens_total{model=\"gpt-test\",kind=\"cache_read\"}",
        "diarist_prompt_tokens_total{model=\"gpt-test\",kind=\"output\"}",
        "diarist_prompt_bytes_total{segment=\"messages\"}",
        "diarist_cache_verdicts_total{verdict=\"warm\",cause=\"none\"}",
    ];
    let before = series.map(|name| metric(&page, name));
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, LONG..=LONG + 1).await;
    let page = rig.metrics().await;
    let after = series.map(|name| metric(&page, name));
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| after > before),
        "{before:?} {after:?}"
    );
    assert_eq!(verdicts(&page), 3 + 2 * 13);
}

/// Every model call of memory has a line, with the tokens that the provider counted.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn every_model_call_of_memory_has_an_audit_line() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE * 3).await;
    let observed = rig.provider.record_for(CallerKind::Observer);
    let reflected = rig.provider.record_for(CallerKind::Reflector);
    let calls = observed.len() + reflected.len();
    eventually("a line for each call", || rig.audit("call").len() == calls).await;
    let request = rig.audit_entry(&answer).await;
    let lines = rig.audit("call");
    for line in &lines {
        assert_eq!(line["tenant"], request["tenant"], "{line}");
        assert_eq!(line["thread"], request["thread"], "{line}");
        assert!(line["total_ms"].is_u64(), "{line}");
        assert!(!line.to_string().contains("canary"), "{line}");
    }
    let kept = |call: &str| {
        let fits = |line: &&Value| line["call"] == call && line["outcome"] == "kept";
        lines.iter().filter(fits).collect::<Vec<_>>()
    };
    assert!(!kept("reflect").is_empty());
    let counted = |line: &Value| {
        observed.iter().any(|call| {
            call.prompt_usage.is_some_and(|usage| {
                line["prompt_tokens"] == usage.prompt_tokens
                    && line["cached_tokens"] == usage.cached_tokens
            })
        })
    };
    for line in kept("observe") {
        assert!(counted(line), "{line}");
        assert_eq!(line["model"], OBSERVER_MODEL, "{line}");
    }
}

/// The answers are thrown away, and the calls have lines all the same. Nobody waits for memory to come to rest: the
/// jobs are tried again after a pause.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_call_without_a_result_has_an_audit_line() {
    for (behaviour, outcome) in [
        (Some(refusing(500, "overloaded")), "failed"),
        (None, "empty"),
    ] {
        let rig = Rig::small().await;
        rig.provider
            .script(CallerKind::Observer, FixedReply(String::new()));
        if let Some(behaviour) = behaviour {
            rig.provider.inject(CallerKind::Observer, behaviour);
        }
        let conversation = SampleConversation::new("ada");
        for turn in 1..=ACTIVE {
            assert_eq!(rig.send(&conversation.body(turn)).await.status, 200);
        }
        eventually("the line", || !rig.audit("call").is_empty()).await;
        let line = rig.audit("call").remove(0);
        assert_eq!(line["call"], "observe", "{line}");
        assert_eq!(line["outcome"], outcome, "{line}");
        assert_eq!(line["model"], OBSERVER_MODEL, "{line}");
        assert_eq!(line["prompt_tokens"].is_u64(), outcome == "empty", "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passed_request_has_a_short_audit_line() {
    let rig = Rig::small().await;
    let response = rig
        .client
        .get(rig.url("/v1/models?key=sk-secret"))
        .send()
        .await
        .unwrap();
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap();
    eventually("the line", || rig.audit("path").len() == 1).await;
    let line = rig.audit("path").pop().unwrap();
    assert_eq!(
        (&line["method"], &line["path"]),
        (&json!("GET"), &json!("/v1/models"))
    );
    assert_eq!(
        (&line["status"], &line["bytes_answered"]),
        (&json!(status), &json!(body.len()))
    );
    assert_eq!(line["ended"], "complete");
    assert!(
        line["ttfb_ms"].is_u64() && line["total_ms"].is_u64(),
        "{line}"
    );
    assert!(!line.to_string().contains("secret"), "{line}");
    assert_eq!(rig.audit("request_id").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configured_cache_rules_decide_the_verdict_cause() {
    let rules = r#"[{ model = "gpt-*", minimum_tokens = 1000000 }]"#;
    for (rules, cause) in [(rules, "below_minimum"), ("[]", "provider")] {
        let rig = Rig::with(Options::default(), &[("AUDIT__CACHE_RULES", rules)]).await;
        let conversation = SampleConversation::new("ada");
        rig.play_turns(&conversation, LONG..=LONG).await;
        rig.provider.forget_prompts();
        let found = rig.receipt(&conversation.body(LONG + 1)).await;
        assert_eq!(found, receipt("miss", cause, None, None));
    }
}

/// The segments are the whole prompt: what the client sent is in the prompt or was replaced.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_audit_line_reports_the_segments_of_its_prompt() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let mut active = 0;
    for turn in 1..=24 {
        let body = with_tools(conversation.body(turn), "look_up");
        let (_, line) = rig.receipt_of(&[], &body).await;
        let size = |name: &str| line["segments"][name].as_u64().unwrap();
        let messages = body["messages"].as_array().unwrap();
        let bytes = |messages: &[Value]| -> u64 {
            messages
                .iter()
                .map(|message| message.to_string().len() as u64)
                .sum()
        };
        assert_eq!(size("system"), bytes(&messages[..1]), "{line}");
        assert_eq!(
            size("messages") + size("replaced"),
            bytes(&messages[1..]),
            "{line}"
        );
        assert!(size("tools") > 0, "{line}");
        assert_eq!(line["ended"], "complete", "{line}");
        let is_active = line["memory"] == "active";
        for name in ["observations", "reminder"] {
            assert_eq!(size(name) > 0, is_active, "{line}");
        }
        let tokens = |name: &str| line["segment_tokens"][name].as_u64().unwrap();
        let prompt = ["tools", "system", "observations", "reminder", "messages"];
        let sum: u64 = prompt.iter().map(|name| tokens(name)).sum();
        assert_eq!(Some(sum), line["prompt_tokens"].as_u64(), "{line}");
        assert_eq!(tokens("replaced") > 0, is_active, "{line}");
        assert_eq!(size("replaced") > 0, is_active, "{line}");
        if is_active {
            active += 1;
            // The rest of the body is punctuation and the names of fields.
            let prompt: u64 = prompt.iter().map(|name| size(name)).sum();
            let sent = line["bytes_sent"].as_u64().unwrap();
            assert!(prompt <= sent && sent < prompt + 300, "{line}");
            // Instructions and reminder alone are what every block has, however much was observed.
            let text = String::from_utf8(rig.last().body.to_vec()).unwrap();
            let (_, observed) = text.split_once("\\n<observations>\\n").unwrap();
            let observed = observed.split_once("\"}").unwrap().0;
            assert_eq!(size("observations"), observed.len() as u64, "{line}");
        }
    }
    assert!(active > 3, "{active}");
}
