//! The Observer is shown at most 1.5 times the tokens that are new in a conversation, whatever a client does
//! to its history.
//!
//! The clients here change histories. Each request is recorded by the same pure functions and the same verbs
//! that the recorder uses. The tests read from the claimed jobs what was shown, and from the texts what is new.

use std::collections::{HashMap, HashSet};

use diarist::history::{Encoder, History, Link, Message, Role, Scope};
use diarist::memory::advance::{Action, ChainState, advance};
use diarist::memory::record::{self, MessageContent};
use diarist::memory::{NewPart, PartKind, Policy};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    Admin as _, Chains as _, EnqueueOutcome, Job, NewJob, Queue as _, Release, RequestRecord,
    SqliteStore, Store,
};

use crate::store::world::{ANYBODY, Disk, LEASE, TestChain, deleted, raw, scope};

/// A message has one token for each of its characters.
type Say = (Role, String);

const BUFFER: u32 = 100;

/// These tests only observe; no snapshot is ever activated.
const POLICY: Policy = Policy {
    message_tokens: u32::MAX,
    buffer_tokens: BUFFER,
    retention_floor: 0,
    block_after: u32::MAX,
    observation_tokens: u32::MAX,
    reflect_from: u32::MAX,
    observation_limit: u32::MAX,
    block_overhead: 0,
    buffer_on_idle: false,
    share_token_budget: false,
    early_activation: diarist::memory::EarlyTriggers::NEVER,
    early_reflection: diarist::memory::EarlyTriggers::NEVER,
    costs: None,
};

/// A client, its store, and what the test knows of both.
struct Client<'a> {
    store: &'a dyn Store,
    scope: Scope,
    /// The requests so far; they determine what is confirmed.
    sent: Vec<Vec<Say>>,
    shown: u64,
    paused: bool,
}

impl<'a> Client<'a> {
    fn new(store: &'a dyn Store, name: &str) -> Self {
        Self {
            store,
            scope: scope(name),
            sent: Vec::new(),
            shown: 0,
            paused: false,
        }
    }

    /// Sends `says`: it is accepted, recorded, and observed as far as the account allows.
    async fn send(&mut self, says: &[Say]) {
        let history = history(&self.scope, says);
        let chain: Vec<Link> = history
            .messages()
            .iter()
            .map(|chained| chained.link)
            .collect();
        let mut known = self
            .store
            .load_chain(&self.scope, &chain)
            .await
            .expect("known");
        let parent = known
            .nodes
            .last()
            .map_or(Link::root(&self.scope), |n| n.link);
        let weights: Vec<u32> = says[known.nodes.len()..]
            .iter()
            .map(|(_, words)| u32::try_from(words.len()).expect("short"))
            .collect();
        let new_nodes = record::new_nodes(&history, known.nodes.len(), &weights, 1, None);
        let confirm = record::confirm_nodes(&mut known.nodes, history.len());
        let record = RequestRecord {
            thread_key: None,
            lineage: known.lineage,
            parent,
            confirmed_count: known.nodes.iter().take_while(|n| n.confirmed).count(),
            contents: record::message_contents(&self.scope, &history, &known.nodes, &confirm),
            newly_confirmed: confirm,
            tip: chain[chain.len() - 1],
            count: chain.len(),
            sent_with: raw(),
            model: "m".to_owned(),
            route_hash: None,
            at_ms: 1,
            lookup_entries: diarist::store::LookupEntries::default(),
            new_nodes: new_nodes.clone(),
            timer: None,
            zone: None,
        };
        self.store
            .record(&self.scope, &record)
            .await
            .expect("recorded");
        self.sent.push(says.to_vec());
        known.nodes.extend(new_nodes);
        let path = ChainState {
            root: Link::root(&self.scope),
            nodes: &known.nodes,
            parts: &known.parts,
            snapshots: &known.snapshots,
            jobs: &known.jobs,
        };
        self.paused = false;
        for step in advance(&path, &POLICY) {
            let Action::Observe {
                span,
                message_tokens,
            } = step
            else {
                continue;
            };
            let job = NewJob {
                kind: PartKind::Chunk,
                span,
                message_tokens,
                payload: "words".to_owned(),
                parts: Vec::new(),
                model: "m".to_owned(),
                tip: record.tip,
                tip_count: record.count,
                route_hash: None,
                urgency: 0,
            };
            match self
                .store
                .enqueue(&self.scope, &job, 0)
                .await
                .expect("asked")
            {
                EnqueueOutcome::Queued => self.observe().await,
                EnqueueOutcome::Paused => {
                    self.paused = true;
                    break;
                }
                other => panic!("{other:?} after a fresh look"),
            }
        }
        let (shown, new) = (self.shown, self.new_tokens());
        assert!(2 * shown <= 3 * new, "shown {shown} of {new}");
    }

