use http::HeaderMap;
use secrecy::SecretString;

use super::*;
use crate::history::{Link, Scope};
use crate::llm::CredentialHeaders;
use crate::memory::Span;
use crate::store::NewJob;

const DEADLINE: Duration = Duration::from_mins(2);

fn endpoint() -> Endpoint {
    Endpoint::Configured {
        base_url: "http://127.0.0.1:1/v1".parse().expect("an address"),
        api_key: SecretString::from("k"),
    }
}

fn job() -> Job {
    let scope = Scope::new(b"alice", None);
    let root = Link::root(&scope);
    Job {
        id: 1,
        scope,
        spec: NewJob {
            kind: PartKind::Chunk,
            span: Span {
                from: root,
                from_count: 0,
                to: root,
                to_count: 1,
            },
            message_tokens: 1,
            payload: String::new(),
            parts: Vec::new(),
            model: "m".to_owned(),
            tip: root,
            tip_count: 1,
            route_hash: None,
            urgency: 0,
        },
        attempts: 1,
        empty_answers: 0,
        fence: 1,
        unsettled: 1,
        conversation: "1".to_owned(),
    }
}

#[test]
fn the_patience_with_a_slow_model_follows_its_own_answer_time() {
    let health = ModelHealth::new(Clock::default(), &Readiness::new());
    let (endpoint, job) = (endpoint(), job());
    let patience = || health.patience(&endpoint, "m", &job, DEADLINE);
    assert_eq!(patience(), Duration::from_mins(1));
    health.answered(&endpoint, "m", &job, Duration::from_secs(2));
    assert_eq!(patience(), Duration::from_mins(1));
    health.answered(&endpoint, "m", &job, Duration::from_secs(50));
    health.worked(&endpoint, "m", &job);
    assert_eq!(patience(), Duration::from_secs(100));
}

/// Each refusal may be followed by a shorter call, which works.
#[test]
fn a_prompt_that_is_too_long_counts_only_if_no_shorter_call_follows() {
    let readiness = Readiness::new();
    let health = ModelHealth::new(Clock::default(), &readiness);
    let error = CallError::TooLong {
        message: "the window has 100 tokens".to_owned(),
        excess: None,
    };
    for _ in 0..5 {
        health.failed(&endpoint(), "m", &job(), Problem::Call(&error));
    }
    assert_eq!(readiness.condition("observer"), Some(Condition::Up));
    for _ in 0..2 {
        health.failed(&endpoint(), "m", &job(), Problem::NoShorterCall(&error));
    }
    let condition = readiness.condition("observer");
    assert!(
        matches!(&condition, Some(Condition::Degraded(error)) if error.contains("100 tokens")),
        "{condition:?}"
    );
}

#[test]
fn the_observer_is_degraded_until_the_last_overdue_call_ends() {
    let readiness = Readiness::new();
    let health = ModelHealth::new(Clock::default(), &readiness);
    let overdue = || health.begin_overdue(&endpoint(), "m", &job(), Duration::from_mins(1));
    let (one, two) = (overdue(), overdue());
    drop(one);
    let condition = readiness.condition("observer");
    assert!(
        matches!(&condition, Some(Condition::Degraded(error)) if error.contains("not answered yet")),
        "{condition:?}"
    );
    drop(two);
    assert_eq!(readiness.condition("observer"), Some(Condition::Up));
}

fn phase(endpoint: Option<Endpoint>) -> Phase {
    Phase {
        endpoint,
        model: None,
        temperature: None,
        max_output_tokens: None,
        parameters: serde_json::Map::new(),
        options: serde_json::Map::new(),
        deadline: DEADLINE,
        instruction: None,
    }
}

/// Nobody else waits: each model of an endpoint has a limit of its own.
#[test]
fn a_long_pause_that_the_endpoint_asks_for_is_reported_with_both_times() {
    let clock = Clock::manual(1_000_000);
    let readiness = Readiness::new();
    let health = ModelHealth::new(clock.clone(), &readiness);
    let (endpoint, job) = (endpoint(), job());
    let phase = phase(Some(endpoint.clone()));
    let notice = |model: &str| health.notice(&job.scope.tenant, &phase, model);
    let limited = |seconds: u64| {
        let retry_after = Some(Duration::from_secs(seconds));
        let message = String::new();
        let error = CallError::RateLimited {
            retry_after,
            message,
        };
        health.failed(&endpoint, "m", &job, Problem::Call(&error));
    };
    let resting = |since, until| Rest::from_millis(since, until).map(Notice::ObserverResting);
    limited(29);
    assert_eq!(notice("m"), None, "too short to be shown");
    health.worked(&endpoint, "m", &job);
    limited(600);
    assert_eq!(notice("m"), resting(1_000_000, 1_600_000));
    assert_eq!(notice("another"), None);
    assert!(matches!(
        readiness.condition("observer"),
        Some(Condition::Resting { .. })
    ));
    assert_eq!(readiness.condition("reflector"), Some(Condition::Up));
    health.answered(&endpoint, "m", &job, Duration::ZERO);
    assert_eq!(notice("m"), None, "it answers, whatever it says");
    limited(600);
    clock.advance(Duration::from_mins(11));
    assert_eq!(notice("m"), None);
    health.worked(&endpoint, "m", &job);
    limited(u64::MAX);
    assert_eq!(
        notice("m"),
        resting(1_660_000, 1_660_000 + 3_600_000),
        "an hour at most"
    );
    health.worked(&endpoint, "m", &job);
    assert_eq!(notice("m"), None);
    assert_eq!(readiness.condition("observer"), Some(Condition::Up));
}

