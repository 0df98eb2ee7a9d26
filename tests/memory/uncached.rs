//! Between activations, memory makes the provider read nothing but what the client added: for each kind of cache, no
//! prompt has more uncached tokens than it would have without Diarist, but for one step.

use diarist_provider::{CacheKind, Conversation, SimulatedCache, Style, estimate_tokens};
use serde_json::Value;

use crate::memory::confusion::{Act, Client, KINDS, Kind, Play};
use crate::memory::corpus;
use crate::support::depth;

/// One step of a cache. Anthropic counts in single tokens.
const STEP: u32 = 128;

/// The text that stands in place of the oldest messages.
fn block(body: &Value) -> Option<String> {
    let mut messages = body["messages"].as_array().unwrap().iter();
    let texts = messages.find(|it| it["content"].to_string().contains("<observations>"));
    texts.map(|message| message["content"].to_string())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn memory_adds_no_uncached_tokens_to_a_turn_without_an_activation() {
    for (number, kind) in KINDS.into_iter().enumerate() {
        let generated = Conversation::generate(60 + number as u64, 70, Style::Travel);
        let mut programs = corpus::conversations();
        let mut both = vec![generated, programs.swap_remove(number % 3)];
        // The plain form plays one of both with each kind of cache.
        let one = number % 2..number % 2 + 1;
        for conversation in both.drain(depth::long_or(0..2, one)) {
            let (name, turns) = (conversation.id.clone(), turns(kind, conversation).await);
            println!(
                "{}, {name}: {turns} turns with the same observations",
                kind.name
            );
            assert!(turns > 20, "{}: {name}", kind.name);
        }
    }
}

/// Plays a conversation, and says how many turns had the observations of the turn before.
async fn turns(kind: Kind, conversation: Conversation) -> usize {
    let mut play = Play::new(kind, 1, &[]).await;
    let requests = conversation.requests().count();
    let requests = requests.min(depth::long_or(90, 55));
    let mut client = Client::new("talk".to_owned(), conversation, "5m");
    let mut without = SimulatedCache::new(&estimate_tokens());
    let (mut before, mut turns, mut short) = (None, 0, true);
    for _ in 0..requests {
        let answered = play.step(&mut client, Act::Grow).await;
        let (now, usage) = (&answered.now, answered.now.usage());
        let request = now.sent.as_object().unwrap();
        let (raw, stored) = without.read(kind.cache, ("", now.model()), request);
        without.store(&stored);
        let block = block(&now.record.json().unwrap());
        let stays = before.replace(block.clone()) == Some(block.clone());
        let was_short = std::mem::replace(&mut short, usage.prompt_tokens < 1_024 + STEP);
        if block.is_none() || !stays || was_short {
            continue;
        }
        turns += 1;
        let (with, without) = (usage.uncached_tokens(), raw.uncached_tokens());
        let step = if kind.cache == CacheKind::Marks {
            0
        } else {
            STEP
        };
        assert!(
            with <= without + step,
            "{}: {with} and {without}",
            kind.name
        );
    }
    turns
}
