//! Walks a conversation through the decisions of the core and adds up what its tokens cost.
//!
//! The decisions are those of production: [`advance`] and [`early`]. The rest is arithmetic: a provider with a
//! prompt cache, an Observer and a Reflector that answer before the next request. It decides nothing itself.

use diarist_core::history::{Encoder, Link, Role, Scope};
use diarist_core::memory::advance::{Action, ChainState, SnapshotPlan, advance, early};
use diarist_core::memory::{
    CostRules, Node, PartId, PartKind, PartMeta, Policy, SnapshotCause, SnapshotId, SnapshotMeta,
    Span,
};

/// Prices in units of one uncached prompt token of the conversation's model.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    pub cache_read: f64,
    /// What a prompt token costs that the cache did not hold.
    pub cache_write: f64,
    pub observer_input: f64,
    pub observer_output: f64,
}

impl From<CostRules> for Prices {
    fn from(rules: CostRules) -> Self {
        let factor = |thousandths: u32| f64::from(thousandths) / 1_000.0;
        Self {
            cache_read: factor(rules.cache_read.unwrap_or_default()),
            cache_write: factor(rules.cache_write.unwrap_or_default()),
            observer_input: factor(rules.observer_input),
            observer_output: factor(rules.observer_output),
        }
    }
}

/// A conversation: equal turns, each a request and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Conversation {
    /// Tokens that one turn adds. A quarter of them is the answer.
    pub turn_tokens: u32,
    /// Tokens of the whole conversation.
    pub tokens: u32,
    /// The provider's cache is cold before one turn in so many; `None`: never.
    pub pause_every: Option<u32>,
}

/// Tokens of the client's system message and tools. They stand before the block, so they stay in the cache.
const HEAD: u32 = 2_000;

/// The instructions of a call of memory.
const INSTRUCTIONS: u32 = 1_700;

/// The most tokens of earlier observations that the Observer reads: the default of `previous_observer_tokens`.
const EARLIER: u32 = 2_000;

/// Tokens of a chunk for each token of its messages.
const OBSERVED: f64 = 0.2;

/// Tokens of a reflection for each token of the log.
const REFLECTED: f64 = 0.5;

/// The cost of the conversation's prompts and of memory's calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub with_memory: f64,
    pub without: f64,
    /// Prompt tokens that were not read from the cache.
    pub uncached: f64,
    /// The most raw history that a request carried.
    pub max_raw: u32,
}

impl Cost {
    pub fn ratio(&self) -> f64 {
        self.with_memory / self.without
    }
}

/// The costs after each turn.
pub fn simulate(conversation: Conversation, prices: Prices, policy: &Policy) -> Vec<Cost> {
    let mut run = Run::new(prices, *policy);
    let answer = conversation.turn_tokens / 4;
    (1..=conversation.tokens / conversation.turn_tokens)
        .map(|turn| {
            let cold = conversation
                .pause_every
                .is_some_and(|every| turn % every == 0);
            if cold {
                run.pause();
            }
            run.push(Role::User, conversation.turn_tokens - answer);
            run.request();
            run.push(Role::Assistant, answer);
            run.cost
        })
        .collect()
}

/// What the provider has in its cache: the prompt of the request before.
#[derive(Clone, Default)]
struct Cached {
    parts: Vec<PartId>,
    log_tokens: u32,
    to_count: usize,
    tokens: u32,
    /// The prompt as it would be without memory.
    whole: u32,
}

struct Run {
    prices: Prices,
    policy: Policy,
    nodes: Vec<Node>,
    parts: Vec<PartMeta>,
    snapshots: Vec<SnapshotMeta>,
    cached: Cached,
    cost: Cost,
}

impl Run {
    fn new(prices: Prices, policy: Policy) -> Self {
        Self {
            prices,
            policy,
            nodes: Vec::new(),
            parts: Vec::new(),
            snapshots: Vec::new(),
            cached: Cached::default(),
            cost: Cost::default(),
        }
    }

    fn root() -> Link {
        Link::root(&Scope::new(b"key", None))
    }

    fn push(&mut self, role: Role, tokens: u32) {
        let count = self.nodes.len() + 1;
        let mut encoder = Encoder::new();
        encoder.count("at", count);
        let before = self.nodes.last().map_or_else(Self::root, |node| node.link);
        self.nodes.push(Node {
            link: before.next(&encoder.finish()),
            count,
            role,
            tokens,
            closed: true,
            turn_end: role == Role::Assistant,
            first_length: 0,
            confirmed: false,
            received_ms: 0,
            live: true,
        });
    }

    fn tokens(&self, from: usize) -> u32 {
        self.nodes[from..].iter().map(|node| node.tokens).sum()
    }