#[test]
fn a_paused_endpoint_is_reported_with_both_times_until_it_answers() {
    let clock = Clock::manual(1_000_000);
    let health = ModelHealth::new(clock.clone(), &Readiness::new());
    let (endpoint, job) = (endpoint(), job());
    let (borrowed, phase) = (phase(None), phase(Some(endpoint.clone())));
    let notice = || health.notice(&job.scope.tenant, &phase, "m");
    let failing = |since, until| Some(Notice::ObserverFailing(Rest::from_millis(since, until)));
    assert_eq!(notice(), None);
    health.record_pause(&endpoint, &job, Duration::from_secs(30));
    assert_eq!(notice(), failing(1_000_000, 1_030_000));
    clock.advance(Duration::from_secs(30));
    assert_eq!(notice(), None, "one call tries it now");
    health.record_pause(&endpoint, &job, Duration::from_mins(1));
    assert_eq!(notice(), failing(1_000_000, 1_090_000), "it began before");
    assert_eq!(health.notice(&job.scope.tenant, &borrowed, "m"), None);
    health.end_pause(&endpoint, &job);
    assert_eq!(notice(), None);
}

#[test]
fn a_rest_of_a_clock_that_was_ahead_is_over_when_it_is_put_right() {
    let clock = Clock::manual(1_000_000_000_000);
    let health = ModelHealth::new(clock.clone(), &Readiness::new());
    let (endpoint, job) = (endpoint(), job());
    let (borrowed, phase) = (phase(None), phase(Some(endpoint.clone())));
    let tenant = &job.scope.tenant;
    let notices = || [&borrowed, &phase].map(|phase| health.notice(tenant, phase, "m").is_some());
    let begin = || {
        health.record_rest(tenant, clock.now_ms() + 8_000);
        health.record_pause(&endpoint, &job, Duration::from_secs(30));
    };
    begin();
    assert_eq!(notices(), [true; 2]);
    clock.put_back(Duration::from_hours(24 * 365));
    assert_eq!(notices(), [false; 2]);
    begin();
    assert_eq!(notices(), [true; 2], "what begins now counts");
}

#[test]
fn the_longest_idle_model_is_forgotten_first() {
    let health = ModelHealth::new(Clock::default(), &Readiness::new());
    let (endpoint, job) = (endpoint(), job());
    let patience = |model: usize| health.patience(&endpoint, &model.to_string(), &job, DEADLINE);
    let slow = Duration::from_secs(50);
    for model in 0..MAX_TARGETS {
        health.answered(&endpoint, &model.to_string(), &job, slow);
    }
    health.answered(&endpoint, "0", &job, slow);
    health.answered(&endpoint, "one more", &job, slow);
    let forgotten: Vec<_> = (0..MAX_TARGETS)
        .filter(|model| patience(*model) < 2 * slow)
        .collect();
    assert_eq!(forgotten, [1]);
}

/// A conversation may pause for hours. What its model has shown is still true then.
#[test]
fn only_a_working_borrowed_model_is_remembered_after_a_pause() {
    let clock = Clock::manual(1_000_000);
    let health = ModelHealth::new(clock.clone(), &Readiness::new());
    let url = "http://127.0.0.1:1/v1".parse().expect("an address");
    let (headers, listed) = (HeaderMap::new(), CredentialHeaders::default());
    let route = crate::llm::UpstreamRoute::new(&url, &headers, &listed, blake3::Hasher::new());
    let (endpoint, job) = (Endpoint::Borrowed(Arc::new(route)), job());
    let slow = Duration::from_secs(50);
    for model in ["works", "fails"] {
        health.answered(&endpoint, model, &job, slow);
        health.worked(&endpoint, model, &job);
    }
    health.failed(&endpoint, "fails", &job, Problem::Unusable);
    clock.advance(BORROWED_TTL);
    health.expire();
    let patience = |model| health.patience(&endpoint, model, &job, DEADLINE);
    assert_eq!(patience("works"), 2 * slow);
    assert_eq!(patience("fails"), DEADLINE / 2);
}
