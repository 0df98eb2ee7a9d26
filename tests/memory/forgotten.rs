//! What an operator has forgotten with the real program, while a server runs: nothing of it is used, recorded or
//! left in a file, until the operator lifts it.

use std::sync::Arc;

use diarist_provider::{Behaviour, CallerKind, Failure, Options};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::alignment::harness::set_answer;
use crate::memory::rig::{Answer, Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const LINEAGES: &str = "SELECT count(*) FROM lineages";
const FORGOTTEN: &str = "bypass; reason=forgotten";

impl Rig {
    /// Runs the program as the operator does, on this database; its standard output.
    pub async fn operator(&self, args: &[&str]) -> String {
        self.operator_with(None, args).await
    }

    /// The same, with this folder of failed model calls.
    async fn operator_with(&self, bundles: Option<&std::path::Path>, args: &[&str]) -> String {
        let output = self.run_operator(bundles, args).await;
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {text} {errors}");
        text
    }

    /// As [`Rig::operator`], also if it fails; everything that it says.
    pub async fn operator_output(&self, args: &[&str]) -> std::process::Output {
        self.run_operator(None, args).await
    }

    async fn run_operator(
        &self,
        bundles: Option<&std::path::Path>,
        args: &[&str],
    ) -> std::process::Output {
        tokio::process::Command::new(env!("CARGO_BIN_EXE_diarist"))
            .env_clear()
            .envs([("HOME", "/home/ada")])
            .envs([("DIARIST__IDENTITY__RESOURCE__HEADER", "x-user")])
            .envs([("DIARIST__IDENTITY__RESOURCE__SET_BY", "application")])
            .envs(bundles.map(|folder| ("DIARIST__MEMORY__BUNDLES", folder)))
            .args(args)
            .args(["--database", &self.file().display().to_string()])
            .output()
            .await
            .unwrap()
    }

    /// Sends this turn until the server has noticed what the operator did.
    async fn until_noticed(
        &self,
        headers: &[(&str, &str)],
        conversation: &SampleConversation,
        turn: usize,
        noticed: impl Fn(&str) -> bool,
    ) -> Answer {
        for _ in 0..600 {
            let answer = self
                .send_as("Bearer sk-test", headers, &conversation.body(turn))
                .await;
            if noticed(answer.memory()) {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("the server did not notice");
    }

    /// Whether the database or its journal has these words.
    fn has_on_disk(&self, words: &str) -> bool {
        ["", "-wal"].iter().any(|suffix| {
            let path = format!("{}{suffix}", self.file().display());
            let bytes = std::fs::read(path).unwrap_or_default();
            memchr::memmem::find(&bytes, words.as_bytes()).is_some()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_forgotten_conversation_gets_no_memory_until_the_operator_lifts_it() {
    let mut rig = Rig::small().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    assert_eq!(rig.play_turns(&ada, 1..=ACTIVE).await.memory(), "active");
    assert_eq!(rig.play_turns(&bob, 1..=ACTIVE).await.memory(), "active");
    assert!(
        rig.has_on_disk(&ada.canary()),
        "its observations hold the word"
    );

    let output = rig.operator(&["threads", "forget", "1"]).await;
    assert!(
        output.starts_with("Forgotten: conversation 1 of tenant "),
        "{output}"
    );
    assert!(
        output.contains("Receipt 1, ") && output.contains("conversations 1"),
        "{output}"
    );
    for kind in [
        "messages",
        "parts",
        "snapshots",
        "requests",
        "events",
        "costs",
    ] {
        assert!(output.contains(&format!("{kind} ")), "{kind}: {output}");
    }
    assert!(output.contains("hold no text of it any more"), "{output}");
    assert!(!rig.has_on_disk(&ada.canary()));

    rig.until_noticed(&[], &ada, ACTIVE + 1, |memory| memory == FORGOTTEN)
        .await;
    assert_eq!(rig.last().body, ada.body(ACTIVE + 1).to_string().as_bytes());
    let answer = rig.send(&ada.body(ACTIVE + 2)).await;
    let line = rig.audit_entry(&answer).await;
    assert_eq!(
        (&line["reason"], &line["verdict"]),
        (&"forgotten".into(), &"warm".into())
    );
    // It goes on, its client edits and shortens it, and it comes after a restart: nothing of it is recorded.
    for restarted in [false, true] {
        if restarted {
            rig.restart().await;
        }
        assert_eq!(
            rig.play_turns(&ada, ACTIVE + 2..=ACTIVE + 4).await.memory(),
            FORGOTTEN
        );
        let mut shortened = ada.body(ACTIVE + 5);
        shortened["messages"].as_array_mut().unwrap().drain(1..8);
        assert_eq!(
            rig.send(&shortened).await.memory(),
            FORGOTTEN,
            "its beginning is dropped"
        );
        let mut edited = ada.body(ACTIVE + 5);
        edited["messages"][1]["content"] = "Something else.".into();
        assert_eq!(
            rig.send(&edited).await.memory(),
            FORGOTTEN,
            "its first message is edited"
        );
        rig.quiet().await;
        assert_eq!(rig.number(LINEAGES).await, 1, "that of bob");
        assert!(!rig.has_on_disk(&ada.canary()));
    }
    assert_eq!(
        rig.play_turns(&bob, ACTIVE + 1..=ACTIVE + 1).await.memory(),
        "active"
    );
    let new = rig.play_turns(&SampleConversation::new("cyd"), 1..=2).await;
    assert_eq!(new.memory(), "watching", "a new conversation of the tenant");

    let lines = rig.audit("forgot");
    let [line] = lines.as_slice() else {
        panic!("one line: {lines:?}");
    };
    assert_eq!(
        (&line["forgot"], &line["lifted"]),
        (&"thread".into(), &false.into())
    );
    assert_eq!(
        (&line["receipt"], &line["subject"]),
        (&1.into(), &"1".into())
    );
    assert!(line["deleted"]["messages"].as_u64().unwrap() > 10, "{line}");

    let output = rig.operator(&["threads", "unforget", "1"]).await;
    assert!(output.starts_with("Receipt 1 is lifted"), "{output}");
    rig.until_noticed(&[], &ada, ACTIVE + 6, |memory| memory == "watching")
        .await;
    rig.play_turns(&ada, ACTIVE + 7..=ACTIVE + 7).await;
    assert_eq!(rig.number(LINEAGES).await, 3);
    let listed = rig.operator(&["threads", "forgotten", "--json"]).await;
    assert!(listed.contains("\"lifted\":\"2"), "{listed}");
    eventually("the line of the lifting", || rig.audit("forgot").len() == 2).await;
    assert_eq!(rig.audit("forgot")[1]["lifted"], true);
}

/// The model summarises a conversation after it was forgotten, and its client goes on from the summary.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_a_forgotten_conversation_does_not_bring_it_back() {
    let mut rig = Rig::small().await;
    let ada = SampleConversation::new("ada");
    assert_eq!(rig.play_turns(&ada, 1..=ACTIVE).await.memory(), "active");
    rig.operator(&["threads", "forget", "1"]).await;
    rig.until_noticed(&[], &ada, ACTIVE + 1, |memory| memory == FORGOTTEN)
        .await;
    let summaries = ["first", "second"].map(|number| {
        let words = "what was agreed on, and what is still to be done. ".repeat(8);
        format!("The {number} summary: {} wants {words}", ada.canary())
    });
    let mut asking = ada.body(ACTIVE + 2);
    for (at, summary) in summaries.iter().enumerate() {
        set_answer(
            &rig,
            Some(&json!({"role": "assistant", "content": summary})),
        );
        assert_eq!(rig.send(&asking).await.memory(), FORGOTTEN);
        set_answer(&rig, None);
        if at == 0 {
            // What the process knows goes; what it has stored stays.
            rig.restart().await;
        }
        let mut messages = vec![json!({"role": "user", "content": format!("So far:\n{summary}")})];
        for turn in 1..=ACTIVE {
            let body = json!({"model": "gpt-test", "messages": messages});
            assert_eq!(rig.send(&body).await.memory(), FORGOTTEN, "turn {turn}");
            let next = SampleConversation::new("eve").messages(turn + 1);
            messages.extend_from_slice(&next[next.len() - 2..]);
        }
        asking = json!({"model": "gpt-test", "messages": messages});
    }
    rig.quiet().await;
    assert_eq!(rig.number(LINEAGES).await, 0);
    assert!(!rig.has_on_disk(&ada.canary()));

    rig.operator(&["threads", "unforget", "1"]).await;
    rig.until_noticed(&[], &ada, ACTIVE + 3, |memory| memory == "watching")
        .await;
    let again = json!({"model": "gpt-test", "messages": [
        {"role": "user", "content": format!("So far:\n{}", summaries[1])}]});
    assert_eq!(rig.send(&again).await.memory(), "watching");
}

/// The model gives a forgotten conversation a canned answer, which others have as the answer of a turn.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_common_answer_of_a_forgotten_conversation_does_not_forget_others() {
    let mut rig = Rig::small().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    let greeting = "I am the assistant of Example, and I help with all its products. ".repeat(6);
    let canned = json!({"role": "assistant", "content": greeting});
    let greeted = |turn: usize| {
        let mut body = bob.body(turn);
        if turn > 1 {
            body["messages"][2] = canned.clone();
        }
        body
    };
    assert_eq!(rig.play_turns(&ada, 1..=ACTIVE).await.memory(), "active");
    for turn in 1..=ACTIVE {
        set_answer(&rig, (turn == 1).then_some(&canned));
        rig.send(&greeted(turn)).await;
        set_answer(&rig, None);
        rig.quiet().await;
    }
    let output = rig.operator(&["threads", "forget", "1"]).await;
    assert!(output.starts_with("Forgotten"), "{output}");
    rig.until_noticed(&[], &ada, ACTIVE + 1, |memory| memory == FORGOTTEN)
        .await;
    assert_eq!(
        rig.send(&greeted(ACTIVE + 1)).await.memory(),
        "active",
        "control"
    );
    set_answer(&rig, Some(&canned));
    assert_eq!(rig.send(&ada.body(ACTIVE + 2)).await.memory(), FORGOTTEN);
    set_answer(&rig, None);
    for restarted in [false, true] {
        if restarted {
            rig.restart().await;
        }
        assert_eq!(
            rig.send(&greeted(ACTIVE + 1)).await.memory(),
            "active",
            "{restarted}"
        );
        // A new conversation that is greeted so is remembered from its first turn on.
        let new = SampleConversation::new(if restarted { "cyd" } else { "eve" });
        let known = rig.number(LINEAGES).await;
        let mut memory = String::new();
        for turn in 1..=ACTIVE {
            set_answer(&rig, (turn == 1).then_some(&canned));
            let mut body = new.body(turn);
            if turn > 1 {
                body["messages"][2] = canned.clone();
            }
            rig.send(&body).await.memory().clone_into(&mut memory);
            set_answer(&rig, None);
            rig.quiet().await;
        }
        assert_eq!(memory, "active", "{restarted}");
        assert_eq!(rig.number(LINEAGES).await, known + 1);
    }
}

/// A client that gives its conversation a name may write a new one under it, with nothing of the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_conversation_under_a_forgotten_name_gets_no_memory() {
    let rig = Rig::small().await;
    let (ada, other) = (
        SampleConversation::new("ada"),
        SampleConversation::new("other"),
    );
    let trip = [("x-diarist-thread", "trip")];
    rig.play_turns_as("Bearer sk-test", &trip, &ada, 1..=3)
        .await;
    rig.operator(&["threads", "forget", "trip"]).await;
    rig.until_noticed(&trip, &other, 3, |memory| memory == FORGOTTEN)
        .await;
    let answer = rig.play_turns(&other, 3..=3).await;
    assert_eq!(answer.memory(), "watching", "without the name");
}

/// The Observer answers after its conversation was forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn an_observation_for_a_forgotten_conversation_is_not_stored() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let gate = Arc::new(Semaphore::new(0));
    let held = Behaviour {
        gate: Some(Arc::clone(&gate)),
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Observer, held);
    let is_called = || !rig.provider.record_for(CallerKind::Observer).is_empty();
    for turn in 1..=ACTIVE {
        let answer = rig.send(&conversation.body(turn)).await;
        assert_eq!(answer.status, 200);
        if turn > 1 {
            let recorded = "SELECT coalesce(sum(times), 0) FROM requests";
            rig.until_at_least(turn, recorded).await;
        }
    }
    eventually("a call of the Observer", is_called).await;
    rig.operator(&["threads", "forget", "1"]).await;
    gate.add_permits(1_000);
    rig.quiet().await;
    for table in [
        "SELECT count(*) FROM parts",
        "SELECT count(*) FROM jobs",
        LINEAGES,
    ] {
        assert_eq!(rig.number(table).await, 0, "{table}");
    }
    assert!(!rig.has_on_disk(&conversation.canary()));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_user_and_a_tenant_are_forgotten_with_all_their_conversations() {
    let settings = [
        SMALL[0],
        SMALL[1],
        ("IDENTITY__RESOURCE__HEADER", "x-user"),
        ("IDENTITY__RESOURCE__SET_BY", "application"),
        ("MEMORY__SCOPE", "resource"),
    ];
    let rig = Rig::with(Options::default(), &settings).await;
    let me = "Bearer sk-test";
    let user = |name: &'static str| [("x-user", name)];
    for (name, conversation) in [("u1", "ada"), ("u1", "bea"), ("u2", "cyd")] {
        rig.play_turns_as(
            me,
            &user(name),
            &SampleConversation::new(conversation),
            1..=ACTIVE,
        )
        .await;
    }
    rig.play_turns_as(
        "Bearer sk-other",
        &[],
        &SampleConversation::new("dan"),
        1..=ACTIVE,
    )
    .await;
    assert_eq!(rig.number(LINEAGES).await, 4);

    let output = rig
        .operator(&["threads", "forget", "--resource", "u1"])
        .await;
    assert!(output.contains("conversations 2"), "{output}");
    for gone in ["ada", "bea"] {
        assert!(
            !rig.has_on_disk(&SampleConversation::new(gone).canary()),
            "{gone}"
        );
    }
    let (u1, u2) = (user("u1"), user("u2"));
    rig.until_noticed(&u1, &SampleConversation::new("ada"), ACTIVE + 1, |memory| {
        memory == FORGOTTEN
    })
    .await;
    let answer = rig
        .play_turns_as(me, &u1, &SampleConversation::new("eve"), 1..=2)
        .await;
    assert_eq!(answer.memory(), FORGOTTEN, "a new conversation of the user");
    let answer = rig
        .play_turns_as(
            me,
            &u2,
            &SampleConversation::new("cyd"),
            ACTIVE + 1..=ACTIVE + 1,
        )
        .await;
    assert_eq!(answer.memory(), "active");

    let tenants = rig.operator(&["tenants", "--json"]).await;
    let tenant = rig.tenant("sk-test");
    let label = diarist::history::Scope::format_tenant_label(&tenant);
    assert!(tenants.contains(&label), "{tenants}");
    let output = rig.operator(&["tenants", "forget", &label]).await;
    assert!(
        output.starts_with(&format!("Forgotten: tenant {label}. Receipt 2")),
        "{output}"
    );
    rig.until_noticed(&u2, &SampleConversation::new("cyd"), ACTIVE + 2, |memory| {
        memory == FORGOTTEN
    })
    .await;
    assert_eq!(
        rig.play_turns(&SampleConversation::new("fay"), 1..=2)
            .await
            .memory(),
        FORGOTTEN
    );
    rig.quiet().await;
    let left = rig.everything().await;
    let hash: String = tenant.iter().map(|byte| format!("{byte:02X}")).collect();
    for (table, rows) in &left {
        let named = rows.iter().any(|row| row.contains(&hash));
        assert!(!named, "{table} names the tenant: {rows:?}");
    }
    let dan = SampleConversation::new("dan");
    let other = rig.play_turns_as("Bearer sk-other", &[], &dan, ACTIVE + 1..=ACTIVE + 1);
    assert_eq!(other.await.memory(), "active");
}

/// Conversations that nobody continued for so long are deleted, and nothing keeps them from beginning anew.
#[tokio::test(flavor = "multi_thread")]
async fn old_conversations_and_old_jobs_are_deleted() {
    let mut rig = Rig::small().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.play_turns(&ada, 1..=ACTIVE).await;
    rig.play_turns(&bob, 1..=ACTIVE).await;
    rig.stop().await;
    let mut database = rig.database().await;
    let age = "UPDATE lineages SET last_ms = last_ms - 91 * 24 * 3600 * 1000 WHERE id = 1";
    sqlx::query(age).execute(&mut database).await.unwrap();
    let job = "INSERT INTO jobs (tenant, resource, kind, from_link, from_count, to_link, to_count, state, due_ms,
                    leased, fence, attempts, empty_answers, message_tokens, parts, model, tip, tip_count, payload)
               SELECT tenant, resource, 'chunk', parent, count - 1, link, count, 'open', 9000000000000, 0, 0, 0, 0, 9, '[]',
                    'm', link, count, 'ada@canary77 waits'
               FROM nodes WHERE lineage = 1 ORDER BY count DESC LIMIT 1";
    sqlx::query(job).execute(&mut database).await.unwrap();
    drop(database);
    // By itself nothing is deleted because of its age but what waits for a model.
    rig.start().await;
    rig.until("SELECT count(*) FROM jobs", |jobs| jobs == 0)
        .await;
    assert_eq!(rig.number(LINEAGES).await, 2);
    rig.stop().await;
    rig.set("STORE__RETENTION", "90d");
    rig.start().await;
    rig.until(LINEAGES, |left| left <= 1).await;
    rig.stop().await;
    assert!(!rig.has_on_disk(&ada.canary()) && rig.has_on_disk(&bob.canary()));
    rig.start().await;
    assert_eq!(
        rig.play_turns(&ada, ACTIVE + 1..=ACTIVE + 2).await.memory(),
        "watching"
    );
    assert_eq!(rig.number(LINEAGES).await, 2);
    assert!(
        rig.metric("diarist_database_bytes{file=\"database\"}")
            .await
            > 50_000.0
    );
}

/// A conversation moves to another database, and goes on there as if it had always been there.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_moves_to_another_database() {
    let mut rig = Rig::small().await;
    let ada = SampleConversation::new("ada");
    rig.play_turns(&ada, 1..=ACTIVE).await;
    let sent = rig.last().body.clone();
    let exported = rig.operator(&["threads", "export", "1"]).await;
    assert!(
        exported.contains("\"format\": \"diarist conversation 1\""),
        "{exported}"
    );
    let file = rig.folder.path().join("ada.json");
    std::fs::write(&file, exported).unwrap();
    let file = file.display().to_string();
    rig.stop().await;
    for suffix in ["", "-wal", "-shm"] {
        // Some of them are not there.
        let _gone = std::fs::remove_file(format!("{}{suffix}", rig.file().display()));
    }
    // A database that a server has made, with a conversation in it: ids differ.
    rig.start().await;
    rig.play_turns(&SampleConversation::new("bob"), 1..=ACTIVE)
        .await;
    rig.stop().await;
    let output = rig.operator(&["threads", "import", &file]).await;
    assert!(output.starts_with("Imported as conversation 2"), "{output}");
    rig.start().await;
    rig.send(&ada.body(ACTIVE)).await;
    assert_eq!(rig.last().body, sent, "the same bytes");
    assert_eq!(
        rig.play_turns(&ada, ACTIVE + 1..=ACTIVE + 1).await.memory(),
        "active"
    );
}

/// Files of failed model calls hold text. They go, and a call that is running leaves none.
#[tokio::test(flavor = "multi_thread")]
async fn failed_model_calls_are_forgotten_too() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("bundles");
    let bundles = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    let mut settings = SMALL.to_vec();
    settings.push(("MEMORY__BUNDLES", folder.to_str().unwrap()));
    let rig = Rig::with(Options::default(), &settings).await;
    let failing = |gate: Option<&Arc<Semaphore>>| Behaviour {
        gate: gate.map(Arc::clone),
        fail: Some(Failure {
            status: 400,
            retry_after: None,
            body: None,
        }),
        ..Behaviour::default()
    };
    rig.provider.inject(CallerKind::Observer, failing(None));
    let conversation = SampleConversation::new("ada");
    for turn in 1..=4 {
        rig.send(&conversation.body(turn)).await;
    }
    eventually("a failed call", || bundles() > 0).await;
    let output = rig.operator_with(Some(&folder), &["threads", "forget", "1"]);
    let output = output.await;
    assert!(output.contains("all failed model calls"), "{output}");
    assert_eq!(bundles(), 0, "{output}");

    let rig = Rig::with(Options::default(), &settings).await;
    let gate = Arc::new(Semaphore::new(0));
    rig.provider
        .inject(CallerKind::Observer, failing(Some(&gate)));
    for turn in 1..=4 {
        rig.send(&conversation.body(turn)).await;
    }
    let is_called = || !rig.provider.record_for(CallerKind::Observer).is_empty();
    eventually("a call that waits", is_called).await;
    rig.operator_with(Some(&folder), &["threads", "forget", "1"])
        .await;
    gate.add_permits(1_000);
    rig.quiet().await;
    assert_eq!(bundles(), 0, "of the running call");
}
