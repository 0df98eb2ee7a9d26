//! The scripted provider as a process of its own, for clients that are not written in Rust.
//!
//! Starts one [`Provider`] and, beside it, a control port that takes one JSON [`Command`] per `POST`
//! and answers in JSON. Both ports are free ones; the first line on standard output says where they
//! are. It ends when its standard input does, so it never outlives the test that started it.
//!
//! ```text
//! $ cargo run --example provider
//! {"base_url":"http://127.0.0.1:40001/v1","control":"http://127.0.0.1:40002"}
//! $ curl -d '{"do":"next","behaviour":{"fail":{"status":429,"retry_after":1}}}' http://127.0.0.1:40002
//! $ curl -d '{"do":"record"}' http://127.0.0.1:40002
//! ```
//!
//! It only translates; what can be asked of a provider is written in `diarist_provider`.

#![expect(clippy::print_stdout, reason = "the first line is how it is found")]

use std::collections::HashMap;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use diarist::tasks::Tasks;
use diarist_provider::{
    Behaviour, CallerKind, Conversation, Cut, DefaultScript, DirectiveScript, Ending, Failure,
    LineEnd, Options, Provider, RecordedRequest, Replay, Rules, Stage, Style, Verdict, WaitTimeout,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// What can be asked on the control port.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    /// From now on it insists on exactly these; without any, on what the real API insists on.
    Rules {
        #[serde(default)]
        rules: Demands,
    },
    /// How it treats the next requests of one part.
    Next {
        #[serde(default)]
        part: Who,
        #[serde(default = "once")]
        times: usize,
        behaviour: Manner,
    },
    /// How it treats one part whenever nothing else is queued.
    Behave {
        #[serde(default)]
        part: Who,
        behaviour: Manner,
    },
    /// Lets so many events through a gate that a behaviour named.
    Release {
        gate: String,
        #[serde(default = "once")]
        events: usize,
    },
    /// Makes a conversation up, gives it, and plays the assistant in it from now on.
    Converse {
        seed: u64,
        turns: usize,
        #[serde(default)]
        style: Tone,
    },
    /// Answers from the last message again, as at the start.
    Improvise,
    /// Does what the newest message says, see [`Obey`].
    Obey,
    /// How many requests have come, once every one of them has ended.
    Count,
    /// The record from this number on; `settled` waits until every request in it has ended.
    Record {
        #[serde(default)]
        from: usize,
        #[serde(default)]
        settled: bool,
    },
}

fn once() -> usize {
    1
}

/// [`Part`] in JSON.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    #[default]
    Actor,
    Observer,
    Reflector,
    Other,
}

impl From<Who> for CallerKind {
    fn from(who: Who) -> Self {
        match who {
            Who::Actor => Self::Actor,
            Who::Observer => Self::Observer,
            Who::Reflector => Self::Reflector,
            Who::Other => Self::Other,
        }
    }
}

/// [`Style`] in JSON.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tone {
    #[default]
    Travel,
    Coding,
}

/// [`Rules`] in JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "as the rules themselves")]
struct Demands {
    alternate: bool,
    single_system: bool,
    system_first: bool,
    signature: bool,
    refuse_stream_options: bool,
    window: Option<u32>,
    extra_parameters: Vec<String>,
}

impl Demands {
    fn apply(self, rules: &mut Rules) {
        *rules = Rules {
            alternate: self.alternate,
            single_system: self.single_system,
            system_first: self.system_first,
            signature: self.signature,
            refuse_stream_options: self.refuse_stream_options,
            window: self.window,
            extra_parameters: self.extra_parameters,
            ..Rules::default()
        };
    }
}

