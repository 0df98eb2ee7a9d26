//! Good inputs, from which the search starts. Most come from the recorded requests of real clients in
//! `tests/corpus`.

use std::path::Path;

use serde_json::Value;

/// Each recorded request: its headers and its body.
fn recorded() -> Vec<(Value, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    let files = std::fs::read_dir(folder).expect("the recorded requests are there");
    let mut paths: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    paths.sort();
    let texts = paths
        .iter()
        .map(|path| std::fs::read_to_string(path).expect("a recording"));
    let read = |line: &str| -> (Value, Value) {
        let mut request: Value = serde_json::from_str(line).expect("a recorded request");
        (request["headers"].take(), request["body"].take())
    };
    // The first and longest requests of each client; those between say nothing else.
    texts
        .flat_map(|text| {
            let lines: Vec<&str> = text.lines().collect();
            [lines.first(), lines.last()]
                .into_iter()
                .flatten()
                .map(|line| read(line))
                .collect::<Vec<_>>()
        })
        .collect()
}

pub(crate) fn bodies() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = recorded()
        .into_iter()
        .zip(0_u8..)
        .map(|((_, body), number)| {
            let form = if number % 2 == 0 {
                number
            } else {
                128 + number
            };
            [&[number % 5, number % 3, form], body.to_string().as_bytes()].concat()
        })
        .collect();
    for body in [
        r#"{"messages":[{"role":"user","content":"\u00e9\ud83d\ude00"}],"stream":true,"stream_options":null}"#,
        r#"{"messages":[{"role":"developer","content":[{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"stream_options":{}}"#,
        r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"},{"role":"user","content":null}]}"#,
    ] {
        seeds.push([&[2, 1, 129], body.as_bytes()].concat());
    }
    seeds
}

pub(crate) fn streams() -> Vec<Vec<u8>> {
    let report =
        r#"data: {"id":"1","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let word = r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}"#;
    let streams = [
        format!("{word}\n\n{report}\n\ndata: [DONE]\n\n"),
        format!("\u{feff}{word}\r\n\r\n{report}\r\n\r\ndata: [DONE]\r\n\r\n"),
        format!("{word}\r\r{report}\r\rdata: [DONE]\r\r"),
        format!(": comment\nevent: x\nid: 1\n{word}\n\n\n{report}"),
        "data: one\ndata: two\n\ndata\n\n:\n\nretry: 1\n\n".to_owned(),
        format!("data: {{\"choices\": [ ],\ndata: \"usage\": {{}}}}\n\n{report}\n\n"),
    ];
    streams
        .iter()
        .map(|stream| [&[7, 3], stream.as_bytes()].concat())
        .collect()
}

pub(crate) fn headers() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = recorded()
        .into_iter()
        .map(|(headers, body)| {
            let named = headers.as_object().into_iter().flatten();
            let lines = named
                .map(|(name, value)| format!("{name}: {}\n", value.as_str().unwrap_or_default()));
            let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
            let mut small = serde_json::json!({"model": "m", "messages": messages});
            for field in [
                "metadata",
                "user",
                "session_id",
                "chat_id",
                "prompt_cache_key",
            ] {
                if !body[field].is_null() {
                    small[field] = body[field].clone();
                }
            }
            format!(
                "api-version=1\nauthorization: Bearer k\n{}\n{small}",
                lines.collect::<String>()
            )
            .into_bytes()
        })
        .collect();
    for lines in [
        "key=q\nconnection: te, x-a, authorization\nte: trailers\nx-a: 1\nx-diarist-thread: t\nx-diarist-memory: off\n",
        "\ncookie: a=1\ncookie: b=2\nx-diarist_resource: u\nx_diarist_thread: u\napi-key: k\nx-other: \u{e9}\n",
        "\nauthorization: AWS4-HMAC-SHA256 Credential=x\ncontent-encoding: gzip\nsignature-input: x\n",
        "\norigin: https://page.example\nsec-fetch-site: cross-site\nx-diarist-timezone: Europe/Oslo\n",
        "\nauthorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.\nx-session-id: 7\nx-openwebui-chat-id: 8\n",
    ] {
        seeds.push(lines.as_bytes().to_vec());
    }
    seeds
}

pub(crate) fn alignments() -> Vec<Vec<u8>> {
    // Ten messages in turns, all known and observed; the client keeps, drops, rewrites or inserts some.
    let recorded = [8, 11, 16, 19, 17, 22, 23, 19, 16, 19];
    let changes: [&[u8]; 6] = [
        &[72],
        &[27, 72],
        &[16, 4, 72],
        &[6, 0, 19, 72],
        &[24, 11, 40],
        &[45, 3, 72, 5],
    ];
    changes
        .iter()
        .flat_map(|changes| {
            [
                [0, 0x3f, 10, 0],
                [0, 0x1f, 10, 15],
                [2, 0x1f, 10, 0],
                [1, 0x5f, 10, 3],
            ]
            .map(|first| [&first, recorded.as_slice(), changes].concat())
        })
        .collect()
}

pub(crate) fn observer_answers() -> Vec<Vec<u8>> {
    let answers = [
        "<observations>\nDate: Nov 23, 2026\n* 🔴 (09:15) locker 4 opens with 7000\n  * -> it is on floor 2\n</observations>\n<current-task>\nfind the key\n</current-task>\n<suggested-response>\nAsk for the floor.\n</suggested-response>\n<thread-title>Lockers</thread-title>",
        "```xml\n<observations>\n- one\n- two\n```",
        "<think>hm</think>\n- password=hunter22x and sk-a1B2c3D4e5F6g7H8a1B2c3D4\n- Bearer abc123def456ghi789\n",
        "I am sorry, I cannot help with that.",
        "- again\n- again\n- again\n- again\n- again\n- again\n- again\n- again\n",
        "<observations>* < /observations> </ observations>\n* <current-task>x\n</observations>",
        "- postgres://app:p4ssw0rd@db/x eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4 \"token\": \"abcdef0123456789\"",
    ];
    answers
        .iter()
        .zip(0_u8..)
        .map(|(answer, cut)| [&[cut], answer.as_bytes()].concat())
        .collect()
}

pub(crate) fn configs() -> Vec<Vec<u8>> {
    let example = include_str!("../../../config/example.toml");
    // Each section of the reference by itself, with its keys set.
    let set = |section: &str| -> String {
        let lines = section.lines().map(|line| {
            line.strip_prefix('#')
                .filter(|rest| !rest.starts_with(' '))
                .unwrap_or(line)
        });
        lines
            .filter(|line| !line.starts_with('#'))
            .fold(String::new(), |all, line| all + line + "\n")
    };
    let mut seeds: Vec<Vec<u8>> = example
        .split("\n[")
        // What stands in front of the first section has no keys.
        .skip(1)
        .map(|section| set(&format!("[{section}")).into_bytes())
        .collect();
    seeds.push(b"MEMORY__OBSERVATION__MESSAGE_TOKENS=20000\nSERVER__LISTEN=x\n---\n[upstream]\nbase_url = \"http://127.0.0.1:1\"\n".to_vec());
    seeds.push(
        b"UPSTREAM__API_KEY=1\nNO__SUCH=2\n---\n[no]\nsuch = 1\n[memory]\nmodel = 3\n".to_vec(),
    );
    seeds
}
