//! Audit lines in the database: they are those of the file, the command answers the same from them, `--why` prints the
//! very observations that a request carried, and they go with what is forgotten or too old.

use std::time::Duration;

use diarist::history::Scope;
use diarist_provider::Options;
use serde_json::Value;
use sqlx::Row as _;

use crate::memory::rig::{Answer, Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation};

const STORED: (&str, &str) = ("AUDIT__STORE_RETENTION", "30d");
const LINES: &str = "SELECT count(*) FROM audit_lines";

async fn rig() -> Rig {
    Rig::with(Options::default(), &[SMALL[0], SMALL[1], STORED]).await
}

fn id(answer: &Answer) -> &str {
    answer.headers["x-diarist-request-id"].to_str().unwrap()
}

/// All lines in the database.
async fn lines(rig: &Rig) -> Vec<String> {
    let mut database = rig.database().await;
    let rows = sqlx::query("SELECT line FROM audit_lines ORDER BY id")
        .fetch_all(&mut database)
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn run(rig: &Rig, statement: &'static str) {
    let mut database = rig.database().await;
    sqlx::query(statement).execute(&mut database).await.unwrap();
}

/// Asks for the list of models, which most upstreams give to anybody.
async fn models(rig: &Rig, credential: Option<&str>) {
    let mut request = rig.client.get(rig.url("/v1/models"));
    if let Some(credential) = credential {
        request = request.header("authorization", credential);
    }
    let answer = request.send().await.unwrap();
    answer.bytes().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn passed_requests_of_unaccepted_credentials_are_not_stored() {
    let rig = rig().await;
    models(&rig, Some("Bearer sk-test")).await;
    // A first request is recorded with the second one.
    rig.play_turns(&SampleConversation::new("ada"), 1..=2).await;
    for credential in [None, Some("Bearer sk-nobody"), Some("Bearer sk-test")] {
        models(&rig, credential).await;
    }
    rig.quiet().await;
    let is_pass = |line: &&String| line.contains("\"path\":\"/v1/models\"");
    assert_eq!(lines(&rig).await.iter().filter(is_pass).count(), 1);
    let path = rig.folder.path().join("audit.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("\"path\":\"/v1/models\"").count(), 4, "{text}");
    // It goes with its tenant.
    let label = Scope::format_tenant_label(&rig.tenant("sk-test"));
    rig.operator(&["tenants", "forget", &label]).await;
    assert_eq!(lines(&rig).await.iter().filter(is_pass).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn database_and_audit_file_have_the_same_lines_and_reports() {
    let rig = rig().await;
    let (ada, bob) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
    );
    rig.play_turns(&ada, 1..=ACTIVE).await;
    rig.play_turns_as("Bearer sk-bob", &[], &bob, 1..=3).await;
    models(&rig, Some("Bearer sk-test")).await;
    let answer = rig.send(&ada.body(ACTIVE + 1)).await;
    rig.audit_entry(&answer).await;
    rig.quiet().await;
    let path = rig.folder.path().join("audit.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let file: Vec<&str> = text.lines().collect();
    assert_eq!(lines(&rig).await, file);
    for kind in ["\"wrote\":", "\"call\":", "\"path\":", "\"request_id\":"] {
        assert!(file.iter().any(|line| line.contains(kind)), "{kind}");
    }

    let path = path.display().to_string();
    for report in [
        &["--format", "json"][..],
        &["--by", "thread", "--format", "csv"],
        &["--format", "html"],
        &["--check", "errors==0"],
    ] {
        let of_file = rig
            .operator(&[&["audit", path.as_str()], report].concat())
            .await;
        let of_store = rig
            .operator(&[&["audit", "--store"], report].concat())
            .await;
        assert_eq!(of_store, of_file, "{report:?}");
    }
    let why = ["--why", id(&answer)];
    let of_file = rig
        .operator(&[&["audit", path.as_str()], &why[..]].concat())
        .await;
    let of_store = rig
        .operator(&[&["audit", "--store"], &why[..]].concat())
        .await;
    let (explained, hint) = of_file.split_once("\nTo read its observations").unwrap();
    assert!(hint.contains("--store"), "{of_file}");
    assert!(of_store.starts_with(explained), "{of_store}");
    let block = of_store.split_once("bytes).\n\n").unwrap().1;
    let sent: Value = serde_json::from_slice(&rig.last().body).unwrap();
    let mut contents = sent["messages"].as_array().unwrap().iter();
    assert!(
        contents.any(|message| message["content"]
            .as_str()
            .is_some_and(|it| it.trim_end() == block.trim_end())),
        "the very block: {block}"
    );
    assert!(block.contains(&ada.canary()), "{block}");
    assert!(!of_file.contains(&ada.canary()));
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_why_reads_the_file_and_reports_a_deleted_block() {
    let rig = rig().await;
    let conversation = SampleConversation::new("ada");
    let answer = rig.play_turns(&conversation, 1..=ACTIVE).await;
    rig.audit_entry(&answer).await;
    rig.quiet().await;
    let why = ["audit", "--store", "--why", id(&answer)];
    run(&rig, "DELETE FROM audit_lines").await;
    let path = rig.folder.path().join("audit.jsonl").display().to_string();
    let from_file = rig
        .operator(&[&why[..], &["--audit", &path]].concat())
        .await;
    assert!(
        from_file.contains("It carried these observations"),
        "{from_file}"
    );
    // Another tenant's snapshot has the number: this is the database of others.
    run(&rig, "UPDATE snapshots SET tenant = zeroblob(32)").await;
    let foreign = rig
        .operator(&[&why[..], &["--audit", &path]].concat())
        .await;
    assert!(
        foreign.contains("are not in this database any more"),
        "{foreign}"
    );
    run(&rig, "DELETE FROM snapshots").await;
    let gone = rig
        .operator(&[&why[..], &["--audit", &path]].concat())
        .await;
    assert!(gone.contains("are not in this database any more"), "{gone}");
    assert!(!gone.contains(&conversation.canary()), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_why_prints_no_other_block_with_the_same_number() {
    let rig = rig().await;
    let conversation = SampleConversation::new("ada");
    let named = [("x-diarist-resource", "ada")];
    let answer = rig
        .play_turns_as("Bearer sk-test", &named, &conversation, 1..=ACTIVE)
        .await;
    rig.audit_entry(&answer).await;
    rig.quiet().await;
    let why = ["audit", "--store", "--why", id(&answer)];
    let own = rig.operator(&why).await;
    assert!(own.contains(&conversation.canary()), "{own}");
    for other in [
        // Another user of the tenant.
        "UPDATE snapshots SET resource = zeroblob(32)",
        // Made after the request: the number was given a second time.
        "UPDATE snapshots SET resource = (SELECT max(resource) FROM audit_lines), at_ms = at_ms + 3600000",
    ] {
        run(&rig, other).await;
        let gone = rig.operator(&why).await;
        assert!(gone.contains("are not in this database any more"), "{gone}");
        assert!(!gone.contains(&conversation.canary()), "{gone}");
    }
    // The same without a stored line, from the file: only the time tells.
    run(&rig, "DELETE FROM audit_lines").await;
    let path = rig.folder.path().join("audit.jsonl").display().to_string();
    let of_file = [&why[..], &["--audit", &path]].concat();
    let gone = rig.operator(&of_file).await;
    assert!(!gone.contains(&conversation.canary()), "{gone}");
    run(&rig, "UPDATE snapshots SET at_ms = at_ms - 3600000").await;
    let own = rig.operator(&of_file).await;
    assert!(own.contains(&conversation.canary()), "{own}");
}

/// How many lines of a tenant are in the database: those with a name of the conversation, and those without.
async fn lines_of(rig: &Rig, key: &str) -> (usize, usize) {
    let label = Scope::format_tenant_label(&rig.tenant(key));
    let lines = lines(rig).await;
    let lines = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    let is_own = |line: &Value| line["tenant"] == label.as_str() && line["forgot"].is_null();
    let (named, nameless): (Vec<Value>, Vec<Value>) = lines
        .filter(is_own)
        .partition(|line| line["thread"] == "trip");
    (named.len(), nameless.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn forgetting_a_conversation_or_tenant_deletes_its_audit_lines() {
    let rig = rig().await;
    let (ada, bob, eve) = (
        SampleConversation::new("ada"),
        SampleConversation::new("bob"),
        SampleConversation::new("eve"),
    );
    let named = [("x-diarist-thread", "trip")];
    rig.play_turns_as("Bearer sk-test", &named, &ada, 1..=3)
        .await;
    rig.play_turns_as("Bearer sk-test", &[], &bob, 1..=3).await;
    rig.play_turns_as("Bearer sk-eve", &named, &eve, 1..=3)
        .await;
    rig.quiet().await;
    let (trip, other) = lines_of(&rig, "sk-test").await;
    let (eves, _) = lines_of(&rig, "sk-eve").await;
    assert!(trip >= 3 && other >= 3 && eves >= 3);
    let output = rig.operator(&["threads", "forget", "1"]).await;
    assert!(output.contains(&format!("audit_lines {trip}")), "{output}");
    assert_eq!(lines_of(&rig, "sk-test").await, (0, other));
    // A conversation without a name is found by the hash of its first message.
    let output = rig.operator(&["threads", "forget", "2"]).await;
    assert!(output.contains(&format!("audit_lines {other}")), "{output}");
    assert_eq!(lines_of(&rig, "sk-test").await, (0, 0));
    assert_eq!(
        lines_of(&rig, "sk-eve").await,
        (eves, 0),
        "of another tenant"
    );
    let label = Scope::format_tenant_label(&rig.tenant("sk-eve"));
    let output = rig.operator(&["tenants", "forget", &label]).await;
    assert!(output.contains(&format!("audit_lines {eves}")), "{output}");
    assert_eq!(lines_of(&rig, "sk-eve").await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn old_audit_lines_are_deleted_and_a_stop_loses_no_line() {
    let mut rig = rig().await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2).await;
    // Nothing waits for the lines here: the stop writes them.
    rig.stop().await;
    assert_eq!(rig.number(LINES).await, 2);
    run(
        &rig,
        "INSERT INTO audit_lines (time_ms, tenant, resource, line) VALUES (1, x'', x'', '{}')",
    )
    .await;
    rig.start().await;
    for _ in 0..600 {
        if rig.number(LINES).await == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(rig.number(LINES).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_store_retention_no_line_is_stored_and_the_command_reports_it() {
    let rig = Rig::small().await;
    rig.play_turns(&SampleConversation::new("ada"), 1..=2).await;
    rig.quiet().await;
    assert_eq!(rig.number(LINES).await, 0);
    let output = rig.operator_output(&["audit", "--store"]).await;
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("set audit.store_retention"), "{stderr}");
    let both = rig
        .operator_output(&["audit", "--store", "audit.jsonl"])
        .await;
    assert_eq!(both.status.code(), Some(64));
}
