//! The whole of memory under whatever can happen to it: thousands of conversations from a seed, over the
//! real store, recorder, workers and choice, driven step by step by one thread.
//!
//! Between any two steps a process may die, a lease may run out, another process may write. After every
//! request and every write the invariants are checked; at the end every recorded request comes once
//! more, in another order, also to a process that knows nothing.
//!
//! A failure names its seed: `DIARIST_SEED=1234 cargo test --test invariants simulation` plays that one alone.
//! For many more: `DIARIST_SEEDS=20000 cargo test --release --test invariants simulation`, with both those from
//! `DIARIST_SEED` on.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod after;
mod clockwork;
mod counts;
mod finished;
mod forgetting;
mod gate;
mod ledger;
mod model;
mod overflow;
mod planted;
mod process;
mod range;
mod registered_routes;
mod request;
mod rules;
mod run;
mod setup;
mod shown;
mod users;
mod watched;

use counts::Counts;
use planted::Bug;
use rules::Rule;
use run::run;

use crate::properties::laws::Law;
use crate::support::{depth, parallel, planted_table};

/// Runs of the long form, and of the plain one.
const SEEDS: [u64; 2] = [60, 5];

/// From this many runs on, each thing that can happen must have happened.
const MANY: usize = 50;

/// Seeds that once broke a rule, each for a reason of its own. They are played beside the first ones.
const BROKEN_ONCE: [u64; 14] = [
    223, 248, 271, 288, 315, 454, 502, 504, 604, 619, 656, 853, 927, 956,
];

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no other way to be asked for more"
)]
fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The first `long` seeds in the long form, else `some` of them: those of the part that is played.
fn seeds_of_part([long, some]: [u64; 2]) -> std::ops::Range<u64> {
    if depth::is_long() {
        return 0..long;
    }
    let first = depth::part() as u64 % (long / some) * some;
    first..first + some
}

#[test]
fn every_invariant_holds_after_every_step() {
    let seeds: Vec<u64> = match (env_number("DIARIST_SEED"), env_number("DIARIST_SEEDS")) {
        (Some(first), count) => (first..first + count.unwrap_or(1)).collect(),
        (None, count) => {
            let first = count.map_or_else(|| seeds_of_part(SEEDS), |count| 0..count);
            let beyond = depth::sample(BROKEN_ONCE, 7).filter(|seed| *seed >= first.end);
            first.clone().chain(beyond).collect()
        }
    };
    let reports = parallel::map(&seeds, |seed| run(*seed, None));
    let broken = seeds.iter().zip(&reports).filter_map(|(seed, report)| {
        let breach = report.breaches.first()?;
        Some(format!("seed {seed}: {:?}: {}", breach.rule, breach.how))
    });
    let failed: Vec<String> = broken.collect();
    let done: Vec<Counts> = reports.into_iter().map(|report| report.counts).collect();
    let counts = Counts::sum(&done);
    println!("{} runs: {counts:#?}", done.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // What no run meets, none of them judges.
    if done.len() >= MANY {
        assert_eq!(counts.unmet(), [] as [String; 0]);
    }
}

/// What a seed does follows from the seed alone: whoever looks into a failure meets it again.
#[test]
#[ignore = "slow"]
fn equal_seeds_produce_equal_runs() {
    for seed in 1_000..depth::long_or(1_004, 1_001) {
        let (once, again) = (run(seed, None), run(seed, None));
        assert_eq!(once.trace, again.trace, "seed {seed}");
    }
}

/// Every planted bug and the rule that notices it.
const NOTICED: &[(Bug, Rule)] = &[
    (Bug::FenceIgnored, Rule::Lease),
    (Bug::LeaseOfNothing, Rule::Lease),
    (Bug::LeaseWithoutEnd, Rule::Stuck),
    (Bug::JobKept, Rule::Once),
    (Bug::RetryGivenUp, Rule::Contiguous),
    (Bug::EligibleTooEarly, Rule::Eligible),
    (Bug::EligibleByStaleRead, Rule::Eligible),
    (Bug::RetryDecidedAnew, Rule::Sent(Law::Same)),
    (Bug::PartOfAnotherChain, Rule::Contiguous),
    (Bug::PartOfAnotherChain, Rule::Sent(Law::Cover)),
    (Bug::GapAccepted, Rule::Contiguous),
    (Bug::SentTwice, Rule::Contiguous),
    (Bug::HintsOfBefore, Rule::Hints),
    (Bug::HintsOfTheDone, Rule::Hints),
    (Bug::WordsUnshown, Rule::Words),
    (Bug::NewestUnread, Rule::OnceActive),
    (Bug::StoredKeyExcluded, Rule::Sent(Law::Same)),
    (Bug::LimitIgnored, Rule::Limit),
    (Bug::RelationsUncounted, Rule::Counted),
    (Bug::EmptyCommitted, Rule::Empty),
    (Bug::CutTakenForWhole, Rule::Whole),
    (Bug::ConfirmedAtOnce, Rule::Sent(Law::Confirmed)),
    (Bug::TrimUnsaid, Rule::Sent(Law::Cover)),
    (Bug::TrimForgotten, Rule::Sent(Law::Same)),
    (Bug::RescueWrittenAnew, Rule::Sent(Law::Same)),
    (Bug::RefusedRecorded, Rule::Accepted),
    (Bug::ViewOneTooMany, Rule::Sent(Law::Cover)),
    (Bug::FrontForgotten, Rule::Sent(Law::Cover)),
    (Bug::ViewPartsRound, Rule::Sent(Law::Pair)),
    (Bug::RouteNotHeld, Rule::Route),
    (Bug::RouteForEver, Rule::Route),
    (Bug::TimerOfNobody, Rule::Rings),
    (Bug::TimerKept, Rule::Rings),
    (Bug::TimerNotMoved, Rule::Idle),
    (Bug::NeverIdle, Rule::Idle),
];

/// What the table calls a rule.
fn called(rule: Rule) -> &'static str {
    match rule {
        Rule::Sent(Law::Cover) => "INV-COVER",
        Rule::Sent(Law::Tail) => "INV-TAIL",
        Rule::Sent(Law::Pair) => "INV-PAIR",
        Rule::Sent(Law::Prefix) => "INV-PREFIX",
        Rule::Sent(Law::Bound) => "INV-BOUND",
        Rule::Sent(Law::Open) => "INV-OPEN",
        Rule::Sent(Law::Own) | Rule::Accepted => "INV-OWN",
        Rule::Sent(Law::Same) => "INV-SAME",
        Rule::Sent(Law::Worth) => "INV-WORTH",
        Rule::Sent(Law::Confirmed) => "confirmed history only",
        Rule::Sent(Law::Uncached) => "uncached tokens",
        Rule::Sent(Law::Early) => "not early",
        Rule::Once => "INV-DUR",
        Rule::Lease => "Lease",
        Rule::Contiguous => "Contiguous",
        Rule::Eligible => "Eligible",
        Rule::Words => "Words",
        Rule::Hints => "Hints",
        Rule::OnceActive => "OnceActive",
        Rule::Limit => "Limit",
        Rule::Counted => "Weighed",
        Rule::Stuck => "Stuck",
        Rule::Empty => "Empty",
        Rule::Whole => "Whole",
        Rule::Idle => "Idle",
        Rule::Route => "Route",
        Rule::Rings => "Rings",
    }
}

