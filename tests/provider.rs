//! The scripted provider over real sockets: what it records, how it streams, how it breaks.
//!
//! Its verdicts and its cache have their tests beside the code; here is what only a connection
//! shows.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use std::sync::Arc;
use std::time::Duration;

use diarist::provider::{
    Ask, Behaviour, Call, Conversation, Cut, Ending, LineEnd, Manner, Observer, Options, Part,
    Provider, Replay, Reply, Say, Stage, Style, Verdict, signature_for,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

async fn provider() -> Provider {
    Provider::start(Options::default()).await.unwrap()
}

fn ask(text: &str) -> Value {
    json!({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]})
}

fn streamed(mut request: Value) -> Value {
    request["stream"] = json!(true);
    request
}

async fn post(provider: &Provider, request: &Value) -> reqwest::Response {
    reqwest::Client::new()
        .post(format!("{}/chat/completions", provider.base_url()))
        .bearer_auth("sk-test")
        .json(request)
        .send()
        .await
        .unwrap()
}

/// The data of every event, by the letter of the standard: any line end, comments dropped, several
/// data lines joined.
fn events(stream: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(stream).unwrap();
    let text = text
        .trim_start_matches('\u{feff}')
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    text.split("\n\n")
        .map(|event| {
            let lines = event.lines().filter_map(|line| line.strip_prefix("data: "));
            lines.collect::<Vec<_>>().join("\n")
        })
        .filter(|data| !data.is_empty())
        .collect()
}

fn chunks(stream: &[u8]) -> Vec<Value> {
    let mut datas = events(stream);
    assert_eq!(datas.pop().as_deref(), Some("[DONE]"));
    datas
        .iter()
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn streamed_text(stream: &[u8]) -> String {
    chunks(stream)
        .iter()
        .filter_map(|chunk| {
            chunk["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect()
}

/// A request written by hand on a socket of its own, for clients that leave.
async fn raw(provider: &Provider, body: &str, announced: usize) -> TcpStream {
    let mut socket = TcpStream::connect(provider.address()).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {announced}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    socket
}

/// Reads until `wanted` has come.
async fn read_until(socket: &mut TcpStream, wanted: &str) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let read = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut buffer));
        let read = read.await.expect("the answer comes").unwrap();
        assert!(read > 0, "closed before {wanted:?}");
        seen.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn a_plain_answer_and_its_record_agree() {
    let provider = provider().await;
    provider.script(Part::Actor, Say("Good morning.".into()));
    let request = ask("hello");
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], "Good morning.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    let record = provider.wait_for(1).await.unwrap();
    let entry = &record[0];
    assert!(entry.accepted());
    assert_eq!(entry.body, request.to_string().as_bytes());
    assert_eq!(
        (entry.target.as_str(), entry.part),
        ("/v1/chat/completions", Part::Actor)
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
    let measured = entry.measured.unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], measured.prompt_tokens);
    assert_eq!(
        answer["usage"]["completion_tokens"],
        entry.completion_tokens.unwrap()
    );
    assert_eq!(entry.reply.as_ref().unwrap()["content"], "Good morning.");
    assert!(matches!(entry.ending, Ending::Complete { .. }));
}

#[tokio::test]
async fn refusals_are_answered_in_the_apis_words() {
    let provider = provider().await;
    provider.rules(|rules| rules.window = Some(50));
    let answer = post(&provider, &ask(&"word ".repeat(200))).await;
    assert_eq!(answer.status(), 400);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "context_length_exceeded");

    let client = reqwest::Client::new();
    let url = format!("{}/chat/completions", provider.base_url());
    let answer = client.post(url).body("{broken").send().await.unwrap();
    assert_eq!(answer.status(), 400);

    let record = provider.wait_for(2).await.unwrap();
    assert_eq!(
        record[0].refusal().unwrap().code,
        Some("context_length_exceeded")
    );
    assert_eq!(record[0].measured, None);
    assert!(record[1].refusal().unwrap().message.contains("JSON"));
}

