//! Whole conversations against judge, cache and replay: made-up ones always, recorded ones where
//! the folder with them lies beside the repository. With CI set, the tests fail where it does not.

use std::path::Path;

use diarist_provider::{
    CallerKind, Conversation, PromptCache, Replay, Reply, Rules, Script, Style, estimate_tokens,
    judge,
};
use serde_json::Value;

use crate::provider::client::{post, provider};
use crate::support::skipped::skipped;

fn made_up() -> Vec<Conversation> {
    let travel = (1..4).map(|seed| Conversation::generate(seed, 60, Style::Travel));
    let coding = (1..4).map(|seed| Conversation::generate(seed, 60, Style::Coding));
    travel.chain(coding).collect()
}

fn recorded() -> Vec<Conversation> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let mut all = Vec::new();
    for name in ["tau_airline.jsonl", "tau_long.jsonl", "swe_agent.jsonl"] {
        match std::fs::read_to_string(folder.join(name)) {
            Ok(lines) => all.extend(Conversation::read_all(&lines).unwrap()),
            Err(_) => skipped(&format!(
                "../shared/data/{name} is not beside the project; its conversations are not judged"
            )),
        }
    }
    all
}

#[test]
#[ignore = "slow"]
fn the_judge_accepts_every_conversation_at_every_turn() {
    for conversation in made_up() {
        for sent in conversation.requests() {
            let body = conversation.request(sent, "gpt-4o", true).to_string();
            judge(body.as_bytes(), &Rules::strict())
                .unwrap_or_else(|refusal| panic!("{} at {sent}: {refusal:?}", conversation.id));
        }
    }
    for conversation in recorded() {
        // Long ones are judged at some of their turns: each verdict reads the whole history.
        let step = (conversation.messages.len() / 40).max(1);
        for sent in conversation.requests().step_by(step) {
            let body = conversation.request(sent, "gpt-4o", true).to_string();
            judge(body.as_bytes(), &Rules::default())
                .unwrap_or_else(|refusal| panic!("{} at {sent}: {refusal:?}", conversation.id));
        }
    }
}

#[test]
fn the_seed_decides_the_generated_conversation() {
    let made = |seed| Conversation::generate(seed, 30, Style::Travel).messages;
    assert_eq!(made(5), made(5));
    assert_ne!(made(5), made(6));
}

#[test]
fn made_up_conversations_are_long_and_use_tools_in_parallel() {
    for conversation in made_up() {
        let calls = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        let parallel = conversation
            .messages
            .iter()
            .filter(|message| calls(message) > 1);
        assert!(parallel.count() >= 5, "{}", conversation.id);
        assert_eq!(conversation.facts.len(), 20, "{}", conversation.id);
        for fact in &conversation.facts {
            let content = conversation.messages[fact.at]["content"].as_str().unwrap();
            assert!(content.contains(&fact.words));
        }
        let body = conversation.request(conversation.messages.len(), "m", false);
        let accepted = judge(body.to_string().as_bytes(), &Rules::default()).unwrap();
        assert!(
            accepted.prompt.tokens(&estimate_tokens()) > 15_000,
            "{}",
            conversation.id
        );
    }
}

#[test]
fn lines_that_are_no_conversations_are_errors() {
    assert!(Conversation::read_all("\n{\"id\": \"a\", \"messages\": []}\n\n").is_ok());
    assert!(Conversation::read_all("{\"id\": \"a\"}").is_err());
}

/// A growing conversation pays each turn only for what is new.
#[test]
fn the_cache_covers_the_part_of_a_history_already_sent() {
    for conversation in made_up().into_iter().chain(recorded()) {
        let mut cache = PromptCache::new(estimate_tokens());
        let mut before = 0;
        let step = (conversation.messages.len() / 40).max(1);
        for sent in conversation.requests().step_by(step) {
            let body = conversation.request(sent, "gpt-4o", false).to_string();
            let accepted = judge(body.as_bytes(), &Rules::default()).unwrap();
            let measured = cache.read_and_write("key", "gpt-4o", &accepted.prompt);
            let expected = if before < 1024 { 0 } else { before / 128 * 128 };
            assert_eq!(
                measured.cached_tokens, expected,
                "{} at {sent}",
                conversation.id
            );
            before = measured.prompt_tokens;
        }
    }
}

#[tokio::test]
async fn a_replay_gives_the_recorded_answer_after_a_shortened_history() {
    for conversation in made_up().into_iter().take(2) {
        let provider = provider().await;
        provider.script(
            CallerKind::Actor,
            Replay::from_conversations([&conversation]),
        );
        for sent in conversation.requests().filter(|sent| *sent > 12).step_by(7) {
            // All but the system message and the last rounds is gone, as behind an observation block.
            let mut request = conversation.request(sent, "gpt-4o", false);
            let from = (1..sent - 6)
                .rev()
                .find(|at| conversation.messages[*at]["role"] == "user")
                .unwrap();
            let mut messages = vec![conversation.messages[0].clone()];
            messages.extend_from_slice(&conversation.messages[from..sent]);
            request["messages"] = messages.into();
            let answer: Value = post(&provider, &request).await.json().await.unwrap();
            let reply = Reply::recorded(&answer["choices"][0]["message"]);
            assert_eq!(
                reply,
                Reply::recorded(&conversation.messages[sent]),
                "at {sent}"
            );
        }
    }
}

/// The script trait is for tests to implement as well: a closure is one.
#[test]
fn a_closure_is_a_script() {
    fn takes(_: impl Script) {}
    takes(|_: &diarist_provider::ScriptInput<'_>| Reply::text("x"));
}
