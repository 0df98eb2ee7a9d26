//! What a run is made of: clients and what they do, the provider's rules, thresholds, models.

use std::collections::BTreeMap;
use std::time::Duration;

use diarist::config;
use diarist::jobs::Settings;
use diarist::proxy::Overflow;
use diarist::wire::Placement;
use diarist_provider::Rules;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::model::Character;
use super::planted::Bug;
use crate::properties::client::{Act, Habits};
use crate::properties::conversation::Owner;
use crate::properties::draw::{habits, moves};
use crate::support::dice::Dice;

/// Two tenants, and a resource of one of them.
const OWNERS: [Owner; 3] = [
    Owner {
        tenant: "alice",
        resource: None,
    },
    Owner {
        tenant: "bob",
        resource: None,
    },
    Owner {
        tenant: "bob",
        resource: Some("home"),
    },
];

#[derive(Clone, Copy, Debug)]
enum Mode {
    Default,
    Alternate,
    SingleSystem,
    Strict,
    Window(u32),
}

#[derive(Debug)]
pub struct Setup {
    pub clients: Vec<(Owner, Habits)>,
    pub moves: Vec<(usize, Act)>,
    pub processes: usize,
    pub placement: Placement,
    pub character: Character,
    pub overflow: Overflow,
    /// Whether a refusal says how much was too much.
    pub shares_memory: bool,
    /// Whether what is observed takes the messages' place when a conversation fell idle, and whether a
    /// reflection does.
    pub idle: (bool, bool),
    /// Whether memory borrows the conversations' routes to the upstream.
    pub borrows_credentials: bool,
    /// Whether raw messages may use what observations leave of both budgets.
    shares: bool,
    /// Whether each turn is observed once it has ended.
    each_turn: bool,
    /// Whether the words of messages are kept.
    keeps: bool,
    mode: Mode,
    /// Whether prices decide when memory is made, instead of the thresholds.
    weighs_costs: bool,
    message_tokens: usize,
    observation_tokens: usize,
}

impl Setup {
    pub fn roll(dice: &mut Dice) -> Self {
        // Of another stream: a seed that once broke a rule goes on to play what it played then.
        let mut options = Dice::new(!dice.clone().next());
        let mut seed = [0; 32];
        for part in seed.chunks_mut(8) {
            part.copy_from_slice(&dice.next().to_le_bytes());
        }
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let mut clients: Vec<(Owner, Habits)> = OWNERS
            .iter()
            .map(|owner| (owner.clone(), some(&habits(), &mut runner)))
            .collect();
        // More conversations of one owner: with the same words as the first, until they part.
        for _ in 0..dice.below(3) {
            let at = dice.below(OWNERS.len());
            clients.push(clients[at].clone());
        }
        let turns = [some(&moves(), &mut runner), some(&moves(), &mut runner)];
        let moves = turns
            .into_iter()
            .flatten()
            .map(|it| {
                let extra = clients.len() - OWNERS.len();
                let who = if dice.chance(20 * extra) {
                    OWNERS.len() + dice.below(extra)
                } else {
                    it.who
                };
                (who, it.act)
            })
            .collect();
        let overflow = *dice.pick(&[
            Overflow::Pass,
            Overflow::Observe(Duration::from_secs(20)),
            Overflow::Trim,
        ]);
        let mode = match dice.below(12) {
            0..=3 => Mode::Default,
            4 => Mode::Alternate,
            5..=6 => Mode::SingleSystem,
            7 => Mode::Strict,
            _ => {
                let (least, most) = match overflow {
                    Overflow::Pass => (2_500, 4_500),
                    Overflow::Observe(_) | Overflow::Trim => (1_200, 3_500),
                };
                Mode::Window(u32::try_from(dice.between(least, most)).unwrap())
            }
        };
        if matches!(mode, Mode::Window(_)) {
            // A picture costs this provider next to nothing: what we take for shorter it would not.
            for (_, habits) in &mut clients {
                habits.images = false;
            }
        }
        Self {
            clients,
            moves,
            processes: *dice.pick(&[1, 2, 2, 3]),
            placement: *dice.pick(&[
                Placement::SystemMessage,
                Placement::SystemMessage,
                Placement::AppendToSystem,
                Placement::Segments,
            ]),
            character: Character {
                observed: u32::try_from(dice.between(10, 40)).unwrap(),
                reflected: u32::try_from(dice.between(20, 60)).unwrap(),
                trouble: *dice.pick(&[0, 10, 30, 60]),
            },
            overflow,
            shares_memory: dice.chance(70),
            idle: *dice.pick(&[(false, false), (true, false), (true, true)]),
            borrows_credentials: dice.chance(30),
            shares: options.chance(25),
            each_turn: options.chance(25),
            keeps: options.chance(25),
            weighs_costs: options.chance(25),
            mode,
            message_tokens: dice.between(700, 2_000),
            observation_tokens: dice.between(250, 600),
        }
    }

