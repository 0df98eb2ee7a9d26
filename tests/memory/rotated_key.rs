//! A key that was rotated: the operator says so with `diarist tenants`, and a running server follows.

use std::process::{Command, Output, Stdio};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

const OLD: &str = "Bearer sk-the-old-key";
const NEW: &str = "Bearer sk-the-new-key";
const NEWER: &str = "Bearer sk-the-newer-key";

/// Only looks: no lookup of a test leaves a row.
const READ: (&str, &str) = ("x-diarist-memory", "read");

/// `diarist tenants` on the database of `rig`, with the keys in its environment.
fn tenants(rig: &Rig, arguments: &[&str]) -> Output {
    Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
        .env_clear()
        .env("HOME", rig.folder.path())
        .env("OLD", OLD)
        .env("NEW", "sk-the-new-key")
        .env("NEWER", "sk-the-newer-key\n")
        .arg("tenants")
        .args(arguments)
        .args(["--database", &format!("sqlite://{}", rig.file().display())])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// What it says; it has to succeed.
fn tenants_ok(rig: &Rig, arguments: &[&str]) -> String {
    let output = tenants(rig, arguments);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// Why it refuses.
fn tenants_fail(rig: &Rig, arguments: &[&str]) -> String {
    let output = tenants(rig, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

async fn memory_state(rig: &Rig, conversation: &SampleConversation, key: &str) -> String {
    let answer = rig
        .send_as(key, &[READ], &conversation.body(ACTIVE + 1))
        .await;
    answer.memory().to_owned()
}

/// Until the server has heard of it.
async fn becomes(rig: &Rig, conversation: &SampleConversation, key: &str, memory: &str) {
    let began = std::time::Instant::now();
    while memory_state(rig, conversation, key).await != memory {
        assert!(
            began.elapsed() < crate::memory::rig::PATIENCE,
            "{key} never was {memory}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_keeps_its_memory() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns_as(OLD, &[], &conversation, 1..=ACTIVE).await;
    // Another replica on the same database, with nothing in its memory.
    let settings = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
    ];
    let replica = Rig::beside(&rig, &settings).await;

    // The new key was used before anybody said anything: it has a conversation of its own.
    rig.play_turns_as(NEW, &[], &conversation, 1..=2).await;
    assert_eq!(
        memory_state(&rig, &conversation, NEW).await,
        "watching; mode=read"
    );
    let output = tenants_ok(&rig, &["alias", "env:OLD", "env:NEW"]);
    assert!(output.contains("has 1 conversation of its own"), "{output}");
    for rig in [&rig, &replica] {
        becomes(rig, &conversation, NEW, "active; mode=read").await;
        // What is sent is what would be sent for the old one, byte for byte.
        let sent = rig.last().body.clone();
        assert_eq!(
            memory_state(rig, &conversation, OLD).await,
            "active; mode=read"
        );
        assert_eq!(rig.last().body, sent);
        assert_eq!(rig.last().credential.reveal(), OLD);
    }

    // It goes on from there, and writes where the old one did.
    let lineages = "SELECT count(*) FROM lineages";
    let before = rig.number(lineages).await;
    let answer = rig
        .play_turns_as(NEW, &[], &conversation, ACTIVE + 1..=ACTIVE + 2)
        .await;
    assert_eq!(answer.memory(), "active");
    assert_eq!(rig.number(lineages).await, before);
    assert_eq!(rig.last().credential.reveal(), NEW, "with its own key");

    // A second rotation is one more link.
    tenants_ok(&rig, &["alias", "env:NEW", "env:NEWER"]);
    becomes(&rig, &conversation, NEWER, "active; mode=read").await;
    assert_eq!(
        memory_state(&rig, &conversation, "Bearer sk-a-stranger").await,
        "watching; mode=read"
    );
    let list = tenants_ok(&rig, &["list"]);
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(!list.contains("sk-"), "{list}");
    let tenant = rig.audited(1).await[0]["tenant"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(list.lines().nth(1).unwrap().starts_with(&tenant), "{list}");
    assert_eq!(list.matches(&tenant).count(), 3, "{list}");

    // Taken back, the key is its own again, and so is what it had.
    tenants_ok(&rig, &["unalias", "env:NEW"]);
    for rig in [&rig, &replica] {
        becomes(rig, &conversation, NEW, "watching; mode=read").await;
        becomes(rig, &conversation, NEWER, "watching; mode=read").await;
        assert_eq!(
            memory_state(rig, &conversation, OLD).await,
            "active; mode=read"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_that_makes_no_sense_is_refused() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for key in [OLD, NEW] {
        rig.play_turns_as(key, &[], &conversation, 1..=2).await;
    }
    let lines = rig.audited(4).await;
    let name = |at: usize| lines[at]["tenant"].as_str().unwrap();
    let (old, new) = (name(0), name(2));

    assert!(tenants_fail(&rig, &["alias", old, old]).contains("same tenant"));
    assert!(tenants_fail(&rig, &["alias", old, "000000000000"]).contains("nothing is remembered"));
    tenants_ok(&rig, &["alias", old, new]);
    assert!(tenants_ok(&rig, &["alias", old, new]).contains("already"));
    assert!(tenants_fail(&rig, &["alias", new, old]).contains("make a circle"));
    assert!(tenants_fail(&rig, &["alias", "env:NEWER", new]).contains("already an alias of"));
    assert!(tenants_fail(&rig, &["unalias", old]).contains("not an alias"));
    // A key as an argument stays in the shell's history; it is not said again.
    let refusal = tenants_fail(&rig, &["alias", old, "sk-the-newer-key"]);
    assert!(
        refusal.contains("history of your shell") && !refusal.contains("newer-key"),
        "{refusal}"
    );
    assert!(tenants_fail(&rig, &["alias", old, "env:NOWHERE"]).contains("is not set"));
    assert!(tenants_fail(&rig, &["alias", "-", "-"]).contains("one key"));
    let not_there = tenants_fail(&rig, &["alias", old, "env:NEW", "--header", "x-session-id"]);
    assert!(
        not_there.contains("not in identity.credentials"),
        "{not_there}"
    );
    assert_eq!(rig.number("SELECT count(*) FROM aliases").await, 1);
    let keys = "SELECT count(*) FROM aliases WHERE instr(hex(name) || hex(tenant), '736B2D') > 0";
    assert_eq!(rig.number(keys).await, 0, "no key is kept");
}

/// A receipt holds for the tenant that was served when it was written.
#[tokio::test(flavor = "multi_thread")]
async fn an_alias_under_which_something_forgotten_would_come_back_is_refused() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for key in [OLD, NEW] {
        rig.play_turns_as(key, &[], &conversation, 1..=2).await;
    }
    let alias = ["alias", "env:OLD", "env:NEW"];
    let forget = |tenant: &str| tenants_ok(&rig, &["forget", tenant]);
    forget("env:NEW");
    let refusal = tenants_fail(&rig, &alias);
    assert!(refusal.contains("--despite-forgotten"), "{refusal}");
    tenants_ok(&rig, &[&alias[..], &["--despite-forgotten"]].concat());

    // The other way round: what the old one forgot while it served the new one.
    tenants_ok(&rig, &["unalias", "env:NEW"]);
    tenants_ok(&rig, &[&alias[..], &["--despite-forgotten"]].concat());
    forget("env:OLD");
    let refusal = tenants_fail(&rig, &["unalias", "env:NEW"]);
    assert!(
        refusal.contains("1 in `diarist threads forgotten`"),
        "{refusal}"
    );
    tenants_ok(&rig, &["unalias", "env:NEW", "--despite-forgotten"]);
    assert_eq!(rig.number("SELECT count(*) FROM aliases").await, 0);
    let added = tenants_ok(
        &rig,
        &["alias", "env:NEWER", "env:OLD", "--despite-forgotten"],
    );
    assert!(added.contains("has no memory yet"), "{added}");
}

/// The database is gone for a while: what was last heard holds.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_alias_stays_valid_while_the_database_is_unreadable() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    rig.play_turns_as(OLD, &[], &conversation, 1..=ACTIVE + 1)
        .await;
    tenants_ok(&rig, &["alias", "env:OLD", "env:NEW"]);
    becomes(&rig, &conversation, NEW, "active; mode=read").await;
    // With its log, or SQLite would read from there what the file no longer says.
    for beside in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{beside}", rig.file().display())).unwrap();
    }
    let page = "not a database";
    std::fs::write(rig.file(), page).unwrap();
    // Longer than it takes to ask again.
    let started = std::time::Instant::now();
    eventually("another look at the aliases", || {
        started.elapsed().as_secs() > 5
    })
    .await;
    let answer = rig
        .send_as(NEW, &[READ], &conversation.body(ACTIVE + 1))
        .await;
    assert!(answer.memory().starts_with("active"), "{}", answer.memory());
}
