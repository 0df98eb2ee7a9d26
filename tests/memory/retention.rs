//! What observations and reflections kept of what they were made of, as the audit and the timeline say it.

use diarist_provider::{CallerKind, Conversation, ObserverStyle, Options, Reflector, Style};
use serde_json::{Value, json};
use sqlx::Row as _;

use crate::memory::rig::Rig;
use crate::memory::tools::{SampleConversation, eventually};

const TURNS: usize = 16;

impl Rig {
    /// Waits for an audit line for each part that is stored, and gives them by their numbers, each with
    /// what the store says of its part in the words of the line.
    async fn written(&self) -> Vec<(Value, Value)> {
        let parts = self.number("SELECT count(*) FROM parts").await;
        let lines = || self.audit("wrote");
        let parts = usize::try_from(parts).unwrap();
        eventually("the lines of the parts", || lines().len() >= parts).await;
        let mut lines = lines();
        assert_eq!(lines.len(), parts, "one line for each");
        lines.sort_by_key(|line| line["part"].as_str().unwrap().parse::<i64>().unwrap());
        let stored = "SELECT id, kind, model, tokens, retention, from_count, to_count,
                      CASE kind WHEN 'chunk' THEN message_tokens ELSE (
                          SELECT sum(s.tokens) FROM parts AS s, json_each(parts.sources) AS j
                          WHERE s.id = j.value) END
                      FROM parts ORDER BY id";
        let mut database = self.database().await;
        let stored = sqlx::query(stored).fetch_all(&mut database).await.unwrap();
        let stored = stored.iter().map(|row| {
            let kept: Value = serde_json::from_str(row.get(4)).unwrap();
            let sum = |at: usize| -> f64 {
                let kinds = kept.as_object().unwrap().iter();
                let kinds = kinds.filter(|(kind, _)| !matches!(kind.as_str(), "high" | "others"));
                kinds.map(|(_, share)| share[at].as_f64().unwrap()).sum()
            };
            let wrote = match row.get(1) {
                "chunk" => "observation",
                _ => "reflection",
            };
            json!({
                "part": row.get::<i64, _>(0).to_string(),
                "wrote": wrote,
                "model": row.get::<String, _>(2),
                "messages": [row.get::<i64, _>(5) + 1, row.get::<i64, _>(6)],
                "tokens_in": row.get::<i64, _>(7),
                "tokens_out": row.get::<i64, _>(3),
                "retention": sum(0) / sum(1),
                "kept": kept,
            })
        });
        lines.into_iter().zip(stored).collect()
    }
}

/// Every field but those that say whose it is.
fn agrees(line: &Value, part: &Value) {
    for (field, stored) in part.as_object().unwrap() {
        let reported = &line[field];
        match (reported.as_f64(), stored.as_f64()) {
            (Some(reported), Some(stored)) => {
                assert!((reported - stored).abs() < 1e-9, "{field}: {line}");
            }
            _ => assert_eq!(reported, stored, "{field}: {line}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn every_observation_and_reflection_is_audited_with_its_retention() {
    for named in [true, false] {
        let mut rig = Rig::small().await;
        let conversation = SampleConversation::new("ada");
        let headers = [("x-diarist-thread", "trip")];
        let headers = &headers[..usize::from(named)];
        rig.play_turns_as("Bearer sk-test", headers, &conversation, 1..=TURNS)
            .await;
        // By a process that has seen nothing of what is observed next but what it is told.
        rig.restart().await;
        rig.play_turns_as(
            "Bearer sk-test",
            headers,
            &conversation,
            TURNS + 1..=TURNS + 6,
        )
        .await;
        let requests = rig.audited(TURNS + 6).await;
        let written = rig.written().await;
        let count_kind = |kind: &str| {
            written
                .iter()
                .filter(|(line, _)| line["wrote"] == kind)
                .count()
        };
        assert!(count_kind("observation") > 3 && count_kind("reflection") > 0);
        for (line, part) in &written {
            agrees(line, part);
            for whose in ["tenant", "thread"] {
                assert_eq!(line[whose], requests[0][whose], "{whose}: {line}");
            }
            assert!(line["time"].as_str().unwrap() >= requests[0]["time"].as_str().unwrap());
            let text = line.to_string();
            assert!(
                !text.contains(&conversation.canary()) && !text.contains("weighed"),
                "{text}"
            );
        }
        assert_eq!(named, requests[0]["thread"] == "trip");
        // What is told on the timeline is the same.
        let ends = "SELECT count(*) FROM events WHERE kind LIKE 'data-om-%-end'
                    AND json_array_length(body, '$.retention.high') = 2";
        let end_count = rig.number(ends).await;
        assert_eq!(usize::try_from(end_count).unwrap(), written.len());
    }
}

/// What code leaves out where no model helps is audited like any other.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_loss_of_a_reflection_by_code_is_audited() {
    let rig = Rig::small().await;
    let empty = Reflector {
        style: ObserverStyle::Empty,
        ..Reflector::default()
    };
    rig.provider.script(CallerKind::Reflector, empty);
    let conversation = Conversation::generate(34, 70, Style::Travel);
    rig.play(&conversation).await;
    let written = rig.written().await;
    for (line, part) in &written {
        agrees(line, part);
    }
    let by_code = written.iter().filter(|(line, _)| {
        line["wrote"] == "reflection"
            && line["model"] == "code"
            && line["retention"].as_f64() < Some(1.0)
    });
    assert!(by_code.count() > 0, "{written:?}");
}

/// And what is observed while a client waits.
#[tokio::test(flavor = "multi_thread")]
async fn observations_made_while_a_client_waits_are_audited() {
    let settings = [
        ("MEMORY__OVERFLOW", "observe"),
        ("MEMORY__OVERFLOW_TIMEOUT", "20s"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    rig.provider.rules(|rules| rules.window = Some(8_000));
    let answer = rig.send(&SampleConversation::new("ada").body(24)).await;
    assert_eq!(answer.memory(), "active; rung=awaited");
    rig.quiet().await;
    let written = rig.written().await;
    assert!(!written.is_empty());
    let request = rig.audited(1).await.remove(0);
    for (line, part) in &written {
        agrees(line, part);
        assert_eq!(line["thread"], request["thread"]);
    }
}
