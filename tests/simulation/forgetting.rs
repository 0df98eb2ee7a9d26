//! An operator has conversations forgotten, and lifts that again, while their clients go on: over the real store,
//! recorder, workers and choice, with one process or two. Some conversations share a beginning.
//!
//! Every message has a mark that nobody else says. A mark is forgotten when every conversation that holds it is.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use diarist::jobs::{Clock, Jobs, ManualJobs, Reloadable};
use diarist::lookup::SnapshotCache;
use diarist::proxy::capabilities::UpstreamCapabilities;
use diarist::proxy::{DryRun, Memory, ParsedPrefixes};
use diarist::store::{ForgetTarget, Forgetting as _, SqliteStore, Store};
use diarist::wire::Placement;
use serde_json::json;
use sqlx::{Connection as _, Row as _};

use super::process::open;
use super::setup::MODEL;
use super::users::{QuotingModel, settings};
use crate::properties::exchange::Quarters;
use crate::support::dice::Dice;
use crate::support::patient_store;

const STEPS: usize = 90;

/// Requests after which a conversation is certainly recorded: the first one waits in the process that it came to.
const RECORDED_AFTER: usize = 4;

/// A mistake, as a store would make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A deletion leaves no tombstone.
    TombstoneForgotten,
    /// A deletion leaves the observations where they are.
    PartsKept,
    /// A deletion of one conversation buries all conversations of its owner.
    OwnerBuried,
    /// The tombstones stay after the operator has lifted them.
    LiftIgnored,
}

/// What must hold after every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetRule {
    /// What is forgotten is in no request beyond the client's own bytes.
    Untold,
    /// What is forgotten is nowhere in the database, whatever its client sends.
    Gone,
    /// A conversation that nobody had forgotten keeps its memory.
    Spared,
    /// A conversation has memory again after its tombstones are lifted.
    Lifted,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCounts {
    pub forgotten: usize,
    pub refused: usize,
    pub lifted: usize,
    pub shared: usize,
    pub in_call: usize,
    pub with_memory: usize,
}

/// A conversation as its client knows it.
#[derive(Clone, Debug)]
struct Conversation {
    name: Option<String>,
    /// Mark and text of each message.
    messages: Vec<(String, String)>,
    /// The receipt, while it is forgotten.
    receipt: Option<i64>,
    /// Receipts in force of conversations that share messages with this one, and were forgotten while it was. The
    /// messages went with their last owner, so this conversation has no memory until these are lifted too.
    last_owners: BTreeSet<i64>,
    /// Requests since it began, or since its tombstones were lifted.
    turns: usize,
}

impl Conversation {
    fn body(&self) -> Bytes {
        let mut messages = vec![json!({"role": "system", "content": "Be kind."})];
        for (at, (_, text)) in self.messages.iter().enumerate() {
            let role = ["user", "assistant"][at % 2];
            messages.push(json!({"role": role, "content": text}));
        }
        json!({"model": MODEL, "messages": messages})
            .to_string()
            .into()
    }