#[tokio::test]
async fn a_stream_carries_text_and_usage_only_when_asked() {
    let provider = provider().await;
    let text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.";
    provider.script(Part::Actor, Say(text.into()));
    let plain = post(&provider, &streamed(ask("x")))
        .await
        .bytes()
        .await
        .unwrap();
    assert_eq!(streamed_text(&plain), text);
    assert!(
        chunks(&plain)
            .iter()
            .all(|chunk| chunk.get("usage").is_none())
    );

    let mut request = streamed(ask("x"));
    request["stream_options"] = json!({"include_usage": true});
    let mut with_usage = chunks(&post(&provider, &request).await.bytes().await.unwrap());
    let last = with_usage.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
    assert!(
        with_usage
            .iter()
            .all(|chunk| chunk.get("usage") == Some(&Value::Null))
    );
    assert_eq!(
        with_usage.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
}

#[tokio::test]
async fn tool_calls_stream_as_deltas_and_carry_their_signature_where_it_is_wanted() {
    let provider = provider().await;
    provider.rules(|rules| rules.signature = true);
    let call = |id: &str| Call {
        id: id.to_owned(),
        name: "look".to_owned(),
        arguments: json!({"query": "something rather long, so that it takes several deltas"})
            .to_string(),
    };
    let reply = Reply {
        calls: vec![call("a"), call("b")],
        ..Reply::default()
    };
    provider.script(Part::Actor, move |_: &Ask<'_>| reply.clone());

    let stream = chunks(
        &post(&provider, &streamed(ask("x")))
            .await
            .bytes()
            .await
            .unwrap(),
    );
    let mut arguments = [String::new(), String::new()];
    let mut heads = Vec::new();
    for delta in stream
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0))
    {
        let index = usize::try_from(delta["index"].as_u64().unwrap()).unwrap();
        arguments[index].push_str(delta["function"]["arguments"].as_str().unwrap());
        if delta.get("id").is_some() {
            heads.push(delta.clone());
        }
    }
    assert_eq!(arguments, [call("a").arguments, call("b").arguments]);
    assert_eq!(heads.len(), 2);
    assert_eq!(
        heads[0]["extra_content"]["google"]["thought_signature"],
        signature_for("a")
    );

    // What was issued is accepted when it comes back, and only then.
    let message = post(&provider, &ask("x"))
        .await
        .json::<Value>()
        .await
        .unwrap()["choices"][0]["message"]
        .clone();
    let mut turn = json!({"model": "m", "messages": [
        {"role": "user", "content": "x"},
        message,
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]});
    assert_eq!(post(&provider, &turn).await.status(), 200);
    turn["messages"][1]["tool_calls"][1]
        .as_object_mut()
        .unwrap()
        .remove("extra_content");
    assert_eq!(post(&provider, &turn).await.status(), 400);
}

#[tokio::test]
async fn several_choices_are_several() {
    let provider = provider().await;
    provider.script(Part::Actor, |ask: &Ask<'_>| {
        Reply::say(format!("choice {}", ask.choice))
    });
    let mut request = ask("x");
    request["n"] = json!(3);
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 3);
    assert_eq!(answer["choices"][2]["message"]["content"], "choice 2");
    assert_eq!(answer["choices"][2]["index"], 2);
}

#[tokio::test]
async fn every_spelling_of_a_stream_says_the_same() {
    let provider = provider().await;
    let text = "Überall dasselbe, whatever the frames: 雪が降る. ".repeat(4);
    provider.script(Part::Actor, Say(text.clone()));
    let spellings = [
        Behaviour {
            line_end: LineEnd::CrLf,
            ..Behaviour::default()
        },
        Behaviour {
            line_end: LineEnd::Cr,
            comments: true,
            ..Behaviour::default()
        },
        Behaviour {
            byte_order_mark: true,
            multi_line: true,
            ..Behaviour::default()
        },
        Behaviour {
            frame_bytes: Some(1),
            delta_chars: Some(3),
            ..Behaviour::default()
        },
        Behaviour {
            frame_bytes: Some(1000),
            unasked_usage: true,
            ..Behaviour::default()
        },
    ];
    for behaviour in spellings {
        provider.next(Part::Actor, 1, &behaviour);
        let stream = post(&provider, &streamed(ask("x")))
            .await
            .bytes()
            .await
            .unwrap();
        let raw = std::str::from_utf8(&stream).unwrap();
        assert_eq!(raw.starts_with('\u{feff}'), behaviour.byte_order_mark);
        assert_eq!(raw.contains("\r\n"), behaviour.line_end == LineEnd::CrLf);
        assert_eq!(raw.contains(": keep-alive"), behaviour.comments);
        assert_eq!(raw.contains("\ndata: \""), behaviour.multi_line);
        let usage = chunks(&stream).last().unwrap().get("usage").is_some();
        assert_eq!(usage, behaviour.unasked_usage);
        let said: String = chunks(&stream)
            .iter()
            .filter_map(|chunk| {
                chunk
                    .pointer("/choices/0/delta/content")?
                    .as_str()
                    .map(str::to_owned)
            })
            .collect();
        assert_eq!(said, text, "{behaviour:?}");
    }
}

