//! Conversations of one key that say the same things and have nothing to do with each other.

use std::sync::Arc;

use diarist_provider::{CallerKind, DefaultScript, Options, Reply, Script, ScriptInput};
use serde_json::Value;

use crate::alignment::harness::{Client, chat_settings, conversation, marks, text, user};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

const GOODBYE: &str =
    "You are welcome! Should there be any more questions, just come back to me at any time.";

/// Everybody who says thanks is told goodbye in the same words; what is said otherwise is answered by what
/// follows it.
fn polite(ask: &ScriptInput<'_>) -> Reply {
    let last = ask.messages.last().map(ToString::to_string);
    if last.as_ref().is_some_and(|last| last.contains("thank you")) {
        return Reply::text(GOODBYE);
    }
    let newest_mark = last.and_then(|last| marks(&last).pop_first());
    match newest_mark.as_deref().and_then(|mark| mark.split_once('#')) {
        Some((name, number)) => Reply::text(text(name, number.parse::<usize>().unwrap() + 1)),
        None => DefaultScript::default().reply(ask),
    }
}

async fn polite_rig() -> Rig {
    let mut options = Options::default();
    options.scripts.insert(CallerKind::Actor, Arc::new(polite));
    Rig::with(options, &chat_settings()).await
}

/// The last answer of a conversation is no summary of it only because nothing follows it.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_with_the_same_last_answer_stay_separate() {
    let mut rig = polite_rig().await;
    let mut other: Vec<Value> = vec![message("user", "Before we begin: thank you (other#0).")];
    Client::new(&mut rig).send(&other).await;

    let mut all = conversation("it", 40);
    for turn in (1..40).step_by(2) {
        Client::new(&mut rig).send(&all[..turn]).await;
    }
    all.push(message("user", "That is all, thank you."));
    let last = Client::new(&mut rig).send(&all).await;
    assert!(!last.in_block.is_empty() && last.answer == GOODBYE);

    other.extend([message("assistant", GOODBYE), user("other", 2)]);
    for restart in [false, true] {
        if restart {
            rig.restart().await;
        }
        let sent_request = Client::new(&mut rig).send(&other).await;
        assert!(
            sent_request.in_block.is_empty(),
            "restart {restart}: {:?}",
            sent_request.in_block
        );
        // One that was never seen before, with the same answer in it.
        let third = [
            user("third", 0),
            message("assistant", GOODBYE),
            user("third", restart.into()),
        ];
        let sent_request = Client::new(&mut rig).send(&third).await;
        assert!(
            sent_request.in_block.is_empty(),
            "restart {restart}: {:?}",
            sent_request.in_block
        );
    }
}