    fn parts(&self) -> http::request::Parts {
        let mut request = http::Request::post("/v1/chat/completions")
            .header("authorization", "Bearer application");
        if let Some(name) = &self.name {
            request = request.header("x-diarist-thread", name);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn holds(&self, mark: &str) -> bool {
        self.messages.iter().any(|(held, _)| held == mark)
    }
}

fn marks(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let marks = words.filter(|word| word.starts_with("mark_"));
    marks.map(str::to_owned).collect()
}

/// One process.
struct ServerProcess {
    store: Arc<SqliteStore>,
    cache: Arc<SnapshotCache>,
    memory: Memory,
    hand: ManualJobs,
}

impl ServerProcess {
    async fn start(file: &Path, clock: &Clock) -> Self {
        let store = Arc::new(open(file).await);
        store.refresh_tombstones().await.unwrap();
        let cache = patient_store::cache(&(Arc::clone(&store) as Arc<dyn Store>));
        let hand = Jobs::manual(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::clone(&cache),
            Arc::new(Quarters),
            Arc::new(QuotingModel),
            Reloadable::new(settings()),
            clock.clone(),
        );
        let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
        let mut memory = Memory::new(Arc::clone(&cache), hand.jobs(), capabilities);
        // Short bodies grow too.
        memory.parsed_prefixes = Arc::new(ParsedPrefixes::with_step(512));
        memory.tombstones = store.tombstones();
        Self {
            store,
            cache,
            memory,
            hand,
        }
    }

    /// As the server does within two seconds after an operator's command.
    async fn refresh(&self) {
        self.store.refresh_tombstones().await.unwrap();
        self.cache.clear();
    }
}

struct World {
    dice: Dice,
    file: std::path::PathBuf,
    clock: Clock,
    operator: SqliteStore,
    processes: Vec<ServerProcess>,
    conversations: Vec<Conversation>,
    bug: Option<Planted>,
    marked: usize,
    counts: RunCounts,
    breaches: Vec<(ForgetRule, String)>,
}

impl World {
    async fn new(seed: u64, bug: Option<Planted>, folder: &Path) -> Self {
        let mut dice = Dice::new(seed);
        let file = folder.join("diarist.db");
        let clock = Clock::manual(1_795_132_800_000);
        let operator = open(&file).await;
        let mut processes = Vec::new();
        for _ in 0..dice.between(1, 2) {
            processes.push(ServerProcess::start(&file, &clock).await);
        }
        let conversations = (0..4).map(|at| Conversation {
            name: dice.chance(50).then(|| format!("talk-{at}")),
            messages: Vec::new(),
            receipt: None,
            last_owners: BTreeSet::new(),
            turns: 0,
        });
        Self {
            conversations: conversations.collect(),
            dice,
            file,
            clock,
            operator,
            processes,
            bug,
            marked: 0,
            counts: RunCounts::default(),
            breaches: Vec::new(),
        }
    }

    fn message(&mut self) -> (String, String) {
        self.marked += 1;
        let mark = format!("mark_{}", self.marked);
        let filler = format!("what came as part {} was weighed and kept. ", self.marked);
        let text = format!("{mark} is what I want. {}", filler.repeat(20));
        (mark, text)
    }

    fn is_forgotten(&self, mark: &str) -> bool {
        let mut holders = self
            .conversations
            .iter()
            .filter(|conversation| conversation.holds(mark))
            .peekable();
        holders.peek().is_some() && holders.all(|conversation| conversation.receipt.is_some())
    }

    fn breach(&mut self, rule: ForgetRule, how: String) {
        self.breaches.push((rule, how));
    }

    /// One more turn of a conversation.
    async fn take_turn(&mut self, at: usize) {
        let question = self.message();
        self.conversations[at].messages.push(question);
        self.clock.advance(std::time::Duration::from_mins(1));
        let conversation = self.conversations[at].clone();
        let body = conversation.body();
        let process = self.dice.below(self.processes.len());
        let memory = &self.processes[process].memory;
        let request = DryRun::start(memory, &conversation.parts(), &body).await;
        let answer = self.message();
        if let Some(request) = request {
            let sent = request.body();
            request.accept();
            let answered = json!({"role": "assistant", "content": answer.1});
            request.record_answer(&answered);
            let now = jiff::Timestamp::UNIX_EPOCH.as_millisecond();
            let exchange = request.exchange(None, now);
            self.processes[process].hand.record(exchange).await;
            self.check_sent(at, &sent, &body);
        } else {
            self.counts.refused += 1;
            if conversation.receipt.is_none() && conversation.last_owners.is_empty() {
                let rule = match conversation.turns {
                    0 => ForgetRule::Lifted,
                    _ => ForgetRule::Spared,
                };
                self.breach(rule, format!("conversation {at} has no memory"));
            }
        }
        self.conversations[at].messages.push(answer);
        self.conversations[at].turns += 1;
    }

    fn check_sent(&mut self, at: usize, sent: &[u8], body: &[u8]) {
        let (sent, body) = (String::from_utf8_lossy(sent), String::from_utf8_lossy(body));
        self.counts.with_memory += usize::from(sent != body);
        if self.conversations[at].receipt.is_some() {
            let how = format!("conversation {at} is forgotten, and memory reads it");
            self.breach(ForgetRule::Untold, how);
        }
        let own = marks(&body);
        let sent_marks = marks(&sent);
        let strange = sent_marks
            .difference(&own)
            .find(|mark| self.is_forgotten(mark));
        if let Some(mark) = strange {
            let how = format!("conversation {at} is told {mark}");
            self.breach(ForgetRule::Untold, how);
        }
    }

    /// A conversation that begins as another one, and goes on in its own words.
    async fn fork(&mut self) {
        let at = self.dice.below(self.conversations.len());
        let trunk = self.conversations[at].clone();
        // Without names both would be one conversation with two ends. So would a fork at the newest end: it is
        // the conversation itself, which goes on under another name.
        if trunk.name.is_none() || trunk.receipt.is_some() || trunk.messages.len() < 8 {
            return;
        }
        let to = 2 * self.dice.between(2, trunk.messages.len() / 2 - 1);
        self.conversations.push(Conversation {
            name: Some(format!("fork-{}", self.conversations.len())),
            messages: trunk.messages[..to].to_vec(),
            turns: 1,
            receipt: None,
            // What went with its last owner is in the fork too.
            last_owners: trunk.last_owners,
        });
        self.counts.shared += 1;
        for _ in 1..RECORDED_AFTER {
            self.take_turn(self.conversations.len() - 1).await;
        }
    }

    /// What process `at` has to do; with `forget`, a conversation is forgotten while a model is called.
    async fn work(&mut self, at: usize, mut forget: Option<usize>) {
        while let Some(job) = self.processes[at].hand.claim().await {
            let written = self.processes[at].hand.call_model(&job).await;
            if let Some(conversation) = forget.take() {
                self.counts.in_call += 1;
                Box::pin(self.forget(conversation)).await;
            }
            let outcome = self.processes[at].hand.finish(&job, written).await;
            self.processes[at].hand.on_outcome(outcome).await;
        }
    }

    /// The lineages of a conversation, as an operator finds them.
    async fn lineages(&self, at: usize) -> Vec<i64> {
        let conversation = &self.conversations[at];
        let fresh = ServerProcess::start(&self.file, &self.clock).await;
        let request =
            DryRun::start(&fresh.memory, &conversation.parts(), &conversation.body()).await;
        let Some(request) = request else {
            return Vec::new();
        };
        let links: BTreeSet<Vec<u8>> = request
            .history()
            .messages()
            .iter()
            .map(|chained| chained.link.as_bytes().to_vec())
            .collect();
        let mut database = self.database().await;
        let rows = sqlx::query("SELECT DISTINCT lineage, tip FROM requests ORDER BY lineage")
            .fetch_all(&mut database)
            .await
            .unwrap();
        // A request of this conversation alone: the last one that no other conversation has.
        let shared = self.shared_messages(at);
        let own: BTreeSet<Vec<u8>> = request.history().messages()[shared..]
            .iter()
            .map(|chained| chained.link.as_bytes().to_vec())
            .filter(|link| links.contains(link))
            .collect();
        let found = rows
            .iter()
            .filter(|row| own.contains(&row.get::<Vec<u8>, _>("tip")));
        let found: BTreeSet<i64> = found.map(|row| row.get("lineage")).collect();
        found.into_iter().collect()
    }

    /// How many messages a conversation shares with others.
    fn shared_messages(&self, at: usize) -> usize {
        let others = self
            .conversations
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at);
        let mine = self.conversations[at].messages.iter();
        let mut shared = 0;
        for (_, other) in others {
            let pairs = mine.clone().zip(&other.messages);
            shared = shared.max(pairs.take_while(|(a, b)| a.0 == b.0).count());
        }
        shared
    }

    async fn database(&self) -> sqlx::SqliteConnection {
        let url = format!("sqlite://{}", self.file.display());
        sqlx::SqliteConnection::connect(&url).await.unwrap()
    }

    async fn run_sql(&self, statements: &[&'static str]) {
        let mut database = self.database().await;
        for statement in statements {
            sqlx::query(*statement)
                .execute(&mut database)
                .await
                .unwrap();
        }
        database.close().await.unwrap();
    }

    /// Whether another conversation shares messages with this one and may not be recorded, as after its own
    /// deletion was lifted. Then the store cannot know that the messages have two owners.
    fn shares_with_unrecorded(&self, at: usize) -> bool {
        let marks = self.conversations[at].messages.iter().map(|(mark, _)| mark);
        let mut others = self.conversations.iter().enumerate();
        others.any(|(other, conversation)| {
            let unrecorded = other != at
                && conversation.receipt.is_none()
                && conversation.turns < RECORDED_AFTER;
            unrecorded && marks.clone().any(|mark| conversation.holds(mark))
        })
    }

    async fn forget(&mut self, at: usize) {
        if self.shares_with_unrecorded(at) {
            return;
        }
        // One receipt is enough for a client that has never been cut in two.
        let [lineage] = Box::pin(self.lineages(at)).await[..] else {
            return;
        };
        if self.bug == Some(Planted::PartsKept) {
            self.run_sql(&["CREATE TABLE kept AS SELECT * FROM parts"])
                .await;
        }
        let target = ForgetTarget::Thread(lineage);
        let now = self.clock.now_ms();
        let receipt = self.operator.forget_target(&target, now).await.unwrap();
        let receipt = receipt.unwrap().id;
        self.conversations[at].receipt = Some(receipt);
        let forgotten = self.conversations[at].clone();
        for conversation in &mut self.conversations {
            let mut shared = conversation
                .messages
                .iter()
                .filter(|(mark, _)| forgotten.holds(mark));
            if conversation.receipt.is_some_and(|own| own != receipt) && shared.next().is_some() {
                conversation.last_owners.insert(receipt);
            }
        }
        match self.bug {
            Some(Planted::TombstoneForgotten) => self.run_sql(&["DELETE FROM tombstones"]).await,
            Some(Planted::PartsKept) => {
                let again = "INSERT OR IGNORE INTO parts SELECT * FROM kept";
                self.run_sql(&[again, "DROP TABLE kept"]).await;
            }
            Some(Planted::OwnerBuried) => {
                let all =
                    "INSERT OR IGNORE INTO tombstones SELECT owner, x'', receipt FROM tombstones";
                self.run_sql(&[all]).await;
            }
            Some(Planted::LiftIgnored) | None => {}
        }
        self.counts.forgotten += 1;
        for process in &self.processes {
            process.refresh().await;
        }
        self.check_database().await;
    }

    async fn lift(&mut self, at: usize) {
        let Some(receipt) = self.conversations[at].receipt.take() else {
            return;
        };
        let keeps = self.bug == Some(Planted::LiftIgnored);
        if keeps {
            self.run_sql(&["CREATE TABLE kept AS SELECT * FROM tombstones"])
                .await;
        }
        let now = self.clock.now_ms();
        assert!(self.operator.lift(receipt, now).await.unwrap());
        if keeps {
            let again = "INSERT OR IGNORE INTO tombstones SELECT * FROM kept";
            self.run_sql(&[again, "DROP TABLE kept"]).await;
        }
        self.counts.lifted += 1;
        self.conversations[at].turns = 0;
        for conversation in &mut self.conversations {
            if conversation.last_owners.remove(&receipt) {
                conversation.turns = 0;
            }
        }
        for process in &self.processes {
            process.refresh().await;
        }
    }

    /// No column of any table has a mark that is forgotten.
    async fn check_database(&mut self) {
        let mut database = self.database().await;
        let tables =
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
        let names = sqlx::query(tables).fetch_all(&mut database).await.unwrap();
        for name in names {
            let name: String = name.get(0);
            let statement = sqlx::AssertSqlSafe(format!("SELECT * FROM \"{name}\""));
            let rows = sqlx::query(statement)
                .fetch_all(&mut database)
                .await
                .unwrap();
            for row in rows {
                for column in 0..row.len() {
                    let bytes: Vec<u8> = row.try_get_unchecked(column).unwrap_or_default();
                    let held = marks(&String::from_utf8_lossy(&bytes));
                    if let Some(mark) = held.iter().find(|mark| self.is_forgotten(mark)) {
                        let how = format!("{mark} stands in the table {name}");
                        self.breaches.push((ForgetRule::Gone, how));
                    }
                }
            }
        }
        database.close().await.unwrap();
    }

    async fn step(&mut self) {
        let at = self.dice.below(self.conversations.len());
        let process = self.dice.below(self.processes.len());
        let forgotten = self.conversations[at].receipt.is_some();
        match self.dice.below(20) {
            0 if self.conversations.len() < 8 => self.fork().await,
            1 => {
                let new = ServerProcess::start(&self.file, &self.clock).await;
                self.processes[process] = new;
            }
            2 if !forgotten => Box::pin(self.forget(at)).await,
            3 if !forgotten => Box::pin(self.work(process, Some(at))).await,
            4 if forgotten => self.lift(at).await,
            5..=9 => Box::pin(self.work(process, None)).await,
            _ => self.take_turn(at).await,
        }
    }
}

/// Plays the run of `seed`.
pub fn run(seed: u64, bug: Option<Planted>) -> (Vec<(ForgetRule, String)>, RunCounts) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let mut world = World::new(seed, bug, folder.path()).await;
        for step in 0..STEPS {
            let before = world.breaches.len();
            Box::pin(world.step()).await;
            world.check_database().await;
            for (_, how) in &mut world.breaches[before..] {
                *how = format!("step {step}: {how}");
            }
            if bug.is_none() && !world.breaches.is_empty() {
                break;
            }
        }
        (world.breaches, world.counts)
    })
}
