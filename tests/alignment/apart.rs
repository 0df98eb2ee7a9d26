//! Users of one key whose conversations hold the same messages: nobody is told what another one said, and
//! nobody what was taken back. The shapes are those by which it once happened.

use diarist_provider::{CallerKind, DefaultScript, Reply};
use serde_json::Value;

use crate::alignment::harness::{Client, SentRequest, chat_settings, conversation, roomy, user};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

type Headers = Vec<(&'static str, &'static str)>;

/// The answer that everybody gets to this question: a canned text, or one out of a response cache.
const CANNED: &str = "Refunds reach your bank within a week, depending on the bank. You find the number of the \
    refund in the confirmation that we have sent to you by mail, and our team answers questions about it on \
    every working day between nine and five. Please have the number of your order at hand when you call.";

/// Messages of a script: long enough to tell something, the same for everybody.
fn scripted() -> Vec<Value> {
    vec![
        message("assistant", CANNED),
        message(
            "user",
            "And what do I do if the refund does not arrive in time?",
        ),
        message(
            "assistant",
            "Then you write to us, and we look into it with the bank. It takes two days more, and you hear from us.",
        ),
    ]
}

/// Sends `sent`; the upstream gives `answer`, or something that nobody else is given.
async fn send(
    rig: &mut Rig,
    headers: &Headers,
    sent: &[Value],
    answer: Option<&Value>,
) -> SentRequest {
    match answer {
        Some(answer) => {
            let reply = Reply::recorded(answer);
            rig.provider.script(
                CallerKind::Actor,
                move |_: &diarist_provider::ScriptInput<'_>| reply.clone(),
            );
        }
        None => rig
            .provider
            .script(CallerKind::Actor, DefaultScript::default()),
    }
    let mut client = Client::new(rig);
    client.headers.clone_from(headers);
    client.send(sent).await
}

/// A conversation of `messages`, turn by turn, each answer given by the upstream.
async fn hold(rig: &mut Rig, headers: &Headers, messages: &[Value]) {
    for count in 1..=messages.len() {
        if messages[count - 1]["role"] == "user" {
            send(rig, headers, &messages[..count], messages.get(count)).await;
        }
    }
}

/// Alice's conversation ends with the script, and all of it but that is observed.
async fn alice(rig: &mut Rig, headers: &Headers) -> Vec<Value> {
    let mut messages = conversation("alice", 41);
    messages.push(message("assistant", "What else may I do for you?"));
    messages.push(message("user", "When does the refund reach my bank?"));
    messages.extend(scripted());
    messages.push(user("alice", 46));
    hold(rig, headers, &messages).await;
    messages
}

fn names() -> [(Headers, Headers); 2] {
    let named = |name| vec![("x-diarist-thread", name)];
    [(vec![], vec![]), (named("conv-a"), named("conv-b"))]
}

/// Bob's first request that is recorded comes with turns of his own and the same three messages.
#[tokio::test(flavor = "multi_thread")]
async fn messages_shared_with_another_user_prove_no_conversation() {
    for (hers, his) in names() {
        let mut rig = roomy().await;
        let messages = alice(&mut rig, &hers).await;
        for turns in [2, 12] {
            let mut bob = conversation("bob", turns);
            bob.push(message("user", "When does the refund reach my bank?"));
            bob.extend(scripted());
            bob.push(user("bob", 20));
            let sent_request = send(&mut rig, &his, &bob, None).await;
            assert!(
                sent_request.in_block.is_empty(),
                "{turns} turns: {:?}",
                sent_request.in_block
            );
            assert!(!sent_request.body.0.contains("alice#"));
        }
        let sent_request = send(&mut rig, &hers, &messages, None).await;
        assert!(
            sent_request.in_block.contains("alice#0"),
            "she has her memory"
        );
    }
}

