//! `diarist replay` against the scripted provider, on conversations written here.

use diarist_provider::{Behaviour, CallerKind, OBSERVER_MODEL, Options, Provider};

use super::{diarist, long, number, recording, run, short};

const SMALL: [&str; 6] = [
    "--upstream",
    "scripted",
    "--message-tokens",
    "2000",
    "--observation-tokens",
    "1000",
];

fn replay(file: &str, more: &[&str]) -> (String, Option<i32>) {
    run(&[&["replay", file], &SMALL[..], more].concat())
}

#[test]
#[ignore = "slow"]
fn replay_compares_conversations_with_and_without_diarist() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[short(), long()]);
    let (text, code) = replay(&file, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("2 conversations"), "{text}");
    let (short, long) = (short().id, long().id);

    // A short conversation passes as it is; nothing of it is observed.
    let row = |id: &str| [1, 2, 3, 4].map(|column| number(&text, id, column));
    let [without, with, activations, reflections] = row(&short);
    assert_eq!([with, activations, reflections], [without, 0, 0], "{text}");
    // A long one is carried by observations.
    let [without, with, activations, reflections] = row(&long);
    assert!(with < without / 2, "{text}");
    assert!(activations >= 2 && reflections >= 1, "{text}");
    let prompt = [0, 1].map(|column| number(&text, "prompt tokens", column));
    assert!(prompt[1] < prompt[0], "{text}");
    for memory in ["Observer,", "Reflector,"] {
        assert!(number(&text, memory, 2) > 0, "{text}");
    }
}

#[test]
#[ignore = "slow"]
fn below_the_threshold_replay_shows_equal_conversation_costs() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[long()]);
    let (text, code) = run(&["replay", &file, "--upstream", "scripted"]);
    assert_eq!(code, Some(0), "{text}");
    // Down to the cache: neither round finds what the other left there.
    for row in [
        "prompt tokens",
        "read from the cache",
        "UNCACHED",
        "cost of the conversation",
    ] {
        assert_eq!(
            number(&text, row, 0),
            number(&text, row, 1),
            "{row}:\n{text}"
        );
    }
    assert!(number(&text, "read from the cache", 0) > 0, "{text}");
}

/// Where memory is free it is made below every threshold, where it is dear not at all: the prices of the command line decide.
#[test]
#[ignore = "slow"]
fn the_cost_aware_policy_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[long()]);
    let replay = |policy: &[&str]| {
        let args = ["replay", &file, "--upstream", "scripted", "--no-baseline"];
        let (text, code) = run(&[&args, policy].concat());
        assert_eq!(code, Some(0), "{text}");
        text
    };
    // The prices are known, so they decide unless a threshold is written.
    let text = replay(&[]);
    assert!(text.contains("policy = cost_aware,"), "{text}");
    let text = replay(&["--message-tokens", "30000"]);
    assert!(text.contains("policy = published,"), "{text}");
    assert!(
        text.contains("No conversation reached 30,000 tokens"),
        "{text}"
    );
    let cost_aware = ["--policy", "cost_aware", "--memory-prices"];
    let text = replay(&[&cost_aware[..], &["0,0,0"]].concat());
    assert!(text.contains("policy = cost_aware,"), "{text}");
    assert!(!text.contains("did an activation pay"), "{text}");
    let text = replay(&[&cost_aware[..], &["2000,2000,2000"]].concat());
    assert!(
        text.contains("In no conversation did an activation pay"),
        "{text}"
    );
}

