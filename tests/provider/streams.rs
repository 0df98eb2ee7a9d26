//! Streams: their events, their spellings, their pace.

use std::sync::Arc;

use diarist_provider::{
    Behaviour, CallerKind, Ending, FixedReply, LineEnd, Reply, ScriptInput, ToolCall, signature_for,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::provider::client::{
    ask, chunks, client, events, post, provider, streamed, streamed_text,
};

#[tokio::test]
async fn a_stream_contains_usage_only_if_requested() {
    let provider = provider().await;
    let text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.";
    provider.script(CallerKind::Actor, FixedReply(text.into()));
    let plain = post(&provider, &streamed(ask("x")))
        .await
        .bytes()
        .await
        .unwrap();
    assert_eq!(streamed_text(&plain), text);
    let record = provider.wait_for(1).await.unwrap();
    assert!(matches!(record[0].ending, Ending::Complete { .. }));
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
async fn tool_calls_stream_as_deltas_with_a_signature_if_configured() {
    let provider = provider().await;
    provider.rules(|rules| rules.signature = true);
    let call = |id: &str| ToolCall {
        id: id.to_owned(),
        name: "look".to_owned(),
        arguments: json!({"query": "something rather long, so that it takes several deltas"})
            .to_string(),
    };
    let reply = Reply {
        calls: vec![call("a"), call("b")],
        ..Reply::default()
    };
    provider.script(CallerKind::Actor, move |_: &ScriptInput<'_>| reply.clone());

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
async fn every_spelling_of_a_stream_contains_the_same_text() {
    let provider = provider().await;
    let text = "Überall dasselbe, whatever the frames: 雪が降る. ".repeat(4);
    provider.script(CallerKind::Actor, FixedReply(text.clone()));
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
            unrequested_usage: true,
            ..Behaviour::default()
        },
    ];
    for behaviour in spellings {
        provider.inject_next(CallerKind::Actor, 1, &behaviour);
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
        assert_eq!(usage, behaviour.unrequested_usage);
        let joined: String = chunks(&stream)
            .iter()
            .filter_map(|chunk| {
                chunk
                    .pointer("/choices/0/delta/content")?
                    .as_str()
                    .map(str::to_owned)
            })
            .collect();
        assert_eq!(joined, text, "{behaviour:?}");
    }
}

#[tokio::test]
async fn the_provider_reads_gzip_requests_and_sends_gzip_answers() {
    use std::io::{Read as _, Write as _};

    let provider = provider().await;
    provider.script(CallerKind::Actor, FixedReply("compressed".into()));
    provider.inject_next(
        CallerKind::Actor,
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
    let answer = client()
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
async fn a_gate_lets_one_event_through_at_a_time() {
    let provider = provider().await;
    let gate = Arc::new(Semaphore::new(1));
    provider.inject(CallerKind::Actor, Behaviour::gated(&gate));
    let mut answer = post(&provider, &streamed(ask("x"))).await;
    let mut received = answer.chunk().await.unwrap().unwrap().to_vec();
    assert_eq!(events(&received).len(), 1);
    gate.add_permits(1);
    received.extend_from_slice(&answer.chunk().await.unwrap().unwrap());
    assert_eq!(events(&received).len(), 2);
    gate.add_permits(Semaphore::MAX_PERMITS / 2);
    while let Some(frame) = answer.chunk().await.unwrap() {
        received.extend_from_slice(&frame);
    }
    assert!(events(&received).len() > 2);
    assert_eq!(events(&received).last().unwrap(), "[DONE]");
}
