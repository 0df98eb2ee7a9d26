//! One world: its users, what they send, and in which order. A seed decides.

use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind, Cut};
use futures_util::future::join_all;
use memchr::memmem;
use reqwest::Response;
use serde_json::{Value, json};

use crate::population::conversation::{Conversation, Pool};
use crate::population::judge::{Sent, Wrong, judge, mixed};
use crate::population::kinds::Kind;
use crate::population::process::Stage;
use crate::population::request::{Fate, Request};
use crate::population::scenes;
use crate::population::words::text;
use crate::support::dice::Dice;

const KEYS: [&str; 2] = ["Bearer sk-the-application", "Bearer sk-another"];

/// Conversations that go on side by side.
const SIDE_BY_SIDE: usize = 14;

/// Tokens of a history from which memory is of use, as the processes are told.
const LONG: usize = 1_000;

/// Bytes of a token of what is said here, about.
const BYTES: usize = 5;

/// How many requests the world of this seed makes. Some worlds are larger: what two users share grows with
/// how many there are.
pub fn size(seed: u64) -> usize {
    if seed % 5 == 4 { 2_250 } else { 750 }
}

/// The options of a world.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// Whether each request is written down in short words.
    pub traces: bool,
    /// Whether each conversation is walled off from all others by a name of its own.
    pub walls: bool,
}

struct World {
    seed: u64,
    stage: Stage,
    options: WorldOptions,
    /// How much of the provider's record is judged.
    judged: usize,
    sent: Vec<Sent>,
    bodies: Vec<(Request, Vec<u8>)>,
}

/// Plays the world of `seed`; gives every request of it.
pub async fn play(seed: u64, options: WorldOptions) -> Vec<Sent> {
    let mut dice = Dice::new(seed);
    let processes = 1 + usize::from(seed % 2 == 1);
    let stage = Stage::start(&mut dice, processes).await;
    let mut pool = Pool {
        dice,
        users: 0,
        conversations: 0,
        processes,
        fresh: 0,
        equal: 0,
    };
    let mut world = World {
        seed,
        stage,
        options,
        judged: 0,
        sent: Vec::new(),
        bodies: Vec::new(),
    };
    let mut live: Vec<Conversation> = Vec::new();
    let mut over: Vec<Conversation> = Vec::new();
    while world.sent.len() < size(seed) {
        match pool.dice.below(120) {
            0 => {
                let process = pool.dice.below(processes);
                world.stage.restart(process).await;
            }
            1..=5 => world.scene(&mut live, &mut over, &mut pool).await,
            6..=19 if !live.is_empty() => world.at_once(&mut live, &mut pool).await,
            _ if live.len() < SIDE_BY_SIDE => {
                let kind = Kind::drawn(&mut pool.dice);
                for _ in 0..kind.together() {
                    live.push(Conversation::begin(&mut pool, kind));
                }
            }
            _ => {
                let at = pool.dice.below(live.len());
                let requests = live[at].turn(&mut pool);
                world.send_all(requests).await;
            }
        }
        let (ends, goes_on) = live
            .into_iter()
            .partition(|conversation| conversation.turns == 0);
        live = goes_on;
        over.extend::<Vec<Conversation>>(ends);
        let old = over.len().saturating_sub(20);
        over.drain(..old);
    }
    world.end().await
}

impl World {
    async fn scene(
        &mut self,
        live: &mut Vec<Conversation>,
        over: &mut [Conversation],
        pool: &mut Pool,
    ) {
        let mut all = live.iter_mut().chain(over.iter_mut());
        let count = all
            .by_ref()
            .filter(|conversation| scenes::is_alice(conversation))
            .count();
        if count == 0 {
            return;
        }
        let (which, kind) = (pool.dice.below(count), *pool.dice.pick(&Kind::SCENES));
        let mut all = live.iter_mut().chain(over.iter_mut());
        let mut alices = all
            .by_ref()
            .filter(|conversation| scenes::is_alice(conversation));
        let alice = alices.nth(which).unwrap();
        let (bob, requests) = scenes::play(kind, alice, pool);
        live.push(bob);
        self.send_all(requests).await;
    }