    async fn claimed(&mut self) -> Job {
        let job = self.store.claim(&ANYBODY, 1, LEASE).await.expect("asked");
        let job = job.expect("a job");
        self.shown += u64::from(job.spec.message_tokens);
        job
    }

    async fn observe(&mut self) {
        let job = self.claimed().await;
        let part = NewPart {
            kind: PartKind::Chunk,
            span: job.spec.span,
            text: "observed".to_owned(),
            tokens: 1,
            message_tokens: job.spec.message_tokens,
            current_task: None,
            suggested_response: None,
            sources: Vec::new(),
            model: "observer".to_owned(),
            requested: false,
            code_reflection: false,
            analysis: diarist::memory::PartAnalysis::default(),
        };
        let id = self.store.commit_part(&job, &part, 2).await;
        id.expect("committed").expect("the only one");
    }

    /// The texts that a longer request has carried again. A text that occurs twice in one request counts
    /// twice.
    fn new_tokens(&self) -> u64 {
        let mut most: HashMap<&Say, usize> = HashMap::new();
        for (index, says) in self.sent.iter().enumerate() {
            let confirmed = self.sent[..index]
                .iter()
                .filter(|before| before.len() < says.len())
                .map(|before| before.iter().zip(says).take_while(|(a, b)| a == b).count())
                .max()
                .unwrap_or(0);
            let mut counts: HashMap<&Say, usize> = HashMap::new();
            for say in &says[..confirmed] {
                *counts.entry(say).or_default() += 1;
            }
            for (say, times) in counts {
                let known = most.entry(say).or_default();
                *known = times.max(*known);
            }
        }
        most.iter()
            .map(|((_, words), times)| (words.len() * times) as u64)
            .sum()
    }
}

fn history(scope: &Scope, says: &[Say]) -> History {
    let messages = says.iter().map(|(role, words)| {
        let mut encoder = Encoder::new();
        encoder.text("role", role.name());
        encoder.text("content", words);
        Message {
            fingerprint: encoder.finish(),
            role: *role,
            calls: std::sync::Arc::default(),
            answers: None,
            distinctive_bytes: 0,
            random_ids: false,
            attachment_bytes: 0,
            span: 0..0,
        }
    });
    History::chain(scope, messages)
}

/// Words of turn `number`, twenty or thirty characters long.
fn turn(number: usize) -> [Say; 2] {
    [
        (Role::User, format!("{number:>020}")),
        (Role::Assistant, format!("{number:>030}")),
    ]
}

fn turns(numbers: impl Iterator<Item = usize>) -> Vec<Say> {
    numbers.flat_map(turn).collect()
}

async fn memory() -> SqliteStore {
    SqliteStore::open("sqlite::memory:").await.expect("a store")
}

#[tokio::test]
async fn a_conversation_that_only_grows_is_never_paused() {
    let store = memory().await;
    let mut client = Client::new(&store, "alice");
    let mut says = Vec::new();
    for number in 0..60 {
        // Two of three turns repeat an earlier text.
        let number = if number % 3 == 0 { number } else { 1 };
        says.push(turn(number)[0].clone());
        client.send(&says).await;
        assert!(!client.paused, "at {} messages", says.len());
        says.push(turn(number)[1].clone());
    }
    assert!(client.shown > 2_500, "{} were shown", client.shown);
}

/// A window of 40 messages. Whenever it is full, the client drops the oldest ten. Then all other messages are
/// on a new chain, and are confirmed there once more.
#[tokio::test]
#[ignore = "slow"]
async fn observation_of_a_pruned_history_is_limited_by_its_new_messages() {
    let store = memory().await;
    let mut client = Client::new(&store, "alice");
    let (mut says, mut pauses, mut observed) = (Vec::new(), 0, Vec::new());
    for number in 0..200 {
        says.push(turn(number)[0].clone());
        client.send(&says).await;
        pauses += usize::from(client.paused);
        observed.push(client.shown);
        says.push(turn(number)[1].clone());
        if says.len() >= 40 {
            says.drain(..10);
        }
    }
    assert!(
        pauses > 0,
        "without the account it would have been shown too much"
    );
    assert!(
        observed[199] > observed[150] && observed[150] > observed[100],
        "and goes on with what is new"
    );
}

