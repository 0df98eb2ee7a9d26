use super::*;
use crate::memory::{Cause, Early, PartId, PartMeta, SnapshotId, SnapshotMeta, Span};

fn scope() -> Scope {
    Scope::of(b"Bearer k", None)
}

fn policy() -> Policy {
    Policy {
        message_tokens: 30_000,
        buffer_tokens: 6_000,
        retention_floor: 6_000,
        block_after: 36_000,
        observation_tokens: 40_000,
        reflect_from: 20_000,
        observation_limit: 48_000,
        block_overhead: 500,
        buffer_on_idle: false,
        share_token_budget: false,
        early_activation: Early::NEVER,
        early_reflection: Early::NEVER,
    }
}

fn node(role: Role) -> Node {
    Node {
        link: Link::root(&scope()),
        count: 1,
        role,
        tokens: 10,
        closed: true,
        turn_end: false,
        born: 1,
        confirmed: true,
        seen_ms: 0,
        live: true,
    }
}

fn part(kind: PartKind, from: usize, to: usize) -> PartMeta {
    let root = Link::root(&scope());
    PartMeta {
        id: PartId(1),
        kind,
        span: Span {
            from: root,
            from_count: from,
            to: root,
            to_count: to,
        },
        tokens: 100,
        message_tokens: 1_000,
        asked: false,
        stopgap: false,
    }
}

fn snapshot(to_count: usize, cause: Cause) -> SnapshotMeta {
    SnapshotMeta {
        id: SnapshotId(7),
        to: Link::root(&scope()),
        to_count,
        eligible_from: to_count + 2,
        pin: None,
        parts: Vec::new(),
        tokens: 220,
        placement: String::new(),
        others: None,
        cause,
    }
}

#[test]
fn a_status_has_the_published_windows() {
    let standing = Standing {
        message_tokens: 31_000,
        observation_tokens: 5_000,
        chunks: 2,
        chunk_message_tokens: 12_000,
        chunk_tokens: 900,
        observing: true,
        log_tokens: 5_900,
        reflection: Some((21_000, 9_000)),
        reflecting: false,
        generations: 1,
    };
    let nodes = [
        Role::User,
        Role::Assistant,
        Role::Tool,
        Role::Assistant,
        Role::Tool,
    ]
    .map(node);
    assert_eq!(
        status_body(&policy(), &nodes, &standing),
        json!({
            "windows": {
                "active": {
                    "messages": {"tokens": 31_000, "threshold": 30_000},
                    "observations": {"tokens": 5_000, "threshold": 40_000},
                },
                "buffered": {
                    "observations": {
                        "chunks": 2,
                        "messageTokens": 12_000,
                        "projectedMessageRemoval": 12_000,
                        "observationTokens": 900,
                        "status": "running",
                    },
                    "reflection": {
                        "inputObservationTokens": 21_000,
                        "observationTokens": 9_000,
                        "status": "complete",
                    },
                },
            },
            "stepNumber": 2,
            "generationCount": 1,
        })
    );
    let first = status_body(&policy(), &[node(Role::User)], &Standing::default());
    assert_eq!(first["stepNumber"], 0);
    assert_eq!(first["windows"]["buffered"]["reflection"]["status"], "idle");
}

#[test]
fn an_activation_is_told_for_each_chunk_that_was_not_covered_before() {
    let mut parts = [
        part(PartKind::Chunk, 0, 4),
        part(PartKind::Chunk, 4, 8),
        part(PartKind::Chunk, 8, 12),
        part(PartKind::Reflection, 0, 8),
        part(PartKind::Chunk, 12, 16),
    ];
    for (id, part) in parts.iter_mut().enumerate() {
        part.id = PartId(id as i64 + 1);
    }
    let stood = |sent: &SnapshotMeta| Stood {
        scope: scope(),
        model: "gpt-test".to_owned(),
        active_ms: Some(-400_000),
        parts: parts.to_vec(),
        sent: Some(sent.clone()),
    };
    let told = |sent: &SnapshotMeta, now: &SnapshotMeta| {
        activation::bodies(&policy(), "api.x.ai", &stood(sent), "other", now, 0)
    };
    let before = snapshot(4, Cause::Threshold);
    let now = snapshot(12, Cause::Threshold);
    let (told, told_of) = (told(&before, &now), told);
    let ids: Vec<&Value> = told.iter().map(|body| &body["cycleId"]).collect();
    assert_eq!(ids, ["part-2", "part-3"]);
    assert_eq!(
        told[0],
        json!({
            "cycleId": "part-2",
            "operationType": "observation",
            "activatedAt": "1970-01-01T00:00:00Z",
            "chunksActivated": 1,
            "tokensActivated": 1_000,
            "observationTokens": 100,
            "messagesActivated": 4,
            "generationCount": 1,
            "triggeredBy": "threshold",
            "cause": "threshold",
            "lastActivityAt": -400_000,
            "config": {"messageTokens": 30_000, "observationTokens": 40_000, "scope": "thread"},
        })
    );
    // A reflection takes the place of what was sent, and covers no message that was not covered.
    let mut reflected = snapshot(12, Cause::Reflection);
    reflected.parts = vec![PartId(4), PartId(3)];
    let told = told_of(&now, &reflected);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["cycleId"], "part-4");
    assert_eq!(told[0]["operationType"], "reflection");
    assert_eq!(told[0]["tokensActivated"], 220);
    assert_eq!(told[0]["messagesActivated"], 0);
    // It is told once, however often a snapshot holds it.
    assert_eq!(told_of(&reflected, &reflected), [] as [Value; 0]);
}

/// The field that others read knows three words; why it really was stands beside it.
#[test]
fn an_activation_says_why_in_the_published_words_and_in_ours() {
    let stood = Stood {
        scope: scope(),
        model: "openai/gpt-5.5".to_owned(),
        active_ms: Some(1_000),
        parts: vec![part(PartKind::Chunk, 0, 4)],
        sent: None,
    };
    let policy = Policy {
        early_activation: Early {
            idle: crate::memory::Idle::Auto,
            model_change: true,
        },
        ..policy()
    };
    let told = |cause| {
        let snapshot = snapshot(4, cause);
        let upstream = "gateway.example";
        let told = activation::bodies(&policy, upstream, &stood, "openai/o3", &snapshot, 9_000);
        assert_eq!(told.len(), 1);
        told.into_iter().next().unwrap()
    };
    for (cause, trigger, name) in [
        (Cause::Threshold, "threshold", "threshold"),
        (Cause::Reflection, "threshold", "reflection"),
        (Cause::Overflow, "threshold", "overflow"),
        (Cause::Dropped, "threshold", "dropped"),
        (Cause::Idle, "ttl", "idle"),
        (Cause::ModelChange, "provider_change", "model_change"),
    ] {
        let told = told(cause);
        assert_eq!(
            (&told["triggeredBy"], &told["cause"]),
            (&json!(trigger), &json!(name))
        );
        assert_eq!(told["lastActivityAt"], 1_000);
        assert_eq!(
            told["config"]["activateAfterIdle"], 3_600_000,
            "of this provider"
        );
        let expired = (cause == Cause::Idle).then_some(8_000);
        assert_eq!(told.get("ttlExpiredMs"), expired.map(Value::from).as_ref());
        let change = cause == Cause::ModelChange;
        let models = (told.get("previousModel"), told.get("currentModel"));
        let named = (&json!("openai/gpt-5.5"), &json!("openai/o3"));
        let wanted = change.then_some(named).unzip();
        assert_eq!(models, wanted, "{name}");
    }
}
