//! Which model is asked, when it is another one, and when a call is made again.

use std::time::Duration;

use diarist::llm::{CallError, CallSettings, Endpoint, Llm, Models, Prompt, backoff};
use diarist::memory::policy::is_another_model;
use diarist_provider::{Options, Provider};

use super::Check;
use super::configuration::{file, plain};
use super::hand::run;

pub const CHECKS: &[Check] = &[
    (&[12], || {
        run(a_refused_temperature_is_left_out_and_remembered());
    }),
    (&[13], the_prompt_size_selects_the_model),
    (
        &[72],
        a_different_model_or_provider_counts_as_a_model_change,
    ),
    (&[115], failed_calls_are_retried_with_doubling_pauses),
];

/// Published, a list of models says which take one.
async fn a_refused_temperature_is_left_out_and_remembered() {
    let provider = Provider::start(Options::default()).await.unwrap();
    let endpoint = Endpoint::Configured {
        base_url: format!("{}/", provider.base_url()).parse().unwrap(),
        api_key: "key".into(),
    };
    let prompt = Prompt {
        system: "Observe.".to_owned(),
        user: "User: good morning".to_owned(),
        attachments: Vec::new(),
    };
    let phase = plain().memory.observation;
    assert_eq!(phase.temperature, Some(0.3));
    let llm = Llm::new().unwrap();
    for model in ["o3-mini", "o3-mini", "small", "small"] {
        let settings = CallSettings {
            model: model.to_owned(),
            temperature: phase.temperature,
            max_output_tokens: phase.max_output_tokens,
            parameters: phase.parameters.clone(),
            options: phase.options.clone(),
            deadline: phase.deadline,
        };
        llm.call(&endpoint, &settings, &prompt).await.unwrap();
    }
    let calls: Vec<(String, Option<f64>, bool)> = provider
        .record()
        .iter()
        .map(|call| {
            let body = call.json().unwrap();
            let model = body["model"].as_str().unwrap().to_owned();
            (model, body["temperature"].as_f64(), call.is_accepted())
        })
        .collect();
    let call = |model: &str, temperature, taken| (model.to_owned(), temperature, taken);
    assert_eq!(
        calls,
        [
            call("o3-mini", Some(0.3), false),
            call("o3-mini", None, true),
            // Remembered: it is refused once. Another model is asked as ever.
            call("o3-mini", None, true),
            call("small", Some(0.3), true),
            call("small", Some(0.3), true),
        ]
    );
}

fn the_prompt_size_selects_the_model() {
    let tiers = |text: &str| {
        let written = file(&format!("[memory]\nmodel = {text}\n"))?;
        let Some(Models::Tiers(tiers)) = written.memory.observation.model else {
            panic!("{text}");
        };
        Ok::<_, Vec<String>>(Models::Tiers(tiers))
    };
    // In any order, and by number.
    let models =
        tiers("{ \"200000\" = \"large\", \"9000\" = \"tiny\", \"20000\" = \"small\" }").unwrap();
    for (tokens, model) in [
        (0, "tiny"),
        (9_000, "tiny"),
        (9_001, "small"),
        (20_000, "small"),
        (20_001, "large"),
        (200_000, "large"),
        // Published, this one fails the turn.
        (200_001, "large"),
        (u32::MAX, "large"),
    ] {
        assert_eq!(models.pick(tokens), model, "{tokens}");
    }
    for wrong in [
        "{}",
        "{ \"0\" = \"a\" }",
        "{ \"-5\" = \"a\" }",
        "{ \"many\" = \"a\" }",
        "{ \"5\" = \"\" }",
    ] {
        assert_eq!(
            tiers(wrong).err(),
            Some(vec!["memory.model".to_owned()]),
            "{wrong}"
        );
    }
}

fn a_different_model_or_provider_counts_as_a_model_change() {
    for (old, new, changed) in [
        ("gpt-5", "gpt-5-mini", true),
        ("openai/gpt-5", "azure/gpt-5", true),
        ("openai.chat/gpt-5", "openai.responses/gpt-5-mini", true),
        ("openai/gpt-5", "openai.responses/gpt-5", false),
        ("openai.chat/gpt-5", "openai.responses/gpt-5", false),
        // A provider that is not named is no other one.
        ("gpt-5", "openai/gpt-5", false),
        ("openai/gpt-5", "gpt-5", false),
        ("", "gpt-5", false),
    ] {
        assert_eq!(is_another_model(old, new), changed, "{old} {new}");
    }
}

/// One second doubled, 120 at most, a fifth more or less.
fn failed_calls_are_retried_with_doubling_pauses() {
    for (attempt, seconds) in [1, 2, 4, 8, 16, 32, 64, 120, 120, 120]
        .into_iter()
        .enumerate()
    {
        let attempt = u32::try_from(attempt).unwrap();
        for _ in 0..200 {
            let wait = backoff(attempt, None);
            let within = Duration::from_secs(seconds).mul_f64(0.8)
                ..=Duration::from_secs(seconds).mul_f64(1.2);
            assert!(within.contains(&wait), "{attempt}: {wait:?}");
        }
    }
    // Spread on purpose, or all would come back at once.
    assert!((0..50).any(|_| backoff(6, None) != backoff(6, None)));
    let message = String::new;
    for (error, again) in [
        (
            CallError::Transient {
                retry_after: None,
                message: message(),
            },
            true,
        ),
        (
            CallError::RateLimited {
                retry_after: None,
                message: message(),
            },
            true,
        ),
        (CallError::Fatal { message: message() }, false),
    ] {
        assert_eq!(error.is_retryable(), again, "{error:?}");
    }
    // What is asked for is waited for.
    assert!(backoff(0, Some(Duration::from_mins(3))) >= Duration::from_mins(3));
}
