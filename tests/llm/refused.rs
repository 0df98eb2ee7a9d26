//! What a model refuses of a request is left out and remembered.

use diarist::llm::{CallError, CallSettings, Llm};
use http::Response;
use serde_json::{Map, Value, json};

use crate::llm::{Model, ReceivedRequest, answer, prompt, reply_body, settings};

fn refuse(code: &str, param: &str) -> Response<String> {
    let message = format!("Unsupported: '{param}' is not supported with this model.");
    answer(
        400,
        &json!({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}),
    )
}

/// Which optional parameters each request carried.
fn parameters(model: &Model) -> Vec<Vec<&'static str>> {
    let names = ["temperature", "max_tokens", "max_completion_tokens"];
    let carried = |request: &ReceivedRequest| {
        let carried = names
            .into_iter()
            .filter(|name| request.body.get(name).is_some());
        carried.collect()
    };
    model.received().iter().map(carried).collect()
}

#[tokio::test]
async fn refused_parameters_are_left_out_and_remembered() {
    let model = Model::start(|body: &Value| {
        if body.get("max_tokens").is_some() {
            refuse("unsupported_parameter", "max_tokens")
        } else if body.get("temperature").is_some() {
            refuse("unsupported_value", "temperature")
        } else {
            answer(200, &reply_body("x"))
        }
    })
    .await;
    let llm = Llm::new().unwrap();
    for _ in 0..2 {
        llm.call(&model.endpoint(), &settings(), &prompt())
            .await
            .unwrap();
    }
    assert_eq!(
        parameters(&model),
        [
            vec!["temperature", "max_tokens"],
            vec!["temperature", "max_completion_tokens"],
            vec!["max_completion_tokens"],
            // The second call pays nothing.
            vec!["max_completion_tokens"],
        ]
    );
    // Another model of the same endpoint has its own memory.
    let other = CallSettings {
        model: "other".to_owned(),
        ..settings()
    };
    llm.call(&model.endpoint(), &other, &prompt())
        .await
        .unwrap();
    assert_eq!(parameters(&model)[4], ["temperature", "max_tokens"]);
}

#[tokio::test]
async fn parameters_refused_without_an_error_code_are_left_out() {
    let model = Model::start(|body: &Value| {
        let words = if body.get("max_tokens").is_some() {
            "Unrecognized request argument supplied: max_tokens"
        } else if body.get("max_completion_tokens").is_some() {
            "Extra inputs are not permitted, field: 'max_completion_tokens'"
        } else if body.get("temperature").is_some() {
            "invalid temperature: only 1 is allowed for this model"
        } else {
            return answer(200, &reply_body("x"));
        };
        answer(422, &json!({"error": {"message": words}}))
    })
    .await;
    let llm = Llm::new().unwrap();
    llm.call(&model.endpoint(), &settings(), &prompt())
        .await
        .unwrap();
    assert_eq!(model.received().len(), 4);
    assert!(parameters(&model)[3].is_empty());
}

#[tokio::test]
async fn a_parameter_that_was_not_the_cause_is_sent_again() {
    let model = Model::start(|_| {
        answer(400, &json!({"error": {"message": "bad model; by the way, temperature and max_tokens and max_completion_tokens exist"}}))
    })
    .await;
    let llm = Llm::new().unwrap();
    for _ in 0..2 {
        let error = llm
            .call(&model.endpoint(), &settings(), &prompt())
            .await
            .unwrap_err()
            .error;
        assert!(matches!(error, CallError::Rejected { .. }), "{error}");
    }
    let sent_parameters = parameters(&model);
    assert_eq!(sent_parameters.len(), 8, "every call ends");
    assert_eq!(sent_parameters[4], ["temperature", "max_tokens"]);
}

#[tokio::test]
async fn settings_a_model_refuses_are_left_out_and_remembered() {
    let model = Model::start(|body: &Value| {
        for name in ["top_p", "thinking"] {
            if body.get(name).is_some() {
                return refuse("unsupported_parameter", name);
            }
        }
        answer(200, &reply_body("x"))
    })
    .await;
    let settings = CallSettings {
        parameters: Map::from_iter([("top_p".to_owned(), json!(0.9))]),
        options: Map::from_iter([
            ("thinking".to_owned(), json!({"budget": 1})),
            ("seed".to_owned(), json!(1)),
        ]),
        ..settings()
    };
    let llm = Llm::new().unwrap();
    for _ in 0..2 {
        llm.call(&model.endpoint(), &settings, &prompt())
            .await
            .unwrap();
    }
    let received = model.received();
    assert_eq!(received.len(), 4, "the second call pays nothing");
    for body in [&received[2].body, &received[3].body] {
        assert_eq!(body["seed"], 1, "what it takes stays");
        assert_eq!(body["temperature"], 0.3);
        assert!(body.get("top_p").is_none() && body.get("thinking").is_none());
    }
}
