//! Model calls over a socket: what goes out, what comes back, and what is made of refusals.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refused;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use diarist::llm::{
    CallError, CallSettings, CredentialHeaders, Endpoint, Finish, Llm, Models, Prompt,
    UpstreamRoute,
};
use diarist::memory::prompt::PromptAttachment;
use diarist::tasks::Tasks;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use url::Url;

/// One request as the model endpoint saw it.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    target: String,
    headers: HeaderMap,
    body: Value,
}

/// A model endpoint that answers by a function of the request's body, and keeps what it saw.
struct Model {
    base: String,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Model {
    async fn start<F>(answer: F) -> Self
    where
        F: Fn(&Value) -> Response<String> + Clone + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let tasks = Tasks::new();
        let (record, spawner) = (Arc::clone(&received), tasks.clone());
        tasks.spawn("model", async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (answer, record) = (answer.clone(), Arc::clone(&record));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, record) = (answer.clone(), Arc::clone(&record));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let answer = answer(&body);
                        record.lock().unwrap().push(ReceivedRequest {
                            target: head.uri.to_string(),
                            headers: head.headers,
                            body,
                        });
                        if answer.status() == 599 {
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, Infallible>(answer.map(|text| Full::new(Bytes::from(text))))
                    }
                });
                spawner.spawn("connection", async move {
                    // A caller that gives up makes the connection fail.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        });
        Self { base, received }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::Configured {
            base_url: Url::parse(&format!("{}/v1/", self.base)).unwrap(),
            api_key: "sk-operator-key".into(),
        }
    }

    fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }
}

fn answer(status: u16, body: &Value) -> Response<String> {
    Response::builder()
        .status(status)
        .body(body.to_string())
        .unwrap()
}

fn reply_body(text: &str) -> Value {
    json!({
        "model": "small-2026",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 12, "prompt_tokens_details": {"cached_tokens": 64}},
    })
}

fn settings() -> CallSettings {
    CallSettings {
        model: "small".to_owned(),
        temperature: Some(0.3),
        max_output_tokens: Some(4000),
        parameters: Map::new(),
        options: Map::new(),
        deadline: Duration::from_secs(20),
    }
}

fn prompt() -> Prompt {
    Prompt {
        system: "Observe.".to_owned(),
        user: "User: good morning\nAssistant: good morning".to_owned(),
        attachments: Vec::new(),
    }
}

fn image(name: &str, url: Option<&str>) -> PromptAttachment {
    PromptAttachment {
        name: name.to_owned(),
        part: url.map(|url| json!({"type": "image_url", "image_url": {"url": url}})),
    }
}

/// A prompt with a picture to be shown and one that is only named.
fn illustrated() -> Prompt {
    let attachments = vec![
        image("Image #1", Some("data:image/png;base64,AAAA")),
        image("File #1", None),
    ];
    Prompt {
        attachments,
        ..prompt()
    }
}

