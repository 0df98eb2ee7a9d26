//! Conversations of one key that say the same things and have nothing to do with each other.

use std::sync::Arc;

use diarist_provider::{Ask, Improvise, Options, Part, Reply, Script};
use serde_json::Value;

use crate::rig::Rig;
use crate::script::said;
use crate::stage::{Client, chat_settings, marks, talk, text, user};

const GOODBYE: &str =
    "You are welcome! Should there be any more questions, just come back to me at any time.";

/// Everybody who says thanks is told goodbye in the same words; what is said otherwise is answered by what
/// follows it.
fn polite(ask: &Ask<'_>) -> Reply {
    let last = ask.messages.last().map(ToString::to_string);
    if last.as_ref().is_some_and(|last| last.contains("thank you")) {
        return Reply::say(GOODBYE);
    }
    let said = last.and_then(|last| marks(&last).pop_first());
    match said.as_deref().and_then(|mark| mark.split_once('#')) {
        Some((name, number)) => Reply::say(text(name, number.parse::<usize>().unwrap() + 1)),
        None => Improvise::default().reply(ask),
    }
}

async fn polite_rig() -> Rig {
    let mut options = Options::default();
    options.scripts.insert(Part::Actor, Arc::new(polite));
    Rig::with(options, &chat_settings()).await
}

/// The last answer of a conversation is no summary of it only because nothing follows it.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_goodbye_alike_is_told_nothing_of_each_other() {
    let mut rig = polite_rig().await;
    let mut other: Vec<Value> = vec![said("user", "Before we begin: thank you (other#0).")];
    Client::new(&mut rig).send(&other).await;

    let mut all = talk("it", 40);
    for turn in (1..40).step_by(2) {
        Client::new(&mut rig).send(&all[..turn]).await;
    }
    all.push(said("user", "That is all, thank you."));
    let last = Client::new(&mut rig).send(&all).await;
    assert!(!last.told.is_empty() && last.answer == GOODBYE);

    other.extend([said("assistant", GOODBYE), user("other", 2)]);
    for restart in [false, true] {
        if restart {
            rig.restart().await;
        }
        let seen = Client::new(&mut rig).send(&other).await;
        assert!(seen.told.is_empty(), "restart {restart}: {:?}", seen.told);
        // One that was never seen before, with the same answer in it.
        let third = [
            user("third", 0),
            said("assistant", GOODBYE),
            user("third", restart.into()),
        ];
        let seen = Client::new(&mut rig).send(&third).await;
        assert!(seen.told.is_empty(), "restart {restart}: {:?}", seen.told);
    }
}
