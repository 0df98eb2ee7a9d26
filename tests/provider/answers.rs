//! What is answered, by whom, and what is written down about it.

use std::sync::Arc;

use diarist_provider::{
    CallerKind, Conversation, Ending, FixedReply, Observer, ObserverStyle, Options, Provider,
    Replay, Reply, ScriptInput, Style, Verdict,
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::provider::client::{ask, client, post, provider, read_until};

#[tokio::test]
async fn a_plain_answer_and_its_record_agree() {
    let provider = provider().await;
    provider.script(CallerKind::Actor, FixedReply("Good morning.".into()));
    let request = ask("hello");
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], "Good morning.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    let record = provider.wait_for(1).await.unwrap();
    let entry = &record[0];
    assert!(entry.is_accepted());
    assert_eq!(entry.body, request.to_string().as_bytes());
    assert_eq!(
        (entry.target.as_str(), entry.caller),
        ("/v1/chat/completions", CallerKind::Actor)
    );
    assert_eq!(
        (entry.model.as_deref(), entry.messages),
        (Some("gpt-4o"), 1)
    );
    assert_eq!(entry.credential.reveal(), "Bearer sk-test");
    assert!(
        !format!("{entry:?}").contains("sk-test"),
        "secrets stay out of Debug"
    );
    let measured = entry.prompt_usage.unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], measured.prompt_tokens);
    assert_eq!(
        answer["usage"]["completion_tokens"],
        entry.completion_tokens.unwrap()
    );
    assert_eq!(entry.reply.as_ref().unwrap()["content"], "Good morning.");
    assert!(matches!(entry.ending, Ending::Complete { .. }));
}

#[tokio::test]
async fn refusals_have_the_error_format_of_the_api() {
    let provider = provider().await;
    provider.rules(|rules| rules.window = Some(50));
    let answer = post(&provider, &ask(&"word ".repeat(200))).await;
    assert_eq!(answer.status(), 400);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "context_length_exceeded");

    let client = client();
    let url = format!("{}/chat/completions", provider.base_url());
    let answer = client.post(url).body("{broken").send().await.unwrap();
    assert_eq!(answer.status(), 400);

    let record = provider.wait_for(2).await.unwrap();
    assert_eq!(
        record[0].refusal().unwrap().code,
        Some("context_length_exceeded")
    );
    assert_eq!(record[0].prompt_usage, None);
    assert!(record[1].refusal().unwrap().message.contains("JSON"));
}

#[tokio::test]
async fn a_request_for_three_choices_gets_three() {
    let provider = provider().await;
    provider.script(CallerKind::Actor, |ask: &ScriptInput<'_>| {
        Reply::text(format!("choice {}", ask.choice))
    });
    let mut request = ask("x");
    request["n"] = json!(3);
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 3);
    assert_eq!(answer["choices"][2]["message"]["content"], "choice 2");
    assert_eq!(answer["choices"][2]["index"], 2);
}

#[tokio::test]
async fn the_provider_reports_cached_tokens_in_steps_of_128() {
    let provider = provider().await;
    let conversation = Conversation::generate(3, 40, Style::Coding);
    provider.script(
        CallerKind::Actor,
        Replay::from_conversations([&conversation]),
    );
    let mut before = 0;
    for sent in conversation.requests() {
        let answer: Value = post(&provider, &conversation.request(sent, "gpt-4o", false))
            .await
            .json()
            .await
            .unwrap();
        let expected = conversation.messages[sent].get("tool_calls");
        let message = &answer["choices"][0]["message"];
        assert_eq!(
            message.get("tool_calls"),
            expected,
            "request of {sent} messages"
        );
        assert_eq!(message["content"], conversation.messages[sent]["content"]);

        let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        let expected = if before >= 1024 {
            before / 128 * 128
        } else {
            0
        };
        assert_eq!(cached, expected, "request of {sent} messages");
        before = prompt;
    }
    assert!(before > 5000, "long enough to mean something: {before}");
}

#[tokio::test]
async fn the_model_name_selects_observer_and_reflector_answers() {
    let provider = provider().await;
    let shown = "Mar 4 2026:\nUser (14:05): My code is QX1234.\nAssistant: Noted, it is booked.";
    let mut request = ask(shown);
    request["model"] = json!("observer-mini");
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    let observed = answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        observed.contains("* 🔴 (14:05) User stated: My code is QX1234."),
        "{observed}"
    );

    let mut reflect = ask(&observed);
    reflect["model"] = json!("reflector-mini");
    let answer: Value = post(&provider, &reflect).await.json().await.unwrap();
    let condensed = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(condensed.contains("QX1234"), "{condensed}");

    provider.script(
        CallerKind::Observer,
        Observer {
            style: ObserverStyle::Filtered,
        },
    );
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "content_filter");
    assert!(answer["choices"][0]["message"]["refusal"].is_string());
}

