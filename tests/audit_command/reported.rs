//! What a provider reports and no table of prices can hold: numbers that cannot be, a lifetime of the cache, a cost.

use assert_cmd::assert::Assert;
use tempfile::TempDir;

use super::{command, request, stdout};

struct File {
    folder: TempDir,
}

impl File {
    fn new(lines: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("audit.jsonl"), lines.join("\n") + "\n").unwrap();
        Self { folder }
    }

    fn run(&self, args: &[&str]) -> Assert {
        let path = self.folder.path().join("audit.jsonl");
        command(args).arg(path).assert()
    }
}

fn answered(id: &str, model: &str, fields: &str) -> String {
    let always = r#""status":200,"memory":"watching","bytes_received":50,"bytes_sent":50,"total_ms":9,"ended":"complete""#;
    request(
        id,
        "22T08:00:00",
        ("ada", "main"),
        model,
        &format!("{always},{fields}"),
    )
}

/// A gateway that reports 99,999 cached tokens of 10 would hold up a hit rate that fails.
#[test]
fn an_impossible_cache_count_is_reported_and_not_counted() {
    let file = File::new(&[
        answered(
            "a",
            "m",
            r#""prompt_tokens":80000,"cached_tokens":4000,"completion_tokens":9"#,
        ),
        answered(
            "b",
            "m",
            r#""prompt_tokens":10,"cached_tokens":99999,"completion_tokens":9"#,
        ),
    ]);
    let text = stdout(&file.run(&[]).success());
    assert!(text.contains("hit rate 5.0 %"), "{text}");
    let warning = "1 line reported more tokens from the cache than the prompt has. What came from the cache counts as not \
                reported.";
    assert!(text.contains(warning), "{text}");
    file.run(&["--check", "hit_rate>=0.8"]).code(1);
    file.run(&["--check", "impossible_usage==1"]).code(0);
    let page = stdout(&file.run(&["--format", "html"]).success());
    assert!(
        page.contains("5.0 %") && !page.contains("130.0 %"),
        "{page}"
    );
}

#[test]
fn one_hour_cache_writes_and_reported_costs_are_counted() {
    let wrote = r#""prompt_tokens":1000000,"cached_tokens":0,"cache_write_tokens":1000000,"completion_tokens":0"#;
    let hour = r#""usage":{"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":1000000}}"#;
    let file = File::new(&[answered("a", "claude-sonnet-5", &format!("{wrote},{hour}"))]);
    let text = stdout(&file.run(&[]).success());
    assert!(
        text.contains("cost of the requests") && text.contains("$4.0"),
        "{text}"
    );
    let why = stdout(&file.run(&["--why", "a"]).success());
    assert!(why.contains("They cost $4.00"), "{why}");
    let file = File::new(&[answered(
        "a",
        "vendor/unheard-of",
        r#""prompt_tokens":100,"cached_tokens":0,"completion_tokens":10,"usage":{"cost":0.0125}"#,
    )]);
    let text = stdout(&file.run(&[]).success());
    assert!(text.contains("$0.0125") && !text.contains('?'), "{text}");
    let why = stdout(&file.run(&["--why", "a"]).success());
    assert!(
        why.contains("The provider says that they cost $0.0125."),
        "{why}"
    );
}
