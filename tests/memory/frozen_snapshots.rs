//! What a snapshot fixes: an upgrade and a reload change not one byte of what is already sent, and
//! every placement keeps its prefix.

use diarist::memory::render;
use diarist_provider::{CallerKind, Conversation, Options, Style};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::memory::process::{CONFIG, Program};
use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation, eventually};

/// What the first release sent for each turn of the conversation in `first_schema.sql`: length and
/// BLAKE3 of the body.
const SENT: [(usize, &str); 12] = [
    (
        995,
        "8c5237b5646c4b663d7648fc234b2c94d9ec7128400da488de5b7c18d6c03cd4",
    ),
    (
        2790,
        "90fad5fd626268fc37daec79327604fef445ff90561a5eaa022609671415375e",
    ),
    (
        4585,
        "d7c4d45f63f45973d00ceca9516e74a9917491882caa3b66f932fb0e77fbd471",
    ),
    (
        6380,
        "1a78b01b9a5299a6c066a2ef9a00691472972b34b61e8d80c27b5ee14ea4290c",
    ),
    (
        8175,
        "c25f17ab2f494f3d8b09754ad1c5dd493f53233b3f1e5a5aecb5bcbc99d6501b",
    ),
    (
        6674,
        "ea2d9650df21a3ec45f34ac0631c33ce949db75b09a4dc88a22c5d8a928da540",
    ),
    (
        8469,
        "f64373a1f1705c4ccc7dce413b311285136abeced2093a99e3ed2b520ebc78d9",
    ),
    (
        10264,
        "e16d20fbc9f6b6db58932f078865d127198399afd519b653ab0400acb4ff0478",
    ),
    (
        6998,
        "5ec7d811903680f561f9ad5c9d8e4f93588e7b0560d0083b4642175d0c3b5a40",
    ),
    (
        8814,
        "e578fbe440f47cba238cd39d96d3e4b84c06a2a759974e4fac8f17dcd5171b94",
    ),
    (
        10651,
        "90d92a718fac857521c9cccfa61e39e561952f043c19694cf40c9345b3fd12c0",
    ),
    (
        7427,
        "8cadb9167fc46873a6416748608ccf3724e4d9922f3f6c2fc2be1b4f0c9c06ae",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_first_release_still_sends_the_same_bytes() {
    let mut rig = Rig::small().await;
    rig.stop().await;
    for name in [
        "diarist.db",
        "diarist.db-wal",
        "diarist.db-shm",
        "diarist.db.pepper",
    ] {
        drop(std::fs::remove_file(rig.folder.path().join(name)));
    }
    let options = SqliteConnectOptions::new()
        .filename(rig.file())
        .create_if_missing(true)
        .foreign_keys(false);
    let mut old = options.connect().await.unwrap();
    for script in [
        include_str!("../../migrations/sqlite/0001_init.sql"),
        include_str!("first_schema.sql"),
    ] {
        sqlx::raw_sql(script).execute(&mut old).await.unwrap();
    }
    // Parts were forgotten since; their numbers are not given again.
    let numbers = "UPDATE sqlite_sequence SET seq = 900 WHERE name = 'parts'";
    sqlx::raw_sql(numbers).execute(&mut old).await.unwrap();
    old.close().await.unwrap();
    // Another placement is configured by now: what was sent stays where it was.
    rig.set("UPSTREAM__PLACEMENT", "append_to_system");
    rig.start().await;
    let shrinks = "SELECT auto_vacuum FROM pragma_auto_vacuum";
    assert_eq!(rig.number(shrinks).await, 2, "an old database can shrink");

    let conversation = SampleConversation::new("ada");
    for (turn, (length, hash)) in (1..).zip(SENT) {
        // Memory is given its time: what it learns of an old request must not spoil the next.
        rig.play_turns(&conversation, turn..=turn).await;
        let sent = rig.last().body.clone();
        assert_eq!(sent.len(), length, "turn {turn}");
        assert_eq!(blake3::hash(&sent).to_hex().as_str(), hash, "turn {turn}");
    }
    // A request that is new goes on from the same block, at the same place.
    let block = |body: &Value| body["messages"][1]["content"].as_str().unwrap().to_owned();
    let before = block(&rig.last().json().unwrap());
    assert!(before.starts_with("<diarist-log version=\"1\">"));
    let turns = SENT.len();
    rig.send(&conversation.body(turns + 1)).await;
    assert_eq!(block(&rig.last().json().unwrap()), before);
    rig.quiet().await;

    // The next activation moves to the new place. Its block still begins as it did: the first
    // preamble, the old observations.
    let mut moved = None;
    for turn in turns + 2..turns + 12 {
        rig.play_turns(&conversation, turn..=turn).await;
        let body = rig.last().json().unwrap();
        let system = body["messages"][0]["content"].as_str().unwrap().to_owned();
        if let Some(at) = system.find("<diarist-log ") {
            moved = Some(system[at..].to_owned());
            break;
        }
        assert_eq!(block(&body), before, "turn {turn}");
    }
    let moved = moved.expect("an activation");
    let (old, _) = before.split_once("<current-task>").unwrap();
    assert!(moved.starts_with(old), "{moved}");
    let written = "SELECT count(*) FROM parts WHERE id > 900";
    assert!(rig.number(written).await > 0, "with numbers of their own");
    assert!(
        !moved.contains("[as of "),
        "the first version relates no dates"
    );
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn every_placement_keeps_its_prefix() {
    for placement in ["system_message", "append_to_system", "segments"] {
        let rig = Rig::with(
            Options::default(),
            &[
                ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1500"),
                // Nothing is condensed: every activation only adds.
                ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "900000"),
                ("UPSTREAM__PLACEMENT", placement),
            ],
        )
        .await;
        rig.play(&Conversation::generate(5, 50, Style::Travel))
            .await;
        let bodies = rig.forwarded();
        let mut activations = 0;
        for pair in bodies.windows(2) {
            let [before, after] = [&pair[0], &pair[1]].map(|body| (leading_texts(body), raw(body)));
            if before.0 == after.0 {
                assert!(
                    after.1.starts_with(&before.1),
                    "{placement}: a raw message changed"
                );
            } else {
                activations += 1;
                let kept: String = before.0.concat();
                let kept = kept.split("<current-task>").next().unwrap();
                let kept = kept.split("<suggested-response>").next().unwrap();
                assert!(
                    after.0.concat().starts_with(kept),
                    "{placement}: old observations changed"
                );
            }
        }
        assert!(activations > 2, "{placement}: {activations} activations");
    }
}

/// What precedes the raw messages: the leading system messages, as texts.
fn leading_texts(body: &Value) -> Vec<String> {
    let messages = body["messages"].as_array().unwrap();
    let leading = messages
        .iter()
        .take_while(|message| message["role"] == "system");
    leading
        .map(|message| match &message["content"] {
            Value::String(text) => text.clone(),
            parts => {
                let parts = parts.as_array().unwrap().iter();
                parts.map(|part| part["text"].as_str().unwrap()).collect()
            }
        })
        .collect()
}

fn raw(body: &Value) -> Vec<Value> {
    let messages = body["messages"].as_array().unwrap().iter();
    messages
        .skip_while(|message| message["role"] == "system")
        .cloned()
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_time_zone_is_ignored_and_audited() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let zones: [&[&str]; 4] = [
        &[],
        &["Europe/Oslo"],
        &["Middle/Earth"],
        &["Europe/Oslo", "Europe/Rome"],
    ];
    for (turn, zones) in (1..).zip(zones) {
        let named: Vec<_> = zones.iter().map(|it| ("x-diarist-timezone", *it)).collect();
        rig.play_turns_as("Bearer sk-test", &named, &conversation, turn..=turn)
            .await;
        let headers = &rig.last().headers;
        assert!(
            !format!("{headers:?}").contains("timezone"),
            "it is for us alone"
        );
    }
    let lines = rig.audited(zones.len()).await;
    let ignored: Vec<&Value> = lines.iter().map(|line| &line["ignored"]).collect();
    let bad = Value::from("bad_timezone");
    assert_eq!(ignored, [&Value::Null, &Value::Null, &bad, &bad]);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reload_takes_effect_at_the_next_activation() {
    let mut program = Program::start().await;
    // It begins with a place that the reload changes.
    program.terminate().await;
    program.configure(&format!(
        "[upstream]\nplacement = \"system_message\"\n{CONFIG}"
    ));
    program.again().await;
    let program = program;
    let conversation = SampleConversation::new("ada");
    let mut recorded = 0;
    let mut turn = 0;
    let sent = || {
        program
            .provider
            .record_for(CallerKind::Actor)
            .pop()
            .unwrap()
    };
    let block = |body: &Value| {
        let text = body["messages"].get(1)?["content"].as_str()?;
        render::looks_like_block(text).then(|| text.to_owned())
    };
    let now = || block(&sent().json().unwrap());
    // To where an activation was just now, so that the next one is some turns away.
    loop {
        let old = (turn > 0).then(now).flatten();
        turn += 1;
        recorded += 1;
        program.send(&conversation.body(turn)).await;
        program
            .at_rest(&conversation.body(turn), &mut recorded)
            .await;
        if turn >= ACTIVE && now() != old {
            break;
        }
    }
    let before = sent().body.clone();
    let log_count = |what: &str| program.log().matches(what).count();

    // Nothing of a configuration with a mistake in it is taken over.
    program.configure("[upstream]\nplacement = \"nowhere\"\n[memory.observation]\nmessage_tokens = \"many\"\ninstruction = \"Keep recipes.\"\n");
    program.hang_up();
    eventually("the refusal", || {
        log_count("the old one stays in force") == 1
    })
    .await;
    assert!(
        log_count("upstream.placement: ") > 0
            && log_count("memory.observation.message_tokens: ") > 0
    );
    program.send(&conversation.body(turn)).await;
    assert_eq!(sent().body, before);

    // A valid one is, but for what only a start can change.
    let audit = program.path("audit.jsonl");
    std::fs::rename(&audit, program.path("audit.1.jsonl")).unwrap();
    let other = CONFIG.replace("2000", "2400").replace(
        "[memory.observation]\n",
        "[upstream]\nplacement = \"append_to_system\"\n[server]\nmax_requests = 7\n\
         [memory.observation]\ninstruction = \"Keep recipes.\"\n",
    );
    program.configure(&other);
    program.hang_up();
    eventually("the new configuration", || {
        log_count("the configuration was reloaded") == 1
    })
    .await;
    let log = program.log();
    let waiting = log
        .lines()
        .filter(|line| line.contains("only a restart applies it"));
    let waiting: Vec<&str> = waiting.collect();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert!(waiting[0].contains("server.max_requests"));

    program.send(&conversation.body(turn)).await;
    assert_eq!(sent().body, before, "the same request is the same bytes");
    recorded += 2;
    let old = now();
    let mut placements = Vec::new();
    for _ in 0..ACTIVE {
        turn += 1;
        recorded += 1;
        program.send(&conversation.body(turn)).await;
        program.wait_recorded(recorded).await;
        let body = sent().json().unwrap();
        let first = body["messages"][0]["content"].as_str().unwrap();
        let moved = first.contains("<diarist-log ");
        placements.push(moved);
        assert!(moved || block(&body).is_some(), "turn {turn} has a block");
        if placements.len() == 1 {
            assert!(
                !moved && block(&body) == old,
                "the next request begins as the one before"
            );
        }
    }
    assert!(
        placements.is_sorted() && placements.contains(&true),
        "{placements:?}"
    );
    // Each snapshot says by what it was made.
    for query in [
        "SELECT count(*) FROM snapshots WHERE placement = 'system_message'
           AND made_with ->> 'message_tokens' = 2000 AND made_with ->> 'preamble' = 2",
        "SELECT count(*) FROM snapshots WHERE placement = 'append_to_system'
           AND made_with ->> 'message_tokens' = 2400",
    ] {
        assert!(program.number(query).await > 0, "{query}");
    }
    let calls = program.provider.record_for(CallerKind::Observer);
    let system_prompt = calls.last().unwrap().json().unwrap()["messages"][0]["content"].to_string();
    assert!(
        system_prompt.contains("Keep recipes."),
        "the Observer is asked the new way"
    );
    eventually("the audit's new file", || {
        std::fs::read_to_string(&audit).is_ok_and(|text| text.lines().count() > 1)
    })
    .await;

    // What a start would warn of.
    let unencrypted =
        "[memory.observation]\nbase_url = \"http://models.example/v1\"\napi_key = \"sk-o\"\n";
    program.configure(&other.replace("[memory.observation]\n", unencrypted));
    program.hang_up();
    eventually("the warning", || {
        log_count("memory.observation.base_url is http://") == 1
    })
    .await;
}

/// What a reload changes for requests, it changes from the next one on; what is wrong with one is said.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_rules_overflow_and_mode_applies_to_the_next_request() {
    let program = Program::start().await;
    let conversation = SampleConversation::new("ada");
    let mut reloads = 0;
    let mut reload = async |text: &str| {
        program.configure(text);
        program.hang_up();
        reloads += 1;
        let done = || {
            program
                .log()
                .matches("the configuration was reloaded")
                .count()
                == reloads
        };
        eventually("the new configuration", done).await;
    };
    let memory = async |turn| {
        program
            .send(&conversation.body(turn))
            .await
            .memory()
            .to_owned()
    };
    assert_eq!(memory(1).await, "watching");
    let rule = "[[memory.rules]]\nmodel = \"gpt-*\"\nmemory = \"off\"\n";
    reload(rule).await;
    assert_eq!(memory(1).await, "off; reason=rule");
    // What is refused changes nothing, and says why.
    program.configure("[memory]\noverflow = \"maybe\"\nread_only = true\n");
    program.hang_up();
    let refused = || program.log().contains("the old one stays in force");
    eventually("the refusal", refused).await;
    assert!(program.log().contains("memory.overflow: "));
    assert_eq!(memory(1).await, "off; reason=rule");

    program.provider.rules(|rules| rules.window = Some(8_000));
    reload("").await;
    assert_eq!(program.send(&conversation.body(24)).await.status, 400);
    reload("[memory]\noverflow = \"trim\"\n").await;
    assert_eq!(memory(24).await, "active; rung=trimmed");
    reload("[memory]\nread_only = true\n").await;
    assert_eq!(memory(2).await, "watching; mode=read");
    let named = "[identity]\ntask_headers = [\"user-agent\", \"accept\"]\n";
    reload(named).await;
    assert_eq!(memory(2).await, "watching; mode=read");
    reload("").await;
    assert_eq!(memory(2).await, "watching");
    assert!(!program.log().contains("only a restart applies it"));
}

/// A client that named its zone once is told of its own days, whatever happens to the process.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_zone_of_a_client_survives_a_restart() {
    let mut rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let named = [("x-diarist-timezone", "Pacific/Auckland")];
    rig.play_turns_as("Bearer sk-test", &named, &conversation, 1..=2)
        .await;
    rig.restart().await;
    rig.play_turns(&conversation, 3..=ACTIVE).await;
    let all = "SELECT count(*) FROM snapshots";
    let own = "SELECT count(*) FROM snapshots WHERE made_with ->> 'timezone' = 'Pacific/Auckland'";
    let (all, own) = (rig.number(all).await, rig.number(own).await);
    assert!(all > 0 && own == all, "{own} of {all}");
}

/// A rotation moves the audit file and sends SIGHUP. It goes on, whatever the configuration says by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_with_an_error_opens_the_audit_file_again() {
    let program = Program::start().await;
    program.configure(&format!("{CONFIG}[no_such_section]\nkey = 1\n"));
    let audit = program.path("audit.jsonl");
    std::fs::rename(&audit, program.path("audit-1.jsonl")).expect("a file");
    program.hang_up();
    eventually("the new file", || audit.exists()).await;
    let message = "the new configuration has errors";
    eventually("the error", || program.log().contains(message)).await;
}
