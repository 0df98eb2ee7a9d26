use serde_json::{Value, json};

use super::{
    RefusalKind, RefusalReason, Usage, UsageReports, error_message, excess, is_content_filter,
    refusal, refusal_reason, refusal_without_status,
};

fn usage(
    prompt: impl Into<Option<u64>>,
    cached: impl Into<Option<u64>>,
    cache_write: impl Into<Option<u64>>,
    completion: impl Into<Option<u64>>,
) -> Usage {
    Usage {
        prompt: prompt.into(),
        cached: cached.into(),
        cache_write: cache_write.into(),
        completion: completion.into(),
        ..Usage::default()
    }
}

#[test]
fn usage_is_read_from_the_fields_of_every_provider() {
    let cases: Vec<(&str, Value, Usage)> = vec![
        (
            "openai",
            json!({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2}}),
            usage(10, 8, 2, 3),
        ),
        (
            "responses",
            json!({"input_tokens": 10, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}),
            usage(10, 8, None, 3),
        ),
        (
            "anthropic counts the cache apart",
            json!({"input_tokens": 1, "cache_read_input_tokens": 8, "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2}, "cache_creation_input_tokens": 3, "output_tokens": 4}),
            usage(12, 8, 3, 4),
        ),
        (
            "a gateway in front of anthropic counts it in",
            json!({"prompt_tokens": 12, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 3, "completion_tokens": 4}),
            usage(12, 8, 3, 4),
        ),
        (
            "gemini",
            json!({"promptTokenCount": 9, "cachedContentTokenCount": 4, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}),
            Usage {
                reasoning: Some(5),
                ..usage(9, 4, None, 7)
            },
        ),
        (
            "openai with reasoning",
            json!({"prompt_tokens": 10, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}}),
            Usage {
                reasoning: Some(2),
                ..usage(10, None, None, 3)
            },
        ),
        (
            "xai counts reasoning beside the answer",
            json!({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 19, "completion_tokens_details": {"reasoning_tokens": 6}}),
            Usage {
                reasoning: Some(6),
                ..usage(10, None, None, 9)
            },
        ),
        (
            "reasoning beside the answer, without a total",
            json!({"prompt_tokens": 10, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 6}}),
            Usage {
                reasoning: Some(6),
                ..usage(10, None, None, 9)
            },
        ),
        (
            "reasoning inside the answer, by the total",
            json!({"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16, "completion_tokens_details": {"reasoning_tokens": 6}}),
            Usage {
                reasoning: Some(6),
                ..usage(10, None, None, 6)
            },
        ),
        (
            "a number that no answer has",
            json!({"prompt_tokens": u64::MAX, "completion_tokens": 3, "cache_read_input_tokens": 2_000_000_000}),
            usage(None, None, None, 3),
        ),
        (
            "responses with reasoning",
            json!({"input_tokens": 10, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 0}}),
            Usage {
                reasoning: Some(0),
                ..usage(10, None, None, 3)
            },
        ),
        (
            "openrouter",
            json!({"prompt_tokens": 10, "completion_tokens": 3, "cost": 0.1, "cache_discount": -0.1, "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 9}, "completion_tokens_details": {"reasoning_tokens": 1}}),
            Usage {
                reasoning: Some(1),
                ..usage(10, 0, 9, 3)
            },
        ),
        (
            "deepseek",
            json!({"prompt_tokens": 9, "prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3, "completion_tokens": 1}),
            usage(9, 6, None, 1),
        ),
        (
            "deepseek without its total",
            json!({"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3}),
            usage(9, 6, None, None),
        ),
        (
            "kimi",
            json!({"prompt_tokens": 9, "cached_tokens": 6}),
            usage(9, 6, None, None),
        ),
        (
            "bifrost",
            json!({"input_tokens": 9, "input_tokens_details": {"cached_read_tokens": 1, "cached_write_tokens": 2}}),
            usage(9, 1, 2, None),
        ),
        (
            "vllm without details",
            json!({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": null}),
            usage(9, None, None, 1),
        ),
        (
            "floats",
            json!({"prompt_tokens": 9.0, "completion_tokens": -1}),
            usage(9, None, None, None),
        ),
        (
            "a reported zero is not an absence",
            json!({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}),
            usage(9, 0, None, None),
        ),
    ];
    for (name, object, expected) in cases {
        assert_eq!(Usage::from_json(&object), Some(expected), "{name}");
    }
}

#[test]
fn an_object_without_known_fields_is_no_usage() {
    for nothing in [
        json!(null),
        json!({}),
        json!([]),
        json!({"cost": 1}),
        json!("x"),
    ] {
        assert_eq!(Usage::from_json(&nothing), None, "{nothing}");
    }
}

fn usage_in(answer: &Value) -> Option<Usage> {
    UsageReports::in_answer(answer).read().0
}

#[test]
fn usage_is_found_wherever_a_provider_puts_it() {
    let object = json!({"prompt_tokens": 7});
    for answer in [
        json!({"choices": [], "usage": object}),
        json!({"choices": [{"delta": {}}], "usage": object}),
        json!({"choices": [{"delta": {}, "usage": object}], "usage": null}),
        json!({"x_groq": {"usage": object}}),
        json!({"type": "response.completed", "response": {"usage": object}}),
        json!({"type": "message_start", "message": {"usage": object}}),
    ] {
        assert_eq!(
            usage_in(&answer),
            Some(usage(7, None, None, None)),
            "{answer}"
        );
    }
    let llama = json!({"usage": object, "timings": {"cache_n": 5}});
    assert_eq!(usage_in(&llama), Some(usage(7, 5, None, None)));
    let unasked =
        json!({"choices": [], "timings": {"cache_n": 5, "prompt_n": 2, "predicted_n": 3}});
    assert_eq!(usage_in(&unasked), Some(usage(7, 5, None, 3)));
}

#[test]
fn a_later_usage_report_keeps_numbers_that_it_does_not_repeat() {
    let mut merged = usage(12, 8, None, 1);
    merged.update(usage(None, None, None, 40));
    assert_eq!(merged, usage(12, 8, None, 40));
}

/// By the rule of its own shape: Anthropic counts the cache beside its input, so the prompt is their sum.
#[test]
fn cache_numbers_larger_than_the_prompt_are_discarded() {
    let checked = |object: Value| Usage::from_json(&object).unwrap().checked();
    for (object, expected) in [
        (
            json!({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99_999}, "completion_tokens": 3}),
            usage(10, None, None, 3),
        ),
        (
            json!({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 5}}),
            usage(10, None, None, None),
        ),
    ] {
        let expected = Usage {
            impossible_cache: true,
            ..expected
        };
        assert_eq!(checked(object.clone()), expected, "{object}");
    }
    for (object, expected) in [
        (
            json!({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 4}}),
            usage(10, 6, 4, None),
        ),
        (
            json!({"input_tokens": 1, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 3}),
            usage(12, 8, 3, None),
        ),
        (json!({"cached_tokens": 9}), usage(None, 9, None, None)),
    ] {
        assert_eq!(checked(object.clone()), expected, "{object}");
    }
}

/// One real answer for each of the eleven published wordings and codes.
const TOO_LONG: [&str; 11] = [
    r#"{"error":{"message":"Too much","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
    r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens."}}"#,
    r#"{"error":"This model's maximum prompt length is 131072 but the request contains 140000 tokens."}"#,
    r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200251 tokens > 200000 maximum"}}"#,
    r#"{"message":"Input is too long for requested model."}"#,
    r#"{"error":{"message":"Your input exceeds the context window of this model."}}"#,
    r#"{"detail":[{"msg":"request exceeds the model's context length"}]}"#,
    r#"{"error":{"message":"the prompt exceeds the context limit"}}"#,
    r#"{"error":{"message":"the request (9000 tokens) exceeds the available context size (8192 tokens)","type":"exceed_context_size_error"}}"#,
    r#"[{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).","status":"INVALID_ARGUMENT"}}]"#,
    r#"{"error":{"message":"Please reduce the length of the messages or completion."}}"#,
];

#[test]
fn all_eleven_known_wordings_mean_that_the_prompt_is_too_long() {
    for body in TOO_LONG {
        assert_eq!(
            refusal(400, body.as_bytes()),
            Some(RefusalKind::TooLong),
            "{body}"
        );
    }
}

/// As servers and gateways say it whose wordings are in no published list.
#[test]
fn further_wordings_mean_that_the_prompt_is_too_long() {
    for (status, body) in [
        (
            400,
            r#"{"error":{"message":"The decoder prompt (length 9000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.","type":"BadRequestError","code":400}}"#,
        ),
        (
            400,
            r#"{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (4096 tokens).","type":"BadRequestError","code":400}"#,
        ),
        (
            400,
            r#"{"error":"Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough."}"#,
        ),
        (
            400,
            r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length."}"#,
        ),
        (
            422,
            r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens and 20 `max_new_tokens`","error_type":"validation"}"#,
        ),
        (
            422,
            r#"{"error":"Input validation error: `inputs` must have less than 4095 tokens. Given: 9000"}"#,
        ),
        (
            400,
            r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"}}"#,
        ),
        (
            413,
            r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}"#,
        ),
        (
            400,
            r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]","code":"invalid_parameter_error"}}"#,
        ),
        (
            400,
            r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#,
        ),
        (
            400,
            r#"{"error":{"message":"invalid params, context window exceeds limit (2013)","type":"bad_request_error"}}"#,
        ),
        (
            400,
            r#"{"error":{"message":"refused","code":"model_context_window_exceeded"}}"#,
        ),
        (
            400,
            r#"{"error":{"message":"prompt token count of 130000 exceeds the limit of 128000","code":"model_max_prompt_tokens_exceeded"}}"#,
        ),
        (
            400,
            r#"{"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 9000."}"#,
        ),
        (
            400,
            r#"{"error":{"message":"Input length 131393 exceeds the maximum allowed input length of 131040 tokens."}}"#,
        ),
        (
            400,
            r#"{"error":{"message":"Prompt length (9000) exceeds maximum input length (4096)"}}"#,
        ),
        (
            400,
            r#"{"error":{"message":"prompt too long; exceeded max context length by 4 tokens"}}"#,
        ),
        (
            413,
            r#"{"error":{"message":"Request Entity Too Large","code":"request_too_large"}}"#,
        ),
        (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
    ] {
        let found = refusal(status, body.as_bytes());
        assert_eq!(found, Some(RefusalKind::TooLong), "{status} {body}");
        let reason = refusal_reason(status, body.as_bytes());
        assert!(matches!(reason, Some(RefusalReason::TooLong(_))), "{body}");
        let limited = refusal(429, body.as_bytes());
        assert_eq!(limited, None, "{body}");
    }
    for other in [
        r#"{"error":{"message":"max_tokens exceeds the limit of this model"}}"#,
        r#"{"error":{"message":"The system prompt too long for this model"}}"#,
        r#"{"error":{"message":"max_tokens (9000) is greater than the context length"}}"#,
        r#"{"error":{"message":"Your input image is larger than the maximum size"}}"#,
    ] {
        let found = refusal(400, other.as_bytes());
        assert_ne!(found, Some(RefusalKind::TooLong), "{other}");
    }
}

#[test]
fn a_429_is_never_an_overflow() {
    for body in TOO_LONG {
        assert_eq!(refusal(429, body.as_bytes()), None, "{body}");
    }
    let wrapped = r#"{"error":{"message":"context_length_exceeded","code":429}}"#;
    assert_eq!(refusal(400, wrapped.as_bytes()), None);
    let limits = r#"{"error":{"message":"Request too large, please reduce the length of it","code":"rate_limit_exceeded"}}"#;
    assert_eq!(refusal(413, limits.as_bytes()), None);
}

/// The published list of what is no overflow (checklist 139): credentials, rates, failures of the
/// server.
#[test]
fn errors_of_credentials_rates_and_servers_are_never_an_overflow() {
    for status in [200, 401, 402, 403, 404, 408, 429, 500, 502, 503, 504, 529] {
        for body in TOO_LONG {
            assert_eq!(refusal(status, body.as_bytes()), None, "{status} {body}");
        }
    }
    for network in [
        "ECONNRESET",
        "socket hang up",
        "fetch failed",
        "upstream timed out",
    ] {
        let body = json!({"error": {"message": network}}).to_string();
        assert_ne!(refusal(400, body.as_bytes()), Some(RefusalKind::TooLong));
    }
}

/// Gateways put the error of the server behind them into their own error, and this repeats.
#[test]
fn every_overflow_wording_is_found_up_to_four_causes_deep() {
    for body in TOO_LONG {
        let mut cause: serde_json::Value = serde_json::from_str(body).expect("JSON");
        for depth in 0..=4 {
            let text = cause.to_string();
            let found = refusal(400, text.as_bytes());
            assert_eq!(found, Some(RefusalKind::TooLong), "{depth} {text}");
            cause = match depth % 2 {
                0 => json!({"error": {"message": "upstream failed", "cause": cause}}),
                _ => json!({"message": "Provider returned error", "error": cause}),
            };
        }
    }
    let limited = json!({"error": {"message": "prompt is too long", "cause": {"status": 429}}});
    assert_eq!(refusal(400, limited.to_string().as_bytes()), None);
}

#[test]
fn an_overflow_is_found_inside_a_wrapped_error() {
    let inner = TOO_LONG[1];
    let wrapped = json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": inner, "provider_name": "x"}}});
    assert_eq!(
        refusal(400, wrapped.to_string().as_bytes()),
        Some(RefusalKind::TooLong)
    );
    assert_eq!(
        refusal(400, b"upstream said: prompt is too long"),
        Some(RefusalKind::TooLong)
    );
}

#[test]
fn client_text_inside_an_error_is_not_read_as_its_reason() {
    let echoed = json!({"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"messages": [{"content": "prompt is too long"}]}}]});
    assert_eq!(
        refusal(422, echoed.to_string().as_bytes()),
        Some(RefusalKind::Other)
    );
}

#[test]
fn a_refusal_of_an_unknown_parameter_names_it() {
    let cases = [
        (
            r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.3 with this model.","param":"temperature","code":"unsupported_value"}}"#,
            "temperature",
        ),
        (
            r#"{"error":{"message":"Unknown parameter: 'stream_options'.","param":"stream_options","code":"unknown_parameter"}}"#,
            "stream_options",
        ),
        (
            r#"{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error","param":null,"code":null}}"#,
            "stream_options",
        ),
        (
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted","input":{}}]}"#,
            "stream_options",
        ),
        (
            r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}}"#,
            "stream_options",
        ),
        (
            r#"[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"stream_options\": Cannot find field."}}]"#,
            "stream_options",
        ),
        (
            r#"{"error":{"message":"Extra inputs are not permitted, field: 'stream_options', value: {}"}}"#,
            "stream_options",
        ),
        (
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","param":"max_tokens","code":"unsupported_parameter"}}"#,
            "max_tokens",
        ),
    ];
    for (body, name) in cases {
        assert_eq!(
            refusal(400, body.as_bytes()),
            Some(RefusalKind::UnknownParameter(name.to_owned())),
            "{body}"
        );
    }
}

#[test]
fn a_refused_message_is_no_unknown_parameter() {
    let body = r#"{"error":{"message":"Unsupported value: 'messages[0].role' does not support 'system' with this model.","param":"messages[0].role","code":"unsupported_value"}}"#;
    assert_eq!(refusal(400, body.as_bytes()), Some(RefusalKind::Other));
}

#[test]
fn only_statuses_400_413_and_422_are_refusals() {
    for status in [200, 204, 301, 401, 402, 403, 404, 408, 429, 500, 503, 529] {
        assert_eq!(
            refusal(status, br#"{"error":{"message":"no"}}"#),
            None,
            "{status}"
        );
    }
    // 413 says by itself what is wrong.
    for (status, kind) in [
        (400, RefusalKind::Other),
        (413, RefusalKind::TooLong),
        (422, RefusalKind::Other),
    ] {
        for body in [&b""[..], b"\xff\xfe<html>", b"<h1>413</h1> Port 8080"] {
            assert_eq!(refusal(status, body), Some(kind.clone()), "{status}");
            assert_eq!(excess(body), None, "{status}");
        }
    }
}

#[test]
fn a_deeply_nested_error_body_is_read_only_to_a_limit() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(refusal(400, deep.as_bytes()), Some(RefusalKind::Other));
    let mut nested = json!({"message": "prompt is too long"});
    for _ in 0..40 {
        nested = json!({"error": nested});
    }
    assert_eq!(
        refusal(400, nested.to_string().as_bytes()),
        Some(RefusalKind::Other)
    );
}

#[test]
fn the_error_message_is_the_provider_text_and_never_client_input() {
    let cases = [
        (json!({"error": {"message": "a"}}), Some("a")),
        (json!({"error": "b"}), Some("b")),
        (json!([{"error": {"message": "c"}}]), Some("c")),
        (json!({"message": "d"}), Some("d")),
        (json!({"detail": [{"msg": "e", "input": "x"}]}), Some("e")),
        (json!({"detail": "f"}), Some("f")),
        (json!({"input": "x"}), None),
        (json!({"choices": [{"message": {"content": "x"}}]}), None),
    ];
    for (body, expected) in cases {
        assert_eq!(error_message(&body).as_deref(), expected, "{body}");
    }
}

/// Recognised by a code or by the server's own words, with or without a status.
#[test]
fn a_refusal_by_a_content_filter_is_recognised() {
    for error in [
        json!({"message": "flagged", "code": "content_filter", "innererror": {"code": "ResponsibleAIPolicyViolation"}}),
        json!({"message": "no", "type": "data_inspection_failed", "param": null, "code": "data_inspection_failed"}),
        json!({"message": "Content Exists Risk", "type": "invalid_request_error", "param": null, "code": "invalid_request_error"}),
        json!({"message": "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "code": "invalid_prompt"}),
        json!({"message": "Provider returned error", "code": 400, "metadata": {"raw": "{\"error\":{\"code\":\"content_filter\"}}"}}),
    ] {
        let body = json!({ "error": error }).to_string();
        let filtered = Some(RefusalKind::Filtered);
        assert_eq!(refusal(400, body.as_bytes()), filtered, "{body}");
        assert_eq!(refusal_without_status(body.as_bytes()), filtered, "{body}");
        assert!(is_content_filter(body.as_bytes()), "{body}");
        assert_eq!(refusal(403, body.as_bytes()), None, "{body}");
    }
}

/// Without a status, an error is a refusal unless it names a failure of the server or another cause.
#[test]
fn an_error_without_status_is_a_refusal_unless_it_names_another_cause() {
    let stream_refusal = |body: &Value| refusal_without_status(body.to_string().as_bytes());
    for body in [
        json!({"error": {"message": "no", "type": "invalid_request_error", "param": null, "code": null}}),
        json!({"error": {"object": "error", "message": "roles must alternate", "type": "BadRequestError", "code": 400}}),
        json!({"object": "error", "message": "no", "type": "BadRequestError", "code": "400"}),
        json!({"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}),
        json!({"error": {"message": "flagged", "code": "invalid_prompt"}}),
        json!({"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": "{\"detail\":\"no\"}"}}}),
        json!({"error": "Error rendering prompt with jinja template: \"roles must alternate\""}),
        json!({"error": {"message": "no", "code": 404}}),
        json!({"error": {"message": "no", "type": "server_error", "code": 500}}),
        json!({"error": {"message": "System message must be at the beginning."}}),
        json!({"error": {"message": "System message must be at the beginning.", "type": "server_error"}}),
        json!({"error": {"message": "no"}}),
        json!({"error": "no"}),
        json!({"id": null, "error": {"message": "no", "code": 400}}),
    ] {
        assert_eq!(stream_refusal(&body), Some(RefusalKind::Other), "{body}");
    }
    let options = json!({"error": {"message": "Unknown parameter: 'stream_options'."}});
    let named = RefusalKind::UnknownParameter("stream_options".to_owned());
    assert_eq!(stream_refusal(&options), Some(named));
    for body in TOO_LONG {
        let kind = refusal_without_status(body.as_bytes());
        assert_eq!(kind, Some(RefusalKind::TooLong), "{body}");
    }
    for body in [
        json!({"error": {"message": "overloaded"}}),
        json!({"error": {"message": "Overloaded", "type": "overloaded_error"}}),
        json!({"error": {"message": "The server had an error", "type": "server_error", "code": null}}),
        json!({"error": {"message": "no", "type": "BadRequestError", "code": 503}}),
        json!({"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": "{\"code\":400}"}}}),
        json!({"error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key"}}),
        json!({"error": {"message": "no such model", "type": "invalid_request_error", "code": "model_not_found"}}),
        json!({"error": {"message": "slow down", "type": "invalid_request_error", "code": "rate_limit_exceeded"}}),
        json!({"error": "upstream timed out"}),
    ] {
        assert_eq!(stream_refusal(&body), None, "{body}");
    }
}