    /// Several go on at one moment.
    async fn at_once(&mut self, live: &mut [Conversation], pool: &mut Pool) {
        pool.dice.shuffle(live);
        let turns = live
            .iter_mut()
            .take(4)
            .map(|conversation| conversation.turn(pool));
        let requests: Vec<Request> = turns.flatten().collect();
        let mut conversations: Vec<usize> = requests
            .iter()
            .map(|request| request.conversation)
            .collect();
        conversations.dedup();
        let plain = requests.iter().all(|r| r.fate == Fate::Answered);
        if !plain || conversations.len() < requests.len() {
            return self.send_all(requests).await;
        }
        let prepared: Vec<(Request, Vec<u8>)> = requests.into_iter().map(prepare).collect();
        let first = self.bodies.len();
        let sending = prepared
            .iter()
            .map(|(request, body)| self.post(request, body));
        let answers = join_all(sending).await;
        self.bodies.extend(prepared);
        for (at, answer) in answers.into_iter().enumerate() {
            self.note(first + at, &answer);
        }
        self.judge();
        if self.bodies[first].0.rests {
            self.stage.rest().await;
        }
    }

    async fn send_all(&mut self, requests: Vec<Request>) {
        for request in requests {
            let rests = request.rests;
            self.send(request).await;
            if rests {
                self.stage.rest().await;
            }
        }
    }

    async fn send(&mut self, request: Request) {
        let prepared = prepare(request);
        let behaviour = match prepared.0.fate {
            Fate::Answered => Behaviour::default(),
            Fate::Fails(status) => Behaviour::failing(status),
            Fate::HungUp => Behaviour {
                before_event: Duration::from_millis(3),
                ..Behaviour::default()
            },
            Fate::CutOff if prepared.0.stream => Behaviour::cutting(Cut::AfterEvents(2)),
            Fate::CutOff => Behaviour::cutting(Cut::AfterBytes(60)),
        };
        self.stage.provider.inject(CallerKind::Actor, behaviour);
        let answer = self.post(&prepared.0, &prepared.1).await;
        self.stage
            .provider
            .inject(CallerKind::Actor, Behaviour::default());
        self.bodies.push(prepared);
        self.note(self.bodies.len() - 1, &answer);
        self.judge();
    }

    async fn post(&self, request: &Request, body: &[u8]) -> Answer {
        // Each request of a conversation at one moment has a body of its own.
        let number = number_of(request, body);
        self.stage.answers(&number, &request.reply);
        let mut body = body.to_vec();
        body.pop();
        body.extend(format!(",\"user\":\"{number}\"}}").into_bytes());
        let mut post = self
            .stage
            .client
            .post(self.stage.url(request.process))
            .header("content-type", "application/json")
            .header("authorization", KEYS[request.tenant])
            .body(body);
        if self.options.walls {
            post = post.header(
                "x-diarist-resource",
                format!("wall-{}", request.conversation),
            );
        }
        for (name, value) in &request.headers {
            post = post.header(*name, value);
        }
        match post.send().await {
            Err(_) => Answer::default(),
            Ok(response) => Answer::read(response, request).await,
        }
    }

    fn note(&mut self, at: usize, answer: &Answer) {
        let (request, body) = &self.bodies[at];
        let words: usize = request.messages.iter().map(|m| text(m).len()).sum();
        let mut sent = Sent::new(self.seed, at, request);
        sent.long =
            words / BYTES > LONG && request.fate == Fate::Answered && request.memory() != "off";
        sent.memory.clone_from(&answer.memory);
        sent.request_id.clone_from(&answer.id);
        if self.options.traces {
            sent.story = story(request);
        }
        if let Some(problem) = answer.wrong(request) {
            println!("DIARIST_SEED={} step {at}: {problem}", self.seed);
            let own = crate::population::marks::found(body).pop_first();
            let none = crate::population::marks::Mark {
                user: 0,
                conversation: 0,
                number: 0,
            };
            sent.wrong.insert(Wrong::Answer, own.unwrap_or(none));
        }
        self.sent.push(sent);
    }

    /// Judges what the provider got since the last time.
    fn judge(&mut self) {
        let record = self.stage.provider.record();
        for entry in record[self.judged..]
            .iter()
            .filter(|e| e.caller == CallerKind::Actor)
        {
            let Some(number) = number_in(&entry.body) else {
                continue;
            };
            let recent = self.bodies.len().saturating_sub(8);
            let bodies = self.bodies[recent..].iter().enumerate().rev();
            let mut fitting = bodies.filter(|(_, (r, body))| number_of(r, body) == number);
            if let Some((at, (request, body))) = fitting.next() {
                judge(request, body, &entry.body, &mut self.sent[recent + at]);
            }
        }
        self.judged = record.len();
    }