    /// Sends a request, and lets memory work until it has nothing more to do.
    fn request(&mut self) {
        let length = self.nodes.len();
        self.pay(length);
        for node in &mut self.nodes {
            node.confirmed = node.first_length > 0 && node.first_length < length;
            if node.first_length == 0 {
                node.first_length = length;
            }
        }
        while self.work() {}
    }

    /// Pays for the prompt of this request, with memory and without.
    fn pay(&mut self, length: usize) {
        let snapshot = self
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.eligible_from <= length)
            .max_by_key(|snapshot| (snapshot.to_count, snapshot.id));
        let now = snapshot.map_or_else(Cached::default, |snapshot| Cached {
            parts: snapshot.parts.clone(),
            log_tokens: snapshot.tokens + self.policy.block_overhead,
            to_count: snapshot.to_count,
            ..Cached::default()
        });
        let raw = self.tokens(now.to_count);
        let now = Cached {
            tokens: HEAD + now.log_tokens + raw,
            whole: HEAD + self.tokens(0),
            ..now
        };
        let before = &self.cached;
        let same = before.parts == now.parts && before.to_count == now.to_count;
        let common = if same {
            before.tokens
        } else if !before.parts.is_empty() && now.parts.starts_with(&before.parts) {
            HEAD + before.log_tokens
        } else {
            before.tokens.min(HEAD)
        };
        let price = |cached: u32, all: u32| {
            f64::from(cached) * self.prices.cache_read
                + f64::from(all - cached) * self.prices.cache_write
        };
        self.cost.with_memory += price(common, now.tokens);
        self.cost.without += price(before.whole, now.whole);
        self.cost.uncached += f64::from(now.tokens - common);
        self.cost.max_raw = self.cost.max_raw.max(raw);
        self.cached = now;
    }

    /// The provider forgets the prompt. Memory may use the moment.
    fn pause(&mut self) {
        let plan = early(&self.state(), &self.policy, SnapshotCause::Idle);
        if let Some(plan) = plan {
            self.prepare(plan);
        }
        self.cached = Cached::default();
    }

    fn state(&self) -> ChainState<'_> {
        ChainState {
            root: Self::root(),
            nodes: &self.nodes[..self.recorded()],
            parts: &self.parts,
            snapshots: &self.snapshots,
            jobs: &[],
        }
    }

    /// The messages that a request has carried.
    fn recorded(&self) -> usize {
        self.nodes
            .iter()
            .take_while(|node| node.first_length > 0)
            .count()
    }

    /// Performs what the core decides; `false` if it decides nothing.
    fn work(&mut self) -> bool {
        let actions = advance(&self.state(), &self.policy);
        let any = !actions.is_empty();
        for action in actions {
            match action {
                Action::Observe {
                    span,
                    message_tokens,
                } => self.observe(span, message_tokens),
                Action::Reflect {
                    span,
                    tokens,
                    message_tokens,
                    ..
                } => {
                    let written = scaled(tokens, REFLECTED);
                    self.call(tokens, written);
                    self.write(PartKind::Reflection, span, message_tokens, written);
                }
                // Code would shorten the log. To keep all of it costs more, so this favours no policy.
                Action::Snapshot(plan) | Action::Shorten { plan, .. } => self.prepare(plan),
            }
        }
        any
    }

    fn observe(&mut self, span: Span, message_tokens: u32) {
        let written = scaled(message_tokens, OBSERVED);
        let log: u32 = self.parts.iter().map(|part| part.tokens).sum();
        self.call(message_tokens + log.min(EARLIER), written);
        self.write(PartKind::Chunk, span, message_tokens, written);
    }

    fn call(&mut self, read: u32, written: u32) {
        self.cost.with_memory += f64::from(read + INSTRUCTIONS) * self.prices.observer_input
            + f64::from(written) * self.prices.observer_output;
    }

    fn write(&mut self, kind: PartKind, span: Span, message_tokens: u32, tokens: u32) {
        self.parts.push(PartMeta {
            id: PartId(self.parts.len() as i64 + 1),
            kind,
            span,
            tokens,
            message_tokens,
            requested: false,
            code_reflection: false,
        });
    }

    fn prepare(&mut self, plan: SnapshotPlan) {
        self.snapshots.push(SnapshotMeta {
            id: SnapshotId(self.snapshots.len() as i64 + 1),
            to: plan.to,
            to_count: plan.to_count,
            eligible_from: self.recorded() + 1,
            pin: plan.pin,
            parts: plan.parts,
            tokens: plan.tokens,
            cause: plan.cause,
            placement: String::new(),
            peer_memory: None,
        });
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a number of tokens"
)]
fn scaled(tokens: u32, share: f64) -> u32 {
    (f64::from(tokens) * share).round() as u32
}