#[tokio::test]
async fn observation_after_an_early_edit_pauses_until_new_messages_come() {
    let store = memory().await;
    let mut client = Client::new(&store, "alice");
    for number in 1..=40 {
        client.send(&turns(0..number)).await;
    }
    let before = client.shown;
    let mut edited = turns(0..40);
    edited[0].1 = "another first question".to_owned();
    let mut shown_by_edit = 0;
    for number in 40..80 {
        edited.extend(turn(number));
        client.send(&edited).await;
        if client.paused {
            shown_by_edit = client.shown;
            break;
        }
    }
    assert!(shown_by_edit > before, "there was some slack");
    let mut went_on = false;
    for number in 80..120 {
        edited.extend(turn(number));
        client.send(&edited).await;
        went_on |= client.shown > shown_by_edit;
    }
    assert!(went_on, "what is new makes room");
}

#[tokio::test]
async fn the_observation_budget_survives_a_restart() {
    let disk = Disk::new();
    let mut sent = Vec::new();
    let mut shown = 0;
    let mut paused = false;
    // Each time another first message. Without the account, the store would treat each chain as new.
    for edit in 0..6 {
        let store = disk.open().await;
        let mut client = Client::new(&store, "alice");
        (client.sent, client.shown) = (sent, shown);
        let mut says = turns(0..20);
        says[0].1 = format!("first message {edit}");
        for _ in 0..3 {
            client.send(&says).await;
            says.extend(turn(says.len()));
        }
        (sent, shown) = (client.sent, client.shown);
        paused |= client.paused;
        store.close().await;
    }
    assert!(paused);
}

#[tokio::test]
async fn one_owner_does_not_use_the_budget_of_another() {
    let store = memory().await;
    let mut spender = Client::new(&store, "alice");
    for edit in 0..6 {
        let mut says = turns(0..20);
        says[0].1 = format!("first message {edit}");
        spender.send(&says).await;
        says.extend(turn(20));
        spender.send(&says).await;
    }
    assert!(spender.paused);
    let mut other = Client::new(&store, "bob");
    other.send(&turns(0..20)).await;
    other.send(&turns(0..21)).await;
    assert!(!other.paused && other.shown > 900, "{}", other.shown);
}

async fn account() -> (SqliteStore, TestChain) {
    let store = memory().await;
    let chain = TestChain::new(&scope("alice"), "talk", 12);
    let mut record = chain.record(None, 0);
    // Twelve messages of ten tokens: 180 tokens may be shown.
    record.contents = chain.contents(10);
    store.record(&chain.scope, &record).await.expect("recorded");
    (store, chain)
}

/// A chunk of so many tokens that ends after `to` messages.
async fn offer(store: &dyn Store, chain: &TestChain, to: usize, tokens: u32) -> EnqueueOutcome {
    let mut job = chain.job(PartKind::Chunk, to - 1, to);
    job.message_tokens = tokens;
    let offered = store.enqueue(&chain.scope, &job, 0).await;
    offered.expect("asked")
}

#[tokio::test]
async fn the_budget_is_exact_to_the_last_token() {
    let (store, chain) = account().await;
    assert_eq!(offer(&store, &chain, 1, 181).await, EnqueueOutcome::Paused);
    assert_eq!(offer(&store, &chain, 1, 100).await, EnqueueOutcome::Queued);
    assert_eq!(
        offer(&store, &chain, 1, 100).await,
        EnqueueOutcome::AlreadyExists
    );
    assert_eq!(offer(&store, &chain, 2, 81).await, EnqueueOutcome::Paused);
    assert_eq!(offer(&store, &chain, 2, 80).await, EnqueueOutcome::Queued);
    assert_eq!(offer(&store, &chain, 3, 1).await, EnqueueOutcome::Paused);
    let reflection = chain.job(PartKind::Reflection, 0, 4);
    let offered = store.enqueue(&chain.scope, &reflection, 0).await;
    assert_eq!(
        offered.expect("asked"),
        EnqueueOutcome::Queued,
        "it shows no message"
    );
    // The same contents once more, as from another process: nothing is new.
    let mut record = chain.record(None, 12);
    record.contents = chain.contents(10);
    store.record(&chain.scope, &record).await.expect("recorded");
    assert_eq!(offer(&store, &chain, 3, 1).await, EnqueueOutcome::Paused);
}

