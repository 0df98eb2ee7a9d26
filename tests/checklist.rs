//! What the reference implementation of observational memory checks, checked here: its numbers against
//! the real code, and `docs/parity.md` against both.
//!
//! Every number stands in the table once, as *same*, *better*, *later* or *not ours*. What is *same* or
//! *better* is held by an assertion in here, which carries the published numbers, or by a test that
//! the table names; a name without its test fails, and so does an assertion the table does not know.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod buffering;
mod calls;
mod configuration;
mod counting;
mod defaults;
mod failing;
mod hand;
mod prompts;
mod ranges;
mod sizes;
mod stored;
mod table;
mod together;
mod transcripts;
mod waiting;

use std::collections::BTreeMap;

use table::{Standing, Table};

/// Numbers of the list and the assertion that holds them.
type Check = (&'static [u16], fn());

/// Every assertion of this file.
fn checks() -> Vec<Check> {
    [
        configuration::CHECKS,
        counting::CHECKS,
        buffering::CHECKS,
        sizes::CHECKS,
        ranges::CHECKS,
        blocks::CHECKS,
        transcripts::CHECKS,
        prompts::CHECKS,
        calls::CHECKS,
        stored::CHECKS,
        failing::CHECKS,
        waiting::CHECKS,
        together::CHECKS,
    ]
    .concat()
}

/// How many numbers the published list has.
const NUMBERS: u16 = 147;

#[test]
#[ignore = "slow"]
fn every_check_of_the_reference_implementation_holds() {
    let broken: Vec<&[u16]> = checks()
        .into_iter()
        .filter(|(numbers, check)| {
            println!("{numbers:?}");
            std::panic::catch_unwind(check).is_err()
        })
        .map(|(numbers, _)| numbers)
        .collect();
    assert!(broken.is_empty(), "these do not hold: {broken:?}");
}

#[test]
fn the_parity_table_matches_the_tests() {
    let table = Table::read();
    let numbers: Vec<u16> = table.rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=NUMBERS).collect::<Vec<_>>());

    let mut here: Vec<u16> = checks()
        .iter()
        .flat_map(|(numbers, _)| *numbers)
        .copied()
        .collect();
    here.sort_unstable();
    let listed: Vec<u16> = table
        .rows
        .iter()
        .filter(|row| row.held.iter().any(|held| held == "checklist"))
        .map(|row| row.number)
        .collect();
    assert_eq!(
        listed, here,
        "what the table says is held here, and what is"
    );

    for row in &table.rows {
        let done = matches!(row.standing, Standing::Same | Standing::Better);
        assert_eq!(
            done,
            !row.held.is_empty(),
            "{}: held by {:?}",
            row.number,
            row.held
        );
        for held in row.held.iter().filter(|held| *held != "checklist") {
            table::exists(held).unwrap_or_else(|why| panic!("{}: {why}", row.number));
        }
        let bare = row.how.is_empty();
        let explained = matches!(row.standing, Standing::Same | Standing::Later) || !bare;
        assert!(explained, "{}: how, or why not", row.number);
    }
    for option in &table.options {
        assert!(!option.why.is_empty(), "{}: no word on it", option.name);
    }
    println!(
        "checklist: {}",
        counts(table.rows.iter().map(|row| row.standing))
    );
    let done = table.rows.iter().filter(|row| !row.held.is_empty()).count();
    println!(
        "{} of {done} that are same or better are asserted here",
        here.len()
    );
    println!(
        "options: {}",
        counts(table.options.iter().map(|option| option.standing))
    );
}

/// The options of the reference that Diarist has, by their names there, with what is asserted of them.
#[test]
fn every_shared_option_has_its_published_default() {
    let table = Table::read();
    let ours: Vec<&str> = table
        .options
        .iter()
        .filter(|option| matches!(option.standing, Standing::Same | Standing::Better))
        .map(|option| option.name.as_str())
        .collect();
    let asserted: Vec<&str> = defaults::DEFAULTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(ours, asserted);
    for (_, check) in defaults::DEFAULTS {
        check();
    }
}

fn counts(standings: impl Iterator<Item = Standing>) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for standing in standings {
        *counts.entry(standing.name()).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    counts.join(", ")
}
