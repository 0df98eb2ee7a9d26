use serde_json::{Value, json};

use super::*;
use crate::prompt::estimate_tokens;

fn verdict(request: &Value, rules: &Rules) -> Result<AcceptedRequest, Refusal> {
    judge(request.to_string().as_bytes(), rules)
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn calls(ids: &[&str]) -> Value {
    let calls: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}))
        .collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "found"})
}

fn request(messages: &[Value]) -> Value {
    json!({"model": "gpt-4o", "messages": messages})
}

fn with(mut request: Value, key: &str, value: Value) -> Value {
    request[key] = value;
    request
}

/// The refusal of `request`, which must come from the flag alone: the default rules accept the request.
fn refused_only_by(request: &Value, rules: &Rules) -> Refusal {
    verdict(request, &Rules::default()).expect("acceptable without the rule");
    verdict(request, rules).expect_err("refused by the rule")
}

fn refused(request: &Value) -> Refusal {
    verdict(request, &Rules::default()).expect_err("refused")
}

fn hello() -> Value {
    request(&[message("user", "hello")])
}

#[test]
fn an_ordinary_conversation_passes_under_every_rule() {
    let messages = [
        message("system", "Be kind."),
        message("user", "two look-ups please"),
        calls(&["a", "b"]),
        result("b"),
        result("a"),
        message("assistant", "done"),
        message("user", "again"),
        calls(&["a"]),
        result("a"),
    ];
    let accepted = verdict(&request(&messages), &Rules::strict()).unwrap();
    assert_eq!(accepted.messages(), messages);
    assert_eq!(
        (accepted.model.as_str(), accepted.n, accepted.stream),
        ("gpt-4o", 1, false)
    );
}

#[test]
fn stream_usage_and_number_of_answers_are_read_from_the_request() {
    let request = with(
        with(
            with(hello(), "stream", json!(true)),
            "stream_options",
            json!({"include_usage": true}),
        ),
        "n",
        json!(3),
    );
    let accepted = verdict(&request, &Rules::default()).unwrap();
    assert!(accepted.stream && accepted.include_usage);
    assert_eq!(accepted.n, 3);
}

#[test]
fn a_body_that_is_no_json_object_is_refused() {
    let deep = format!(
        "{{\"messages\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for body in [
        b"".as_slice(),
        b"{",
        b"[]",
        b"null",
        b"\xff{}",
        b"{\"a\":1} x",
        deep.as_bytes(),
    ] {
        let refusal = judge(body, &Rules::default()).unwrap_err();
        assert_eq!(
            (refusal.status, refusal.kind),
            (400, "invalid_request_error")
        );
        assert!(refusal.message.contains("JSON"));
    }
}

