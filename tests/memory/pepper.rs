//! The pepper: made at the first start, kept out of the database, and the only key to its hashes. The program
//! itself runs.

use std::time::Duration;

use bytes::Bytes;
use diarist::history::{Fingerprint, Link, Pepper, Scope};
use diarist::proxy::identify::tenant_of_key;
use diarist::store::PepperPlace;
use diarist::wire;
use serde_json::Value;

use crate::memory::process::Program;
use crate::memory::rig::PATIENCE;
use crate::memory::tools::{ACTIVE, SampleConversation};

impl Program {
    fn pepper(&self) -> Pepper {
        let place = PepperPlace {
            secret: None,
            file: None,
            database: Some(&self.path("diarist.db")),
        };
        place.find().unwrap().value
    }

    /// Whether the database, as a file, has these bytes anywhere.
    fn holds(&self, bytes: &[u8]) -> bool {
        let file = std::fs::read(self.path("diarist.db")).unwrap();
        memchr::memmem::find(&file, bytes).is_some()
    }

    /// How many of these texts somebody who has the database can tell to be in it: a message's link is the hash
    /// of the link before it, which is stored too, and of the message.
    async fn confirmed_guesses(&self, guesses: &[Fingerprint]) -> usize {
        let mut database = self.database().await;
        let nodes: Vec<(Vec<u8>, Vec<u8>)> = sqlx::query_as("SELECT parent, link FROM nodes")
            .fetch_all(&mut database)
            .await
            .unwrap();
        assert!(nodes.len() > 4);
        let is_right = |guess: &&Fingerprint| {
            nodes.iter().any(|(parent, link)| {
                Link::from_slice(parent).unwrap().next(guess).as_bytes() == link.as_slice()
            })
        };
        guesses.iter().filter(is_right).count()
    }
}

fn fingerprints(conversation: &SampleConversation, pepper: &Pepper) -> Vec<Fingerprint> {
    let body = Bytes::from(conversation.body(ACTIVE).to_string());
    let parsed = wire::Request::parse_chat_peppered(&body, pepper).unwrap();
    let messages = parsed.messages().iter();
    messages.map(|message| message.fingerprint).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn without_its_pepper_a_new_database_confirms_no_guessed_text() {
    let mut program = Program::start().await;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::metadata(program.path("diarist.db.pepper")).unwrap();
        assert_eq!(file.mode() & 0o777, 0o600);
    }
    let conversation = SampleConversation::new("ada");
    let mut recorded = 0;
    for turn in 1..=ACTIVE {
        assert_eq!(program.send(&conversation.body(turn)).await.status, 200);
        recorded += 1;
        program.wait_recorded(recorded).await;
    }
    let log = program.log();
    program.terminate().await;

    let pepper = program.pepper();
    let tenant = |pepper: &Pepper| tenant_of_key("authorization", "sk-test", pepper).unwrap();
    let root = |pepper: &Pepper| {
        let tenant = tenant(pepper);
        Link::root(&Scope {
            tenant,
            resource: None,
        })
    };
    // Both are there for somebody who has the pepper too, so the search would find them.
    assert!(program.holds(&tenant(&pepper)) && program.holds(root(&pepper).as_bytes()));
    assert!(!program.holds(&tenant(&Pepper::NONE)));
    assert!(!program.holds(root(&Pepper::NONE).as_bytes()));
    let known = fingerprints(&conversation, &pepper);
    assert!(program.confirmed_guesses(&known).await > ACTIVE);
    let guessed = fingerprints(&conversation, &Pepper::NONE);
    assert_eq!(program.confirmed_guesses(&guessed).await, 0);

    let secret = std::fs::read_to_string(program.path("diarist.db.pepper")).unwrap();
    assert!(!program.holds(secret.trim().as_bytes()) && !log.contains(secret.trim()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_starts_only_with_the_pepper_of_its_database() {
    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(turn).await;
    }
    program.terminate().await;
    let file = program.path("diarist.db.pepper");
    let secret = std::fs::read_to_string(&file).unwrap();

    std::fs::remove_file(&file).unwrap();
    let stderr = program.refused().await;
    assert!(
        stderr.contains("was made with a pepper, and there is none"),
        "{stderr}"
    );
    assert!(stderr.contains("diarist.db.pepper"), "{stderr}");
    assert!(!file.exists(), "a lost pepper is not replaced");
    std::fs::write(&file, "0".repeat(64)).unwrap();
    let stderr = program.refused().await;
    assert!(stderr.contains("was made with another pepper"), "{stderr}");
    assert!(!stderr.contains("tried again"), "it ends: {stderr}");
    std::fs::write(&file, "too short").unwrap();
    let stderr = program.refused().await;
    assert!(stderr.contains("fewer than 32 bytes"), "{stderr}");

    std::fs::write(&file, secret).unwrap();
    program.again().await;
    let answer = program.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
}

/// As every database from before there was a pepper.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_database_without_a_pepper_goes_on_without_one() {
    let mut program = Program::start().await;
    program.terminate().await;
    std::fs::remove_file(program.path("diarist.db.pepper")).unwrap();
    let forget = "DELETE FROM pepper";
    sqlx::query(forget)
        .execute(&mut program.database().await)
        .await
        .unwrap();
    program.again().await;
    assert!(program.log().contains("has no pepper"), "{}", program.log());
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(turn).await;
    }
    program.terminate().await;
    assert!(!program.path("diarist.db.pepper").exists());
    assert!(program.holds(&tenant_of_key("authorization", "sk-test", &Pepper::NONE).unwrap()));

    std::fs::write(program.path("diarist.db.pepper"), "0".repeat(64)).unwrap();
    let stderr = program.refused().await;
    assert!(stderr.contains("was made without a pepper"), "{stderr}");
    std::fs::remove_file(program.path("diarist.db.pepper")).unwrap();
    program.again().await;
    let answer = program.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
}

