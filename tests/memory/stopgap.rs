//! A Reflector that takes its time: the log stays below its hard limit meanwhile, and what it writes in
//! the end is what is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use diarist_provider::{Behaviour, CallerKind, Conversation, Style};
use tokio::sync::Semaphore;

use crate::memory::reflecting::threads;
use crate::memory::rig::{PATIENCE, Rig};

/// More than any answer has events.
const OPEN: usize = 1_000_000;

const STOPGAPS: &str = "SELECT count(*) FROM parts WHERE stopgap = 1";
/// Logs that are sent and begin with what a Reflector wrote since code last stood in for it, of nothing
/// that code had left.
const PREFERRED: &str = "
WITH RECURSIVE made (root, id) AS (
    SELECT r.id, r.id FROM snapshots AS s
    JOIN parts AS r ON r.id = s.parts ->> '$[0]' AND r.kind = 'reflection'
    WHERE r.id > (SELECT max(id) FROM parts WHERE stopgap = 1)
    UNION
    SELECT made.root, source.value FROM made
    JOIN parts AS p ON p.id = made.id JOIN json_each(p.sources) AS source)
SELECT count(DISTINCT root) FROM made
WHERE root NOT IN (SELECT made.root FROM made JOIN parts AS p ON p.id = made.id WHERE p.stopgap = 1)";

/// A conversation whose Reflector answers when it is let.
struct StopgapRun {
    rig: Rig,
    conversation: Conversation,
    requests: Vec<usize>,
    at: usize,
}

impl StopgapRun {
    async fn begin() -> Self {
        let conversation = Conversation::generate(34, 60, Style::Travel);
        let requests = conversation.requests().collect();
        let rig = Rig::small().await;
        Self {
            rig,
            conversation,
            requests,
            at: 0,
        }
    }

    fn hold(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.rig
            .provider
            .inject(CallerKind::Reflector, Behaviour::gated(&gate));
        gate
    }

    fn release(&self, gate: &Semaphore) {
        self.rig
            .provider
            .inject(CallerKind::Reflector, Behaviour::default());
        gate.add_permits(OPEN);
    }

    /// One more request; waits until everything but the Reflector has done its work.
    async fn turn(&mut self) {
        let sent = self.requests[self.at];
        self.at += 1;
        let body = self.conversation.request(sent, "gpt-test", false);
        assert_eq!(self.rig.send(&body).await.status, 200);
        let recorded = "SELECT max(count) FROM nodes";
        let length = sent as i64 - 1;
        // The first request waits for the second.
        if self.at > 1 {
            self.until(|rig| async move { rig.number(recorded).await >= length })
                .await;
        }
        let waiting = "SELECT count(*) FROM jobs WHERE kind = 'chunk'";
        self.until(|rig| async move { rig.number(waiting).await == 0 })
            .await;
    }

    async fn until<'a, F: Future<Output = bool>>(&'a self, done: impl Fn(&'a Rig) -> F) {
        let began = Instant::now();
        while !done(&self.rig).await {
            assert!(began.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Goes on until one more log of the Reflector is preferred. It waits for the Reflector after each turn: on a busy
    /// machine, one that is behind would find the log at its limit again, and code would shorten it once more.
    async fn on_to_preferred(&mut self) {
        let before = self.rig.number(PREFERRED).await;
        while self.rig.number(PREFERRED).await == before {
            assert!(self.at < self.requests.len(), "no log is preferred");
            self.turn().await;
            self.rig.quiet().await;
        }
    }

    /// Goes on until one more row of `what` is there.
    async fn on_to(&mut self, what: &'static str) {
        let before = self.rig.number(what).await;
        while self.rig.number(what).await == before {
            let shown = || threads(&self.rig, &["show", "1"]).0;
            assert!(self.at < self.requests.len(), "no {what} in\n{}", shown());
            self.turn().await;
        }
    }

    async fn end(&self) {
        let largest = self.rig.number("SELECT max(tokens) FROM snapshots").await;
        assert!(
            largest <= 1_200,
            "{largest} tokens of observations are sent"
        );
        // Of what is sent every line leads to messages, also those code has stood in for.
        let unknown = "SELECT count(*) FROM parts WHERE json_array_length(origins) = 0";
        assert_eq!(self.rig.number(unknown).await, 0);
        let show = || threads(&self.rig, &["show", "1"]).0;
        let (mut before, mut walked) = (String::new(), Vec::new());
        // Until nothing is written between the first line and the last.
        let began = Instant::now();
        while before != show() {
            assert!(began.elapsed() < PATIENCE, "the log does not come to rest");
            before = show();
            walked = self.source_found(&before);
        }
        assert!(walked.len() > 2, "{walked:?} in\n{before}");
        assert!(walked.iter().all(|found| *found), "{walked:?} in\n{before}");
    }

    /// Of each planted fact that stands in the log whether its line leads to the message that said it.
    fn source_found(&self, shown: &str) -> Vec<bool> {
        let facts = self.conversation.facts.iter();
        let leads = |line: &str, place: &str| {
            let number = line.split_whitespace().next().unwrap();
            let (text, done) = threads(&self.rig, &["show", "1", "--why", number]);
            let row = |line: &str| line.split_whitespace().next() == Some(place);
            done && text.lines().any(row)
        };
        // Of two facts that share their words each has a line.
        let found = facts.filter_map(|fact| {
            let says = |line: &&str| line.contains(&fact.words);
            let mut lines = shown.lines().filter(says).peekable();
            lines.peek()?;
            Some(lines.any(|line| leads(line, &fact.at.to_string())))
        });
        found.collect()
    }
}

/// Late, and late again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_late_reflection_replaces_the_log_shortened_by_code() {
    let mut played = StopgapRun::begin().await;
    for _ in 0..2 {
        let gate = played.hold();
        played.on_to(STOPGAPS).await;
        played.release(&gate);
        played.rig.quiet().await;
        played.on_to_preferred().await;
    }
    played.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reflector_that_never_answers_leaves_the_log_within_its_limit() {
    let mut played = StopgapRun::begin().await;
    let gate = played.hold();
    for _ in 0..3 {
        played.on_to(STOPGAPS).await;
    }
    let last = played.rig.forwarded().pop().unwrap().to_string();
    assert!(last.contains("[older observations left out: "), "{last}");
    played.end().await;
    played.release(&gate);
}

/// What the Reflector is at work on is in the store, with what code left something out of.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_late_reflection_replaces_the_shortened_log_after_a_restart() {
    let mut played = StopgapRun::begin().await;
    let gate = played.hold();
    played.on_to(STOPGAPS).await;
    played.rig.restart().await;
    played.release(&gate);
    // The way to the model is borrowed, and lent again with a request.
    played.turn().await;
    played.rig.quiet().await;
    played.on_to_preferred().await;
    played.end().await;
}
