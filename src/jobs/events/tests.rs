use serde_json::{Value, json};

use super::status::status_body;
use super::*;
use crate::history::Role;
use crate::memory::Node;
use crate::memory::advance::ThresholdStatus;
use crate::memory::{
    EarlyTriggers, PartId, PartMeta, SnapshotCause, SnapshotId, SnapshotMeta, Span,
};

fn scope() -> Scope {
    Scope::new(b"Bearer k", None)
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
        early_activation: EarlyTriggers::NEVER,
        early_reflection: EarlyTriggers::NEVER,
        costs: None,
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
        first_length: 1,
        confirmed: true,
        received_ms: 0,
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
        requested: false,
        code_reflection: false,
    }
}

fn snapshot(to_count: usize, cause: SnapshotCause) -> SnapshotMeta {
    SnapshotMeta {
        id: SnapshotId(7),
        to: Link::root(&scope()),
        to_count,
        eligible_from: to_count + 2,
        pin: None,
        parts: Vec::new(),
        tokens: 220,
        placement: String::new(),
        peer_memory: None,
        cause,
    }
}

#[test]
fn a_status_has_the_published_windows() {
    let standing = ThresholdStatus {
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
    let first = status_body(&policy(), &[node(Role::User)], &ThresholdStatus::default());
    assert_eq!(first["stepNumber"], 0);
    assert_eq!(first["windows"]["buffered"]["reflection"]["status"], "idle");
}

#[test]
fn an_activation_has_one_event_for_each_newly_covered_chunk() {
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
    let conversation_after = |sent: &SnapshotMeta| ConversationState {
        scope: scope(),
        model: "gpt-test".to_owned(),
        active_ms: Some(-400_000),
        parts: parts.to_vec(),
        sent_snapshot: Some(sent.clone()),
    };
    let emitted = |sent: &SnapshotMeta, now: &SnapshotMeta| {
        activation::bodies(
            &policy(),
            "api.x.ai",
            &conversation_after(sent),
            "other",
            now,
            0,
        )
    };
    let before = snapshot(4, SnapshotCause::Threshold);
    let now = snapshot(12, SnapshotCause::Threshold);
    let (events, emitted_for) = (emitted(&before, &now), emitted);
    let ids: Vec<&Value> = events.iter().map(|body| &body["cycleId"]).collect();
    assert_eq!(ids, ["part-2", "part-3"]);
    assert_eq!(
        events[0],
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
    // A reflection replaces what was sent and covers no new message.
    let mut reflected = snapshot(12, SnapshotCause::Reflection);
    reflected.parts = vec![PartId(4), PartId(3)];
    let events = emitted_for(&now, &reflected);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["cycleId"], "part-4");
    assert_eq!(events[0]["operationType"], "reflection");
    assert_eq!(events[0]["tokensActivated"], 220);
    assert_eq!(events[0]["messagesActivated"], 0);
    // A reflection has one event, however many snapshots hold it.
    assert_eq!(emitted_for(&reflected, &reflected), [] as [Value; 0]);
}

/// The published field has three words; our own field beside it has the cause.
#[test]
fn an_activation_event_has_the_published_trigger_and_our_own_cause() {
    let conversation = ConversationState {
        scope: scope(),
        model: "openai/gpt-5.5".to_owned(),
        active_ms: Some(1_000),
        parts: vec![part(PartKind::Chunk, 0, 4)],
        sent_snapshot: None,
    };
    let policy = Policy {
        early_activation: EarlyTriggers {
            idle: crate::memory::IdleTrigger::Auto,
            model_change: true,
        },
        ..policy()
    };
    let body_for = |cause| {
        let snapshot = snapshot(4, cause);
        let upstream = "gateway.example";
        let bodies = activation::bodies(
            &policy,
            upstream,
            &conversation,
            "openai/o3",
            &snapshot,
            9_000,
        );
        assert_eq!(bodies.len(), 1);
        bodies.into_iter().next().unwrap()
    };
    for (cause, trigger, name) in [
        (SnapshotCause::Threshold, "threshold", "threshold"),
        (SnapshotCause::Reflection, "threshold", "reflection"),
        (SnapshotCause::Overflow, "threshold", "overflow"),
        (SnapshotCause::Dropped, "threshold", "dropped"),
        (SnapshotCause::Idle, "ttl", "idle"),
        (
            SnapshotCause::ModelChange,
            "provider_change",
            "model_change",
        ),
    ] {
        let body = body_for(cause);
        assert_eq!(
            (&body["triggeredBy"], &body["cause"]),
            (&json!(trigger), &json!(name))
        );
        assert_eq!(body["lastActivityAt"], 1_000);
        assert_eq!(
            body["config"]["activateAfterIdle"], 3_600_000,
            "of this provider"
        );
        let expired = (cause == SnapshotCause::Idle).then_some(8_000);
        assert_eq!(body.get("ttlExpiredMs"), expired.map(Value::from).as_ref());
        let change = cause == SnapshotCause::ModelChange;
        let models = (body.get("previousModel"), body.get("currentModel"));
        let named = (&json!("openai/gpt-5.5"), &json!("openai/o3"));
        let expected = change.then_some(named).unzip();
        assert_eq!(models, expected, "{name}");
    }
}
