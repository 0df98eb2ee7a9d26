//! `scope = "resource"`: what one conversation of a user learned is there in the user's next one, as
//! another conversation's, and nowhere else.

use diarist::store::{Admin as _, ForgetTarget, Forgetting as _, SqliteStore};
use diarist_provider::Options;
use serde_json::Value;

use crate::memory::rig::{Answer, Rig};
use crate::memory::tools::{ACTIVE, SampleConversation};

/// Who the user is, said by the application in front.
pub const USER: &str = "x-user";

pub const ME: &str = "Bearer sk-test";

/// Turns after which something is observed for sure.
pub const LEARNED: usize = 4;

pub const SHARED: [(&str, &str); 5] = [
    ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
    ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
    ("MEMORY__SCOPE", "resource"),
    ("MEMORY__OTHER_CONVERSATIONS", "900"),
    ("IDENTITY__RESOURCE__HEADER", USER),
];

pub async fn shared() -> Rig {
    let mut settings = SHARED.to_vec();
    settings.push(("IDENTITY__RESOURCE__SET_BY", "application"));
    Rig::with(Options::default(), &settings).await
}

pub fn as_user<'a>(user: &'a str, thread: &'a str) -> [(&'static str, &'a str); 2] {
    [(USER, user), ("x-diarist-thread", thread)]
}

/// A message of a forwarded body.
pub fn message(body: &str, index: usize) -> Value {
    let body: Value = serde_json::from_str(body).unwrap();
    body["messages"][index].clone()
}

/// What a body tells of other conversations; empty where it tells nothing.
pub fn peer_memory(body: &str) -> String {
    let text = message(body, 1);
    let text = text["content"].as_str().unwrap_or_default();
    let Some((_, rest)) = text.split_once("<diarist-others>") else {
        return String::new();
    };
    rest.split_once("</diarist-others>").unwrap().0.to_owned()
}

impl Rig {
    pub fn last_body(&self) -> String {
        self.bodies().pop().unwrap()
    }

    pub fn bodies(&self) -> Vec<String> {
        let text = |body: &[u8]| String::from_utf8(body.to_vec()).unwrap();
        self.got().iter().map(|got| text(&got.body)).collect()
    }

    /// A turn of a user's conversation; what the provider got.
    pub async fn turn(&self, user: &str, conversation: &SampleConversation, turn: usize) -> String {
        let name = conversation.name.clone();
        self.play_turns_as(ME, &as_user(user, &name), conversation, turn..=turn)
            .await;
        self.last_body()
    }