    async fn end(mut self) -> Vec<Sent> {
        self.stage.rest().await;
        for entry in self.stage.provider.record() {
            if matches!(entry.caller, CallerKind::Observer | CallerKind::Reflector)
                && let Some(mark) = mixed(&entry.body)
                && let Some(its) = self
                    .sent
                    .iter_mut()
                    .rfind(|sent| sent.conversation == mark.conversation)
            {
                its.wrong.insert(Wrong::Mixed, mark);
            }
        }
        let reasons = self.stage.end().await;
        for sent in &mut self.sent {
            sent.reason = reasons.get(&sent.request_id).cloned().unwrap_or_default();
        }
        self.sent
    }
}

/// The body of a request, but for the number by which the provider knows it.
fn prepare(mut request: Request) -> (Request, Vec<u8>) {
    request.stream |= request.fate == Fate::HungUp;
    let mut body = json!({"model": "gpt-test", "messages": request.messages});
    if request.stream {
        body["stream"] = true.into();
    }
    (request, body.to_string().into_bytes())
}

/// What the provider knows a request by: whose it is and what it holds.
fn number_of(request: &Request, body: &[u8]) -> String {
    let hash = blake3::hash(body);
    let reply = blake3::hash(request.reply.to_string().as_bytes());
    format!(
        "r{}-{}-{}",
        request.conversation,
        &hash.to_hex()[..12],
        &reply.to_hex()[..8]
    )
}

fn number_in(body: &[u8]) -> Option<String> {
    let at = memmem::rfind(body, b"\"user\":\"")? + b"\"user\":\"".len();
    let end = at + memchr::memchr(b'"', &body[at..])?;
    Some(String::from_utf8_lossy(&body[at..end]).into_owned())
}

/// What the client got.
#[derive(Debug, Default)]
struct Answer {
    status: u16,
    memory: String,
    id: String,
    words: Option<String>,
}

impl Answer {
    async fn read(mut response: Response, request: &Request) -> Self {
        let header = |name: &str| {
            let value = response.headers().get(name);
            value.map_or_else(String::new, |v| v.to_str().unwrap().to_owned())
        };
        let mut answer = Self {
            status: response.status().as_u16(),
            memory: header("x-diarist-memory"),
            id: header("x-diarist-request-id"),
            words: None,
        };
        if request.fate == Fate::HungUp {
            drop(response.chunk().await);
        } else if let Ok(body) = response.bytes().await {
            answer.words = Some(words(&body, request.stream));
        }
        answer
    }

    fn wrong(&self, request: &Request) -> Option<String> {
        let expected = text(&request.reply);
        match request.fate {
            Fate::Answered if self.status != 200 => {
                Some(format!("answered {}: {:?}", self.status, self.words))
            }
            Fate::Answered if self.words.as_deref() != Some(expected) => {
                Some(format!("{expected:?} was answered, {:?} came", self.words))
            }
            Fate::Fails(status) if self.status != status => {
                Some(format!("failed with {status}, {} came", self.status))
            }
            _ => None,
        }
    }
}

/// The words of an answer, streamed or not.
fn words(body: &[u8], stream: bool) -> String {
    let body = String::from_utf8_lossy(body);
    let word = |event: Value, place: &str| {
        let content = &event["choices"][0][place]["content"];
        content.as_str().unwrap_or_default().to_owned()
    };
    if !stream {
        return word(body.parse().unwrap_or_default(), "message");
    }
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    events
        .filter_map(|event| event.parse().ok())
        .map(|event| word(event, "delta"))
        .collect()
}

/// A request in short words: how it went out, then its messages.
fn story(request: &Request) -> Vec<String> {
    let taken: Vec<String> = request.taken.iter().map(ToString::to_string).collect();
    let how = format!(
        "{:?}{}, process {}, {:?}, taken back: [{}]",
        request.fate,
        if request.rests { ", rests" } else { "" },
        request.process,
        request.headers,
        taken.join(" "),
    );
    let messages = request.messages.iter().map(|message| {
        let words: String = text(message).chars().take(20).collect();
        let words = words.split(". ").next().unwrap_or_default();
        let calls = &message["tool_calls"][0]["id"];
        let role = &message["role"].as_str().unwrap()[..1];
        format!("{role}:{words}{}", calls.as_str().unwrap_or_default())
    });
    std::iter::once(how).chain(messages).collect()
}