#[test]
fn missing_or_malformed_messages_are_refused() {
    let cases = [
        (
            json!({"model": "m"}),
            "missing_required_parameter",
            "messages",
        ),
        (
            json!({"model": "m", "messages": null}),
            "missing_required_parameter",
            "messages",
        ),
        (
            json!({"model": "m", "messages": []}),
            "empty_array",
            "messages",
        ),
        (
            json!({"model": "m", "messages": "hi"}),
            "invalid_type",
            "messages",
        ),
        (
            json!({"model": "m", "messages": ["hi"]}),
            "invalid_type",
            "messages[0]",
        ),
        (
            request(&[json!({"content": "hi"})]),
            "missing_required_parameter",
            "messages[0].role",
        ),
        (
            request(&[message("wizard", "hi")]),
            "invalid_value",
            "messages[0].role",
        ),
        (
            request(&[json!({"role": "tool", "content": "x"})]),
            "missing_required_parameter",
            "messages[0].tool_call_id",
        ),
        (
            request(&[json!({"role": "assistant", "content": "", "tool_calls": []})]),
            "empty_array",
            "messages[0].tool_calls",
        ),
        (
            request(&[json!({"role": "assistant", "tool_calls": [{"id": "a"}]})]),
            "missing_required_parameter",
            "messages[0].tool_calls[0]",
        ),
        (
            request(&[json!({"role": "user", "content": 5})]),
            "invalid_type",
            "messages[0].content",
        ),
        (
            request(&[json!({"role": "user", "content": [{"type": "smell"}]})]),
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (
            request(&[json!({"role": "user", "content": [{"type": "text"}]})]),
            "missing_required_parameter",
            "messages[0].content[0].text",
        ),
    ];
    for (request, code, param) in cases {
        let refusal = refused(&request);
        assert_eq!(
            (refusal.code, refusal.param.as_deref()),
            (Some(code), Some(param)),
            "{request}"
        );
    }
}

#[test]
fn content_may_be_missing_only_beside_a_call() {
    assert!(
        refused(&request(&[json!({"role": "user"})]))
            .message
            .contains("expected a string")
    );
    assert!(
        refused(&request(&[json!({"role": "assistant", "content": null})]))
            .message
            .contains("got null")
    );
    assert!(verdict(&request(&[calls(&["a"]), result("a")]), &Rules::default()).is_ok());
}

#[test]
fn a_refusal_names_unknown_parameters_and_those_of_a_wrong_type() {
    let refusal = refused(&with(hello(), "x_memory", json!(1)));
    assert_eq!(refusal.param.as_deref(), Some("x_memory"));
    assert!(refusal.message.contains("Unrecognized request argument"));
    for (key, value) in [
        ("stream", json!("yes")),
        ("temperature", json!("hot")),
        ("n", json!(0.5)),
        ("tools", json!({})),
    ] {
        let refusal = refused(&with(hello(), key, value));
        assert_eq!(
            (refusal.code, refusal.param.as_deref()),
            (Some("invalid_type"), Some(key))
        );
    }
    assert_eq!(
        refused(&with(hello(), "n", json!(0))).code,
        Some("integer_below_min_value")
    );
    assert!(
        refused(&json!({"messages": [message("user", "x")]}))
            .message
            .contains("model")
    );

    let tolerant = Rules {
        extra_parameters: vec!["x_memory".into()],
        ..Rules::default()
    };
    assert!(verdict(&with(hello(), "x_memory", json!(1)), &tolerant).is_ok());
}

#[test]
fn a_result_without_its_call_is_refused() {
    for messages in [
        vec![result("a")],
        vec![message("user", "x"), result("a")],
        vec![
            calls(&["a"]),
            result("a"),
            message("user", "x"),
            result("a"),
        ],
    ] {
        let refusal = refused(&request(&messages));
        assert!(
            refusal
                .message
                .contains("must be a response to a preceding message"),
            "{refusal:?}"
        );
        assert_eq!(
            refusal.param.unwrap(),
            format!("messages.[{}].role", messages.len() - 1)
        );
    }
    let stranger = refused(&request(&[calls(&["a"]), result("a"), result("b")]));
    assert!(stranger.message.contains("'b' not found in 'tool_calls'"));
}

#[test]
fn a_call_without_all_its_results_is_refused() {
    for messages in [
        vec![
            calls(&["a", "b"]),
            result("a"),
            message("user", "x"),
            result("b"),
        ],
        vec![calls(&["a", "b"]), result("a"), calls(&["c"]), result("c")],
        vec![message("user", "x"), calls(&["a", "b"]), result("a")],
    ] {
        let refusal = refused(&request(&messages));
        assert!(
            refusal
                .message
                .contains("did not have response messages: b"),
            "{refusal:?}"
        );
    }
}

#[test]
fn a_repeated_tool_result_or_call_id_is_refused() {
    let twice = refused(&request(&[calls(&["a"]), result("a"), result("a")]));
    assert!(twice.message.contains("duplicate 'tool_call_id' 'a'"));
    let twins = refused(&request(&[calls(&["a", "a"]), result("a")]));
    assert!(twins.message.contains("duplicate tool call id 'a'"));
}

#[test]
fn the_refusal_of_a_too_long_prompt_contains_prompt_size_and_window() {
    let long = request(&[message("user", &"word ".repeat(400))]);
    let tokens = verdict(&long, &Rules::default())
        .unwrap()
        .prompt
        .tokens(&estimate_tokens());
    let rules = |window| Rules {
        window: Some(window),
        ..Rules::default()
    };
    assert!(verdict(&long, &rules(tokens)).is_ok());
    let refusal = refused_only_by(&long, &rules(tokens - 1));
    assert_eq!(
        (refusal.status, refusal.code),
        (400, Some("context_length_exceeded"))
    );
    assert!(refusal.message.contains(&tokens.to_string()));
    assert!(refusal.message.contains(&(tokens - 1).to_string()));
}

#[test]
fn a_reasoning_model_refuses_temperature_and_max_tokens() {
    let thinker = with(hello(), "model", json!("o3-mini"));
    let warm = refused(&with(thinker.clone(), "temperature", json!(0.3)));
    assert_eq!(
        (warm.code, warm.param.as_deref()),
        (Some("unsupported_value"), Some("temperature"))
    );
    let capped = refused(&with(thinker.clone(), "max_tokens", json!(10)));
    assert_eq!(
        (capped.code, capped.param.as_deref()),
        (Some("unsupported_parameter"), Some("max_tokens"))
    );
    for (key, value) in [
        ("temperature", json!(1)),
        ("max_completion_tokens", json!(10)),
    ] {
        assert!(verdict(&with(thinker.clone(), key, value), &Rules::default()).is_ok());
    }
    assert!(verdict(&with(hello(), "temperature", json!(0.3)), &Rules::default()).is_ok());
}

#[test]
fn stream_options_need_a_stream_and_a_provider_that_knows_them() {
    let options = json!({"include_usage": true});
    let lonely = refused(&with(hello(), "stream_options", options.clone()));
    assert_eq!(lonely.param.as_deref(), Some("stream_options"));

    let streamed = with(
        with(hello(), "stream", json!(true)),
        "stream_options",
        options,
    );
    let rules = Rules {
        refuse_stream_options: true,
        ..Rules::default()
    };
    let refusal = refused_only_by(&streamed, &rules);
    assert_eq!(
        (refusal.status, refusal.code),
        (400, Some("unknown_parameter"))
    );
}

#[test]
fn the_alternate_rule_requires_alternating_turns_that_begin_with_the_user() {
    let rules = Rules {
        alternate: true,
        ..Rules::default()
    };
    for messages in [
        vec![message("assistant", "hi")],
        vec![calls(&["a"]), result("a"), message("user", "x")],
        vec![message("user", "x"), message("user", "y")],
        vec![
            message("user", "x"),
            message("assistant", "y"),
            message("assistant", "z"),
        ],
        vec![
            message("user", "x"),
            calls(&["a"]),
            result("a"),
            message("user", "y"),
        ],
        vec![
            message("system", "s"),
            message("assistant", "hi"),
            message("user", "x"),
        ],
        vec![
            message("user", "x"),
            message("assistant", "y"),
            calls(&["a"]),
            result("a"),
        ],
    ] {
        let refusal = refused_only_by(&request(&messages), &rules);
        assert!(refusal.message.contains("must alternate"), "{messages:?}");
    }
    let fine = [
        message("system", "s"),
        message("system", "t"),
        message("user", "x"),
        calls(&["a"]),
        result("a"),
        message("assistant", "y"),
        message("user", "z"),
    ];
    assert!(verdict(&request(&fine), &rules).is_ok());
}

#[test]
fn single_system_and_system_first_are_separate_demands() {
    let two = request(&[
        message("system", "a"),
        message("developer", "b"),
        message("user", "x"),
    ]);
    let late = request(&[message("user", "x"), message("system", "a")]);
    let single = Rules {
        single_system: true,
        ..Rules::default()
    };
    let first = Rules {
        system_first: true,
        ..Rules::default()
    };

    let refusal = refused_only_by(&two, &single);
    assert_eq!(refusal.param.as_deref(), Some("messages[1].role"));
    assert!(verdict(&late, &single).is_ok());

    let refusal = refused_only_by(&late, &first);
    assert_eq!(refusal.param.as_deref(), Some("messages[1].role"));
    assert!(verdict(&two, &first).is_ok());
}

/// The answer of llama.cpp's server if the template raises an exception.
#[test]
fn a_template_accepts_only_a_first_system_message_and_answers_500_otherwise() {
    let rules = Rules {
        template: true,
        ..Rules::default()
    };
    let first = request(&[message("system", "a"), message("user", "x")]);
    assert!(verdict(&first, &rules).is_ok());
    for late in [
        [
            message("system", "a"),
            message("system", "b"),
            message("user", "x"),
        ],
        [
            message("user", "x"),
            message("assistant", "y"),
            message("developer", "a"),
        ],
    ] {
        let refusal = refused_only_by(&request(&late), &rules);
        let error = &refusal.body()["error"];
        let keys: Vec<_> = error.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["code", "message", "type"]);
        assert_eq!((refusal.status, &error["code"]), (500, &json!(500)));
        assert_eq!(error["type"], "server_error");
        let message = error["message"].as_str().unwrap();
        let raised = "Error: Jinja Exception: System message must be at the beginning.";
        assert!(message.ends_with(raised), "{message}");
    }
}

