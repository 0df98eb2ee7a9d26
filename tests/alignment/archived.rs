//! What a client drops before anybody observed it: lost where words are not kept, remembered where they
//! are, until they are forgotten or have been kept long enough.

use serde_json::Value;

use crate::alignment::harness::{Client, SentRequest, conversation, text};
use crate::memory::rig::{PATIENCE, Rig};

/// A window of six messages over `all`; nine of them make a chunk, so nothing that is sent at one time
/// is enough to be observed.
async fn slide(rig: &mut Rig, all: &[Value], restart: bool) -> Vec<SentRequest> {
    let mut sent_requests = Vec::new();
    for turn in (1..=all.len()).step_by(2) {
        if restart && turn == 21 {
            rig.restart().await;
        }
        let window = &all[turn.saturating_sub(6)..turn];
        let answer = all.get(turn);
        sent_requests.push(Client::new(rig).send_with_answer(window, answer).await);
    }
    sent_requests
}

async fn keeping(keep: &str) -> Rig {
    Rig::with(
        diarist_provider::Options::default(),
        &[
            ("MEMORY__KEEP_MESSAGES", keep),
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
            ("MEMORY__OBSERVATION__BUFFER_TOKENS", "0.5"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "20000"),
        ],
    )
    .await
}

/// Whether any file of the database holds `marker`.
fn is_stored(rig: &Rig, marker: &str) -> bool {
    let files = std::fs::read_dir(rig.folder.path()).unwrap();
    let mut files = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("diarist.db"));
    files.any(|path| {
        let bytes = std::fs::read(path).unwrap();
        memchr::memmem::find(&bytes, marker.as_bytes()).is_some()
    })
}

