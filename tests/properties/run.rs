//! One case: clients with their habits, a provider with its rules, and what happens.

use diarist::memory::{EarlyTriggers, IdleTrigger, Policy, render};
use diarist::wire::Placement;
use diarist_provider::Rules;
use proptest::prelude::*;

use super::client::{Client, Habits, Move, Upstream};
use super::conversation::{Owner, Request};
use super::draw::{habits, moves};
use super::exchange::Exchange;
use super::history_laws::Laws;
use super::planted::Bug;
use super::proxy::Proxy;
use super::scripted_observer::Script;

/// What the provider insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Default,
    Alternate,
    SingleSystem,
    SystemFirst,
    Signature,
    Strict,
    Window(u32),
}

impl Mode {
    fn rules(self) -> Rules {
        let rules = Rules::default();
        match self {
            Self::Default => rules,
            Self::Alternate => Rules {
                alternate: true,
                ..rules
            },
            Self::SingleSystem => Rules {
                single_system: true,
                ..rules
            },
            Self::SystemFirst => Rules {
                system_first: true,
                ..rules
            },
            Self::Signature => Rules {
                signature: true,
                ..rules
            },
            Self::Strict => Rules {
                signature: true,
                ..Rules::strict()
            },
            Self::Window(tokens) => Rules {
                window: Some(tokens),
                ..rules
            },
        }
    }
}

/// Everything a case is made of.
#[derive(Clone, Debug)]
pub struct Case {
    pub message_tokens: u32,
    pub observation_tokens: u32,
    pub settings: Settings,
    pub script: Script,
    pub mode: Mode,
    pub placement: Placement,
    /// Processes that share the store and take requests in turn.
    pub processes: usize,
    /// One for each of the three owners.
    pub habits: [Habits; 3],
    /// All owners say the same.
    pub mirrored: bool,
    pub moves: Vec<Move>,
}

/// What an operator may set beside the two budgets, in hundredths of them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of `message_tokens`.
    pub buffer: u32,
    /// Of `message_tokens`; of both budgets where they are shared.
    pub cleared: u32,
    /// Of either budget.
    pub block_after: u32,
    /// Of `observation_tokens`.
    pub reflect_from: u32,
    pub share: bool,
    pub buffer_on_idle: bool,
    /// What is activated when a conversation fell idle: observations, a reflection.
    pub idle: (bool, bool),
}

/// The published defaults.
pub const PUBLISHED: Settings = Settings {
    buffer: 20,
    cleared: 80,
    block_after: 120,
    reflect_from: 50,
    share: false,
    buffer_on_idle: false,
    idle: (false, false),
};

fn settings() -> impl Strategy<Value = Settings> {
    let drawn = (
        5_u32..90,
        10_u32..=100,
        100_u32..300,
        20_u32..=100,
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.3),
        (prop::bool::weighted(0.7), any::<bool>()),
    )
        .prop_map(
            |(buffer, cleared, block_after, reflect_from, share, buffer_on_idle, idle)| Settings {
                buffer,
                cleared,
                block_after,
                reflect_from,
                share,
                buffer_on_idle,
                idle,
            },
        );
    prop_oneof![1 => Just(PUBLISHED), 1 => drawn]
}

impl Case {
    fn policy(&self) -> Policy {
        let overhead = render::preamble_tokens(render::PREAMBLE_VERSION);
        let (settings, messages) = (self.settings, self.message_tokens);
        let observations = self.observation_tokens;
        let most = if settings.share {
            messages + observations
        } else {
            messages
        };
        Policy {
            message_tokens: messages,
            buffer_tokens: messages * settings.buffer / 100,
            buffer_on_idle: settings.buffer_on_idle,
            // What validation refuses is never drawn: to keep all of the smaller budget.
            retention_floor: (most - most * settings.cleared / 100).min(messages * 95 / 100),
            block_after: messages * settings.block_after / 100,
            observation_tokens: observations,
            reflect_from: observations * settings.reflect_from / 100,
            observation_limit: observations * settings.block_after.max(120) / 100,
            share_token_budget: settings.share,
            block_overhead: overhead + 16,
            early_activation: early(settings.idle.0),
            early_reflection: early(settings.idle.1),
            costs: None,
        }
    }
}

fn early(idle: bool) -> EarlyTriggers {
    EarlyTriggers {
        idle: if idle {
            IdleTrigger::Auto
        } else {
            IdleTrigger::Never
        },
        model_change: false,
    }
}

fn script() -> impl Strategy<Value = Script> {
    (
        prop_oneof![3 => Just(0_usize), 1 => 1_usize..4],
        prop_oneof![4 => Just(0_usize), 1 => 2_usize..6],
        prop_oneof![8 => 10_u32..40, 1 => 100_u32..160],
        20_u32..60,
    )
        .prop_map(|(late, empty_every, observed, reflected)| Script {
            late,
            empty_every,
            observed,
            // One Reflector in eight only ever fails.
            reflected: if reflected < 55 { reflected } else { 100 },
        })
}