    /// Brings about what `bug` needs to show itself, which is rare.
    pub fn provoke(&mut self, bug: Bug) {
        let overflow = match bug {
            Bug::TrimUnsaid | Bug::TrimForgotten => Overflow::Trim,
            Bug::RescueWrittenAnew => Overflow::Observe(Duration::from_secs(20)),
            _ => self.overflow,
        };
        if overflow != self.overflow {
            self.overflow = overflow;
            self.mode = Mode::Window(2_000);
            for (_, habits) in &mut self.clients {
                habits.images = false;
            }
        }
        let timers = matches!(
            bug,
            Bug::TimerOfNobody | Bug::TimerKept | Bug::TimerNotMoved | Bug::NeverIdle
        );
        if timers {
            self.idle = (true, true);
        }
        self.borrows_credentials |= matches!(bug, Bug::RouteNotHeld | Bug::RouteForEver);
    }

    pub fn rules(&self) -> Rules {
        let rules = Rules::default();
        match self.mode {
            Mode::Default => rules,
            Mode::Alternate => Rules {
                alternate: true,
                ..rules
            },
            Mode::SingleSystem => Rules {
                single_system: true,
                ..rules
            },
            Mode::Strict => Rules {
                signature: true,
                ..Rules::strict()
            },
            Mode::Window(tokens) => Rules {
                window: Some(tokens),
                ..rules
            },
        }
    }

    /// As an operator would write it down.
    pub fn settings(&self) -> Settings {
        let written = [
            ("UPSTREAM__BASE_URL", "http://upstream.test/v1".to_owned()),
            (
                "MEMORY__OBSERVATION__BASE_URL",
                "http://model.test/v1".to_owned(),
            ),
            ("MEMORY__OBSERVATION__API_KEY", "key".to_owned()),
            ("MEMORY__OBSERVATION__MODEL", "observer".to_owned()),
            (
                "MEMORY__OBSERVATION__MESSAGE_TOKENS",
                self.message_tokens.to_string(),
            ),
            (
                "MEMORY__REFLECTION__BASE_URL",
                "http://model.test/v1".to_owned(),
            ),
            ("MEMORY__REFLECTION__API_KEY", "key".to_owned()),
            ("MEMORY__REFLECTION__MODEL", "reflector".to_owned()),
            (
                "MEMORY__REFLECTION__OBSERVATION_TOKENS",
                self.observation_tokens.to_string(),
            ),
            (
                "MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE",
                timing(self.idle.0),
            ),
            (
                "MEMORY__REFLECTION__ACTIVATE_AFTER_IDLE",
                timing(self.idle.1),
            ),
            ("MEMORY__SHARE_TOKEN_BUDGET", self.shares.to_string()),
            (
                "MEMORY__OBSERVATION__BUFFER_ON_IDLE",
                self.each_turn.to_string(),
            ),
            (
                "MEMORY__KEEP_MESSAGES",
                if self.keeps {
                    "always"
                } else {
                    "until_observed"
                }
                .to_owned(),
            ),
        ];
        let costs = [
            ("MEMORY__POLICY", "cost_aware".to_owned()),
            // As cheap as conversations of this size need it: the instructions are longer than they are.
            ("MEMORY__COST__OBSERVER_INPUT", "0.001".to_owned()),
            ("MEMORY__COST__OBSERVER_OUTPUT", "0.005".to_owned()),
            (
                "MEMORY__COST__HISTORY_LIMIT",
                (2 * self.message_tokens).to_string(),
            ),
        ];
        let written = written
            .into_iter()
            .chain(costs.into_iter().filter(|_| self.weighs_costs));
        let mut env: BTreeMap<String, String> = written
            .into_iter()
            .filter(|(key, _)| {
                !self.borrows_credentials
                    || !(key.ends_with("_URL") && key.starts_with("MEM") || key.ends_with("_KEY"))
            })
            .map(|(key, value)| (format!("{}{key}", config::ENVIRONMENT_PREFIX), value))
            .collect();
        env.insert("HOME".to_owned(), "/nonexistent".to_owned());
        let config = config::load(&config::Flags::default(), &env, None).unwrap();
        let mut settings = config.memory;
        // Our tokens are a quarter of the bytes, and the message around the block counts as well.
        settings.policy.block_overhead += 16;
        if let Some(costs) = &mut settings.cost_aware {
            costs.policy.block_overhead += 16;
        }
        settings
    }
}

/// The model of all requests.
pub const MODEL: &str = "m";

/// How long a conversation is idle before its provider is taken to have forgotten its prompt.
pub const IDLE_MS: i64 = 300_000;

fn timing(on: bool) -> String {
    if on { "5m" } else { "false" }.to_owned()
}

fn some<S: Strategy>(strategy: &S, runner: &mut TestRunner) -> S::Value {
    strategy.new_tree(runner).unwrap().current()
}