/// The last answer of Alice's conversation is one that Bob has as well.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_answer_that_two_users_got_is_not_taken_as_a_summary() {
    let asks = message("user", "When does the refund reach my bank?");
    let answer = message("assistant", CANNED);
    let now = message("user", "And what did I tell you about myself?");
    for (hers, his) in names() {
        for first_turn in ["never seen", "off", "read", "at once"] {
            let mut rig = Rig::with(diarist_provider::Options::default(), &chat_settings()).await;
            let mut messages = conversation("alice", 40);
            messages.push(asks.clone());
            messages.push(answer.clone());
            hold(&mut rig, &hers, &messages).await;
            let mut headers = his.clone();
            if matches!(first_turn, "off" | "read") {
                headers.push(("x-diarist-memory", first_turn));
            }
            if first_turn != "never seen" {
                send(
                    &mut rig,
                    &headers,
                    std::slice::from_ref(&asks),
                    Some(&answer),
                )
                .await;
            }
            for sent in [
                vec![asks.clone(), answer.clone(), now.clone()],
                vec![
                    message("user", format!("You once told me:\n{CANNED}")),
                    now.clone(),
                ],
            ] {
                let sent_request = send(&mut rig, &his, &sent, None).await;
                assert!(
                    sent_request.in_block.is_empty(),
                    "{first_turn}: {:?}",
                    sent_request.in_block
                );
            }
        }
    }
}

/// The second conversation that gets an answer is known as the second one, whatever its request was.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_answer_also_given_to_any_other_request_proves_no_conversation() {
    let asks = message("user", "When does the refund reach my bank?");
    let summary = message("user", CANNED);
    let now = message("user", "And what did I tell you about myself?");
    for (request, is_contested) in [
        // Only Alice has got it: so it would be told.
        (None, false),
        (Some(asks.clone()), true),
        // A request without a message of its own has no history.
        (Some(message("system", "Say when refunds come.")), true),
    ] {
        let mut rig = roomy().await;
        let mut messages = conversation("alice", 40);
        messages.extend([asks.clone(), message("assistant", CANNED)]);
        hold(&mut rig, &vec![], &messages).await;
        if let Some(request) = &request {
            let (off, answer) = (vec![("x-diarist-memory", "off")], messages.last());
            send(&mut rig, &off, std::slice::from_ref(request), answer).await;
        }
        let sent_request = send(&mut rig, &vec![], &[summary.clone(), now.clone()], None).await;
        assert_eq!(
            sent_request.in_block.is_empty(),
            is_contested,
            "{request:?}"
        );
    }
}

/// Thinking is not compared, so it does not make a summary of a short answer: anybody can guess what is left.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn thinking_text_does_not_make_a_short_answer_a_summary() {
    let think =
        |thought: &str, answer: &str| format!("<think>{}</think>{answer}", thought.repeat(60));
    let now = message("user", "And what did I tell you about myself?");
    // What is long without the thinking is a summary.
    for (visible, gets_memory) in [("Done.", false), ("", false), (CANNED, true)] {
        let mut rig = roomy().await;
        let mut messages = conversation("alice", 40);
        messages.push(message("user", "Do it."));
        messages.push(message("assistant", think("Let me see. ", visible)));
        hold(&mut rig, &vec![], &messages).await;
        for role in ["user", "system"] {
            let guess = message(role, think("Whatever. ", visible));
            let sent_request = send(&mut rig, &vec![], &[guess, now.clone()], None).await;
            assert_eq!(
                !sent_request.in_block.is_empty(),
                gets_memory,
                "{visible:?}, {role}"
            );
            assert_eq!(sent_request.body.0.contains("alice#"), gets_memory);
        }
        messages.push(user("alice", 42));
        let hers = send(&mut rig, &vec![], &messages, None).await;
        assert!(hers.in_block.contains("alice#0"), "she has her memory");
    }
}