pub fn case() -> impl Strategy<Value = Case> {
    let mode = prop_oneof![
        8 => Just(Mode::Default),
        2 => Just(Mode::Alternate),
        5 => Just(Mode::SingleSystem),
        1 => Just(Mode::SystemFirst),
        1 => Just(Mode::Signature),
        1 => Just(Mode::Strict),
        3 => (2_000_u32..4_000).prop_map(Mode::Window),
    ];
    let placement = prop_oneof![
        5 => Just(Placement::SystemMessage),
        2 => Just(Placement::AppendToSystem),
        1 => Just(Placement::Segments),
    ];
    (
        700_u32..2_000,
        (200_u32..600, settings()),
        script(),
        mode,
        (placement, prop_oneof![3 => Just(1_usize), 1 => Just(2)]),
        [habits(), habits(), habits()],
        prop::bool::weighted(0.15),
        moves(),
    )
        .prop_map(
            |(
                message_tokens,
                (observation_tokens, settings),
                script,
                mode,
                (placement, processes),
                habits,
                mirrored,
                moves,
            )| Case {
                message_tokens,
                observation_tokens,
                settings,
                script,
                mode,
                placement,
                processes,
                habits,
                mirrored,
                moves,
            },
        )
}

/// Two tenants, and a resource of one of them.
fn owners() -> [Owner; 3] {
    let owner = |tenant, resource| Owner { tenant, resource };
    [
        owner("alice", None),
        owner("bob", None),
        owner("bob", Some("home")),
    ]
}

struct Wire<'a> {
    proxy: &'a mut Proxy,
    laws: &'a mut Laws,
    accepted: &'a mut Vec<Request>,
}

impl Upstream for Wire<'_> {
    fn ask(&mut self, request: &Request) -> bool {
        let exchange = self.proxy.exchange(request);
        self.judge(request, &exchange)
    }

    fn ask_twice(&mut self, request: &Request) -> bool {
        let [one, two] = self.proxy.exchange_twice(request);
        let first = self.judge(request, &one);
        self.judge(request, &two) && first
    }

    fn idle(&mut self) {
        self.proxy.fall_idle();
        self.laws.fell_idle();
    }

    fn restart(&mut self) {
        self.proxy.restart();
    }

    fn rest(&mut self) {
        let shown = self.proxy.rest();
        debug_assert!(shown.is_empty(), "words are only at hand with a request");
    }
}

impl Wire<'_> {
    fn judge(&mut self, request: &Request, exchange: &Exchange) -> bool {
        let proxy = &*self.proxy;
        self.laws
            .exchange(request, exchange, &|used| proxy.with(request, used), None);
        let accepted = exchange.accepted.is_some();
        if accepted {
            self.accepted.push(request.clone());
        }
        accepted
    }
}

/// Plays a case, with a bug planted or without, and says what the laws made of it.
pub fn run(case: &Case, bug: Option<Bug>) -> Laws {
    let policy = case.policy();
    let rules = case.mode.rules();
    let mut proxy = Proxy::new(
        policy,
        case.script,
        rules,
        case.placement,
        case.processes,
        bug,
    );
    let mut laws = Laws::new(policy, case.script, case.mode.rules());
    let mut accepted = Vec::new();
    let habits = |at: usize| case.habits[if case.mirrored { 0 } else { at }].clone();
    let mut clients: Vec<Client> = owners()
        .into_iter()
        .enumerate()
        .map(|(at, owner)| Client::new(owner, habits(at)))
        .collect();
    for Move { who, act } in &case.moves {
        let mut wire = Wire {
            proxy: &mut proxy,
            laws: &mut laws,
            accepted: &mut accepted,
        };
        if case.mirrored {
            for client in &mut clients {
                client.perform(act, &mut wire);
            }
        } else {
            clients[*who].perform(act, &mut wire);
        }
    }
    laws.ended();
    send_all_again(&mut proxy, &mut laws, &mut accepted, &clients);
    laws
}

/// INV-SAME: every accepted request once more, in another order, by a process that knows nothing.
/// For clients that only ever appended, the chain and the snapshots alone must be enough.
fn send_all_again(
    proxy: &mut Proxy,
    laws: &mut Laws,
    accepted: &mut [Request],
    clients: &[Client],
) {
    let mut state = accepted.len();
    for at in (1..accepted.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        accepted.swap(at, (state >> 33) % (at + 1));
    }
    for request in accepted.iter() {
        let now = proxy.would_send(request);
        laws.again(request, &now, "at the end");
    }
    proxy.restart();
    for request in accepted.iter() {
        let now = proxy.would_send(request);
        laws.again(request, &now, "after a restart");
    }
    if laws.coverage.stepped + laws.coverage.too_long > 0 {
        return;
    }
    proxy.world.forget_sent();
    for request in accepted.iter() {
        let linear = clients
            .iter()
            .any(|client| client.linear && client.owner() == &request.owner);
        if linear {
            let now = proxy.would_send(request);
            laws.again(request, &now, "by its chain alone");
        }
    }
}