#[tokio::test]
async fn memory_calls_with_the_conversation_model_are_recognised_by_their_shape() {
    let provider = provider().await;
    let call = |shown: &str| {
        json!({"model": "gpt-4o", "messages": [
            {"role": "system", "content": "Write it down."},
            {"role": "user", "content": format!("See:\n<history-k7Qz91ab>\n{shown}\n</history-k7Qz91ab>")},
        ]})
    };
    let history = call("Date: Mar 4, 2026\nUser (14:05): hi");
    let log = call("Date: Mar 4, 2026\n* 🔴 (14:05) User stated: hi");
    let mut conversation = history.clone();
    conversation["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    for request in [history, log, conversation, ask("<history-x>\nUser: hi")] {
        assert_eq!(post(&provider, &request).await.status(), 200);
    }
    let record = provider.wait_for(4).await.unwrap();
    let parts: Vec<CallerKind> = record.iter().map(|entry| entry.caller).collect();
    assert_eq!(
        parts,
        [
            CallerKind::Observer,
            CallerKind::Reflector,
            CallerKind::Actor,
            CallerKind::Actor
        ]
    );
}

#[tokio::test]
async fn a_test_can_decide_the_kind_of_caller() {
    let provider = Provider::start(Options {
        identify_caller: Arc::new(|request| {
            let first = request["messages"][0]["content"]
                .as_str()
                .unwrap_or_default();
            if first.contains("observe") {
                CallerKind::Observer
            } else {
                CallerKind::Actor
            }
        }),
        ..Options::default()
    })
    .await
    .unwrap();
    post(&provider, &ask("please observe this")).await;
    post(&provider, &ask("hello")).await;
    let parts: Vec<CallerKind> = provider
        .wait_for(2)
        .await
        .unwrap()
        .iter()
        .map(|entry| entry.caller)
        .collect();
    assert_eq!(parts, [CallerKind::Observer, CallerKind::Actor]);
}

#[tokio::test]
async fn models_embeddings_status_and_echo_routes_answer() {
    let provider = provider().await;
    let client = client();
    let url = |path: &str| format!("{}{path}", provider.base_url());

    let models: Value = client
        .get(url("/models"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(models["object"], "list");
    let model: Value = client
        .get(url("/models/gpt-4o"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(model["id"], "gpt-4o");
    let vectors = client
        .post(url("/embeddings"))
        .json(&json!({"model": "e", "input": ["a", "a", "b"]}));
    let vectors: Value = vectors.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        vectors["data"][0]["embedding"],
        vectors["data"][1]["embedding"]
    );
    assert_ne!(
        vectors["data"][0]["embedding"],
        vectors["data"][2]["embedding"]
    );
    assert_eq!(
        client
            .get(url("/status/418"))
            .send()
            .await
            .unwrap()
            .status(),
        418
    );
    assert_eq!(
        client.get(url("/nothing")).send().await.unwrap().status(),
        404
    );

    let echo = client
        .put(url("/echo/here?a=1"))
        .header("content-type", "x/y")
        .body("some bytes");
    let echo = echo.send().await.unwrap();
    assert_eq!(echo.headers()["x-echo-method"], "PUT");
    assert_eq!(echo.headers()["x-echo-target"], "/v1/echo/here?a=1");
    assert_eq!(echo.headers()["content-type"], "x/y");
    assert_eq!(echo.headers().get_all("set-cookie").iter().count(), 2);
    assert_eq!(echo.bytes().await.unwrap(), "some bytes");
    let record = provider.wait_for(6).await.unwrap();
    assert_eq!(record[5].body, "some bytes".as_bytes());
    assert!(
        record
            .iter()
            .all(|entry| entry.verdict == Verdict::NotJudged)
    );
}

#[tokio::test]
async fn an_upgraded_connection_echoes_bytes() {
    let provider = provider().await;
    let mut socket = TcpStream::connect(provider.address()).await.unwrap();
    let head =
        "GET /v1/echo HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    assert!(
        read_until(&mut socket, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 101")
    );
    socket.write_all(b"ping over the tunnel").await.unwrap();
    assert_eq!(
        read_until(&mut socket, "tunnel").await,
        "ping over the tunnel"
    );
}

#[tokio::test]
async fn request_bodies_are_kept_only_if_configured() {
    let provider = Provider::start(Options {
        keep_bodies: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let request = ask("x");
    post(&provider, &request).await;
    let record = provider.wait_for(1).await.unwrap();
    assert!(record[0].body.is_empty());
    assert_eq!(record[0].body_bytes, request.to_string().len());
}
