//! Chains of messages and databases for these tests.

use crate::support::patient_store;
use diarist::history::{Encoder, History, Link, Message, Role, Scope};
use diarist::memory::record::{self, MessageContent};
use diarist::memory::{NewPart, Node, PartId, PartKind, SnapshotCause, Span};
use diarist::store::testing::SingleRequest as _;
use diarist::store::{
    ClaimFilter, DailyLimits, EnqueueOutcome, ForgetTarget, Forgetting as _, NewJob, NewSnapshot,
    RequestRecord, SentWith, SqliteStore, Store,
};

pub const LEASE: i64 = 60_000;

pub const ANYBODY: ClaimFilter = ClaimFilter {
    observe_any: true,
    reflect_any: true,
    held_routes: Vec::new(),
    daily: DailyLimits {
        account: None,
        all: None,
    },
};

pub fn scope(name: &str) -> Scope {
    Scope::new(name.as_bytes(), None)
}

/// A database file in a folder that is deleted with the value.
pub struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    pub fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("deeper/diarist.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }

    pub async fn open(&self) -> SqliteStore {
        patient_store::open(&self.url()).await
    }
}

/// A chain of messages: its owner, the link before it, its messages and their links.
#[derive(Clone)]
pub struct TestChain {
    pub scope: Scope,
    pub root: Link,
    pub links: Vec<Link>,
    pub messages: Vec<Message>,
}

impl TestChain {
    /// `length` messages; `name` makes them differ from those of other conversations.
    pub fn new(scope: &Scope, name: &str, length: usize) -> Self {
        let root = Link::root(scope);
        let chain = Self {
            scope: scope.clone(),
            root,
            links: Vec::new(),
            messages: Vec::new(),
        };
        chain.grown(name, length)
    }

    /// This history with more messages; `name` makes them differ from those of another continuation.
    pub fn grown(&self, name: &str, by: usize) -> Self {
        let mut chain = self.clone();
        for number in 0..by {
            let mut encoder = Encoder::new();
            encoder.text("content", name);
            encoder.count("number", number);
            let fingerprint = encoder.finish();
            chain.links.push(chain.tip().next(&fingerprint));
            chain.messages.push(Message {
                fingerprint,
                role: Role::User,
                calls: std::sync::Arc::default(),
                answers: None,
                distinctive_bytes: 0,
                random_ids: false,
                attachment_bytes: 0,
                span: 0..0,
            });
        }
        chain
    }

    /// Its first messages.
    pub fn first(&self, length: usize) -> Self {
        let mut chain = self.clone();
        chain.links.truncate(length);
        chain.messages.truncate(length);
        chain
    }

    pub fn tip(&self) -> Link {
        self.links.last().copied().unwrap_or(self.root)
    }

    pub fn len(&self) -> usize {
        self.links.len()
    }

    pub fn span(&self, from: usize, to: usize) -> Span {
        Span {
            from: self.first(from).tip(),
            from_count: from,
            to: self.first(to).tip(),
            to_count: to,
        }
    }