#[tokio::test]
async fn a_gzip_answer_is_gzip_and_so_may_a_request_be() {
    use std::io::{Read as _, Write as _};

    let provider = provider().await;
    provider.script(Part::Actor, Say("compressed".into()));
    provider.next(
        Part::Actor,
        1,
        &Behaviour {
            gzip: true,
            ..Behaviour::default()
        },
    );
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder
        .write_all(streamed(ask("x")).to_string().as_bytes())
        .unwrap();
    let answer = reqwest::Client::new()
        .post(format!("{}/chat/completions", provider.base_url()))
        .header("content-encoding", "gzip")
        .body(encoder.finish().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    let mut plain = Vec::new();
    let compressed = answer.bytes().await.unwrap();
    flate2::read::GzDecoder::new(compressed.as_ref())
        .read_to_end(&mut plain)
        .unwrap();
    assert_eq!(streamed_text(&plain), "compressed");
}

#[tokio::test]
async fn failures_come_as_often_as_queued_and_to_the_part_they_are_for() {
    let provider = provider().await;
    provider.next(Part::Actor, 2, &Behaviour::rate_limited(7));
    for _ in 0..2 {
        let answer = post(&provider, &ask("x")).await;
        assert_eq!(
            (
                answer.status().as_u16(),
                answer.headers()["retry-after"].to_str().unwrap()
            ),
            (429, "7")
        );
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["error"]["code"], "rate_limit_exceeded");
    }
    assert_eq!(post(&provider, &ask("x")).await.status(), 200);

    provider.behave(Part::Observer, Behaviour::failing(401));
    assert_eq!(post(&provider, &ask("x")).await.status(), 200);
    let mut observer = ask("x");
    observer["model"] = json!("observer-mini");
    assert_eq!(post(&provider, &observer).await.status(), 401);
    assert_eq!(
        provider.record_of(Part::Observer)[0].verdict,
        Verdict::Failed(401)
    );
}