#[test]
fn the_json_object_format_requires_the_word_json_in_a_message() {
    let request = with(hello(), "response_format", json!({"type": "json_object"}));
    let refusal = refused(&request);
    assert!(refusal.message.contains("'json' in some form"));
    let lax = Rules {
        json_object: false,
        ..Rules::default()
    };
    assert!(verdict(&request, &lax).is_ok());
    for content in [
        json!("as Json please"),
        json!([{"type": "text", "text": "JSON"}]),
    ] {
        let request = with(
            request.clone(),
            "messages",
            json!([{"role": "user", "content": content}]),
        );
        assert!(verdict(&request, &Rules::default()).is_ok());
    }
}

#[test]
fn thought_signatures_of_the_current_turn_must_be_sent_back() {
    let rules = Rules {
        signature: true,
        ..Rules::default()
    };
    let signed = |id: &str, signature: &str| {
        let mut message = calls(&[id]);
        message["tool_calls"][0]["extra_content"] =
            json!({"google": {"thought_signature": signature}});
        message
    };
    let turn = |call: Value| request(&[message("user", "x"), call, result("a")]);

    assert!(verdict(&turn(signed("a", &signature_for("a"))), &rules).is_ok());
    for unsigned in [
        calls(&["a"]),
        signed("a", "sig_made_up"),
        signed("a", &signature_for("b")),
    ] {
        let refusal = refused_only_by(&turn(unsigned), &rules);
        assert!(refusal.message.contains("thought_signature"));
    }
    // A call of an earlier turn is no longer checked.
    let earlier = request(&[
        message("user", "x"),
        calls(&["a"]),
        result("a"),
        message("user", "y"),
    ]);
    assert!(verdict(&earlier, &rules).is_ok());
}

#[test]
fn a_refusal_contains_message_type_param_and_code() {
    let body = refused(&json!({"model": "m"})).body();
    let error = body["error"].as_object().unwrap();
    assert_eq!(
        error.keys().collect::<Vec<_>>(),
        ["message", "type", "param", "code"]
    );
}

#[test]
fn a_cache_key_must_be_short_text_and_some_providers_refuse_it() {
    let keyed = |key: Value| with(hello(), "prompt_cache_key", key);
    assert!(verdict(&keyed(json!("k".repeat(64))), &Rules::default()).is_ok());
    let long = refused(&keyed(json!("k".repeat(65))));
    assert_eq!(
        (long.status, long.body()["error"]["code"].as_str()),
        (400, Some("string_above_max_length"))
    );
    let number = refused(&keyed(json!(7)));
    assert_eq!(number.body()["error"]["code"], "invalid_type");
    let strict = Rules {
        refuse_cache_key: true,
        ..Rules::default()
    };
    let unknown = refused_only_by(&keyed(json!("k")), &strict);
    assert_eq!(
        (
            &unknown.body()["error"]["code"],
            &unknown.body()["error"]["param"]
        ),
        (&json!("unknown_parameter"), &json!("prompt_cache_key"))
    );
}