#[tokio::test]
async fn only_a_retry_after_an_empty_answer_is_charged_again() {
    let (store, chain) = account().await;
    assert_eq!(offer(&store, &chain, 1, 60).await, EnqueueOutcome::Queued);
    let claim = async || store.claim(&ANYBODY, 1, LEASE).await.expect("asked");
    let job = claim().await.expect("a job");
    let release = async |job: &Job, how| store.release(job, how).await.expect("released");
    release(&job, Release::RetryAt(0)).await;
    let job = claim().await.expect("a job");
    release(&job, Release::EmptyRetryAt(0)).await;
    // The lease is lost, so this changes nothing.
    release(&job, Release::EmptyRetryAt(0)).await;
    assert_eq!(offer(&store, &chain, 2, 61).await, EnqueueOutcome::Paused);
    assert_eq!(offer(&store, &chain, 2, 60).await, EnqueueOutcome::Queued);
}

#[tokio::test]
async fn forgotten_messages_stay_charged_and_count_as_new_when_repeated() {
    let (store, chain) = account().await;
    assert_eq!(offer(&store, &chain, 1, 180).await, EnqueueOutcome::Queued);
    let lineage = store
        .load_chain(&chain.scope, &chain.links)
        .await
        .expect("known");
    let lineage = lineage.lineage.expect("recorded");
    deleted(&store, lineage).await;
    let record = chain.record(None, 0);
    store.record(&chain.scope, &record).await.expect("recorded");
    assert_eq!(offer(&store, &chain, 1, 1).await, EnqueueOutcome::Paused);
    let mut record = chain.record(None, 12);
    record.contents = chain.contents(10);
    store.record(&chain.scope, &record).await.expect("recorded");
    assert_eq!(offer(&store, &chain, 1, 181).await, EnqueueOutcome::Paused);
    assert_eq!(offer(&store, &chain, 1, 180).await, EnqueueOutcome::Queued);
}

#[test]
fn a_pruned_history_has_only_content_keys_of_the_whole_history() {
    let yes = (Role::User, "yes".to_owned());
    let says: Vec<Say> = (0..6)
        .flat_map(|number| [yes.clone(), turn(number % 2)[1].clone()])
        .collect();
    let keys = |owner: &str, says: &[Say]| -> Vec<MessageContent> {
        let history = history(&scope(owner), says);
        let mut nodes = record::new_nodes(&history, 0, &vec![1; says.len()], 0, None);
        let confirmed = record::confirm_nodes(&mut nodes, says.len() + 1);
        record::message_contents(&scope(owner), &history, &nodes, &confirmed)
    };
    let set =
        |contents: &[MessageContent]| -> HashSet<_> { contents.iter().map(|c| c.key).collect() };
    let whole = set(&keys("alice", &says));
    assert_eq!(whole.len(), says.len(), "what is said twice is two");
    for from in 1..says.len() {
        assert!(set(&keys("alice", &says[from..])).is_subset(&whole));
    }
    assert!(whole.is_disjoint(&set(&keys("bob", &says))));
}

/// A conversation that repeats texts of other conversations of its owner (a file that is read again, a document
/// that is discussed again) is a conversation of its own, and is observed like any other.
#[tokio::test]
async fn texts_of_other_conversations_do_not_pause_a_conversation() {
    let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
    let mut whole: Vec<Say> = vec![(Role::User, "a long session".to_owned())];
    for index in 0..6 {
        let mut client = Client::new(&store, "owner");
        let mut says: Vec<Say> = Vec::new();
        for number in 0..12 {
            says.extend(turn(index * 100 + number));
            client.send(&says).await;
            assert!(!client.paused);
        }
        whole.extend(says);
    }
    let mut client = Client::new(&store, "owner");
    for sent in (1..=whole.len()).step_by(2) {
        client.send(&whole[..sent]).await;
        assert!(!client.paused, "at {sent} of {}", whole.len());
    }
    assert!(
        client.shown * 10 > client.new_tokens() * 9,
        "all but the end was shown"
    );
}
