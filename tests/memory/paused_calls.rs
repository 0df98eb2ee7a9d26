//! Memory's calls that wait: audit lines and metrics say so, since when and until when. Metrics are those of a process, so each
//! test has its own.

use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::timeout;

use crate::memory::process::{CONFIG, Program};
use crate::memory::rig::PATIENCE;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const CAUSES: [&str; 3] = ["rate_limit", "budget", "breaker"];

impl Program {
    /// How much waits for this cause, since when and until when, in seconds since 1970.
    async fn rest(&self, cause: &str) -> [f64; 3] {
        let label = format!("{{cause=\"{cause}\"}}");
        let count = self.metric(&format!("diarist_memory_resting{label}")).await;
        let time = |end: &str| format!("diarist_memory_resting_{end}_timestamp_seconds{label}");
        let since = self.metric(&time("since")).await;
        [count, since, self.metric(&time("until")).await]
    }

    /// Waits until something waits for this cause, sends a request, and asserts that its line and the metrics agree.
    async fn assert_reported_alike(&self, cause: &str, reason: &str, body: &Value) -> Value {
        let rests = async {
            while self.rest(cause).await[0] < 0.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(PATIENCE, rests).await;
        waited.unwrap_or_else(|_| panic!("nothing waits for {cause}"));
        let answer = self.send(body).await;
        let [count, since, until] = self.rest(cause).await;
        assert!((count - 1.0).abs() < 0.1, "{count}");
        let id = answer.headers["x-diarist-request-id"].to_str().unwrap();
        let line = self.line_of(id).await;
        assert_eq!(line["reason"], reason, "{line}");
        let time = |field: &str| -> Timestamp { line[field].as_str().unwrap().parse().unwrap() };
        assert!(
            time("since") <= time("time") && time("time") < time("until"),
            "{line}"
        );
        for (shown, field) in [(since, "since"), (until, "until")] {
            let logged = time(field).as_millisecond() as f64 / 1_000.0;
            assert!(
                (shown - logged).abs() < 0.001,
                "{field}: {shown} and {logged}"
            );
        }
        let expected = format!("watching; reason={reason}; until={:.0}", time("until"));
        assert_eq!(answer.headers["x-diarist-memory"], expected.as_str());
        for other in CAUSES.iter().filter(|other| **other != cause) {
            let rest = self.rest(other).await;
            assert!(
                rest.iter().all(|number| number.abs() < 0.1),
                "{other}: {rest:?}"
            );
        }
        line
    }

    /// The audit line of a request.
    async fn line_of(&self, id: &str) -> Value {
        let find = || {
            let text = std::fs::read_to_string(self.path("audit.jsonl")).unwrap_or_default();
            let mut lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines.find(|line: &Value| line["request_id"] == id)
        };
        eventually("the audit line", || find().is_some()).await;
        find().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_open_breaker_is_reported_with_start_and_end() {
    let mut program = Program::start().await;
    let own = format!(
        "base_url = \"{}\"\napi_key = \"sk-observer\"\n",
        program.provider.base_url()
    );
    program.configure(&CONFIG.replace("message_tokens", &format!("{own}message_tokens")));
    program.terminate().await;
    program.again().await;
    program
        .provider
        .inject(CallerKind::Observer, Behaviour::failing(500));
    for cause in CAUSES {
        let rest = program.rest(cause).await;
        assert!(rest.iter().all(|number| number.abs() < 0.1), "{cause}");
    }
    // Each conversation makes one call, and then waits. The fifth failure in a row opens the circuit.
    for user in 1..=6 {
        let conversation = SampleConversation::new(&format!("user{user}"));
        for turn in 1..=ACTIVE {
            assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
        }
    }
    let body = SampleConversation::new("user1").body(ACTIVE + 1);
    let line = program
        .assert_reported_alike("breaker", "observer_failing", &body)
        .await;
    let time = |field: &str| -> Timestamp { line[field].as_str().unwrap().parse().unwrap() };
    let pause = time("until").duration_since(time("since")).as_secs();
    assert_eq!(pause, 30, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_is_reported_with_start_and_end() {
    let program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    assert_eq!(program.send(&conversation.body(1)).await.status, 200);
    let limited = Behaviour::rate_limited(3_000);
    program.provider.inject_next(CallerKind::Actor, 1, &limited);
    assert_eq!(program.send(&conversation.body(2)).await.status, 429);
    program
        .assert_reported_alike("rate_limit", "observer_resting", &conversation.body(2))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_spent_budget_is_reported_with_start_and_end() {
    let mut program = Program::start().await;
    program.configure(&format!("[memory]\ndaily_tokens = 100\n{CONFIG}"));
    program.terminate().await;
    program.again().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
    }
    program
        .assert_reported_alike("budget", "budget_spent", &conversation.body(ACTIVE + 1))
        .await;

    // With a larger budget the jobs go on at once.
    program.configure(&format!("[memory]\ndaily_tokens = 100000000\n{CONFIG}"));
    program.hang_up();
    let mut turn = ACTIVE + 2;
    let active = async {
        while program.send(&conversation.body(turn)).await.memory() != "active" {
            turn += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = timeout(PATIENCE, active).await;
    assert!(
        waited.is_ok(),
        "nothing is observed under the larger budget"
    );
    assert!(program.rest("budget").await[0] < 0.5);
}