/// `docs/testing.md` lists the planted bugs, each with whom it is noticed by, and no others.
#[test]
fn the_document_lists_the_planted_bugs() {
    let mut expected: Vec<(String, String)> = Vec::new();
    for (bug, rule) in NOTICED {
        let (bug, rule) = (format!("{bug:?}"), called(*rule));
        match expected.iter_mut().find(|(known, _)| *known == bug) {
            Some((_, rules)) => rules.push_str(&format!(", {rule}")),
            None => expected.push((bug, rule.to_owned())),
        }
    }
    assert_eq!(
        planted_table::rows("NOTICED in tests/simulation.rs"),
        expected
    );
}

/// Seeds within which a planted bug must be noticed.
const WITHIN: u64 = 100;

/// Bugs that few seeds notice, and a seed that did. It is tried first, which only saves time.
const LIKELY_SEEDS: &[(Bug, u64)] = &[
    (Bug::RetryDecidedAnew, 4),
    (Bug::HintsOfBefore, 7),
    (Bug::HintsOfTheDone, 25),
    (Bug::NewestUnread, 47),
    (Bug::LimitIgnored, 4),
    (Bug::CutTakenForWhole, 10),
    (Bug::ConfirmedAtOnce, 4),
    (Bug::TrimUnsaid, 33),
    (Bug::ViewOneTooMany, 38),
    (Bug::FrontForgotten, 22),
    (Bug::ViewPartsRound, 22),
    (Bug::RouteForEver, 11),
    (Bug::TimerNotMoved, 4),
];

#[test]
#[ignore = "slow"]
fn planted_bugs_are_noticed() {
    let planted: Vec<_> = depth::sample(NOTICED, 5).copied().collect();
    let missed = parallel::map(&planted, |(bug, rule)| {
        let likely = LIKELY_SEEDS
            .iter()
            .filter(|(likely_bug, _)| likely_bug == bug);
        let likely = likely.map(|(_, seed)| *seed);
        let noticed = likely.chain(0..WITHIN).find(|seed| {
            let report = run(*seed, Some(*bug));
            report.breaches.iter().any(|breach| breach.rule == *rule)
        });
        match noticed {
            Some(seed) => println!("{bug:?}: noticed by {rule:?} with seed {seed}"),
            None => return Some((*bug, *rule)),
        }
        None
    });
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(
        missed.is_empty(),
        "not noticed within {WITHIN} seeds: {missed:?}"
    );
}