/// What a user said is told to the conversation it was said in, and to no other; and no more once the user
/// has taken it back.
#[tokio::test(flavor = "multi_thread")]
async fn an_edited_or_removed_message_is_no_longer_in_the_block() {
    let mut rig = roomy().await;
    let all = conversation("it", 49);
    hold(&mut rig, &vec![], &all[..41]).await;
    let before = send(&mut rig, &vec![], &all[..43], all.get(43)).await;
    assert!(before.in_block.contains("it#4"), "it is observed");
    let mut edited = all.clone();
    edited[4] = user("instead", 4);
    let mut removed = all.clone();
    removed.drain(4..6);
    for sent in [&edited[..45], &edited[..47], &removed[..45]] {
        let sent_request = send(&mut rig, &vec![], sent, None).await;
        assert!(
            !sent_request.body.0.contains("it#4)"),
            "{:?}",
            sent_request.in_block
        );
        assert!(!sent_request.in_block.contains("it#4"));
    }
}

/// Two conversations begin alike. Alice's client has dropped the beginning, and Bob edits a message of it: what Alice has
/// said since then proves her conversation, and not what both said.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_edit_takes_no_memory_from_another_conversation_with_the_same_beginning() {
    for (hers, his) in names() {
        let mut rig = roomy().await;
        let continued = |name, turns| {
            let mut messages = conversation("both", 24);
            messages.extend(conversation(name, turns));
            messages
        };
        let (alice, mut bob) = (continued("alice", 24), continued("bob", 21));
        hold(&mut rig, &hers, &alice[..41]).await;
        hold(&mut rig, &his, &bob).await;
        let window = send(&mut rig, &hers, &alice[10..43], alice.get(43)).await;
        assert!(window.in_block.contains("both#4"), "{:?}", window.in_block);
        bob[4] = user("instead", 4);
        let edited = send(&mut rig, &his, &bob, None).await;
        assert!(!edited.in_block.contains("both#4"));
        let next = send(&mut rig, &hers, &alice[10..45], alice.get(45)).await;
        assert!(next.in_block.contains("both#4"), "{:?}", next.in_block);
        assert!(!next.body.0.contains("bob#"));
    }
}

/// `memory.evidence` says which evidence counts.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn the_evidence_setting_decides_which_requests_get_memory() {
    for (level, named, gets_memory) in [
        ("strict", true, false),
        ("names", false, false),
        ("names", true, true),
        ("content", false, true),
    ] {
        let [one, two] = chat_settings();
        let settings = [one, two, ("MEMORY__EVIDENCE", level)];
        let mut rig = Rig::with(diarist_provider::Options::default(), &settings).await;
        let headers: Headers = if named {
            vec![("x-diarist-thread", "conv-a")]
        } else {
            Vec::new()
        };
        let all = conversation("it", 45);
        hold(&mut rig, &headers, &all[..41]).await;
        let whole = send(&mut rig, &headers, &all[..43], all.get(43)).await;
        assert!(!whole.in_block.is_empty(), "all of it is in the request");
        let sent_request = send(&mut rig, &headers, &all[30..45], None).await;
        assert_eq!(
            !sent_request.in_block.is_empty(),
            gets_memory,
            "{level}, named: {named}"
        );
    }
}

/// A fork has a name of its own. Its client drops its beginning and takes back a little of the common part: what continues it is
/// still not the conversation it was forked from.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_with_another_name_stays_a_conversation_of_its_own() {
    let named = |name| vec![("x-diarist-thread", name)];
    let mut rig = roomy().await;
    let mut messages = conversation("alice", 40);
    hold(&mut rig, &named("trunk"), &messages).await;
    let mut turn = 0;
    let mut go_on = async |messages: &mut Vec<Value>, from: usize| {
        messages.push(user("fork", turn));
        let answer = crate::alignment::harness::assistant("fork", turn + 1);
        let headers = named("fork");
        let sent = send(&mut rig, &headers, &messages[from..], Some(&answer)).await;
        messages.push(answer);
        turn += 2;
        sent
    };
    for _ in 0..2 {
        go_on(&mut messages, 0).await;
    }
    messages.drain(36..38);
    for _ in 0..3 {
        let sent = go_on(&mut messages, 8).await;
        assert!(sent.in_block.contains("alice#0"), "{}", sent.reason);
    }
}
