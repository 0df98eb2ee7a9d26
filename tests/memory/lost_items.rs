//! `diarist threads show --lost`: what the conversation said and no request holds any more, by name.

use diarist_provider::{CallerKind, Observer, ObserverStyle, Options};
use serde_json::Value;

use crate::memory::reflecting::threads;
use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

/// The number that the user says in this turn and never again.
fn ticket(turn: usize) -> String {
    format!("ZX-{}", 1_040 + turn)
}

fn with_tickets(conversation: &SampleConversation, turn: usize) -> Value {
    let mut body = conversation.body(turn);
    let messages = body["messages"].as_array_mut().unwrap();
    let users = messages
        .iter_mut()
        .filter(|message| message["role"] == "user");
    for (at, message) in users.enumerate() {
        let text = message["content"].as_str().unwrap();
        message["content"] = format!("My ticket is {}. {text}", ticket(at + 1)).into();
    }
    body
}

/// A conversation whose Observer forgets every other line.
async fn forgetful(settings: &[(&str, &str)]) -> (Rig, String) {
    let thresholds = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "20000"),
    ];
    let rig = Rig::with(Options::default(), &[&thresholds, settings].concat()).await;
    let style = ObserverStyle::Forgetful;
    let forgetful = Observer { style };
    rig.provider.script(CallerKind::Observer, forgetful);
    let conversation = SampleConversation::new("ada");
    for turn in 1..=2 * ACTIVE {
        let answer = rig.send(&with_tickets(&conversation, turn)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.quiet().await;
    }
    let sent = String::from_utf8(rig.last().body.to_vec()).unwrap();
    (rig, sent)
}

/// The rows of the list: item, and whether it is important.
fn rows(text: &str) -> Vec<(&str, bool)> {
    let (_, table) = text.split_once("\nitem ").unwrap();
    let (_, rows) = table.split_once('\n').unwrap();
    let rows = rows.lines().take_while(|line| !line.is_empty());
    rows.map(|line| {
        let item = line.split("  ").next().unwrap();
        (item, line.contains(" yes "))
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_show_lost_lists_items_that_no_request_contains() {
    let (rig, sent) = forgetful(&[]).await;
    let (text, done) = threads(&rig, &["show", "1", "--lost"]);
    assert!(done, "{text}");
    let listed = rows(&text);
    let (mut lost, mut held) = (0, 0);
    for number in 1..=2 * ACTIVE {
        let ticket = ticket(number);
        let is_listed = listed.contains(&(ticket.as_str(), true));
        assert_ne!(
            sent.contains(&ticket),
            is_listed,
            "{ticket}\n{text}\n{sent}"
        );
        if is_listed {
            lost += 1;
        } else {
            held += 1;
        }
    }
    assert!(lost > 1 && held > 1, "{text}");
    assert!(text.contains("Their text is not stored"), "{text}");
    let (text, done) = threads(&rig, &["show", "1", "--lost", "--json"]);
    assert!(!done, "the list has no such form: {text}");

    // The audit and the log have none of them.
    eventually("a line of an observation", || !rig.audit("kept").is_empty()).await;
    let audit = std::fs::read_to_string(rig.folder.path().join("audit.jsonl")).unwrap();
    assert!(!audit.contains("ZX-"), "{audit}");

    let output = rig.operator(&["threads", "forget", "1"]).await;
    assert!(output.contains("forgotten"), "{output}");
    assert_eq!(rig.number("SELECT count(lost) FROM parts").await, 0);
}

/// What a raw message says again is not lost, where its text is stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_in_a_stored_raw_message_is_not_listed_as_lost() {
    let (rig, _) = forgetful(&[("MEMORY__KEEP_MESSAGES", "always")]).await;
    let listed = |rig: &Rig| {
        let (text, done) = threads(rig, &["show", "1", "--lost"]);
        assert!(done, "{text}");
        let rows = rows(&text);
        let first = rows.iter().find(|(item, _)| item.starts_with("ZX-"));
        (first.map(|(item, _)| (*item).to_owned()), text.clone())
    };
    let (Some(ticket), text) = listed(&rig) else {
        panic!("nothing is lost")
    };
    // Those of the newest turn are not recorded yet.
    assert!(text.contains(" of them is not stored"), "{text}");
    let conversation = SampleConversation::new("ada");
    let turn = 2 * ACTIVE + 1;
    let mut body = with_tickets(&conversation, turn);
    let newest = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
    newest["content"] = format!("Look at {ticket} again.").into();
    let mut next = body.clone();
    for _ in 0..2 {
        let answer = rig.send(&next).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.quiet().await;
        // A message is recorded once a longer request has it.
        let messages = next["messages"].as_array_mut().unwrap();
        messages.push(serde_json::json!({"role": "assistant", "content": "I did."}));
        messages.push(serde_json::json!({"role": "user", "content": "Thank you."}));
    }
    let (_, after) = listed(&rig);
    assert!(
        rows(&text).iter().any(|(item, _)| *item == ticket),
        "{text}"
    );
    assert!(
        !rows(&after).iter().any(|(item, _)| *item == ticket),
        "{after}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_listed_as_lost_before_a_message_is_replaced() {
    let rig = Rig::with(Options::default(), &[]).await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns(&conversation, 1..=2).await;
    let (text, done) = threads(&rig, &["show", "1", "--lost"]);
    assert!(done && text.contains("nothing is lost"), "{text}");
}
