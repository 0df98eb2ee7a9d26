//! Spans and metrics over OTLP, read by a collector: their names, parents and attributes, and that a collector which
//! fails is nobody's trouble.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use diarist_provider::{CacheKind, OBSERVER_MODEL, Options};
use serde_json::Value;

use crate::memory::rig::{PATIENCE, Rig, SMALL};
use crate::memory::tools::{ACTIVE, Caller, SampleConversation, eventually};
use crate::support::collector::{Collector, Span};
use crate::support::raw_upstream::RawUpstream;

const ENDPOINT: &str = "OTLP__ENDPOINT";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

async fn rig(collector: &Collector, settings: &[(&str, &str)]) -> Rig {
    let url = collector.url();
    let mut all = vec![SMALL[0], SMALL[1], (ENDPOINT, &url)];
    all.extend_from_slice(settings);
    Rig::with(Options::default(), &all).await
}

/// What is exported once the process has ended.
async fn ended(mut rig: Rig, collector: &Collector) -> Vec<Span> {
    rig.stop().await;
    collector.spans()
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    span.attributes.get(name).map(String::as_str)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_exports_two_spans_and_a_memory_call_one() {
    let collector = Collector::start(200).await;
    let rig = rig(&collector, &[]).await;
    // Its usage says what was written to the cache, too.
    rig.provider
        .rules(|rules| rules.cache = CacheKind::Breakpoints);
    let conversation = SampleConversation::new("ada");
    let mut lines = BTreeMap::new();
    for turn in 1..=ACTIVE {
        let headers = [("traceparent", PARENT), ("tracestate", "vendor=1")];
        let answer = rig
            .send_as("Bearer sk-canary", &headers, &conversation.body(turn))
            .await;
        // What the upstream gets is what the client sent.
        let sent = &rig.last().headers;
        assert_eq!(sent["traceparent"], PARENT);
        assert_eq!(sent["tracestate"], "vendor=1");
        rig.quiet().await;
        let line = rig.audit_entry(&answer).await;
        lines.insert(line["request_id"].as_str().unwrap().to_owned(), line);
    }
    let calls = rig.audit("call");
    let spans = ended(rig, &collector).await;
    let of_requests = |kind| {
        let spans = spans.iter();
        spans.filter(move |it| it.kind == kind && attribute(it, "diarist.request.id").is_some())
    };
    assert_eq!(of_requests(2).count(), lines.len());
    assert_eq!(of_requests(3).count(), lines.len());
    let mut compacted = 0;
    for called in of_requests(3) {
        let line = &lines[attribute(called, "diarist.request.id").unwrap()];
        let served = of_requests(2).find(|it| it.id == called.parent).unwrap();
        assert_eq!((&*called.trace, &*served.trace), (TRACE, TRACE));
        assert_eq!(served.parent, "b7ad6b7169203331");
        assert_eq!(served.name, "POST /v1/chat/completions");
        assert_eq!(attribute(served, "http.response.status_code"), Some("200"));
        assert_eq!(called.name, "chat gpt-test");
        let ms = line["total_ms"].as_u64().unwrap();
        assert_eq!(called.nanos, ms * 1_000_000);
        let number = |name: &str| line[name].as_u64().map(|number| number.to_string());
        let is_compacted = line["memory"] == "active";
        compacted += u32::from(is_compacted);
        for (name, expected) in [
            ("gen_ai.operation.name", Some("chat")),
            ("gen_ai.system", Some("_OTHER")),
            ("gen_ai.provider.name", None),
            ("gen_ai.request.model", Some("gpt-test")),
            ("gen_ai.conversation.id", line["thread"].as_str()),
            (
                "gen_ai.conversation.compacted",
                is_compacted.then_some("true"),
            ),
            (
                "gen_ai.usage.input_tokens",
                number("prompt_tokens").as_deref(),
            ),
            (
                "gen_ai.usage.cache_read.input_tokens",
                number("cached_tokens").as_deref(),
            ),
            (
                "gen_ai.usage.cache_creation.input_tokens",
                number("cache_write_tokens").as_deref(),
            ),
            (
                "gen_ai.usage.output_tokens",
                number("completion_tokens").as_deref(),
            ),
            ("diarist.memory", line["memory"].as_str()),
            ("diarist.cache.verdict", line["verdict"].as_str()),
            ("diarist.tenant", line["tenant"].as_str()),
            ("error.type", None),
        ] {
            assert_eq!(attribute(called, name), expected, "{name} {line}");
        }
        assert_eq!(called.status, 0);
    }
    assert!(compacted > 0);
    // Memory's own calls are known by their conversation.
    let of_memory: Vec<&Span> = spans
        .iter()
        .filter(|it| attribute(it, "diarist.memory.call").is_some())
        .collect();
    assert_eq!(of_memory.len(), calls.len());
    assert!(!calls.is_empty());
    let mut written: Vec<u64> = calls
        .iter()
        .filter_map(|line| line["cache_write_tokens"].as_u64())
        .collect();
    let mut exported: Vec<u64> = of_memory
        .iter()
        .filter_map(|it| attribute(it, "gen_ai.usage.cache_creation.input_tokens"))
        .map(|number| number.parse().unwrap())
        .collect();
    written.sort_unstable();
    exported.sort_unstable();
    assert!(!written.is_empty());
    assert_eq!(exported, written);
    let thread = lines.values().next().unwrap()["thread"].as_str();
    for span in of_memory
        .iter()
        .filter(|it| it.name == format!("chat {OBSERVER_MODEL}"))
    {
        assert_eq!((span.kind, &*span.parent), (3, ""));
        assert_eq!(attribute(span, "diarist.memory.call"), Some("observe"));
        assert_eq!(attribute(span, "diarist.memory.outcome"), Some("kept"));
        assert_eq!(attribute(span, "gen_ai.conversation.id"), thread);
    }
    // Every span has an id of its own.
    let ids: BTreeSet<&str> = spans.iter().map(|it| &*it.id).collect();
    assert_eq!(ids.len(), spans.len());
    assert_eq!(collector.resource()["service.name"], "diarist");
    // The text of the conversation, the key: nowhere.
    for export in collector.exports() {
        for secret in ["canary", "weighed and kept", "sk-", "patient assistant"] {
            let found = export
                .body
                .windows(secret.len())
                .any(|it| it == secret.as_bytes());
            assert!(!found, "{secret} in {}", export.path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn propagation_sends_the_span_of_the_call_upstream_as_parent() {
    let collector = Collector::start(200).await;
    let rig = rig(&collector, &[("OTLP__PROPAGATE", "true")]).await;
    let conversation = SampleConversation::new("ada");
    let (without, with) = ([], [("traceparent", PARENT), ("tracestate", "vendor=1")]);
    let (unsampled, mut parents) = (PARENT.replace("-01", "-00"), Vec::new());
    for (turn, headers) in [(1, &without[..]), (2, &with[..])] {
        rig.send_as("Bearer k", headers, &conversation.body(turn))
            .await;
        let sent = rig.last().headers.clone();
        let parent = sent["traceparent"].to_str().unwrap().to_owned();
        assert_ne!(parent, PARENT);
        let state = sent.get("tracestate");
        let state = state.map(|state| state.to_str().unwrap().to_owned());
        assert_eq!(state, (turn == 2).then(|| "vendor=1".to_owned()));
        parents.push(parent);
    }
    let mut models = rig.client.get(rig.url("/v1/models"));
    for (name, value) in with {
        models = models.header(name, value);
    }
    assert!(models.send().await.unwrap().status().as_u16() < 500);
    // Whoever does not sample is not sampled here either, and what it sent passes as it is.
    let headers = [("traceparent", unsampled.as_str())];
    rig.send_as("Bearer k", &headers, &conversation.body(3))
        .await;
    assert_eq!(rig.last().headers["traceparent"], unsampled.as_str());
    let spans = ended(rig, &collector).await;
    let called: Vec<&Span> = spans.iter().filter(|it| it.kind == 3).collect();
    assert_eq!(called.len(), 2);
    for (span, parent) in called.iter().zip(&parents) {
        assert_eq!(*parent, format!("00-{}-{}-01", span.trace, span.id));
    }
    assert_eq!(called[1].trace, TRACE);
    assert_ne!(called[0].trace, TRACE);
    let pass = spans.iter().find(|it| it.name == "GET").unwrap();
    assert_eq!((&*pass.trace, pass.kind), (TRACE, 2));
    assert_eq!(attribute(pass, "url.path"), Some("/v1/models"));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_use_the_configured_semantic_convention_names() {
    let newest = "gen_ai_latest_experimental";
    for (opt_in, provider) in [
        (None, "gen_ai.system"),
        (Some(newest), "gen_ai.provider.name"),
    ] {
        let collector = Collector::start(200).await;
        let settings = opt_in.map(|opt_in| ("OTLP__SEMCONV_OPT_IN", opt_in));
        let settings: Vec<_> = settings.into_iter().collect();
        let rig = rig(&collector, &settings).await;
        rig.play_turns(&SampleConversation::new("ada"), 1..=3).await;
        let lines = rig.audited(3).await;
        let sum = |name: &str| -> f64 {
            let numbers = lines.iter().map(|line| line[name].as_u64().unwrap_or(0));
            numbers.sum::<u64>() as f64
        };
        let spans = ended(rig, &collector).await;
        let is_call = |span: &&Span| span.kind == 3 && attribute(span, "diarist.memory").is_some();
        assert_eq!(spans.iter().filter(is_call).count(), 3);
        for span in spans.iter().filter(is_call) {
            assert!(attribute(span, provider).is_some(), "{span:?}");
        }
        let metrics = collector.metrics();
        let metric_value = |name: &str, kind: Option<&str>| -> f64 {
            let found = metrics.iter().filter(|((known, attributes), _)| {
                known == name
                    && attributes.get("gen_ai.request.model").map(String::as_str)
                        == Some("gpt-test")
                    && attributes.get("gen_ai.token.type").map(String::as_str) == kind
            });
            found.map(|(_, value)| value).sum()
        };
        let (input, output, read, seconds) = match opt_in {
            None => (
                metric_value("gen_ai.client.token.usage", Some("input")),
                metric_value("gen_ai.client.token.usage", Some("output")),
                sum("cached_tokens"),
                metric_value("gen_ai.client.operation.duration", None),
            ),
            Some(_) => (
                metric_value("gen_ai.client.inference.usage.input_tokens", None),
                metric_value("gen_ai.client.inference.usage.output_tokens", None),
                metric_value(
                    "gen_ai.client.inference.usage.cache_read.input_tokens",
                    None,
                ),
                metric_value("gen_ai.client.inference.duration", None),
            ),
        };
        assert_eq!(
            (input, output, read),
            (
                sum("prompt_tokens"),
                sum("completion_tokens"),
                sum("cached_tokens")
            )
        );
        assert!(
            (seconds - sum("total_ms") / 1_000.0).abs() < 1e-6,
            "{seconds}"
        );
        for ((name, attributes), _) in metrics {
            for id in [
                "gen_ai.conversation.id",
                "diarist.tenant",
                "diarist.request.id",
            ] {
                assert!(!attributes.contains_key(id), "{name} {attributes:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_marks_only_the_upstream_span_as_an_error() {
    let collector = Collector::start(200).await;
    let mut rig = rig(&collector, &[]).await;
    let bad = serde_json::json!({"model": "gpt-test", "messages": "none"});
    assert_eq!(rig.send(&bad).await.status, 400);
    rig.stop().await;
    let spans = collector.spans();
    let [served, called] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!((served.status, called.status), (0, 2));
    assert_eq!(attribute(called, "error.type"), Some("400"));
    assert_eq!(attribute(served, "error.type"), None);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_failing_collector_affects_no_request_and_is_reported_as_degraded() {
    for (status, reason) in [(Some(503), "it answers 503"), (None, "no connection")] {
        let collector = Collector::start(status.unwrap_or(200)).await;
        let nobody = ("OTLP__ENDPOINT", "http://127.0.0.1:9");
        let settings: &[_] = if status.is_none() { &[nobody] } else { &[] };
        // The SDK sends its spans every five seconds.
        let rig = rig(&collector, settings).await;
        let conversation = SampleConversation::new("ada");
        rig.play_turns(&conversation, 1..=ACTIVE).await;
        assert_eq!(rig.audited(ACTIVE).await.len(), ACTIVE);
        let waiting = rig.wait_part("otlp", "degraded");
        let part: Value = tokio::time::timeout(PATIENCE + Duration::from_secs(10), waiting)
            .await
            .unwrap();
        assert!(part["error"].as_str().unwrap().contains(reason), "{part}");
        let mut rig = rig;
        rig.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_without_an_audit_file_and_with_configured_headers() {
    let collector = Collector::start(200).await;
    let settings = [
        ("AUDIT__PATH", "off"),
        ("OTLP__METRICS", "false"),
        (
            "OTLP__EXPORT_HEADERS",
            "authorization=Bearer of-the-collector, x-org = 7",
        ),
    ];
    let rig = rig(&collector, &settings).await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2).await;
    assert_eq!(ended(rig, &collector).await.len(), 4);
    for export in collector.exports() {
        assert_eq!(export.path, "/v1/traces");
        assert!(
            export
                .head
                .contains("authorization: Bearer of-the-collector"),
            "{}",
            export.head
        );
        assert!(export.head.contains("x-org: 7"));
        assert!(export.head.contains("content-type: application/x-protobuf"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_exports_a_span_at_its_end_and_a_refusal_none() {
    let collector = Collector::start(200).await;
    let upstream = RawUpstream::listen().await;
    let url = format!("{}/v1", upstream.url());
    let rig = rig(&collector, &[("UPSTREAM__BASE_URL", &url)]).await;
    let mut refused = Caller::connect(&rig.address()).await;
    refused
        .send(b"GET /v1/models HTTP/1.1\r\nhost: rebind.example\r\n\r\n")
        .await;
    refused.until("\"code\"").await;
    let mut client = Caller::connect(&rig.address()).await;
    let head = format!(
        "GET /v1/realtime HTTP/1.1\r\nhost: localhost\r\ntraceparent: {PARENT}\r\nconnection: Upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-key: k\r\nsec-websocket-version: 13\r\n\r\n"
    );
    client.send(head.as_bytes()).await;
    let mut peer = upstream.accept().await;
    peer.head().await;
    peer.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello")
        .await;
    client.until("hello").await;
    drop(client);
    peer.rest().await;
    drop(peer);
    eventually("both lines", || rig.audit("path").len() == 2).await;
    let lines = rig.audit("path");
    let line = lines.iter().find(|line| line["status"] == 101).unwrap();
    let ms = line["total_ms"].as_u64().unwrap();
    let spans = ended(rig, &collector).await;
    let [tunnel] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!((&*tunnel.name, tunnel.kind), ("GET", 2));
    assert_eq!(
        (&*tunnel.trace, &*tunnel.parent),
        (TRACE, "b7ad6b7169203331")
    );
    assert_eq!(attribute(tunnel, "url.path"), Some("/v1/realtime"));
    assert_eq!(attribute(tunnel, "http.response.status_code"), Some("101"));
    assert_eq!(tunnel.nanos, ms * 1_000_000);
}
