//! What the tests of memory under trouble share: a short conversation with long words, the database
//! seen from outside, the audit, and a client that can leave.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use diarist_provider::{
    Behaviour, CallerKind, Failure, RecordedRequest, Reply, ScriptInput, script,
};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::memory::rig::{Answer, PATIENCE, Rig};

/// A conversation of about 350 tokens a turn, the same whenever it is made. With the thresholds of
/// [`Rig::small`] the request of its ninth turn ([`ACTIVE`]) has memory, if memory had its time after each turn.
#[derive(Clone, Debug)]
pub struct SampleConversation {
    pub name: String,
    pub model: &'static str,
    pub system: Option<&'static str>,
}

/// The turn whose request has memory for sure.
pub const ACTIVE: usize = 9;

fn filler(number: usize) -> String {
    format!("what came in part {number} was weighed and kept. ").repeat(20)
}

fn answer_text(number: usize, name: &str) -> String {
    format!("Answer {number} for {name}. {}", filler(number))
}

/// The turn that asks for `text`, and whose it is.
fn parse_question(text: &str) -> Option<(usize, &str)> {
    let (_, rest) = text.split_once(" wants ")?;
    let (name, rest) = rest.split_once(" in turn ")?;
    let (number, _) = rest.split_once('.')?;
    Some((number.parse().ok()?, name))
}

impl SampleConversation {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            model: "gpt-test",
            system: Some("You are a patient assistant."),
        }
    }

    /// A word of each of this conversation's user messages. No other conversation has it. Observations repeat it.
    pub fn canary(&self) -> String {
        format!("{}@canary77", self.name)
    }

    /// How the scripted Observer begins what it writes about a user message. No message has these words.
    pub fn observed(&self) -> String {
        format!("User stated: {}", self.canary())
    }

    /// What the user says in this turn. No observation has all of these words.
    pub fn question(&self, turn: usize) -> String {
        let filler = filler(turn);
        format!(
            "{} wants {} in turn {turn}. {filler}",
            self.canary(),
            self.name
        )
    }

    /// The messages of the request of this turn (from 1).
    pub fn messages(&self, turn: usize) -> Vec<Value> {
        let mut messages: Vec<Value> = self
            .system
            .iter()
            .map(|text| json!({"role": "system", "content": text}))
            .collect();
        for number in 1..=turn {
            let question = self.question(number);
            messages.push(json!({"role": "user", "content": question}));
            if number < turn {
                let answer = answer_text(number, &self.name);
                messages.push(json!({"role": "assistant", "content": answer}));
            }
        }
        messages
    }

    pub fn body(&self, turn: usize) -> Value {
        json!({"model": self.model, "messages": self.messages(turn)})
    }

    pub fn streamed(&self, turn: usize) -> Value {
        json!({"model": self.model, "messages": self.messages(turn), "stream": true})
    }
}

