//! Nobody hears what another conversation said: hundreds of users behind one key, through the real product
//! over real sockets, judged by the bodies that the provider got.
//!
//! Every user and every answer to that user bears marks that nobody else says. What everybody says alike
//! (canned answers, forms, examples, cached answers) bears none. A mark of another user in a forwarded body
//! is a leak. So is a mark that its own user took back: a message that was rewritten or removed while what
//! follows was kept, and that the client does not send itself.
//!
//! A seed decides everything that is sent. A plain run plays about 3,000 requests.
//!
//! ```text
//! DIARIST_SEED=7 cargo test --test population          the world of one seed alone
//! DIARIST_REQUESTS=100000 cargo test --test population that many, from seed 0 on
//! DIARIST_FIRST=40                                     from another seed on
//! DIARIST_TRACE=1                                      each request of what went wrong
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

#[path = "../support/dice.rs"]
#[expect(dead_code, reason = "shared with another test binary")]
mod dice;

mod judge;
mod kinds;
mod marks;
mod process;
mod request;
mod scenes;
mod shape;
mod talk;
mod turns;
mod words;
mod world;

use std::time::Instant;

use futures_util::stream::{self, StreamExt as _};

use judge::{Sent, Table, Wrong};

/// Requests of a plain run.
const REQUESTS: usize = 3_000;

/// Worlds that are played side by side.
const WORLDS: usize = 4;

/// Long requests of a kind from which its share is judged.
const MANY: usize = 40;

/// Offending conversations of which the first offending request is printed.
const PRINTED: usize = 20;

#[expect(clippy::disallowed_methods, reason = "a switch of this test alone")]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What is played: one seed, or as many as make so many requests.
fn seeds() -> Vec<u64> {
    if let Some(seed) = asked("DIARIST_SEED") {
        return vec![seed];
    }
    let wanted = asked("DIARIST_REQUESTS").map_or(REQUESTS, |n| usize::try_from(n).unwrap());
    let mut requests = 0;
    let seeds = asked("DIARIST_FIRST").unwrap_or(0)..;
    seeds
        .take_while(|seed| {
            let before = requests;
            requests += world::size(*seed);
            before < wanted
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_hears_what_another_conversation_said() {
    let (began, traced) = (Instant::now(), asked("DIARIST_TRACE").is_some());
    let worlds = stream::iter(seeds()).map(|seed| world::play(seed, traced));
    let played: Vec<Vec<Sent>> = worlds.buffered(WORLDS).collect().await;
    let all = played.concat();
    let table = Table::of(&all);
    table.print();
    let (took, requests) = (began.elapsed(), all.len());
    let rate = requests as f64 / took.as_secs_f64();
    println!("{requests} requests in {took:.1?}, {rate:.0} a second");

    let cases = judge::first_of_each(&all);
    for sent in cases.iter().take(PRINTED) {
        println!("{}", sent.told_of());
    }
    if traced {
        judge::trace(&all, &cases);
    }
    let unseen = all.iter().filter(|sent| sent.bodies == 0).count();
    assert_eq!(unseen, 0, "requests of which nobody saw a body");
    let count = |wrong| table.all.of(wrong);
    let counted = [Wrong::Leak, Wrong::TakenBack, Wrong::Mixed, Wrong::Answer].map(count);
    assert_eq!(
        counted, [0; 4],
        "requests with another user's words, with words that were taken back, calls of memory with words \
         of several users, and answers that did not arrive"
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
}