#[tokio::test]
async fn images_are_sent_as_content_parts_behind_their_names() {
    let model = Model::start(|_| answer(200, &reply_body("* noted"))).await;
    let llm = Llm::new().unwrap();
    llm.call(&model.endpoint(), &settings(), &illustrated())
        .await
        .unwrap();
    let content = &model.received()[0].body["messages"][1]["content"];
    let text = format!("{}\n\nNot shown to you: [File #1].", prompt().user);
    let want = json!([
        {"type": "text", "text": text},
        {"type": "text", "text": "[Image #1]:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]);
    assert_eq!(*content, want);
}

#[tokio::test]
async fn a_model_that_cannot_read_images_gets_none_in_later_calls() {
    let blind = |message: &'static str, status| {
        move |body: &Value| match body["messages"][1]["content"] {
            Value::Array(_) => answer(status, &json!({"error": {"message": message}})),
            _ => answer(200, &reply_body("* noted")),
        }
    };
    let text = format!(
        "{}\n\nNot shown to you: [Image #1], [File #1].",
        prompt().user
    );
    for (message, status, calls) in [
        ("image_url is only supported by certain models", 400, 3),
        ("No endpoints found that support image input", 404, 3),
        // What this picture brought about is no trait of the model.
        (
            "Failed to download image from https://example.com/a.png",
            400,
            4,
        ),
        ("This model's maximum context length is 8192 tokens", 400, 4),
    ] {
        let model = Model::start(blind(message, status)).await;
        let llm = Llm::new().unwrap();
        for _ in 0..2 {
            let reply = llm
                .call(&model.endpoint(), &settings(), &illustrated())
                .await;
            assert_eq!(reply.unwrap().text, "* noted");
        }
        let received = model.received();
        assert_eq!(received.len(), calls, "{message}");
        assert_eq!(received[1].body["messages"][1]["content"], text.as_str());
        // Nothing else was left out on the way.
        assert_eq!(received[1].body["temperature"], json!(0.3));
    }
}

#[tokio::test]
async fn a_model_call_sends_the_prompt_and_returns_text_and_usage() {
    let model = Model::start(|_| answer(200, &reply_body("* noted"))).await;
    let llm = Llm::new().unwrap();
    let reply = llm
        .call(&model.endpoint(), &settings(), &prompt())
        .await
        .unwrap();
    assert_eq!(reply.text, "* noted");
    assert_eq!(reply.finish, Finish::Stop);
    assert_eq!(reply.model, "small-2026");
    assert_eq!(reply.usage.tokens.prompt, Some(90));
    assert_eq!(reply.usage.tokens.cached, Some(64));
    assert_eq!(reply.usage.tokens.cache_write, None);
    assert_eq!(reply.usage.tokens.completion, Some(12));

    let received = model.received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].target, "/v1/chat/completions");
    assert_eq!(
        received[0].headers["authorization"],
        "Bearer sk-operator-key"
    );
    assert_eq!(received[0].headers["content-type"], "application/json");
    assert!(!received[0].headers.contains_key("accept-encoding"));
    assert_eq!(
        received[0].body,
        json!({
            "model": "small",
            "messages": [
                {"role": "system", "content": "Observe."},
                {"role": "user", "content": "User: good morning\nAssistant: good morning"},
            ],
            "stream": false,
            "temperature": 0.3,
            "max_tokens": 4000,
        })
    );
}

#[tokio::test]
async fn a_call_with_a_borrowed_route_keeps_its_url_and_credential_headers() {
    let model = Model::start(|_| answer(200, &reply_body("x"))).await;
    let url = Url::parse(&format!(
        "{}/openai/d/chat/completions?api-version=7",
        model.base
    ))
    .unwrap();
    let headers = [
        ("api-key", "azure-key"),
        ("openai-organization", "org"),
        ("content-length", "99999"),
        ("transfer-encoding", "chunked"),
        ("cookie", "c=1"),
        ("x-diarist-thread", "t"),
    ];
    let headers =
        headers.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
    let route = UpstreamRoute::new(
        &url,
        &headers.into_iter().collect(),
        &CredentialHeaders::default(),
        blake3::Hasher::new(),
    );
    let endpoint = Endpoint::Borrowed(Arc::new(route));
    Llm::new()
        .unwrap()
        .call(&endpoint, &settings(), &prompt())
        .await
        .unwrap();

    let received = model.received();
    assert_eq!(
        received[0].target,
        "/openai/d/chat/completions?api-version=7"
    );
    assert_eq!(received[0].headers["api-key"], "azure-key");
    assert_eq!(received[0].headers["openai-organization"], "org");
    for absent in [
        "authorization",
        "cookie",
        "x-diarist-thread",
        "transfer-encoding",
    ] {
        assert!(!received[0].headers.contains_key(absent), "{absent}");
    }
}

