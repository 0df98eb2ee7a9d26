//! Users whose conversations are told of each other: two of them, who talk about the same in conversations
//! of the same names, over the real store, recorder, worker and choice. Beside the laws that hold for every
//! request this population has its own, about the section that tells of other conversations. Some requests
//! do not fit their model, some processes know nothing yet, some conversations fork under another name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use diarist::config;
use diarist::jobs::{Clock, Jobs, ManualJobs, Reloadable, Settings};
use diarist::llm::{
    CallSettings, Endpoint, FailedCall, Finish, ModelClient, Prompt, Reply, ReportedUsage,
    UpstreamRoute,
};
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::identify::IdentityRules;
use diarist::proxy::identify::users::{Proof, Users};
use diarist::proxy::{DryRun, Memory, ParsedPrefixes, RequestPolicy};
use diarist::store::Store;
use diarist::wire::Placement;
use serde_json::{Value, json};
use sqlx::Connection as _;

use super::process::open;
use super::setup::MODEL;
use crate::properties::exchange::Quarters;
use crate::support::dice::Dice;
use crate::support::patient_store;

const USERS: [&str; 2] = ["u1", "u2"];
const NAMES: [&str; 3] = ["ada", "bob", "cyd"];

/// A mistake, as a store would make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// What one user's conversations begin with is told to the other's.
    TextOfAnotherUser,
    /// That a request went out raw is not asked for by those that continue it.
    OpenerComesBack,
    /// What was made for one conversation may be sent to whoever has its beginning.
    BoundToNobody,
}

/// What is told, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMemoryRule {
    /// Nothing of another user.
    Owner,
    /// Nothing of the conversation itself, nor of it as its forks know it.
    Itself,
    /// Between two activations what stands there stays, or goes because it did not fit, and never comes.
    Steady,
    /// What is told one conversation of others is not told its forks under another name.
    Bound,
}

/// A conversation as its client knows it.
#[derive(Clone, Debug)]
struct UserConversation {
    user: &'static str,
    name: String,
    /// Whose words they are, message by message.
    messages: Vec<String>,
    /// What its last request told: of itself, and of others.
    last: Option<(String, String)>,
}

impl UserConversation {
    fn mark(&self, turn: usize) -> String {
        format!("mark_{}_{}_{turn}", self.user, self.name.replace('-', "x"))
    }

    /// One more turn; the body that asks it.
    fn body(&mut self) -> Bytes {
        let turn = self.messages.len() / 2 + 1;
        let filler = format!("what came in part {turn} was weighed and kept. ").repeat(20);
        let mark = self.mark(turn);
        self.messages
            .push(format!("{mark} is what I want. {filler}"));
        let mut messages = vec![json!({"role": "system", "content": "Be kind."})];
        for (at, text) in self.messages.iter().enumerate() {
            let role = ["user", "assistant"][at % 2];
            messages.push(json!({"role": role, "content": text}));
        }
        json!({"model": MODEL, "messages": messages})
            .to_string()
            .into()
    }

    fn answered(&mut self) {
        let turn = self.messages.len().div_ceil(2);
        self.messages
            .push(format!("Answer {turn} to {}.", self.name));
    }
}

/// Marks of what is said in `text`: user and name.
fn marks(text: &str) -> BTreeSet<(String, String)> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words
        .filter_map(|word| word.strip_prefix("mark_"))
        .filter_map(|mark| {
            let mut parts = mark.split('_');
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        })
        .collect()
}

