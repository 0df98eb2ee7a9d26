//! What a fingerprint leaves out, nobody is told: memory is found by fingerprints.

use bytes::Bytes;

use super::parse;
use super::tests::last;
use crate::history::MessagePiece;

/// Copies of a message. In each of them one value is another one, also inside of arguments.
fn with_one_value_changed(message: &serde_json::Value) -> Vec<serde_json::Value> {
    use serde_json::{Value, json};
    match message {
        Value::Null => vec![json!("changed")],
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(_) => vec![json!(9_007_199_254_740_993_u64), json!(0.5)],
        Value::String(text) => {
            let mut changed = vec![json!("changed"), json!(format!("{text} 9007199254740993"))];
            if let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text) {
                let inside = with_one_value_changed(&arguments).into_iter();
                changed.extend(inside.map(|arguments| json!(arguments.to_string())));
            }
            changed
        }
        Value::Array(items) => {
            let changed = items.iter().enumerate().flat_map(|(index, item)| {
                with_one_value_changed(item).into_iter().map(move |item| {
                    let mut items = items.clone();
                    items[index] = item;
                    Value::Array(items)
                })
            });
            changed.collect()
        }
        Value::Object(members) => {
            let changed = members.iter().flat_map(|(key, value)| {
                with_one_value_changed(value).into_iter().map(move |value| {
                    let mut members = members.clone();
                    members.insert(key.clone(), value);
                    Value::Object(members)
                })
            });
            changed.collect()
        }
    }
}

/// What a reader is told of the last of `messages`, without the ids of its calls.
fn text_for_reader(messages: &str) -> Option<String> {
    let body = Bytes::from(format!(r#"{{"model":"m","messages":{messages}}}"#));
    let request = parse(&body).ok()?;
    let mut text = request.reader_text(request.messages().len() - 1)?;
    for piece in &mut text.pieces {
        match piece {
            MessagePiece::Result { id } | MessagePiece::Call { id, .. } => id.clear(),
            MessagePiece::Text(text) => *text = text.trim().to_owned(),
            _ => {}
        }
    }
    Some(format!("{text:?}"))
}

/// Memory is found by fingerprints. If two messages share one, the users of both are told the same text of them.
#[test]
fn messages_with_one_fingerprint_are_told_alike() {
    let (mut changes, mut alike) = (0, 0);
    for message in [
        r#"{"role":"user","name":"ann","content":"Is it open? 17","foo":{"bar":"x"}}"#,
        r#"{"role":"assistant","content":"a","foo":"x","audio":{"id":"a1","transcript":"Yes."}}"#,
        r#"{"role":"system","content":[{"type":"text","text":"be brief"},{"type":"document","title":"t"}]}"#,
        r#"{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"https://h/a.png?X-Amz-Signature=1&v=2","detail":"low"}},
            {"type":"file","file":{"filename":"a.pdf","file_id":"f1"}},{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},
            {"type":"new","value":{"deep":[1,"x",null,true,12345678901234567890]}}]}"#,
        r#"{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}"#,
        r#"{"role":"assistant","content":"So.","refusal":"No."}"#,
        r#"{"role":"assistant","content":[{"type":"refusal","refusal":"No."}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":[1,\"x\"],\"b\":{\"c\":null}}"}},
            {"id":"c2","type":"custom","custom":{"name":"g","input":"print(1)"}}]}"#,
        r#"{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"print(1)"}}]}"#,
        r#"{"role":"assistant","function_call":{"name":"f","arguments":"{\"a\":1}"}}"#,
        r#"{"role":"tool","tool_call_id":"c0","content":"done"}"#,
        r#"{"role":"function","name":"f","content":"done"}"#,
    ] {
        let value: serde_json::Value = serde_json::from_str(message).unwrap();
        let behind = |message: &str| {
            let call = r#"{"role":"assistant","tool_calls":[{"id":"c0","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
            format!(r#"[{{"role":"user","content":"-"}},{call},{message}]"#)
        };
        let original = behind(message);
        for changed in with_one_value_changed(&value) {
            let changed = behind(&changed.to_string());
            let Some(text) = text_for_reader(&changed) else {
                continue;
            };
            changes += 1;
            if last(&changed) == last(&original) {
                alike += 1;
                assert_eq!(Some(text), text_for_reader(&original), "{changed}");
            }
        }
    }
    // Ids of calls and fields of the model's decoration change nothing.
    assert!(changes > 60 && alike > 4, "{changes} {alike}");
}

/// The Observer is shown what the fingerprint holds. Tokens are counted without what most upstreams do not show to the model.
#[test]
fn unknown_fields_are_shown_and_not_counted_and_spoken_words_are_shown() {
    let messages = r#"[{"role":"user","content":"hi","context":{"city":"Porto"}},
        {"role":"assistant","audio":{"id":"a","transcript":"It is sunny."}}]"#;
    let request = parse(&Bytes::from(format!(
        r#"{{"model":"m","messages":{messages}}}"#
    )))
    .unwrap();
    let shown = |index| format!("{:?}", request.reader_text(index).unwrap());
    assert!(shown(0).contains("Porto") && shown(1).contains("It is sunny."));
    let counted = format!("{:?}", request.plain_text(0).unwrap());
    assert!(!counted.contains("Porto"), "{counted}");
}