#[tokio::test]
async fn a_failed_call_carries_the_usage_that_it_is_billed_by() {
    let usage = json!({"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97});
    let ended = |reason: &str, message: Value| json!({"choices": [{"message": message, "finish_reason": reason}], "usage": usage});
    let text = || json!({"content": "I"});
    for (status, body) in [
        (
            200,
            ended("stop", json!({"content": null, "refusal": "I cannot."})),
        ),
        (200, ended("content_filter", text())),
        (200, ended("error", text())),
        (200, json!({"choices": [], "usage": usage})),
        (200, json!({"error": {"message": "boom"}, "usage": usage})),
        (500, json!({"error": {"message": "boom"}, "usage": usage})),
        (
            400,
            json!({"error": {"message": "no", "code": "content_filter"}, "usage": usage}),
        ),
        (
            400,
            json!({"error": {"message": "no", "code": "context_length_exceeded"}, "usage": usage}),
        ),
    ] {
        let printed = body.to_string();
        let model = Model::start(move |_| answer(status, &body)).await;
        let called = Llm::new().unwrap();
        let called = called.call(&model.endpoint(), &settings(), &prompt()).await;
        let usage = called.unwrap_err().usage.expect(&printed);
        let tokens = usage.tokens;
        assert_eq!(
            (tokens.prompt, tokens.completion),
            (Some(90), Some(7)),
            "{printed}"
        );
    }
}

#[tokio::test]
async fn the_words_of_a_refusal_are_not_repeated() {
    let words = "I won't write about Vera Novak's diagnosis.";
    let message = json!({"content": null, "refusal": words});
    let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]});
    let model = Model::start(move |_| answer(200, &body)).await;
    let called = Llm::new().unwrap();
    let called = called.call(&model.endpoint(), &settings(), &prompt()).await;
    let error = called.unwrap_err().error;
    assert!(matches!(error, CallError::Refused { .. }), "{error}");
    assert!(!error.to_string().contains("Vera"), "{error}");
}

#[tokio::test]
async fn each_kind_of_failed_answer_has_its_error_class() {
    let filtered =
        json!({"choices": [{"message": {"content": "I"}, "finish_reason": "content_filter"}]});
    let refused = json!({"choices": [{"message": {"content": null, "refusal": "I cannot."}, "finish_reason": "stop"}]});
    let ended = |reason: &str| json!({"choices": [{"message": {"content": "* 🔴 I"}, "finish_reason": reason}]});
    let [safety, found, broken] = [
        ended("SAFETY"),
        ended("content_filter: PROHIBITED_CONTENT"),
        ended("error"),
    ];
    let failed = json!({"error": {"message": "provider down", "code": 503}});
    let limited = json!({"error": {"message": "too fast", "code": 429}});
    let long = json!({"error": {"message": "x", "code": "context_length_exceeded"}});
    let plain = json!({"error": {"message": "x"}});
    for (status, body, class) in [
        (200, &filtered, "Refused"),
        (200, &refused, "Refused"),
        (200, &safety, "Refused"),
        (200, &found, "Refused"),
        (200, &broken, "Transient"),
        (200, &failed, "Transient"),
        (200, &limited, "RateLimited"),
        (200, &json!({"choices": []}), "Transient"),
        (400, &long, "TooLong"),
        (401, &plain, "Unauthorised"),
        (503, &plain, "Transient"),
    ] {
        let body = body.clone();
        let model = Model::start(move |_| answer(status, &body)).await;
        let llm = Llm::new().unwrap();
        let error = llm
            .call(&model.endpoint(), &settings(), &prompt())
            .await
            .unwrap_err()
            .error;
        assert!(
            format!("{error:?}").starts_with(class),
            "{status}: {error:?}"
        );
        assert_eq!(model.received().len(), 1, "{status}: never repeated here");
    }
}

#[tokio::test]
async fn a_redirect_to_another_host_is_not_followed() {
    let other = Model::start(|_| answer(200, &reply_body("x"))).await;
    let location = HeaderValue::from_str(&format!("{}/v1/chat/completions", other.base)).unwrap();
    let model = Model::start(move |_| {
        let mut moved = answer(307, &json!({}));
        moved.headers_mut().insert("location", location.clone());
        moved
    })
    .await;
    let llm = Llm::new().unwrap();
    let error = llm
        .call(&model.endpoint(), &settings(), &prompt())
        .await
        .unwrap_err()
        .error;
    assert!(matches!(error, CallError::Fatal { .. }), "{error}");
    assert_eq!(other.received().len(), 0);
}