/// A conversation can be imported where its hashes are right: the error says which database that is.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_conversation_is_imported_only_with_the_same_pepper() {
    let mut program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(turn).await;
    }
    program.terminate().await;
    let (exported, text) = program.operator(&["threads", "export", "1"]);
    assert!(exported, "{text}");
    let file = program.path("ada.json").display().to_string();
    std::fs::write(&file, text).unwrap();
    let pepper = std::fs::read(program.path("diarist.db.pepper")).unwrap();

    let mut other = Program::start().await;
    other.terminate().await;
    let import = ["threads", "import", &file];
    let (imported, output) = other.operator(&import);
    assert!(!imported, "{output}");
    assert!(
        output.contains("from a database with another pepper"),
        "{output}"
    );
    assert!(
        output.contains("store.pepper or the pepper file"),
        "{output}"
    );
    assert_eq!(other.number("SELECT count(*) FROM lineages").await, 0);

    // As the error says: a new database with the pepper of the old one.
    for suffix in ["", "-wal", "-shm"] {
        // Some of them are not there.
        let _gone = std::fs::remove_file(other.path(&format!("diarist.db{suffix}")));
    }
    std::fs::write(other.path("diarist.db.pepper"), pepper).unwrap();
    other.again().await;
    other.terminate().await;
    let (imported, output) = other.operator(&import);
    assert!(imported, "{output}");
    other.again().await;
    let answer = other.send(&conversation.body(ACTIVE + 1)).await;
    assert_eq!(answer.memory(), "active");
}

/// Nothing needs the file until the next start, and then it is too late to notice.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_deleted_pepper_file_degrades_readyz_until_it_is_back() {
    let program = Program::start().await;
    let file = program.path("diarist.db.pepper");
    let secret = std::fs::read_to_string(&file).unwrap();
    let wait = async |status: &str| {
        let waiting = async {
            loop {
                let page: Value = serde_json::from_str(&program.admin("readyz").await).unwrap();
                if page["parts"]["pepper"]["status"] == status {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "not {status}: {}", program.log());
    };
    // It has been seen since the start.
    tokio::time::sleep(Duration::from_secs(6)).await;
    std::fs::remove_file(&file).unwrap();
    wait("degraded").await;
    assert!(program.log().contains("put it back from your copy"));
    assert!(!program.log().contains(secret.trim()));
    std::fs::write(&file, secret).unwrap();
    wait("up").await;
}