    /// The messages from `from` on, as the recorder describes them.
    pub fn nodes(&self, from: usize) -> Vec<Node> {
        let describe = |(index, link): (usize, &Link)| Node {
            link: *link,
            count: index + 1,
            role: if index % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            },
            tokens: 10,
            closed: true,
            turn_end: index % 2 == 1,
            first_length: self.len(),
            confirmed: false,
            received_ms: 1_000,
            live: true,
        };
        self.links
            .iter()
            .enumerate()
            .map(describe)
            .skip(from)
            .collect()
    }

    /// The record of a request with this history. Its first `known` messages are recorded already.
    pub fn record(&self, lineage: Option<i64>, known: usize) -> RequestRecord {
        RequestRecord {
            thread_key: None,
            lineage,
            new_nodes: self.nodes(known),
            parent: self.first(known).tip(),
            confirmed_count: known,
            newly_confirmed: self.links[..known].to_vec(),
            contents: Vec::new(),
            tip: self.tip(),
            count: self.len(),
            sent_with: raw(),
            model: "model-1".to_owned(),
            route_hash: None,
            at_ms: 1_000,
            lookup_entries: diarist::store::LookupEntries::default(),
            timer: None,
            zone: None,
        }
    }

    /// The contents of its messages, each with `tokens` tokens.
    pub fn contents(&self, tokens: u32) -> Vec<MessageContent> {
        let history = History::chain(&self.scope, self.messages.clone());
        let mut nodes = self.nodes(0);
        for node in &mut nodes {
            node.tokens = tokens;
        }
        record::message_contents(&self.scope, &history, &nodes, &self.links)
    }

    /// Records it, with an account that is large enough for everything these tests observe; `budget` tests
    /// the account.
    pub async fn recorded(&self, store: &dyn Store) -> i64 {
        let mut record = self.record(None, 0);
        record.contents = self.contents(1_000);
        store.record(&self.scope, &record).await.expect("recorded")
    }

    pub fn job(&self, kind: PartKind, from: usize, to: usize) -> NewJob {
        NewJob {
            kind,
            span: self.span(from, to),
            message_tokens: 100,
            payload: format!("the words from {from} to {to}"),
            parts: Vec::new(),
            model: "model-1".to_owned(),
            tip: self.tip(),
            tip_count: self.len(),
            route_hash: None,
            urgency: 0,
        }
    }

    pub fn chunk(&self, from: usize, to: usize) -> NewPart {
        NewPart {
            kind: PartKind::Chunk,
            span: self.span(from, to),
            text: format!("observed {from} to {to}"),
            tokens: 7,
            message_tokens: 100,
            current_task: Some("testing".to_owned()),
            suggested_response: None,
            sources: Vec::new(),
            model: "observer".to_owned(),
            requested: false,
            code_reflection: false,
            analysis: diarist::memory::PartAnalysis::default(),
        }
    }

    /// Enqueues, claims and commits the chunk of a range.
    pub async fn observed(&self, store: &dyn Store, from: usize, to: usize) -> PartId {
        let job = self.job(PartKind::Chunk, from, to);
        let offered = store.enqueue(&self.scope, &job, 0).await.expect("offered");
        assert_eq!(offered, EnqueueOutcome::Queued);
        let job = store
            .claim(&ANYBODY, 1, LEASE)
            .await
            .expect("claimed")
            .expect("a job");
        assert_eq!(job.spec.span, self.span(from, to));
        let id = store.commit_part(&job, &self.chunk(from, to), 2).await;
        id.expect("committed").expect("a new part")
    }

    pub fn snapshot(&self, to: usize, parts: &[PartId]) -> NewSnapshot {
        NewSnapshot {
            to: self.first(to).tip(),
            to_count: to,
            pin: Some(1),
            parts: parts.to_vec(),
            tokens: 9,
            cause: SnapshotCause::Threshold,
            placement: "system_message".to_owned(),
            peer_memory: None,
            settings_json: "{}".to_owned(),
            segments: vec!["preamble".to_owned(), format!("observed to {to}")],
            tip: self.tip(),
            tip_count: self.len(),
            eligible_now: false,
            at_ms: 5,
        }
    }
}

/// Deletes a conversation as an operator does. Returns the number of its rows.
pub async fn forgotten(store: &SqliteStore, lineage: i64) -> u64 {
    let target = ForgetTarget::Thread(lineage);
    let receipt = store.forget_target(&target, 9).await.expect("forgotten");
    receipt.map_or(0, |receipt| receipt.counts.values().sum())
}

/// As [`forgotten`], and its messages may be recorded again.
pub async fn deleted(store: &SqliteStore, lineage: i64) -> u64 {
    let rows = forgotten(store, lineage).await;
    for receipt in store.receipts().await.expect("listed") {
        store.lift(receipt.id, 9).await.expect("lifted");
    }
    rows
}

pub fn raw() -> SentWith {
    SentWith::default()
}