/// What a body tells of the conversation itself, and of others.
fn memory_sections(body: &[u8]) -> (String, String) {
    let body: Value = serde_json::from_slice(body).unwrap();
    let text = body["messages"][1]["content"].as_str().unwrap();
    if !text.starts_with("<diarist-log") {
        return Default::default();
    }
    let observed = |text: &str| {
        let found = text.split_once("<observations>");
        let rest = found.map_or("", |(_, rest)| rest);
        let end = rest.find("<current-task>").unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    match text.split_once("<diarist-others>") {
        None => (observed(text), String::new()),
        Some((own, rest)) => {
            let (section, _) = rest.split_once("</diarist-others>").unwrap();
            (observed(own), section.to_owned())
        }
    }
}

/// Repeats the marks it is shown.
#[derive(Debug)]
pub struct QuotingModel;

#[async_trait]
impl ModelClient for QuotingModel {
    async fn call(
        &self,
        _: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        let words = prompt
            .user
            .split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let shown: BTreeSet<&str> = words.filter(|word| word.starts_with("mark_")).collect();
        let lines: Vec<String> = shown
            .iter()
            .map(|mark| format!("* 🔴 (10:00) User wants {mark}."))
            .collect();
        Ok(Reply {
            text: format!(
                "<observations>\nDate: Nov 20, 2026\n{}\n</observations>\n<current-task>\nGo on.\n</current-task>",
                lines.join("\n")
            ),
            usage: ReportedUsage::default(),
            finish: Finish::Stop,
            model: settings.model.clone(),
        })
    }
}

pub fn settings() -> Settings {
    let written = [
        ("HOME", "/nonexistent"),
        ("DIARIST__UPSTREAM__BASE_URL", "http://upstream.test/v1"),
        ("DIARIST__UPSTREAM__PLACEMENT", "system_message"),
        ("DIARIST__MEMORY__SCOPE", "resource"),
        ("DIARIST__MEMORY__OTHER_CONVERSATIONS", "900"),
        ("DIARIST__IDENTITY__RESOURCE__HEADER", "x-user"),
        ("DIARIST__IDENTITY__RESOURCE__SET_BY", "application"),
        (
            "DIARIST__MEMORY__OBSERVATION__BASE_URL",
            "http://model.test/v1",
        ),
        ("DIARIST__MEMORY__OBSERVATION__API_KEY", "key"),
        ("DIARIST__MEMORY__OBSERVATION__MODEL", "observer"),
        ("DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        (
            "DIARIST__MEMORY__REFLECTION__BASE_URL",
            "http://model.test/v1",
        ),
        ("DIARIST__MEMORY__REFLECTION__API_KEY", "key"),
        ("DIARIST__MEMORY__REFLECTION__MODEL", "reflector"),
        ("DIARIST__MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
    ];
    let env: BTreeMap<String, String> = written
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let config = config::load(&config::Flags::default(), &env, None).unwrap();
    config.memory
}

/// One process.
struct ServerProcess {
    memory: Memory,
    hand: ManualJobs,
}

impl ServerProcess {
    async fn start(file: &Path, clock: &Clock) -> Self {
        let store: Arc<dyn Store> = Arc::new(open(file).await);
        let recall = patient_store::cache(&store);
        let hand = Jobs::manual(
            store,
            Arc::clone(&recall),
            Arc::new(Quarters),
            Arc::new(QuotingModel),
            Reloadable::new(settings()),
            clock.clone(),
        );
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        let mut memory = Memory::new(recall, hand.jobs(), capabilities);
        // Short bodies grow too.
        memory.parsed_prefixes = Arc::new(ParsedPrefixes::with_step(512));
        memory.policy = Reloadable::new(RequestPolicy {
            identity: IdentityRules {
                users: Some(Users {
                    header: http::HeaderName::from_static("x-user"),
                    proof: Proof::TrustedHeader,
                }),
                ..IdentityRules::default()
            },
            ..RequestPolicy::default()
        });
        Self { memory, hand }
    }

    /// What `body` goes out as, made shorter until it fits; `None` where nothing makes it fit. And whether
    /// it had to be.
    async fn send(
        &mut self,
        conversation: &UserConversation,
        body: &Bytes,
        fits: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<(Vec<u8>, bool)> {
        let parts = http::Request::post("/v1/chat/completions")
            .header("authorization", "Bearer application")
            .header("x-user", conversation.user)
            .header("x-diarist-thread", &conversation.name)
            .body(())
            .unwrap()
            .into_parts()
            .0;
        let first = DryRun::start(&self.memory, &parts, body).await.unwrap();
        let route = || None::<UpstreamRoute>;
        let (mut last, mut shortened) = (first.clone(), false);
        if !fits(&first.body()) {
            let mut steps = first.retry_shorter(&self.memory, &route);
            loop {
                shortened = true;
                let Some(next) = steps.next(None).await else {
                    steps.give_up();
                    return None;
                };
                last = next;
                if fits(&last.body()) {
                    break;
                }
            }
        }
        let sent = last.body().to_vec();
        let now = jiff::Timestamp::UNIX_EPOCH.as_millisecond();
        last.accept();
        self.hand.record(last.exchange(None, now)).await;
        Some((sent, shortened))
    }

    async fn work(&mut self) {
        while let Some(job) = self.hand.claim().await {
            let written = self.hand.call_model(&job).await;
            let outcome = self.hand.finish(&job, written).await;
            self.hand.on_outcome(outcome).await;
        }
    }
}

async fn plant(file: &Path, bug: Planted) {
    let statement = match bug {
        Planted::TextOfAnotherUser => {
            "UPDATE snapshots AS mine SET segments = (
                 SELECT s.segments FROM snapshots AS s
                 WHERE s.to_count = 0 AND s.resource <> mine.resource ORDER BY s.id DESC LIMIT 1)
             WHERE mine.to_count = 0 AND EXISTS (
                 SELECT 1 FROM snapshots AS s WHERE s.to_count = 0 AND s.resource <> mine.resource)"
        }
        Planted::OpenerComesBack => "DELETE FROM requests WHERE snapshot IS NULL",
        Planted::BoundToNobody => {
            "UPDATE snapshots SET others = json_remove(others, '$.bound')
             WHERE to_count > 0 AND others IS NOT NULL"
        }
    };
    let url = format!("sqlite://{}", file.display());
    let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
    sqlx::query(statement).execute(&mut database).await.unwrap();
    database.close().await.unwrap();
}

/// What a run did, so that nobody takes an idle one for a good one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCounts {
    pub shared: usize,
    pub bound: usize,
    pub dropped: usize,
    pub forks: usize,
}

async fn play(seed: u64, bug: Option<Planted>) -> (Vec<(PeerMemoryRule, String)>, RunCounts) {
    let mut dice = Dice::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("diarist.db");
    let clock = Clock::manual(1_795_132_800_000);
    let mut served = ServerProcess::start(&file, &clock).await;
    let new = |user: &'static str, name: &str| UserConversation {
        user,
        name: name.to_owned(),
        messages: Vec::new(),
        last: None,
    };
    let mut conversations: Vec<UserConversation> = USERS
        .iter()
        .flat_map(|user| NAMES.map(|name| new(user, name)))
        .collect();
    let (mut breaches, mut done) = (Vec::new(), RunCounts::default());
    for step in 0..70 {
        clock.advance(std::time::Duration::from_mins(1));
        if bug.is_some() || dice.chance(25) {
            drop(served);
            if let Some(bug) = bug {
                plant(&file, bug).await;
            }
            served = ServerProcess::start(&file, &clock).await;
        }
        let at = dice.below(conversations.len());
        let fork = conversations[at].messages.len() > 6 && dice.chance(10);
        if fork {
            let trunk = conversations[at].clone();
            let to = 2 * dice.between(2, trunk.messages.len() / 2);
            conversations.push(UserConversation {
                name: format!("fork-{step}"),
                messages: trunk.messages[..to].to_vec(),
                last: None,
                ..trunk.clone()
            });
            done.forks += 1;
        }
        let at = if fork { conversations.len() - 1 } else { at };
        let mut conversation = conversations[at].clone();
        let body = conversation.body();
        let narrow = dice.chance(15);
        let mut limit = usize::MAX;
        let mut fits = |sent: &[u8]| {
            if narrow && limit == usize::MAX {
                // Too long by what it tells of others.
                let (_, section) = memory_sections(sent);
                limit = sent.len() - section.len() / 2;
            }
            sent.len() <= limit
        };
        let Some((sent, shortened)) = served.send(&conversation, &body, &mut fits).await else {
            continue;
        };
        conversation.answered();
        if dice.chance(80) {
            served.work().await;
        }
        let (own, section) = memory_sections(&sent);
        let named = |name: &str| name.replace('-', "x");
        let mut breach = |rule, how: &str| {
            let text = String::from_utf8_lossy(&sent).into_owned();
            breaches.push((
                rule,
                format!(
                    "step {step}, {}/{}: {how}: {text}",
                    conversation.user, conversation.name
                ),
            ));
        };
        if marks(&String::from_utf8_lossy(&sent))
            .iter()
            .any(|(user, _)| user != conversation.user)
        {
            breach(PeerMemoryRule::Owner, "another user's words");
        }
        let own_name = |(_, name): &(String, String)| *name == named(&conversation.name);
        if marks(&section).iter().any(own_name) {
            breach(PeerMemoryRule::Itself, "it is told of itself");
        }
        match &conversation.last {
            Some((before, peer_section)) if *before == own && *peer_section != section => {
                let left = section.is_empty() && shortened;
                if !left {
                    breach(PeerMemoryRule::Steady, "what is told of others changed");
                }
                done.dropped += 1;
            }
            // A fork has the trunk's beginning and goes under its own name.
            None if fork && !own.is_empty() && !section.is_empty() => {
                breach(PeerMemoryRule::Bound, "a fork is told what the trunk is");
            }
            _ => {}
        }
        done.shared += usize::from(!section.is_empty());
        done.bound += usize::from(!section.is_empty() && !own.is_empty());
        conversation.last = Some((own, section));
        conversations[at] = conversation;
    }
    (breaches, done)
}

/// Plays the run of `seed`.
pub fn run(seed: u64, bug: Option<Planted>) -> (Vec<(PeerMemoryRule, String)>, RunCounts) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(play(seed, bug))
}