async fn number(rig: &Rig, query: &'static str) -> i64 {
    use sqlx::{ConnectOptions as _, Connection as _};
    let file = rig.folder.path().join("diarist.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut database = options.connect().await.unwrap();
    let number = sqlx::query_scalar(query)
        .fetch_one(&mut database)
        .await
        .unwrap();
    // Whoever reads keeps the journal from being written back when the program stops.
    database.close().await.unwrap();
    number
}

async fn archived_count(rig: &Rig) -> i64 {
    number(rig, "SELECT count(*) FROM messages").await
}

/// Waits until nothing is kept.
async fn until_deleted(rig: &Rig) {
    let gone = async {
        while archived_count(rig).await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}

/// The last six words of a message's text, which no observation repeats.
fn ending_text(name: &str, number: usize) -> String {
    let text = text(name, number);
    let words: Vec<&str> = text.split(' ').collect();
    words[words.len() - 6..].join(" ")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn messages_dropped_before_observation_are_observed_if_text_is_kept() {
    let all = conversation("slide", 61);
    for (keep, restart) in [("always", false), ("always", true), ("240h", true)] {
        let mut rig = keeping(keep).await;
        let sent_requests = slide(&mut rig, &all, restart).await;
        let last = sent_requests.last().unwrap();
        // From the first message on without a gap: what was kept is observed in order.
        let mark_count = last.in_block.len();
        assert!(mark_count > 30, "{keep}: {last:?}");
        for number in 0..mark_count {
            assert!(
                last.in_block.contains(&format!("slide#{number}")),
                "{last:?}"
            );
        }
        assert!(is_stored(&rig, &ending_text("slide", 3)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_messages_dropped_before_observation_are_lost_and_not_stored() {
    let all = conversation("slide", 61);
    let mut rig = keeping("until_observed").await;
    let sent_requests = slide(&mut rig, &all, false).await;
    assert!(
        sent_requests
            .iter()
            .all(|sent_request| sent_request.in_block.is_empty())
    );
    assert_eq!(archived_count(&rig).await, 0);
    for number in 0..61 {
        assert!(!is_stored(&rig, &ending_text("slide", number)), "{number}");
    }
}

/// Forgetting deletes kept words as everything else; so does no longer wanting to keep them, and time.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn kept_text_is_deleted_when_forgotten_expired_or_no_longer_wanted() {
    let all = conversation("slide", 41);
    for ending in ["forget", "until_observed", "1ms"] {
        let mut rig = keeping("always").await;
        slide(&mut rig, &all, false).await;
        assert!(archived_count(&rig).await > 20);
        if ending == "forget" {
            forget_all(&rig).await;
        } else {
            rig.set("MEMORY__KEEP_MESSAGES", ending);
            rig.restart().await;
        }
        until_deleted(&rig).await;
        rig.stop().await;
        for number in 0..38 {
            assert!(
                !is_stored(&rig, &ending_text("slide", number)),
                "{ending}: {number}"
            );
        }
    }
}

/// Where words are kept, a line of the log leads to them; where they are not, it is said why.
#[tokio::test(flavor = "multi_thread")]
async fn threads_show_prints_the_kept_messages_behind_an_observation() {
    let all = conversation("slide", 61);
    for keep in ["always", "until_observed"] {
        let mut rig = keeping(keep).await;
        for turn in (1..=41).step_by(2) {
            let answer = all.get(turn);
            let mut client = Client::new(&mut rig);
            client.send_with_answer(&all[..turn], answer).await;
        }
        rig.stop().await;
        let url = format!(
            "sqlite://{}",
            rig.folder.path().join("diarist.db").display()
        );
        let lineage = number(&rig, "SELECT id FROM lineages LIMIT 1")
            .await
            .to_string();
        let shown = tokio::process::Command::new(env!("CARGO_BIN_EXE_diarist"))
            .args([
                "threads",
                "show",
                &lineage,
                "--why",
                "1",
                "--database",
                &url,
            ])
            .output()
            .await
            .unwrap();
        let stdout = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success(), "{stdout}");
        let shown_numbers =
            (0..41).filter(|number| stdout.contains(&ending_text("slide", *number)));
        assert_eq!(shown_numbers.count() > 0, keep == "always", "{stdout}");
        let missing = stdout.contains("Their text is not stored");
        assert_eq!(missing, keep != "always", "{stdout}");
    }
}

/// Deletes every conversation, as an operator may ask the store to.
async fn forget_all(rig: &Rig) {
    use diarist::store::{Admin as _, Forgetting as _, SqliteStore};
    let url = format!(
        "sqlite://{}",
        rig.folder.path().join("diarist.db").display()
    );
    let store = SqliteStore::open(&url).await.unwrap();
    assert!(store.expire_threads(i64::MAX, 100).await.unwrap() > 0);
    while store.expire_threads(i64::MAX, 100).await.unwrap() > 0 {}
    store.close().await;
}

/// What expired before it was observed is lost, as if it had never been kept; the rest goes on.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_begins_after_messages_that_expired_before_observation() {
    let all = conversation("slide", 81);
    let mut rig = keeping("always").await;
    slide(&mut rig, &all[..11], false).await;
    rig.set("MEMORY__KEEP_MESSAGES", "until_observed");
    rig.restart().await;
    until_deleted(&rig).await;
    rig.set("MEMORY__KEEP_MESSAGES", "always");
    rig.restart().await;
    let mut sent_requests = Vec::new();
    for turn in (11..=all.len()).step_by(2) {
        let (window, answer) = (&all[turn - 6..turn], all.get(turn));
        let mut client = Client::new(&mut rig);
        sent_requests.push(client.send_with_answer(window, answer).await);
    }
    let last = sent_requests.last().unwrap();
    assert!(last.in_block.len() > 30, "{last:?}");
    assert!(!last.in_block.contains("slide#1"), "{last:?}");
    assert!(
        last.in_block.contains("slide#20") && last.in_block.contains("slide#30"),
        "{last:?}"
    );
}

/// Diarist is put in front of a conversation of which only a window is sent any more: nothing of the
/// window stays where it was from one request to the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_first_received_as_a_sliding_window_is_observed() {
    let all = conversation("slide", 81);
    for keep in ["until_observed", "always"] {
        let mut rig = keeping(keep).await;
        let mut sent_requests = Vec::new();
        for turn in (31..=all.len()).step_by(2) {
            let (window, answer) = (&all[turn - 30..turn], all.get(turn));
            let mut client = Client::new(&mut rig);
            sent_requests.push(client.send_with_answer(window, answer).await);
        }
        let last = sent_requests.last().unwrap();
        assert!(last.in_block.len() > 30, "{keep}: {last:?}");
        assert!(last.calls < 12, "{keep}: {last:?}");
        let threads = number(&rig, "SELECT count(*) FROM lineages").await;
        // The second request says nothing that anybody saw being said; from then on it is one.
        assert!(threads <= 2, "{keep}: {threads} conversations");
    }
}