impl Rig {
    /// From here on the upstream really gives the answers that conversations carry: where a client drops
    /// messages, only these prove whose they are.
    pub fn gives_its_answers(&self) {
        self.provider
            .script(CallerKind::Actor, |ask: &ScriptInput<'_>| {
                let last = ask.messages.last().map(script::text).unwrap_or_default();
                match parse_question(&last) {
                    Some((number, name)) => Reply::text(answer_text(number, name)),
                    None => Reply::text("Yes."),
                }
            });
    }

    /// Plays the turns, giving memory its time after each; the last answer.
    pub async fn play_turns(
        &self,
        conversation: &SampleConversation,
        turns: std::ops::RangeInclusive<usize>,
    ) -> Answer {
        self.play_turns_as("Bearer sk-test", &[], conversation, turns)
            .await
    }

    pub async fn play_turns_as(
        &self,
        credential: &str,
        headers: &[(&str, &str)],
        conversation: &SampleConversation,
        turns: std::ops::RangeInclusive<usize>,
    ) -> Answer {
        let mut last = None;
        for turn in turns {
            let answer = self
                .send_as(credential, headers, &conversation.body(turn))
                .await;
            assert_eq!(answer.status, 200, "turn {turn}: {}", answer.text());
            self.quiet().await;
            last = Some(answer);
        }
        last.unwrap()
    }

    /// What the provider got from conversations, oldest first.
    pub fn got(&self) -> Vec<Arc<RecordedRequest>> {
        self.provider.record_for(CallerKind::Actor)
    }

    /// The newest of them.
    pub fn last(&self) -> Arc<RecordedRequest> {
        self.got().pop().unwrap()
    }

    pub fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("diarist.db")
    }

    /// The database as another program sees it.
    pub async fn database(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.file());
        let options = options.busy_timeout(PATIENCE);
        options.connect().await.unwrap()
    }

    /// Every row of every table there is, by table, as one text each: whatever is written shows.
    pub async fn everything(&self) -> BTreeMap<String, Vec<String>> {
        let mut database = self.database().await;
        let tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name";
        let tables: Vec<String> = sqlx::query_scalar(tables)
            .fetch_all(&mut database)
            .await
            .unwrap();
        let mut rows = BTreeMap::new();
        for table in tables {
            let columns = "SELECT group_concat('quote(\"' || name || '\")', ' || \",\" || ')
                           FROM pragma_table_info($1)";
            let columns: String = sqlx::query_scalar(columns)
                .bind(&table)
                .fetch_one(&mut database)
                .await
                .unwrap();
            let all = format!(
                "SELECT {} FROM \"{table}\" ORDER BY 1",
                columns.replace("\",\"", "','")
            );
            let all: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(all))
                .fetch_all(&mut database)
                .await
                .unwrap();
            rows.insert(table, all);
        }
        rows
    }

    /// Waits until `query` gives this number or more.
    pub async fn until_at_least(&self, number: usize, query: &'static str) {
        let reached = |found| usize::try_from(found).unwrap() >= number;
        self.until(query, reached).await;
    }

    /// Waits until `query` gives a number that is right. Asks over one connection: to open one costs more than to ask.
    pub async fn until(&self, query: &'static str, is_right: impl Fn(i64) -> bool) {
        let mut database = self.database().await;
        let began = Instant::now();
        loop {
            let ask = sqlx::query_scalar(query).fetch_one(&mut database);
            let found: i64 = ask.await.unwrap();
            if is_right(found) {
                break;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "waited in vain: {query} is {found}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A number out of the database.
    pub async fn number(&self, query: &'static str) -> i64 {
        let mut database = self.database().await;
        sqlx::query_scalar(query)
            .fetch_one(&mut database)
            .await
            .unwrap()
    }

    /// Waits until the audit lines of so many requests are written, and gives them.
    pub async fn audited(&self, requests: usize) -> Vec<Value> {
        let read = || self.audit("request_id");
        eventually("the audit lines", || read().len() >= requests).await;
        read()
    }

    /// The audit lines with this field, as far as they are written.
    pub fn audit(&self, field: &str) -> Vec<Value> {
        let path = self.folder.path().join("audit.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(|line: &Value| !line[field].is_null())
            .collect()
    }

    /// A counter of the metrics page. One process has one set of metrics, and tests run beside each
    /// other in it: only that it grew can be said.
    pub async fn metric(&self, name: &str) -> f64 {
        metric(&self.metrics().await, name)
    }
}

impl Rig {
    /// Every event of the database, oldest first: its name and what it says.
    pub async fn events(&self) -> Vec<(String, Value)> {
        let mut database = self.database().await;
        let rows: Vec<(String, String)> =
            sqlx::query_as("SELECT kind, body FROM events ORDER BY place, kind DESC")
                .fetch_all(&mut database)
                .await
                .unwrap();
        rows.into_iter()
            .map(|(kind, body)| (kind, serde_json::from_str(&body).unwrap()))
            .collect()
    }

    /// Waits for an event of this name.
    pub async fn wait_event(&self, name: &str) -> Value {
        let began = Instant::now();
        loop {
            let named = |(kind, body)| (kind == name).then_some(body);
            if let Some(body) = self.events().await.into_iter().find_map(named) {
                return body;
            }
            assert!(began.elapsed() < PATIENCE, "waited in vain for {name}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Answers with this status and body.
pub fn answering(status: u16, body: &Value) -> Behaviour {
    Behaviour {
        fail: Some(Failure {
            status,
            retry_after: None,
            body: Some(("application/json", body.to_string())),
        }),
        ..Behaviour::default()
    }
}

/// Refuses a request with this status and these words.
pub fn refusing(status: u16, message: &str) -> Behaviour {
    let error = json!({"message": message, "type": "invalid_request_error"});
    answering(status, &json!({ "error": error }))
}

/// A stream that says this and nothing else.
pub fn event_stream(event: &Value) -> Behaviour {
    let body = format!("data: {event}\n\ndata: [DONE]\n\n");
    Behaviour {
        fail: Some(Failure {
            status: 200,
            retry_after: None,
            body: Some(("text/event-stream; charset=utf-8", body)),
        }),
        ..Behaviour::default()
    }
}

pub fn metric(page: &str, name: &str) -> f64 {
    page.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .map_or(0.0, |value| value.parse().unwrap())
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Waits until `done`; fails after [`PATIENCE`].
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The same where the answer has to be awaited.
pub async fn eventually_async(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(ended.is_ok(), "waited in vain for {what}");
}

/// A client by hand: it can send half a request, and leave.
pub struct Caller {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Caller {
    pub async fn connect(address: &str) -> Self {
        Self {
            stream: TcpStream::connect(address).await.unwrap(),
            received: Vec::new(),
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Whether the other side still takes `bytes`: it may have answered and closed.
    pub async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Sends a whole chat completion.
    pub async fn ask(&mut self, body: &Value) {
        let body = body.to_string();
        self.send(head(body.len()).as_bytes()).await;
        self.send(body.as_bytes()).await;
    }

    /// Reads until `end` has come.
    pub async fn until(&mut self, end: &str) -> String {
        let reading = async {
            while memchr::memmem::find(&self.received, end.as_bytes()).is_none() {
                let mut piece = [0; 4096];
                let length = self.stream.read(&mut piece).await.unwrap();
                let received = String::from_utf8_lossy(&self.received).into_owned();
                assert!(length > 0, "closed before {end:?}: {received}");
                self.received.extend_from_slice(&piece[..length]);
            }
        };
        let outcome = tokio::time::timeout(PATIENCE, reading).await;
        let text = String::from_utf8_lossy(&self.received).into_owned();
        assert!(outcome.is_ok(), "waited in vain for {end:?}: {text}");
        text
    }
}

/// The head of a chat completion with so many bytes of body.
pub fn head(length: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-test\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}