#[tokio::test]
async fn a_rate_limit_error_contains_the_retry_time() {
    let model = Model::start(|_| {
        let mut limited = answer(429, &json!({"error": {"message": "slow down"}}));
        limited
            .headers_mut()
            .insert("retry-after", HeaderValue::from_static("7"));
        limited
    })
    .await;
    let llm = Llm::new().unwrap();
    let error = llm
        .call(&model.endpoint(), &settings(), &prompt())
        .await
        .unwrap_err()
        .error;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    assert!(error.to_string().contains("slow down"));
}

#[tokio::test]
async fn content_parts_are_joined_and_absent_content_is_empty_text() {
    for (content, reason, expected) in [
        (
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            "length",
            "ab",
        ),
        (json!(null), "MAX_TOKENS", ""),
        (json!(""), "model_length", ""),
    ] {
        let body = json!({"choices": [{"message": {"content": content}, "finish_reason": reason}]});
        let model = Model::start(move |_| answer(200, &body)).await;
        let llm = Llm::new().unwrap();
        let reply = llm
            .call(&model.endpoint(), &settings(), &prompt())
            .await
            .unwrap();
        assert_eq!(reply.text, expected);
        assert_eq!(reply.finish, Finish::Length);
        assert_eq!(reply.model, "small");
    }
}

#[tokio::test]
async fn a_silent_or_unreachable_endpoint_is_a_transient_error() {
    let model = Model::start(|_| answer(599, &json!({}))).await;
    let llm = Llm::new().unwrap();
    let hurried = CallSettings {
        deadline: Duration::from_millis(300),
        ..settings()
    };
    let error = llm
        .call(&model.endpoint(), &hurried, &prompt())
        .await
        .unwrap_err()
        .error;
    assert!(error.is_retryable(), "{error}");
    assert!(
        error.to_string().contains("no answer within 0.3 s"),
        "{error}"
    );

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = Url::parse(&format!(
        "http://{address}/v1/chat/completions?key=sk-in-the-query"
    ))
    .unwrap();
    let absent = Endpoint::Borrowed(Arc::new(UpstreamRoute::new(
        &url,
        &HeaderMap::new(),
        &CredentialHeaders::default(),
        blake3::Hasher::new(),
    )));
    let error = llm
        .call(&absent, &settings(), &prompt())
        .await
        .unwrap_err()
        .error;
    assert!(error.is_retryable(), "{error}");
    assert!(!error.to_string().contains("sk-in-the-query"), "{error}");
}

#[tokio::test]
async fn the_body_contains_the_settings_and_options_of_the_operator() {
    let model = Model::start(|_| answer(200, &reply_body("x"))).await;
    let object = |value: Value| value.as_object().unwrap().clone();
    let settings = CallSettings {
        parameters: object(json!({"top_p": 0.9, "seed": 7})),
        options: object(json!({
            "seed": 8,
            "temperature": 1,
            "max_completion_tokens": 9,
            "thinking": {"type": "disabled"},
        })),
        ..settings()
    };
    let llm = Llm::new().unwrap();
    llm.call(&model.endpoint(), &settings, &prompt())
        .await
        .unwrap();
    let mut body = object(model.received()[0].body.clone());
    for ours in ["model", "messages", "stream"] {
        body.remove(ours);
    }
    assert_eq!(
        Value::Object(body),
        json!({
            "temperature": 1,
            "top_p": 0.9,
            "seed": 8,
            "max_completion_tokens": 9,
            "thinking": {"type": "disabled"},
        }),
        "an option replaces what has its name, and the limit under either name"
    );
}

#[test]
fn the_size_of_the_prompt_picks_the_model() {
    let tiers = [(100, "small"), (200, "mid"), (300, "large")];
    let tiers = tiers.map(|(up_to, name)| (up_to, name.to_owned()));
    let models = Models::Tiers(tiers.to_vec());
    for (tokens, expected) in [
        (0, "small"),
        (100, "small"),
        (101, "mid"),
        (300, "large"),
        (301, "large"),
        (u32::MAX, "large"),
    ] {
        assert_eq!(models.pick(tokens), expected, "{tokens}");
    }
    assert_eq!(Models::One("x".to_owned()).pick(9), "x");
}