/// Seeds of the users who are told of their other conversations, in the long form and in the plain one.
const USERS: [u64; 2] = [14, 4];

#[test]
fn rules_for_memory_of_other_conversations_hold_after_every_request() {
    let mut all = users::RunCounts::default();
    let count = depth::long_or(USERS[0], USERS[1]);
    for seed in 0..count {
        let (breaches, done) = users::run(seed, None);
        assert!(breaches.is_empty(), "seed {seed}: {:?}", breaches[0]);
        all.shared += done.shared;
        all.bound += done.bound;
        all.dropped += done.dropped;
        all.forks += done.forks;
    }
    println!("{all:?}");
    let counts = [all.shared, all.bound, all.dropped, all.forks];
    assert!(
        counts.iter().all(|count| *count > depth::long_or(3, 0)),
        "{all:?}"
    );
}

/// `docs/testing.md` lists these as well. Beside each rule stands a seed that notices the bug: it is tried first, which
/// only saves time.
#[test]
#[ignore = "slow"]
fn planted_bugs_in_memory_of_other_conversations_are_noticed() {
    use users::{PeerMemoryRule, Planted};
    for (bug, rule, likely) in [
        (Planted::TextOfAnotherUser, PeerMemoryRule::Owner, 1),
        (Planted::OpenerComesBack, PeerMemoryRule::Steady, 0),
        (Planted::BoundToNobody, PeerMemoryRule::Bound, 3),
    ] {
        let noticed = [likely].into_iter().chain(0..USERS[0]).find(|seed| {
            let (breaches, _) = users::run(*seed, Some(bug));
            breaches.iter().any(|(broken, _)| *broken == rule)
        });
        println!("{bug:?}: noticed with seed {noticed:?}");
        assert!(noticed.is_some(), "{bug:?}");
        let row = format!("(`{bug:?}`) | {rule:?} |");
        assert!(include_str!("../docs/testing.md").contains(&row), "{row}");
    }
}

/// Seeds of the conversations that an operator has forgotten.
const FORGOTTEN: u64 = 20;

#[test]
fn forgotten_conversations_stay_forgotten_until_the_operator_lifts_that() {
    let seeds: Vec<u64> = match (env_number("DIARIST_SEED"), env_number("DIARIST_SEEDS")) {
        (None, None) => seeds_of_part([FORGOTTEN, 5]).collect(),
        (first, count) => {
            let first = first.unwrap_or(0);
            (first..first + count.unwrap_or(1)).collect()
        }
    };
    let reports = parallel::map(&seeds, |seed| forgetting::run(*seed, None));
    let mut all = forgetting::RunCounts::default();
    for (seed, (breaches, done)) in seeds.iter().zip(&reports) {
        assert!(breaches.is_empty(), "seed {seed}: {:?}", breaches[0]);
        all.forgotten += done.forgotten;
        all.refused += done.refused;
        all.lifted += done.lifted;
        all.shared += done.shared;
        all.in_call += done.in_call;
        all.with_memory += done.with_memory;
    }
    println!("{all:?}");
    let counts = [
        all.forgotten,
        all.refused,
        all.lifted,
        all.shared,
        all.in_call,
        all.with_memory,
    ];
    let many = seeds.len() >= 20;
    assert!(!many || counts.iter().all(|count| *count > 3), "{all:?}");
}

/// `docs/testing.md` lists these as well.
#[test]
#[ignore = "slow"]
fn planted_bugs_in_forgetting_are_noticed() {
    use forgetting::{ForgetRule, Planted};
    for (bug, rule) in [
        (Planted::TombstoneForgotten, ForgetRule::Untold),
        (Planted::TombstoneForgotten, ForgetRule::Gone),
        (Planted::PartsKept, ForgetRule::Gone),
        (Planted::OwnerBuried, ForgetRule::Spared),
        (Planted::LiftIgnored, ForgetRule::Lifted),
    ] {
        let noticed = (0..FORGOTTEN).find(|seed| {
            let (breaches, _) = forgetting::run(*seed, Some(bug));
            breaches.iter().any(|(broken, _)| *broken == rule)
        });
        println!("{bug:?}: noticed by {rule:?} with seed {noticed:?}");
        assert!(noticed.is_some(), "{bug:?}");
        let row = include_str!("../docs/testing.md")
            .lines()
            .find(|line| line.contains(&format!("(`{bug:?}`) | ")));
        let named = row.is_some_and(|row| row.contains(&format!("{rule:?}")));
        assert!(named, "{bug:?}: {rule:?}");
    }
}
