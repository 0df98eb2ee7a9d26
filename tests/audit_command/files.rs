//! Which files `diarist audit` reads: those of a rotation, compressed or not, each once.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

use super::{command, request, stdout};

fn line(id: &str) -> String {
    let fields = r#""status":200,"memory":"watching","bytes_received":5,"bytes_sent":5,"total_ms":9,"ended":"complete""#;
    request(id, "22T08:00:00", ("ada", "main"), "big", fields) + "\n"
}

/// A file, one that logrotate left, and an older one that it compressed.
fn rotated() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("audit.jsonl", line("c").as_bytes());
    write("audit.jsonl.1", line("b").as_bytes());
    let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
    compressed.write_all(line("a").as_bytes()).unwrap();
    write("audit.jsonl.2.gz", &compressed.finish().unwrap());
    folder
}

fn requests(report: &str) -> u64 {
    let report: Value = serde_json::from_str(report).unwrap();
    report["total"]["requests"].as_u64().unwrap()
}

#[test]
fn without_a_name_the_rotated_and_compressed_files_are_read() {
    let folder = rotated();
    let mut command = command(&["--format", "json"]);
    command.env("DIARIST__AUDIT__PATH", folder.path().join("audit.jsonl"));
    assert_eq!(requests(&stdout(&command.assert().success())), 3);
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    let folder = rotated();
    let file = folder.path().join("audit.jsonl");
    let mut command = command(&["--format", "json"]);
    command.args([&file, &folder.path().join("./audit.jsonl"), &file]);
    assert_eq!(requests(&stdout(&command.assert().success())), 1);
}