/// [`Behaviour`] in JSON; a gate is named and made when it is first heard of.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "as the behaviour itself")]
struct Manner {
    before_head_ms: u64,
    silent: bool,
    before_event_ms: u64,
    gate: Option<String>,
    pace_frames: bool,
    hold_open: bool,
    fail: Option<Fail>,
    early: bool,
    cut: Option<Break>,
    frame_bytes: Option<usize>,
    delta_chars: Option<usize>,
    crlf: bool,
    byte_order_mark: bool,
    comments: bool,
    multi_line: bool,
    no_done: bool,
    unasked_usage: bool,
    refuse_in_stream: bool,
    gzip: bool,
    omit_content_type: bool,
    headers: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fail {
    status: u16,
    retry_after: Option<u32>,
    /// Content type and body.
    body: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Break {
    BeforeHead,
    AfterBytes(usize),
    AfterEvents(usize),
    ResetAfterEvents(usize),
}

/// The library wants names that live for ever; a test tool asked a few hundred times can give them.
fn for_ever(name: String) -> &'static str {
    Box::leak(name.into_boxed_str())
}

impl Manner {
    fn behaviour(self, gates: &Gates) -> Behaviour {
        Behaviour {
            before_head: Duration::from_millis(self.before_head_ms),
            silent: self.silent,
            before_event: Duration::from_millis(self.before_event_ms),
            gate: self.gate.map(|name| gates.named(&name)),
            pace_frames: self.pace_frames,
            hold_open: self.hold_open,
            fail: self.fail.map(|fail| Failure {
                status: fail.status,
                retry_after: fail.retry_after,
                body: fail.body.map(|(kind, text)| (for_ever(kind), text)),
            }),
            early: self.early,
            cut: self.cut.map(|cut| match cut {
                Break::BeforeHead => Cut::BeforeHead,
                Break::AfterBytes(bytes) => Cut::AfterBytes(bytes),
                Break::AfterEvents(events) => Cut::AfterEvents(events),
                Break::ResetAfterEvents(events) => Cut::ResetAfterEvents(events),
            }),
            frame_bytes: self.frame_bytes,
            delta_chars: self.delta_chars,
            line_end: if self.crlf {
                LineEnd::CrLf
            } else {
                LineEnd::Lf
            },
            byte_order_mark: self.byte_order_mark,
            comments: self.comments,
            multi_line: self.multi_line,
            omit_done: self.no_done,
            unrequested_usage: self.unasked_usage,
            refuse_in_stream: self.refuse_in_stream,
            gzip: self.gzip,
            omit_content_type: self.omit_content_type,
            headers: (self.headers.into_iter())
                .map(|(name, value)| (for_ever(name), value))
                .collect(),
        }
    }
}

/// The gates by name.
#[derive(Debug, Default)]
struct Gates(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Gates {
    fn named(&self, name: &str) -> Arc<Semaphore> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || Arc::new(Semaphore::new(0));
        Arc::clone(gates.entry(name.to_owned()).or_insert_with(closed))
    }
}

/// The provider and what the control port needs beside it.
#[derive(Debug)]
struct Controlled {
    provider: Provider,
    gates: Gates,
    since: Instant,
}

impl Controlled {
    async fn obey(&self, command: Command) -> Result<Value, WaitTimeout> {
        match command {
            Command::Rules { rules } => self.provider.rules(|now| rules.apply(now)),
            Command::Next {
                part,
                times,
                behaviour,
            } => {
                let behaviour = behaviour.behaviour(&self.gates);
                self.provider.inject_next(part.into(), times, &behaviour);
            }
            Command::Behave { part, behaviour } => {
                let behaviour = behaviour.behaviour(&self.gates);
                self.provider.inject(part.into(), behaviour);
            }
            Command::Release { gate, events } => self.gates.named(&gate).add_permits(events),
            Command::Improvise => self
                .provider
                .script(CallerKind::Actor, DefaultScript::default()),
            Command::Converse { seed, turns, style } => {
                let style = match style {
                    Tone::Travel => Style::Travel,
                    Tone::Coding => Style::Coding,
                };
                let conversation = Conversation::generate(seed, turns, style);
                self.provider.script(
                    CallerKind::Actor,
                    Replay::from_conversations([&conversation]),
                );
                let (messages, tools) = (conversation.messages, conversation.tools);
                return Ok(json!({"messages": messages, "tools": tools}));
            }
            Command::Obey => self.provider.script(CallerKind::Actor, DirectiveScript),
            Command::Count => return Ok(json!(self.settled().await?.len())),
            Command::Record { from, settled } => {
                let record = if settled {
                    self.settled().await?
                } else {
                    self.provider.record()
                };
                let entries = record.iter().skip(from);
                return Ok(entries.map(|entry| entry_json(entry, self.since)).collect());
            }
        }
        Ok(json!({}))
    }

