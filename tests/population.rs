//! Nobody hears what another conversation said: hundreds of users behind one key, through the real product
//! over real sockets, judged by the bodies that the provider got.
//!
//! Every user, and every answer to that user, bears marks that nobody else says (`marks`). What everybody
//! says alike bears none: canned answers, forms, examples, cached answers (`words`). A mark of another user in
//! a forwarded body is a leak. So is a mark that its own user took back: a message was rewritten or removed
//! while what follows was kept, and the client does not send it itself. Calls of the Observer and the
//! Reflector may not hold words of two users. The client always gets the provider's answer.
//!
//! Each conversation is of one kind (`kinds`), and the table counts by kind. Scenes (`scenes`) put two users
//! as close to each other as can be. Wrong is also what the same user said in another conversation (`other`) or
//! on another branch of this one (`branch`). `right%` are the long requests that had memory and were told nothing
//! wrong; each kind has a floor of it, which is judged in long runs. `beyond%` are those that were told
//! something of their own that they no longer held.
//!
//! A seed decides everything that is sent, and in which order; odd seeds have two processes on one database.
//! How fast memory is made is left to the machine. A plain run plays one world of 750 requests, the slow test 3,000 requests.
//!
//! ```text
//! DIARIST_SEED=7 cargo test --test proxy population:: -- --nocapture   the world of one seed
//! DIARIST_REQUESTS=100000                                              so many requests, from seed 0 on
//! DIARIST_FIRST=40                                                     from another seed on
//! DIARIST_TRACE=1                                                      each request of what went wrong
//! DIARIST_TRACE=rewrites                                               or of conversations of kinds that begin so
//! DIARIST_WALLS=1                                                      a control, see below
//! ```
//!
//! With walls each conversation has a user's name of its own (`x-diarist-resource`), and cannot hear any other:
//! whatever is judged wrong then but what was taken back is a mistake of this judge.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

mod conversation;
mod documents;
mod judge;
mod kinds;
mod marks;
mod process;
mod request;
mod scenes;
mod shape;
mod turns;
mod words;
mod world;

use std::time::Instant;

use futures_util::stream::{self, StreamExt as _};

use judge::{Sent, Table, Wrong};

/// The fewest requests of a plain run. Worlds are played whole, so it is one world.
const PLAIN: usize = 200;

/// The fewest requests of the slow test.
const SLOW: usize = 3_000;

/// Worlds that are played side by side.
const WORLDS: usize = 4;

/// Long requests of a kind from which its share is judged: they come from a few conversations each.
const MANY: usize = 600;

/// How many in a hundred of all long requests are to have memory at least.
const FLOOR: usize = 35;

/// Offending conversations of which the first offending request is printed.
const PRINTED: usize = 20;

fn env_number(name: &str) -> Option<u64> {
    env_text(name)?.parse().ok()
}

#[expect(clippy::disallowed_methods, reason = "a switch of this test alone")]
fn env_text(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What is played: one seed, or as many as make so many requests, `plain` unless another number is asked for.
fn seeds(plain: usize) -> Vec<u64> {
    if let Some(seed) = env_number("DIARIST_SEED") {
        return vec![seed];
    }
    let wanted = env_number("DIARIST_REQUESTS").map_or(plain, |n| usize::try_from(n).unwrap());
    let mut requests = 0;
    let seeds = env_number("DIARIST_FIRST").unwrap_or(0)..;
    seeds
        .take_while(|seed| {
            let before = requests;
            requests += world::size(*seed);
            before < wanted
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_leaks_between_conversations() {
    play(&seeds(PLAIN)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn no_text_leaks_between_conversations_in_more_worlds() {
    play(&seeds(SLOW)).await;
}

async fn play(seeds: &[u64]) {
    let began = Instant::now();
    let options = world::WorldOptions {
        traces: env_text("DIARIST_TRACE").is_some(),
        walls: env_number("DIARIST_WALLS").is_some(),
    };
    let worlds = stream::iter(seeds).map(|seed| world::play(*seed, options));
    let tells = env_number("DIARIST_REQUESTS").is_some();
    let played = worlds.buffered(WORLDS).inspect(|world| {
        if tells {
            let counts = Table::from_requests(world).all;
            let (leaks, taken) = (counts.count(Wrong::Leak), counts.count(Wrong::TakenBack));
            println!("seed {}: {leaks} leaks, {taken} taken back", world[0].seed);
        }
    });
    let played: Vec<Vec<Sent>> = played.collect().await;
    let all = played.concat();
    let table = Table::from_requests(&all);
    table.print();
    let (took, requests) = (began.elapsed(), all.len());
    let rate = requests as f64 / took.as_secs_f64();
    println!("{requests} requests in {took:.1?}, {rate:.0} a second");

    let cases = judge::first_of_each(&all);
    for sent in cases.iter().take(PRINTED) {
        println!("{}", sent.describe());
    }
    if let Some(which) = env_text("DIARIST_TRACE") {
        let of_kind: Vec<&Sent> = all
            .iter()
            .filter(|sent| sent.kind.name().starts_with(&which))
            .collect();
        let cases = if of_kind.is_empty() { cases } else { of_kind };
        judge::trace(&all, &cases);
    }
    let unseen = all.iter().filter(|sent| sent.bodies == 0).count();
    assert_eq!(unseen, 0, "requests of which nobody saw a body");
    let asserted = [
        Wrong::Leak,
        Wrong::TakenBack,
        Wrong::OtherConversation,
        Wrong::OtherBranch,
        Wrong::Mixed,
        Wrong::Answer,
    ];
    let broken = asserted.map(|wrong| (wrong, table.all.count(wrong)));
    assert!(
        broken.iter().all(|(_, count)| *count == 0),
        "so many requests went wrong: {broken:?}"
    );
    for (kind, counts) in &table.kinds {
        assert!(
            counts.long < MANY || counts.share() >= kind.floor(),
            "{}: {} % of the long requests have memory, at least {} were to",
            kind.name(),
            counts.share(),
            kind.floor()
        );
    }
    assert!(
        table.all.long < MANY || table.all.share() >= FLOOR,
        "{} % of the long requests have memory, at least {FLOOR} were to",
        table.all.share()
    );
}
