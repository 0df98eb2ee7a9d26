//! The net lies between the two ends that the report names. The truth is a simulated cache that got the client's own
//! bodies, and forgot whenever the provider's did.

use std::time::Duration;

use diarist_provider::{CacheKind, Conversation, SimulatedCache, Style, estimate_tokens};

use crate::memory::confusion::{Act, Client, KINDS, Kind, Play};
use crate::memory::day::{cost, report};
use crate::support::depth;

/// What happens in the conversation of a client, from its beginning on.
fn act(step: usize) -> Act {
    match step % 12 {
        // Until memory is active, nothing happens.
        _ if step < 24 => Act::Grow,
        2 => Act::Forget,
        5 => Act::Wait,
        8 => Act::Off,
        10 => Act::Pause,
        _ => Act::Grow,
    }
}

/// Plays a conversation; what it cost, what it would have cost without Diarist, and how many requests had observations.
async fn played(
    play: &mut Play,
    cache: &mut SimulatedCache,
    client: &mut Client,
) -> (f64, f64, u32) {
    let (mut paid, mut without, mut active) = (0.0, 0.0, 0);
    for step in 0..72 {
        let act = act(step);
        match act {
            Act::Forget => cache.forget(),
            Act::Wait => cache.skip_time(play.kind.lifetime + Duration::from_mins(1)),
            Act::Pause => cache.skip_time(play.kind.lifetime.mul_f64(0.37)),
            _ => {}
        }
        let answered = play.step(client, act).await;
        let now = answered.now;
        let output = now.record.completion_tokens.unwrap();
        let body = now.sent.as_object().unwrap();
        let (usage, stored) = cache.read(play.kind.cache, ("", now.model()), body);
        cache.store(&stored);
        paid += cost(now.model(), now.usage(), output);
        without += cost(now.model(), usage, output);
        active += u32::from(answered.line["memory"] == "active");
    }
    (paid, without, active)
}

async fn check_reported_net_range(kind: Kind) {
    let mut play = Play::new(kind, 5, &[]).await;
    let mut cache = SimulatedCache::new(&estimate_tokens());
    let styles = [("trip", Style::Travel), ("code", Style::Coding)];
    // The plain form plays one of both with each kind of cache.
    let one = match kind.cache {
        CacheKind::Steps | CacheKind::Marks => 0..1,
        _ => 1..2,
    };
    for &(name, style) in &styles[depth::long_or(0..2, one)] {
        let conversation = Conversation::generate(4_711, 120, style);
        let mut client = Client::new(name.to_owned(), conversation, "5m");
        let (paid, without, active) = played(&mut play, &mut cache, &mut client).await;
        assert!(active > 30, "{active}");
        let total = report(&play, &["--thread", name])["total"].clone();
        let number = |name: &str| total[name].as_f64().unwrap();
        let truth = without - paid - number("memory_cost");
        let message = format!(
            "{} {name}: net ${truth:.4}, told ${:.4}, between ${:.4} and ${:.4}; without ${without:.4}, told ${:.4}",
            kind.name,
            number("net"),
            number("net_low"),
            number("net_high"),
            number("without_diarist"),
        );
        println!("{message}");
        let (low, high) = (number("net_low"), number("net_high"));
        assert!(low <= truth && truth <= high, "{message}");
        let net = number("net");
        assert!(low <= net && net <= high, "{message}");
        // A range that holds everything says nothing.
        assert!(high - low < 0.75 * without, "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_true_net_lies_in_the_reported_range_with_a_step_cache() {
    check_reported_net_range(KINDS[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_true_net_lies_in_the_reported_range_with_a_unit_cache() {
    check_reported_net_range(KINDS[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_true_net_lies_in_the_reported_range_with_a_breakpoint_cache() {
    check_reported_net_range(KINDS[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_true_net_lies_in_the_reported_range_with_a_mark_cache() {
    check_reported_net_range(KINDS[3]).await;
}