    async fn settled(&self) -> Result<Vec<Arc<RecordedRequest>>, WaitTimeout> {
        let ended = |entry: &Arc<RecordedRequest>| entry.ending != Ending::Open;
        let all = |record: &[Arc<RecordedRequest>]| record.iter().all(ended);
        self.provider.wait_until(all).await
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = match request.into_body().collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                return respond(
                    StatusCode::BAD_REQUEST,
                    &json!({"error": error.to_string()}),
                );
            }
        };
        let command = match serde_json::from_slice::<Command>(&body) {
            Ok(command) => command,
            Err(error) => {
                return respond(
                    StatusCode::BAD_REQUEST,
                    &json!({"error": error.to_string()}),
                );
            }
        };
        match self.obey(command).await {
            Ok(answer) => respond(StatusCode::OK, &answer),
            Err(late) => respond(
                StatusCode::GATEWAY_TIMEOUT,
                &json!({"error": late.to_string()}),
            ),
        }
    }
}

fn respond(status: StatusCode, answer: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.to_string()));
    *response.status_mut() = status;
    response
}

/// One entry of the record in JSON: times in milliseconds, the body in hexadecimal.
fn entry_json(entry: &RecordedRequest, since: Instant) -> Value {
    let headers: Vec<_> = (entry.headers.iter())
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect();
    let (ending, after) = match entry.ending {
        Ending::Open => (json!("open"), None),
        Ending::Complete { after } => (json!("complete"), Some(after)),
        Ending::Cut { after } => (json!("cut"), Some(after)),
        Ending::HungUp { stage, after } => (json!({"hung_up": stage_json(stage)}), Some(after)),
    };
    json!({
        "number": entry.number,
        "part": format!("{:?}", entry.caller).to_lowercase(),
        "connection": entry.connection,
        "at_ms": entry.at.duration_since(since).as_secs_f64() * 1e3,
        "method": entry.method.as_str(),
        "target": entry.target,
        "headers": headers,
        "body_hex": entry.body.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "model": entry.model,
        "messages": entry.messages,
        "verdict": match &entry.verdict {
            Verdict::Pending => json!("pending"),
            Verdict::Accepted => json!("accepted"),
            Verdict::NotJudged => json!("unjudged"),
            Verdict::Failed(status) => json!({"failed": status}),
            Verdict::Refused(refusal) => json!({"refused": refusal.body()}),
        },
        "prompt_tokens": entry.prompt_usage.map(|measured| measured.prompt_tokens),
        "cached_tokens": entry.prompt_usage.map(|measured| measured.cached_tokens),
        "reply": entry.reply,
        "ending": ending,
        "after_ms": after.map(|after| after.as_secs_f64() * 1e3),
    })
}

fn stage_json(stage: Stage) -> Value {
    match stage {
        Stage::Body => json!("body"),
        Stage::BeforeHead => json!("before_head"),
        Stage::BeforeFirstEvent => json!("before_first_event"),
        Stage::Streaming { events, bytes } => json!({"events": events, "bytes": bytes}),
        Stage::AfterLastEvent => json!("after_last_event"),
    }
}

async fn control(listener: TcpListener, controlled: Arc<Controlled>, tasks: Tasks) {
    // A failed accept is the client's; the test sees it itself.
    while let Ok((stream, _)) = listener.accept().await {
        let controlled = Arc::clone(&controlled);
        let serving = async move {
            let service = service_fn(|request| {
                let controlled = Arc::clone(&controlled);
                async move { Ok::<_, std::convert::Infallible>(controlled.answer(request).await) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            // A connection that breaks has nobody left to tell.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        };
        tasks.spawn("control connection", serving);
    }
}

/// Until standard input ends.
fn parent_left() {
    let mut rest = Vec::new();
    // An error means the same as the end: nobody is there any more.
    let _ = std::io::stdin().read_to_end(&mut rest);
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let provider = Provider::start(Options::default()).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!(
        "{}",
        json!({
            "base_url": provider.base_url(),
            "control": format!("http://{}", listener.local_addr()?),
        })
    );
    let tasks = Tasks::new();
    let controlled = Arc::new(Controlled {
        provider,
        gates: Gates::default(),
        since: Instant::now(),
    });
    tasks.spawn("control", control(listener, controlled, tasks.clone()));
    tokio::task::spawn_blocking(parent_left).await?;
    Ok(())
}