#[test]
fn replay_can_skip_the_baseline_and_limit_the_conversations() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[short(), long()]);
    let (text, code) = replay(&file, &["--no-baseline", "--limit", "1"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 conversation,"), "{text}");
    assert!(
        !text.contains("without Diarist") && !text.contains(&long().id),
        "{text}"
    );
    assert!(
        text.contains("No conversation reached 2,000 tokens"),
        "{text}"
    );
}

#[test]
fn a_bad_line_is_reported_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let good = recording(&folder, &[short()]);
    let good = std::fs::read_to_string(good).unwrap();
    let path = folder.path().join("bad.jsonl");
    let path = path.to_str().unwrap();
    for (line, message) in [
        (
            "{\"id\": \"x\"}",
            "line 3: not a conversation: missing field `messages`",
        ),
        ("not json", "line 3: not a conversation: expected"),
        (
            "{\"id\": \"x\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}",
            "line 3: it has no assistant message after another message",
        ),
        (
            "{\"id\": \"x\", \"messages\": [{\"content\": \"hi\"}]}",
            "line 3: message 1 has no role",
        ),
    ] {
        std::fs::write(path, format!("{good}\n{line}\n")).unwrap();
        let (text, code) = replay(path, &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(message), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    std::fs::write(path, "\n\n").unwrap();
    assert!(replay(path, &[]).0.contains("contains no conversation"));
    let (text, code) = replay("/nowhere/recorded.jsonl", &[]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("cannot read /nowhere/recorded.jsonl"),
        "{text}"
    );
}

#[test]
fn an_unreachable_upstream_ends_the_replay_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[short()]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", port.local_addr().unwrap());
    drop(port);
    let failed_replay = |args: &[&str]| {
        let output = diarist(&[&["replay", &file], args].concat())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        // On a busy machine the log may say that the store opens late.
        let lines = text.lines().filter(|line| line.starts_with("diarist: "));
        assert_eq!(lines.count(), 1, "{text}");
        text
    };
    let text = failed_replay(&["--upstream", &url, "--model", "m"]);
    assert!(
        text.contains("answered 502: the upstream cannot be reached"),
        "{text}"
    );
    assert!(failed_replay(&["--upstream", &url]).contains("--model"));
    assert!(failed_replay(&["--upstream", "nowhere", "--model", "m"]).contains("neither a URL"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_given_upstream_gets_the_key_and_its_refusal_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = recording(&folder, &[long()]);
    let provider = Provider::start(Options::default()).await.unwrap();
    let args = [
        "replay",
        &file,
        "--upstream",
        &provider.base_url(),
        "--model",
        "m",
        "--memory-model",
        OBSERVER_MODEL,
        "--message-tokens",
        "2000",
    ];
    let play = || {
        let output = diarist(&args)
            .env("OPENAI_API_KEY", "sk-not-this-one")
            .env("DIARIST_API_KEY", "sk-real")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (text, output.status.code())
    };
    let (text, code) = tokio::task::block_in_place(play);
    assert_eq!(code, Some(0), "{text}");
    let record = provider.record();
    assert!(
        record
            .iter()
            .all(|entry| entry.credential.reveal() == "Bearer sk-real")
    );
    assert!(
        record
            .iter()
            .all(|entry| !entry.headers.contains_key("x-diarist-thread"))
    );
    let count_calls = |part| record.iter().filter(|entry| entry.caller == part).count() as u64;
    assert_eq!(
        number(&text, "Observer,", 0),
        count_calls(CallerKind::Observer),
        "{text}"
    );
    let requests = number(&text, "requests", 0) + number(&text, "requests", 1);
    assert_eq!(requests, count_calls(CallerKind::Actor), "{text}");

    // The ninth request is refused: what came before it is told, and the exit code says so.
    provider.inject_next(CallerKind::Actor, 8, &Behaviour::default());
    provider.inject_next(CallerKind::Actor, 1, &Behaviour::rate_limited(1));
    let (text, code) = tokio::task::block_in_place(play);
    assert_eq!(code, Some(1), "{text}");
    let id = long().id;
    assert!(
        text.contains(&format!("{id}: request 9 with Diarist was answered 429")),
        "{text}"
    );
    assert_eq!(
        [0, 1].map(|column| number(&text, "requests", column)),
        [8, 8],
        "{text}"
    );
}
