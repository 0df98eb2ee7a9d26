//! The peer memory of a conversation stays as it was first sent: as long as the conversation has nothing of its own, over
//! activations that no threshold asked for, and after it was too much for a model.

use diarist_provider::Options;
use serde_json::{Value, json};

use crate::memory::resource::{ME, SHARED, as_user, message, peer_memory, shared};
use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

/// A few short words each, the client's and the model's in turn.
fn chat_body(texts: &[&str]) -> Value {
    let mut messages = vec![json!({"role": "system", "content": "You are brief."})];
    for (index, text) in texts.iter().enumerate() {
        let role = ["user", "assistant"][index % 2];
        messages.push(json!({"role": role, "content": text}));
    }
    json!({"model": "gpt-test", "messages": messages})
}

async fn rig_sharing_with(settings: &[(&'static str, &'static str)]) -> Rig {
    let mut all = SHARED.to_vec();
    all.push(("IDENTITY__RESOURCE__SET_BY", "application"));
    all.extend_from_slice(settings);
    Rig::with(Options::default(), &all).await
}

impl Rig {
    /// What the provider got of this request of `u1`, under this name or none.
    async fn send_and_get(&self, thread: &str, body: &Value) -> String {
        let named = as_user("u1", thread);
        let headers = &named[..if thread.is_empty() { 1 } else { 2 }];
        let answer = self.send_as(ME, headers, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.quiet().await;
        self.last_body()
    }

    fn tokens(&self) -> u32 {
        self.last().prompt_usage.unwrap().prompt_tokens
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_that_begin_equally_get_their_own_peer_memory() {
    let mut rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    let hi = chat_body(&["hi"]);
    let first = rig.send_and_get("first", &hi).await;
    assert!(peer_memory(&first).contains(&ada.canary()), "{first}");
    rig.learn("u1", &bob).await;
    // The same request goes out as the same bytes, whoever sends it (INV-SAME).
    assert_eq!(rig.send_and_get("second", &hi).await, first);
    for name in ["second", "third"] {
        let body = chat_body(&["hi", "Hello!", &format!("What do you know of me, {name}?")]);
        let sent = rig.send_and_get(name, &body).await;
        let peer_text = peer_memory(&sent);
        let newest = peer_text.contains(&ada.canary()) && peer_text.contains(&bob.canary());
        assert!(newest, "{name} was told what is old: {sent}");
        rig.restart().await;
        assert_eq!(rig.send_and_get(name, &body).await, sent);
    }
    // The one that it was said to keeps it.
    let sent = rig
        .send_and_get("first", &chat_body(&["hi", "Hello!", "And me, first?"]))
        .await;
    assert_eq!(message(&sent, 1), message(&first, 1));

    // Without a name a beginning is its own until something else has followed it.
    let hey = chat_body(&["hey"]);
    let begun = rig.send_and_get("", &hey).await;
    let cyd = SampleConversation::new("cyd");
    rig.learn("u1", &cyd).await;
    let sent = rig
        .send_and_get("", &chat_body(&["hey", "Hello!", "Who am I?"]))
        .await;
    assert_eq!(message(&sent, 1), message(&begun, 1));
    for question in ["Who are they?", "Who are you?"] {
        let sent = rig
            .send_and_get("", &chat_body(&["hey", "Hello!", question]))
            .await;
        assert!(
            peer_memory(&sent).contains(&cyd.canary()),
            "{question}: {sent}"
        );
        rig.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_begun_raw_gets_no_peer_memory_before_its_own_observations() {
    let mut rig = shared().await;
    let (bob, nameless, hi) = (
        SampleConversation::new("bob"),
        SampleConversation::new("dan"),
        chat_body(&["hi"]),
    );
    rig.turn("u1", &bob, 1).await;
    rig.send_and_get("first", &hi).await;
    rig.send_and_get("", &nameless.body(1)).await;
    let ada = SampleConversation::new("ada");
    rig.learn("u1", &ada).await;
    for turn in 2..=3 {
        // Nothing comes between what the client keeps (INV-PREFIX).
        let sent = rig.turn("u1", &bob, turn).await;
        assert_eq!(sent, bob.body(turn).to_string(), "turn {turn}");
        let sent = rig.send_and_get("", &nameless.body(turn)).await;
        assert_eq!(sent, nameless.body(turn).to_string(), "turn {turn}");
        rig.restart().await;
    }
    let body = chat_body(&["hi", "Hello!", "What do you know of me?"]);
    assert_eq!(rig.send_and_get("first", &body).await, body.to_string());
    // Another conversation that only says the same at first is told what there is.
    let body = chat_body(&["hi", "Hello!", "What do you know of me, second?"]);
    let sent = rig.send_and_get("second", &body).await;
    assert!(peer_memory(&sent).contains(&ada.canary()), "{sent}");
    let mut last = String::new();
    for turn in 4..=ACTIVE {
        last = rig.turn("u1", &bob, turn).await;
    }
    assert!(peer_memory(&last).contains(&ada.canary()), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_memory_that_made_a_request_too_long_is_not_sent_again() {
    let mut rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    // What the same request weighs with nothing in front of it.
    rig.turn("u2", &bob, 1).await;
    rig.turn("u2", &bob, 2).await;
    let raw = rig.tokens();
    let begun = rig.turn("u1", &bob, 1).await;
    assert!(peer_memory(&begun).contains(&ada.canary()), "{begun}");
    rig.provider.rules(|rules| rules.window = Some(raw + 20));
    let second = rig.turn("u1", &bob, 2).await;
    assert_eq!(second, bob.body(2).to_string());
    rig.provider.rules(|rules| rules.window = None);
    for turn in 3..=4 {
        let sent = rig.turn("u1", &bob, turn).await;
        assert_eq!(sent, bob.body(turn).to_string(), "turn {turn}");
        rig.restart().await;
    }
    assert_eq!(
        rig.turn("u1", &bob, 1).await,
        begun,
        "as it went out (INV-SAME)"
    );
    assert_eq!(rig.turn("u1", &bob, 2).await, second);
}

/// Turns after which chunks wait and no threshold is near.
const BUFFERED: usize = 8;

const LATE: [(&str, &str); 3] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000"),
    ("MEMORY__OBSERVATION__BUFFER_TOKENS", "500"),
    ("MEMORY__OBSERVATION__BUFFER_ACTIVATION", "1000"),
];

/// Plays two conversations of `user`. The second was told of the first when it began, and is far from its threshold.
async fn rig_with_buffered(rig: &Rig, user: &str) -> (SampleConversation, SampleConversation) {
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn(user, &ada).await;
    for turn in 1..=BUFFERED {
        let sent = rig.turn(user, &bob, turn).await;
        assert!(
            peer_memory(&sent).contains(&ada.canary()),
            "turn {turn}: {sent}"
        );
    }
    (ada, bob)
}

/// The block of a body, and what it tells of the conversation itself.
fn block(body: &str) -> (String, String) {
    let text = message(body, 1)["content"].as_str().unwrap().to_owned();
    let own = text.split("<diarist-others>").next().unwrap().to_owned();
    (text, own)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_after_a_model_change_keeps_the_peer_memory() {
    let mut settings = LATE.to_vec();
    settings.push(("MEMORY__OBSERVATION__ACTIVATE_ON_MODEL_CHANGE", "true"));
    let mut rig = rig_sharing_with(&settings).await;
    let (ada, mut bob) = rig_with_buffered(&rig, "u1").await;
    bob.model = "gpt-other";
    let mut sent = rig.turn("u1", &bob, BUFFERED + 1).await;
    // A busy machine commits for the next request what this one could not wait for.
    if !block(&sent).1.contains(&bob.canary()) {
        sent = rig.turn("u1", &bob, BUFFERED + 2).await;
    }
    let (whole, own) = block(&sent);
    assert!(own.contains(&bob.canary()), "not activated: {sent}");
    assert!(peer_memory(&sent).contains(&ada.canary()), "{sent}");
    for turn in BUFFERED + 3..=BUFFERED + 4 {
        let sent = rig.turn("u1", &bob, turn).await;
        assert_eq!(block(&sent).0, whole, "turn {turn}");
        rig.restart().await;
    }
    // A fork under another name is not told what was made for this one.
    let mut fork = bob.body(BUFFERED + 5);
    let question_index = fork["messages"].as_array().unwrap().len() - 1;
    fork["messages"][question_index]["content"] = "Let us go another way.".into();
    let sent = rig.send_and_get("fork", &fork).await;
    assert!(peer_memory(&sent).is_empty(), "{sent}");
    assert!(block(&sent).1.starts_with(&own), "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_block_applied_after_an_overflow_keeps_peer_memory_if_it_fits() {
    let mut rig = rig_sharing_with(&LATE).await;
    let mut fitted = 0;
    for user in ["u1", "u2"] {
        rig.provider.rules(|rules| rules.window = None);
        let (ada, bob) = rig_with_buffered(&rig, user).await;
        let room = if fitted == 0 {
            rig.tokens()
        } else {
            fitted - 50
        };
        rig.provider.rules(|rules| rules.window = Some(room));
        let sent = rig.turn(user, &bob, BUFFERED + 1).await;
        let (whole, own) = block(&sent);
        assert!(own.contains(&bob.canary()), "{user}: not applied: {sent}");
        // Where it does not fit as well, it goes first, and stays away.
        assert_eq!(
            peer_memory(&sent).contains(&ada.canary()),
            fitted == 0,
            "{user}: {sent}"
        );
        fitted = rig.tokens();
        rig.provider.rules(|rules| rules.window = None);
        for turn in BUFFERED + 2..=BUFFERED + 3 {
            let sent = rig.turn(user, &bob, turn).await;
            assert_eq!(block(&sent).0, whole, "{user}, turn {turn}");
            rig.restart().await;
        }
    }
    assert!(
        rig.number("SELECT count(*) FROM snapshots WHERE cause = 'overflow'")
            .await
            >= 4
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_made_while_a_client_waits_keeps_the_peer_memory() {
    let mut rig = rig_sharing_with(&[
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "20000"),
        ("MEMORY__OVERFLOW", "observe"),
    ])
    .await;
    let ada = SampleConversation::new("ada");
    let headers = as_user("u1", "ada");
    rig.play_turns_as(ME, &headers, &ada, 1..=24).await;
    let bob = SampleConversation::new("bob");
    let begun = rig.turn("u1", &bob, 1).await;
    assert!(peer_memory(&begun).contains(&ada.canary()), "{begun}");
    rig.provider.rules(|rules| rules.window = Some(6_000));
    let answer = rig.send_as(ME, &as_user("u1", "bob"), &bob.body(20)).await;
    assert_eq!(answer.memory(), "active; rung=awaited", "{}", answer.text());
    rig.quiet().await;
    let sent = rig.last_body();
    let (whole, own) = block(&sent);
    assert!(own.contains(&bob.canary()), "{sent}");
    assert!(peer_memory(&sent).contains(&ada.canary()), "{sent}");
    rig.restart().await;
    assert_eq!(rig.turn("u1", &bob, 20).await, sent);
    assert_eq!(block(&rig.turn("u1", &bob, 21).await).0, whole);
    let rows = "SELECT count(*) FROM snapshots WHERE cause = 'overflow'";
    assert_eq!(
        rig.number(rows).await,
        2,
        "one for this conversation, one for its forks"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_conversation_under_an_old_name_gets_no_old_memory() {
    let mut rig = shared().await;
    let (old, new, other) = (
        SampleConversation::new("old"),
        SampleConversation::new("new"),
        SampleConversation::new("ada"),
    );
    rig.learn("u1", &other).await;
    let headers = as_user("u1", "one-name");
    rig.play_turns_as(ME, &headers, &old, 1..=ACTIVE).await;
    let last = rig.last_body();
    assert!(block(&last).1.contains(&old.canary()), "{last}");
    let before = rig.bodies().len();
    for turn in 1..=ACTIVE + 2 {
        rig.play_turns_as(ME, &headers, &new, turn..=turn).await;
        if turn % 4 == 0 {
            rig.restart().await;
        }
    }
    for body in &rig.bodies()[before..] {
        assert!(!body.contains(&old.canary()), "{body}");
    }
    let last = rig.last_body();
    assert!(block(&last).1.contains(&new.canary()), "{last}");
    assert!(peer_memory(&last).contains(&other.canary()), "{last}");
}

/// What a reload to `scope = "thread"` leaves as it is, and for how long.
#[tokio::test(flavor = "multi_thread")]
async fn peer_memory_stays_until_the_next_activation_after_sharing_is_disabled() {
    let mut rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    let begun = rig.turn("u1", &bob, 1).await;
    rig.set("MEMORY__SCOPE", "thread");
    rig.restart().await;
    let mut last_turn = 0;
    let mut last = begun.clone();
    for turn in 2..=ACTIVE + 2 {
        last = rig.turn("u1", &bob, turn).await;
        if !peer_memory(&last).is_empty() {
            assert_eq!(message(&last, 1), message(&begun, 1));
            last_turn = turn;
        }
    }
    assert!((2..ACTIVE).contains(&last_turn), "{last_turn}");
    assert!(block(&last).1.contains(&bob.canary()), "{last}");
    let new = SampleConversation::new("cyd");
    assert_eq!(rig.turn("u1", &new, 1).await, new.body(1).to_string());
}