    pub async fn learn(&self, user: &str, conversation: &SampleConversation) {
        let name = conversation.name.clone();
        self.play_turns_as(ME, &as_user(user, &name), conversation, 1..=LEARNED)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_conversation_begins_with_memory_of_the_users_other_conversations() {
    let rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    assert!(
        rig.bodies().iter().all(|body| peer_memory(body).is_empty()),
        "nobody else to tell of"
    );

    let body = rig.turn("u1", &bob, 1).await;
    let peer_text = peer_memory(&body);
    assert!(peer_text.contains(&ada.canary()), "{body}");
    assert!(
        peer_text.contains("<diarist-conversation last="),
        "{peer_text}"
    );
    assert!(
        !body.contains("<current-task>"),
        "a task is nobody else's: {body}"
    );
    assert!(!body.contains("Continue from:"), "{body}");
    // The client's own messages stand as they were sent.
    let sent: Value = bob.body(1);
    assert_eq!(message(&body, 0), sent["messages"][0]);
    assert_eq!(message(&body, 2), sent["messages"][1]);
    let lines = rig.audited(LEARNED + 1).await;
    let line = lines.last().unwrap();
    assert_eq!(
        (&line["others"], &line["cause"]),
        (&1.into(), &"others".into())
    );
    assert_eq!(line["reason"], "others");
    assert!(line["others_tokens"].as_u64().unwrap() > 100, "{line}");

    // Nobody else's.
    for user in ["u2", "u1-2"] {
        let body = rig.turn(user, &SampleConversation::new("eve"), 1).await;
        assert!(!body.contains(&ada.canary()), "{user}: {body}");
    }
    let nobody = rig.send(&SampleConversation::new("dan").body(1)).await;
    assert_eq!(nobody.memory(), "watching");
    let other = [(USER, "u1")];
    let tenant = rig
        .send_as(
            "Bearer sk-other",
            &other,
            &SampleConversation::new("dan").body(1),
        )
        .await;
    assert_eq!(tenant.memory(), "watching");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_introduction_stays_until_the_conversation_has_its_own_observations() {
    let mut rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    let first = rig.turn("u1", &bob, 1).await;
    let block = message(&first, 1);
    // What the other learns meanwhile is not told before the next activation (INV-PREFIX).
    for turn in LEARNED + 1..=LEARNED + 3 {
        rig.turn("u1", &ada, turn).await;
    }
    let second = rig.turn("u1", &bob, 2).await;
    assert_eq!(message(&second, 1), block);
    rig.restart().await;
    // The same bytes from a process that knows nothing (INV-SAME).
    assert_eq!(rig.turn("u1", &bob, 2).await, second);
    assert_eq!(rig.turn("u1", &bob, 1).await, first);
    let third = rig.turn("u1", &bob, 3).await;
    assert_eq!(message(&third, 1), block);
    // One that begins now is told the newest.
    let cyd = rig.turn("u1", &SampleConversation::new("cyd"), 1).await;
    assert_ne!(peer_memory(&cyd), peer_memory(&first));
    for name in ["ada", "bob"] {
        let known = peer_memory(&cyd).contains(&SampleConversation::new(name).canary());
        assert!(known, "{name}: {cyd}");
    }

    let mut last = third;
    for turn in 4..=ACTIVE {
        last = rig.turn("u1", &bob, turn).await;
    }
    let text = message(&last, 1)["content"].as_str().unwrap().to_owned();
    let (own, rest) = text.split_once("<diarist-others>").unwrap();
    assert!(
        own.contains(&bob.canary()),
        "its own observations come first: {text}"
    );
    assert!(!own.contains(&ada.canary()), "{text}");
    let (peer_text, hints) = rest.split_once("</diarist-others>").unwrap();
    assert!(
        peer_text.contains(&ada.canary()) && !peer_text.contains(&bob.canary()),
        "{peer_text}"
    );
    assert!(!hints.contains(&ada.canary()), "{hints}");
    let tip = rig.turn("u1", &bob, ACTIVE).await;
    assert_eq!(tip, last);
    rig.restart().await;
    assert_eq!(rig.turn("u1", &bob, ACTIVE).await, last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_under_another_name_gets_no_peer_memory() {
    let rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    let mut last = String::new();
    for turn in 1..=ACTIVE {
        last = rig.turn("u1", &bob, turn).await;
    }
    assert!(peer_memory(&last).contains(&ada.canary()), "{last}");
    let mut fork = bob.body(ACTIVE + 1);
    let question_index = fork["messages"].as_array().unwrap().len() - 1;
    fork["messages"][question_index]["content"] = "Let us go another way.".into();
    let same = rig.send_as(ME, &as_user("u1", "bob"), &fork).await;
    assert_eq!(same.memory(), "active");
    assert!(
        !peer_memory(&rig.last_body()).is_empty(),
        "a branch of the same conversation"
    );
    fork["messages"][question_index]["content"] = "Let us go a third way.".into();
    let answer = rig.send_as(ME, &as_user("u1", "fork"), &fork).await;
    assert_eq!(answer.memory(), "active");
    let body = rig.last_body();
    assert!(peer_memory(&body).is_empty(), "{body}");
    let text = message(&body, 1)["content"].as_str().unwrap().to_owned();
    assert!(
        text.contains(&bob.canary()),
        "what both have in common is remembered: {text}"
    );
}

/// Clients put reminders into the newest message and take them out with the next request: the message
/// that was the newest when a snapshot was made does not come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_changes_its_newest_message_still_gets_peer_memory() {
    let mut rig = shared().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.learn("u1", &ada).await;
    let mut activated = 0;
    for turn in 1..=ACTIVE + 3 {
        if turn == 5 {
            rig.restart().await;
        }
        let mut body = bob.body(turn);
        let newest = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
        let question = newest["content"].as_str().unwrap().to_owned();
        newest["content"] = format!("{question} <reminder>Be brief.</reminder>").into();
        rig.send_as(ME, &as_user("u1", "bob"), &body).await;
        rig.quiet().await;
        let sent = rig.last_body();
        assert!(
            peer_memory(&sent).contains(&ada.canary()),
            "turn {turn}: {sent}"
        );
        activated +=
            usize::from(message(&sent, 2)["content"] != bob.body(1)["messages"][1]["content"]);
    }
    assert!(activated > 1, "with observations of its own as well");
}

#[tokio::test(flavor = "multi_thread")]
async fn side_calls_sub_agents_and_unverified_users_get_no_introduction() {
    let rig = shared().await;
    rig.learn("u1", &SampleConversation::new("ada")).await;
    let reading = [(USER, "u1"), ("x-diarist-memory", "read")];
    let child = [
        (USER, "u1"),
        ("x-session-id", "ses_child1"),
        ("x-parent-session-id", "ses_parent"),
    ];
    let again = as_user("u1", "ada");
    let unvouched = [("x-diarist-resource", "u1")];
    let cases: [(&str, &[(&str, &str)]); 4] = [
        ("a side call", &reading),
        ("a sub-agent", &child),
        ("the same conversation, begun anew", &again),
        ("a user whom nobody vouches for", &unvouched),
    ];
    for (what, headers) in cases {
        let conversation = SampleConversation::new(&what.replace(' ', "-"));
        let answer = rig.send_as(ME, headers, &conversation.body(1)).await;
        assert_eq!(answer.status, 200, "{what}");
        assert!(
            peer_memory(&rig.last_body()).is_empty(),
            "{what}: {}",
            rig.last_body()
        );
        rig.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_thread_scope_no_peer_memory_is_sent() {
    let mut settings = SHARED.to_vec();
    settings.push(("IDENTITY__RESOURCE__SET_BY", "application"));
    settings[2].1 = "thread";
    let rig = Rig::with(Options::default(), &settings).await;
    rig.learn("u1", &SampleConversation::new("ada")).await;
    let body = rig.turn("u1", &SampleConversation::new("bob"), 1).await;
    assert_eq!(body, SampleConversation::new("bob").body(1).to_string());
    assert_eq!(rig.number("SELECT count(*) FROM digests").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_conversation_disappears_from_peer_memory() {
    let mut rig = shared().await;
    let (ada, bob, cyd) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
        SampleConversation::new("cyd"),
    );
    rig.learn("u1", &ada).await;
    for turn in 1..=ACTIVE {
        rig.turn("u1", &bob, turn).await;
    }
    let begun = rig.turn("u1", &cyd, 1).await;
    assert!(peer_memory(&begun).contains(&ada.canary()), "{begun}");
    rig.stop().await;

    let url = format!("sqlite://{}", rig.file().display());
    let store = SqliteStore::open(&url).await.unwrap();
    let threads = store.threads(100).await.unwrap();
    let ada_is = threads
        .iter()
        .find(|t| t.key.as_deref() == Some("ada"))
        .unwrap();
    let mut database = rig.database().await;
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM told WHERE lineage = $1")
        .bind(ada_is.lineage)
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(held >= 2, "an opener and a snapshot of its own: {held}");
    let target = ForgetTarget::Thread(ada_is.lineage);
    let receipt = store.forget_target(&target, 0).await.unwrap().unwrap();
    assert!(receipt.counts["snapshots"] >= u64::try_from(held).unwrap());
    let words = "SELECT count(*) FROM snapshots WHERE instr(segments, 'ada@canary77') > 0";
    assert_eq!(rig.number(words).await, 0);
    assert_eq!(rig.number("SELECT count(*) FROM told AS t WHERE NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.id = t.snapshot)").await, 0);
    store.close().await;

    rig.start().await;
    let body = rig.turn("u1", &bob, ACTIVE + 1).await;
    assert!(!body.contains(&ada.canary()), "{body}");
    let text = message(&body, 1)["content"].as_str().unwrap().to_owned();
    assert!(text.contains(&bob.canary()), "its own is not lost: {text}");
    for (conversation, turn) in [(&cyd, 2), (&SampleConversation::new("dan"), 1)] {
        let body = rig.turn("u1", conversation, turn).await;
        assert!(!body.contains(&ada.canary()), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_parallel_conversations_get_each_others_memory_and_never_their_own() {
    let rig = shared().await;
    let conversations = [
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    ];
    let play = |conversation: SampleConversation| {
        let rig = &rig;
        async move {
            for turn in 1..=ACTIVE + 2 {
                let name = conversation.name.clone();
                let answer: Answer = rig
                    .send_as(ME, &as_user("u1", &name), &conversation.body(turn))
                    .await;
                assert_eq!(answer.status, 200);
                rig.quiet().await;
            }
        }
    };
    tokio::join!(
        play(conversations[0].clone()),
        play(conversations[1].clone())
    );
    let mut peer_counts = [0, 0];
    for body in rig.bodies() {
        let last: Value = serde_json::from_str(&body).unwrap();
        let last = last["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .to_string();
        let own = usize::from(last.contains(&conversations[1].canary()));
        let others = peer_memory(&body);
        assert!(!others.contains(&conversations[own].canary()), "{body}");
        peer_counts[own] += usize::from(others.contains(&conversations[1 - own].canary()));
    }
    assert!(peer_counts[0] > 0 && peer_counts[1] > 0, "{peer_counts:?}");
}