#[tokio::test]
async fn an_early_failure_does_not_wait_for_the_body() {
    let provider = provider().await;
    provider.next(
        Part::Actor,
        1,
        &Behaviour {
            early: true,
            ..Behaviour::failing(413)
        },
    );
    let mut socket = raw(&provider, "{", 1_000_000).await;
    assert!(
        read_until(&mut socket, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 413")
    );
}

#[tokio::test]
async fn a_cut_answer_never_looks_whole() {
    let provider = provider().await;
    provider.script(
        Part::Actor,
        Say("one two three four five six seven eight nine ten".into()),
    );
    for cut in [
        Cut::AfterBytes(0),
        Cut::AfterBytes(150),
        Cut::AfterEvents(2),
        Cut::ResetAfterEvents(2),
    ] {
        provider.next(Part::Actor, 1, &Behaviour::cutting(cut));
        let stream = post(&provider, &streamed(ask("x"))).await.bytes().await;
        assert!(stream.is_err(), "{cut:?} of a stream");
    }
    for cut in [
        Cut::AfterBytes(0),
        Cut::AfterBytes(150),
        Cut::AfterEvents(0),
    ] {
        provider.next(Part::Actor, 1, &Behaviour::cutting(cut));
        let plain = post(&provider, &ask("x")).await.bytes().await;
        assert!(plain.is_err(), "{cut:?} of a plain answer");
    }
    provider.next(Part::Actor, 1, &Behaviour::cutting(Cut::BeforeHead));
    let client = reqwest::Client::new();
    let sent = client
        .post(format!("{}/chat/completions", provider.base_url()))
        .json(&ask("x"));
    assert!(sent.send().await.is_err());
    let record = provider.wait_for(8).await.unwrap();
    assert!(
        record
            .iter()
            .all(|entry| matches!(entry.ending, Ending::Cut { .. }))
    );
}

#[tokio::test]
async fn a_reset_is_a_reset_and_a_cut_a_close() {
    let provider = provider().await;
    for (cut, reset) in [
        (Cut::AfterEvents(1), false),
        (Cut::ResetAfterEvents(1), true),
    ] {
        provider.next(Part::Actor, 1, &Behaviour::cutting(cut));
        let body = streamed(ask("x")).to_string();
        let mut socket = raw(&provider, &body, body.len()).await;
        read_until(&mut socket, "data: ").await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), socket.read_to_end(&mut rest));
        let ended = ended.await.expect("the connection ends");
        assert_eq!(ended.is_err(), reset, "{cut:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_gate_lets_one_event_through_at_a_time() {
    let provider = provider().await;
    let gate = Arc::new(Semaphore::new(1));
    provider.behave(Part::Actor, Behaviour::gated(&gate));
    let mut answer = post(&provider, &streamed(ask("x"))).await;
    let mut seen = answer.chunk().await.unwrap().unwrap().to_vec();
    assert_eq!(events(&seen).len(), 1);
    gate.add_permits(1);
    seen.extend_from_slice(&answer.chunk().await.unwrap().unwrap());
    assert_eq!(events(&seen).len(), 2);
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    while let Some(frame) = answer.chunk().await.unwrap() {
        seen.extend_from_slice(&frame);
    }
    assert!(events(&seen).len() > 2);
    assert_eq!(events(&seen).last().unwrap(), "[DONE]");
}

/// Waits until the newest request shows that its client left, and gives the stage.
async fn hung_up(provider: &Provider) -> Stage {
    let record = provider
        .wait_until(|record| record.last().is_some_and(|entry| entry.hung_up().is_some()))
        .await
        .unwrap();
    record.last().unwrap().hung_up().unwrap()
}

#[tokio::test]
async fn leaving_before_the_end_of_the_body_is_seen() {
    let provider = provider().await;
    let socket = raw(&provider, "{\"messages\"", 1000).await;
    provider
        .wait_until(|record| record.last().is_some_and(|entry| entry.body_bytes == 11))
        .await
        .unwrap();
    drop(socket);
    assert_eq!(hung_up(&provider).await, Stage::Body);
    assert_eq!(provider.record()[0].body, "{\"messages\"".as_bytes());
}

#[tokio::test]
async fn leaving_before_the_head_is_seen() {
    let provider = provider().await;
    let silent = Behaviour {
        silent: true,
        ..Behaviour::default()
    };
    provider.behave(Part::Actor, silent);
    let body = ask("x").to_string();
    let socket = raw(&provider, &body, body.len()).await;
    provider
        .wait_until(|record| record.last().is_some_and(|entry| entry.model.is_some()))
        .await
        .unwrap();
    drop(socket);
    assert_eq!(hung_up(&provider).await, Stage::BeforeHead);
}

#[tokio::test]
async fn leaving_a_stream_is_seen_with_how_much_was_sent() {
    let provider = provider().await;
    provider.script(
        Part::Actor,
        Say("some words that take a few events to say".into()),
    );
    let body = streamed(ask("x")).to_string();
    let gated = |permits| Behaviour::gated(&Arc::new(Semaphore::new(permits)));
    let in_frames = Behaviour {
        frame_bytes: Some(20),
        pace_frames: true,
        ..gated(1)
    };
    let held = Behaviour {
        hold_open: true,
        ..Behaviour::default()
    };
    let one_event = |stage| matches!(stage, Stage::Streaming { events: 1, bytes } if bytes > 20);
    let cases: [(Behaviour, &str, &dyn Fn(Stage) -> bool); 4] = [
        (gated(0), "\r\n\r\n", &|stage| {
            stage == Stage::BeforeFirstEvent
        }),
        (gated(1), "data: ", &one_event),
        (in_frames, "data: ", &|stage| {
            stage
                == Stage::Streaming {
                    events: 0,
                    bytes: 20,
                }
        }),
        (held, "[DONE]", &|stage| stage == Stage::AfterLastEvent),
    ];
    for (behaviour, until, expected) in cases {
        provider.next(Part::Actor, 1, &behaviour);
        let mut socket = raw(&provider, &body, body.len()).await;
        read_until(&mut socket, until).await;
        drop(socket);
        let stage = hung_up(&provider).await;
        assert!(expected(stage), "{stage:?} with {behaviour:?}");
    }
}

#[tokio::test]
async fn the_prompt_cache_is_reported_as_it_would_be() {
    let provider = provider().await;
    let conversation = Conversation::generate(3, 40, Style::Coding);
    provider.script(Part::Actor, Replay::of([&conversation]));
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
async fn observer_and_reflector_answer_under_their_own_names() {
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
        Part::Observer,
        Observer {
            manner: Manner::Filtered,
        },
    );
    let answer: Value = post(&provider, &request).await.json().await.unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "content_filter");
    assert!(answer["choices"][0]["message"]["refusal"].is_string());
}

#[tokio::test]
async fn who_is_asking_can_be_decided_by_the_test() {
    let provider = Provider::start(Options {
        recognise: Arc::new(|request| {
            let first = request["messages"][0]["content"]
                .as_str()
                .unwrap_or_default();
            if first.contains("observe") {
                Part::Observer
            } else {
                Part::Actor
            }
        }),
        ..Options::default()
    })
    .await
    .unwrap();
    post(&provider, &ask("please observe this")).await;
    post(&provider, &ask("hello")).await;
    let parts: Vec<Part> = provider
        .wait_for(2)
        .await
        .unwrap()
        .iter()
        .map(|entry| entry.part)
        .collect();
    assert_eq!(parts, [Part::Observer, Part::Actor]);
}

#[tokio::test]
async fn the_other_routes_answer() {
    let provider = provider().await;
    let client = reqwest::Client::new();
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
            .all(|entry| entry.verdict == Verdict::Unjudged)
    );
}

#[tokio::test]
async fn an_upgraded_connection_gives_bytes_back() {
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
async fn bodies_are_kept_only_where_wanted() {
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
