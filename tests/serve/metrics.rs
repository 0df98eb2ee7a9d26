//! The metrics of a process that has just started: an alert on a series that begins with its first event misses it.

use std::collections::BTreeSet;

use super::*;
use crate::documents::read;

/// The series of the page, without their values, and the metrics that they belong to.
fn series(admin: SocketAddr) -> (BTreeSet<String>, BTreeSet<String>) {
    let page = ask(admin, "GET /metrics");
    let is_sample = |line: &&str| line.starts_with("diarist_");
    let series = page.lines().filter(is_sample);
    let series = series.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
    let names = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    (series.collect(), names.map(str::to_owned).collect())
}

/// The table of the document lists all metrics: another test holds it to the code.
fn documented() -> BTreeSet<String> {
    let document = read("docs/operating.md");
    let rows = document
        .lines()
        .filter_map(|row| row.strip_prefix("| `diarist_")?.split_once("` | "));
    let kinds = ["counter", "gauge", "histogram"];
    let metrics = rows.filter(|(_, rest)| kinds.iter().any(|kind| rest.starts_with(kind)));
    metrics.map(|(name, _)| format!("diarist_{name}")).collect()
}

fn chat(address: SocketAddr) -> String {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"Hello."}]}"#;
    let mut connection = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer a\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn every_metric_series_exists_from_the_start() {
    let (upstream, request_line) = upstream();
    let running = Running::start(upstream);
    let (before, names) = series(running.admin);
    let missing: Vec<String> = documented().difference(&names).cloned().collect();
    assert_eq!(
        missing, [""; 0],
        "metrics of docs/operating.md without a series"
    );
    let answer = ask(running.data, "GET /v1/models");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    request_line.join().unwrap();
    // Nobody listens there any more.
    let answer = chat(running.data);
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    let (after, _) = series(running.admin);
    let new: Vec<&String> = after.difference(&before).collect();
    assert!(new.is_empty(), "{new:#?}");
    let failed = r#"diarist_errors_total{side="upstream",code="upstream_unreachable"}"#;
    assert!(before.contains(failed), "{before:#?}");
}

/// An operator who writes a query has to know where the buckets end.
#[test]
fn the_document_lists_the_histogram_buckets() {
    let running = Running::start(SocketAddr::from(([127, 0, 0, 1], 9)));
    let (before, _) = series(running.admin);
    let document = read("docs/operating.md");
    for (metric, labels) in [
        ("diarist_request_duration_seconds", ""),
        (
            "diarist_observation_retention_ratio",
            "kind=\"chunk\",item=\"name\",",
        ),
    ] {
        let first = format!("{metric}_bucket{{{labels}le=\"");
        let ends = before.iter().filter_map(|name| {
            let end = name.strip_prefix(&first)?.strip_suffix("\"}")?;
            end.parse::<f64>().ok().filter(|end| end.is_finite())
        });
        let mut ends: Vec<f64> = ends.collect();
        ends.sort_by(f64::total_cmp);
        let ends: Vec<String> = ends.iter().map(f64::to_string).collect();
        assert!(ends.len() > 5, "{metric} {before:#?}");
        let stated = ends.join(", ");
        assert!(document.contains(&stated), "{metric}: {stated}");
    }
}
