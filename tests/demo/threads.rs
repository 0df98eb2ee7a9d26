//! `diarist threads` on the database a replay left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use diarist::app::App;
use diarist::config::Flags;
use diarist::tasks::Tasks;
use diarist_provider::{Options, Provider};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::oneshot;

use super::{long, recording, run, short};
use crate::support::patient_store::PATIENCE;

/// A database with the short and the long conversation in it.
fn filled() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[short(), long()]);
    let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
    let (text, code) = run(&[
        "replay",
        &file,
        "--upstream",
        "scripted",
        "--no-baseline",
        "--message-tokens",
        "2000",
        "--observation-tokens",
        "1000",
        "--database",
        &url,
    ]);
    assert_eq!(code, Some(0), "{text}");
    (folder, url)
}

fn cells(text: &str, name: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.contains(name));
    let line = line.unwrap_or_else(|| panic!("no {name:?} in\n{text}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_conversation_is_listed_and_shown_by_each_of_its_names() {
    let (_folder, url) = filled();
    let (list, code) = run(&["threads", "--database", &url]);
    // People type what other programs call it.
    let args = ["threads", "list", "--limit", "20", "--database", &url];
    assert_eq!(run(&args), (list.clone(), code));
    assert_eq!(code, Some(0), "{list}");
    let row = cells(&list, &long().id);
    let (id, key, label) = (&row[0], &row[1], &row[2]);
    assert_eq!(*key, long().id);
    assert_eq!(label.len(), 12, "{list}");
    assert_eq!(row[5], long().requests().count().to_string(), "{list}");

    let (text, code) = run(&["threads", "show", id, "--database", &url]);
    assert_eq!(code, Some(0), "{text}");
    for name in [key, label] {
        let (same, code) = run(&["threads", "show", name, "--database", &url]);
        assert_eq!((same, code), (text.clone(), Some(0)));
    }
    assert_eq!(cells(&text, "key"), ["key", key.as_str()]);
    assert!(
        text.contains("threshold") && text.contains("-- reflection "),
        "{text}"
    );
    assert!(
        text.contains("Observations in the newest snapshot"),
        "{text}"
    );
    assert!(text.contains("\nDate: "), "{text}");
    let facts = long().facts;
    assert!(
        facts.iter().any(|fact| text.contains(&fact.words)),
        "{text}"
    );

    let observer = cells(&text, "Observer");
    assert!(observer[1].parse::<u32>().unwrap() > 1, "{text}");
    assert!(row[10] != "0", "what memory cost is listed: {list}");

    let show = ["threads", "show", id, "--database", &url];
    let (text, code) = run(&[&show[..], &["--timeline"]].concat());
    assert_eq!(code, Some(0), "{text}");
    for what in ["state", "written after", "activation of observation"] {
        assert!(text.contains(what), "{what} in {text}");
    }
    assert!(!text.contains('{'), "{text}");
    let (json, code) = run(&[&show[..], &["--timeline", "--json"]].concat());
    assert_eq!(code, Some(0), "{json}");
    let events: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for name in ["data-om-status", "data-om-buffering-end"] {
        assert!(events.iter().any(|event| event["event"] == name), "{json}");
    }
    let (json, _) = run(&["threads", "--json", "--database", &url]);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert!(first["observer"]["calls"].is_u64(), "{json}");
    let fact = |text: &str| facts.iter().any(|fact| text.contains(&fact.words));
    assert!(!fact(&text), "no word of it: {text}");
    let (text, _) = run(&[&show[..], &["--memory-prices", "1,0.1,2"]].concat());
    assert!(text.contains(" $0."), "{text}");

    let (text, code) = run(&["threads", "show", &short().id, "--database", &url]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("No snapshot yet") && text.contains("Nothing was observed yet"),
        "{text}"
    );

    let (list, _) = run(&["threads", "--limit", "1", "--database", &url]);
    assert!(
        list.contains(&long().id) && !list.contains(&short().id),
        "{list}"
    );
    assert!(list.contains("These are the latest 1"), "{list}");
}

#[test]
#[ignore = "slow"]
fn a_missing_thread_or_database_is_reported_and_nothing_is_created() {
    let (folder, url) = filled();
    let (text, code) = run(&["threads", "show", "nobody", "--database", &url]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no conversation is called \"nobody\""),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");

    let missing = folder.path().join("elsewhere/diarist.db");
    let url = format!("sqlite://{}", missing.display());
    for args in [&["threads"][..], &["threads", "show", "1"]] {
        let (text, code) = run(&[args, &["--database", &url]].concat());
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("there is no database at"), "{text}");
        assert!(text.contains("--config or --database"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert!(!missing.parent().unwrap().exists());

    let foreign = folder.path().join("notes.txt");
    std::fs::write(&foreign, "x".repeat(4096)).unwrap();
    let url = format!("sqlite://{}", foreign.display());
    let (text, code) = run(&["threads", "--database", &url]);
    assert_eq!(code, Some(1));
    assert!(text.contains("is not a SQLite database"), "{text}");

    // A database without a schema is left as it is.
    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    let url = format!("sqlite://{}", empty.display());
    let (text, code) = run(&["threads", "--database", &url]);
    assert_eq!(code, Some(1));
    assert!(text.contains("start `diarist serve` once"), "{text}");
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0);
}

/// A Diarist in this process, on a database that the binary reads from another.
struct Serving {
    _provider: Provider,
    base_url: String,
    quiet: Box<dyn Fn(Duration) -> BoxFuture<'static, bool> + Send + Sync>,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

impl Serving {
    async fn start(database: &str) -> Self {
        let provider = Provider::start(Options::default()).await.unwrap();
        let flags = Flags {
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some("127.0.0.1:0".to_owned()),
            upstream: Some(provider.base_url()),
            database: Some(database.to_owned()),
            audit: Some("off".to_owned()),
        };
        let config = diarist::config::load(&flags, &BTreeMap::new(), None).unwrap();
        let app = App::build_with(&config, PATIENCE).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        Self {
            _provider: provider,
            base_url: format!("http://{}/v1", app.data_addr().unwrap()),
            quiet: Box::new(app.quiet()),
            stop,
            ended: Tasks::new().spawn("diarist", async move {
                app.run(stopped.map(|_| std::future::pending())).await;
            }),
        }
    }

    /// Says something twice, since a conversation is recorded with its second request, and gives what the
    /// answer calls the conversation.
    async fn say(&self, words: &str, key: Option<&str>) -> String {
        self.send(words, key).await;
        self.send(words, key).await
    }

    async fn send(&self, words: &str, key: Option<&str>) -> String {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": words}]});
        let mut request = reqwest::Client::new()
            .post(format!("{}/chat/completions", self.base_url))
            .body(body.to_string());
        if let Some(key) = key {
            request = request.header("x-session-id", key);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let called = response.headers()["x-diarist-thread"].to_str().unwrap();
        let called = called.to_owned();
        response.bytes().await.unwrap();
        assert!((self.quiet)(Duration::from_mins(1)).await);
        called
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_can_be_read_while_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
    let serving = Serving::start(&url).await;
    let show = |name: &str| run(&["threads", "show", name, "--database", &url]);
    let (text, code) = run(&["threads", "--database", &url]);
    assert_eq!(
        (text.as_str(), code),
        (
            "No conversation is remembered yet; one is listed from its second request on.\n",
            Some(0)
        )
    );

    // Without a key, the answer names the conversation by its label.
    let label = serving.say("Hello from nobody.", None).await;
    let (text, code) = show(&label);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(cells(&text, "label"), ["label", label.as_str()]);
    assert_eq!(cells(&text, "key"), ["key", "none"]);

    // A key groups, it does not pick: two conversations under one are two.
    assert_eq!(serving.say("Hello.", Some("morning")).await, "morning");
    assert_eq!(show("morning").1, Some(0));
    serving.say("Something else.", Some("morning")).await;
    let (text, code) = show("morning");
    assert_eq!(code, Some(1));
    assert!(
        text.contains("several conversations are called \"morning\""),
        "{text}"
    );
    assert!(text.contains("2, 3") || text.contains("3, 2"), "{text}");
    assert_eq!(show("3").1, Some(0));

    serving.stop.send(()).unwrap();
    serving.ended.await.unwrap();
}
