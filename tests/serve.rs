//! `diarist serve` as a process: it starts, passes a request, is healthy, stops; or says in one line
//! why it does not start.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod metrics;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

/// A running `diarist serve` on free ports, killed if the test ends before it does.
struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
    /// What it wrote until it listened.
    first_log: String,
    data: SocketAddr,
    admin: SocketAddr,
}

fn serve(args: &[&str]) -> Command {
    serve_with("sqlite::memory:", args)
}

fn serve_with(database: &str, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("diarist"));
    command
        .env_clear()
        .env("HOME", "/home/ada")
        .env("DIARIST__SERVER__LISTEN", "127.0.0.1:0")
        .env("DIARIST__SERVER__ADMIN", "127.0.0.1:0")
        .arg("serve")
        .args(["--database", database])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Running {
    fn start(upstream: SocketAddr) -> Self {
        let base_url = format!("http://{upstream}/openai/v1");
        Self::spawn(&mut serve(&["--upstream", &base_url]))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        // Not to a terminal, the log is one JSON object per line; one of the first says where it
        // listens. A process that ends before has no more lines.
        let mut first_log = String::new();
        let line = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended");
            first_log.push_str(&line);
            let line: serde_json::Value = serde_json::from_str(&line).expect(&line);
            if line.get("listen").is_some() {
                break line;
            }
        };
        let address = |field: &str| line[field].as_str().unwrap().parse().unwrap();
        Self {
            data: address("listen"),
            admin: address("admin"),
            child,
            log,
            first_log,
        }
    }

    #[cfg(unix)]
    fn terminate(mut self) -> (ExitStatus, String) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(
            Command::new("sh")
                .args(["-c", &kill])
                .status()
                .unwrap()
                .success()
        );
        let mut rest = std::mem::take(&mut self.first_log);
        self.log.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One request with its whole answer.
fn ask(address: SocketAddr, request_line: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    let request =
        format!("{request_line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// An upstream for one request, of which it tells the first line.
fn upstream() -> (SocketAddr, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let request_line = std::thread::spawn(move || {
        let (connection, _) = listener.accept().unwrap();
        let mut connection = BufReader::new(connection);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line);
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nmodels!\n";
        connection.get_mut().write_all(answer.as_bytes()).unwrap();
        head.swap_remove(0)
    });
    (address, request_line)
}

#[test]
#[cfg(unix)]
fn the_server_starts_passes_a_request_and_stops_on_sigterm() {
    let (address, request_line) = upstream();
    let running = Running::start(address);

    let answer = ask(running.data, "GET /v1/models?limit=2");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nmodels!\n"), "{answer}");
    assert_eq!(
        request_line.join().unwrap().trim(),
        "GET /openai/v1/models?limit=2 HTTP/1.1"
    );

    for page in ["/healthz", "/readyz", "/metrics"] {
        let answer = ask(running.admin, &format!("GET {page}"));
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n"),
            "{page}: {answer}"
        );
    }
    let health = Command::new(assert_cmd::cargo::cargo_bin!("diarist"))
        .args(["health", "--admin", &running.admin.to_string()])
        .output()
        .unwrap();
    assert!(health.status.success());

    let (status, log) = running.terminate();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("SIGTERM") && log.contains("stopped"), "{log}");
}

/// Each task that misses the database would otherwise say why in its own words.
#[test]
#[cfg(unix)]
fn a_database_that_cannot_be_opened_logs_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a-file"), "").unwrap();
    let place = folder.path().join("a-file/diarist.db");
    let place = place.to_str().unwrap();
    let plain = ["--upstream", "http://127.0.0.1:9/v1"];
    let running = Running::spawn(&mut serve_with(place, &plain));
    // The last task to miss it is the one that claims jobs.
    while !ask(running.admin, "GET /readyz").contains("no job can be claimed") {
        std::thread::yield_now();
    }
    let (_, log) = running.terminate();
    let complaints = log.lines().filter(|line| line.contains("cannot open"));
    assert_eq!(complaints.count(), 1, "{log}");
    for part in [
        place,
        "check that the folder exists",
        "requests pass without memory",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

/// The client can name the request that failed, and its line is found in the log.
#[test]
#[cfg(unix)]
fn an_error_has_its_request_id_in_answer_and_log() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let running = Running::start(nobody.unwrap());
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let head = format!(
        "content-type: application/json\r\ncontent-length: {}",
        body.len()
    );
    let mut connection = TcpStream::connect(running.data).unwrap();
    let line = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close";
    let request = format!("{line}\r\n{head}\r\n\r\n{body}");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    let id = answer
        .split("x-diarist-request-id: ")
        .nth(1)
        .expect(&answer);
    let id = id.lines().next().unwrap();
    let (_, log) = running.terminate();
    let of_error = log
        .lines()
        .find(|line| line.contains("upstream_unreachable"));
    let of_error: serde_json::Value = serde_json::from_str(of_error.expect(&log)).unwrap();
    assert_eq!(of_error["request_id"], id, "{of_error}");
}

/// Runs until it ends by itself; its exit code and its one line of complaint.
#[track_caller]
fn refuses_to_start(args: &[&str]) -> (Option<i32>, String) {
    let output = serve(args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

/// A container may have no certificates.
#[test]
fn root_certificates_are_needed_only_for_https_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none.pem");
    std::fs::write(&none, "").unwrap();
    let without_roots = |args: &[&str]| {
        let mut command = serve(args);
        command.env("SSL_CERT_FILE", &none);
        command
    };
    let plain = ["--upstream", "http://127.0.0.1:9/v1"];
    drop(Running::spawn(&mut without_roots(&plain)));

    let mut observer = without_roots(&plain);
    observer
        .env(
            "DIARIST__MEMORY__OBSERVATION__BASE_URL",
            "https://127.0.0.1:9/v1",
        )
        .env("DIARIST__MEMORY__OBSERVATION__API_KEY", "sk-test")
        .env("DIARIST__MEMORY__OBSERVATION__MODEL", "small");
    let upstream = without_roots(&["--upstream", "https://127.0.0.1:9/v1"]);
    for mut needs_tls in [observer, upstream] {
        let output = needs_tls.output().unwrap();
        assert!(!output.status.success());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("certificates"), "{stderr}");
    }
}

#[test]
fn a_port_in_use_causes_one_clear_error_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin"] {
        let (code, stderr) = refuses_to_start(&[flag, &address]);
        assert_eq!(code, Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.contains(&address) && stderr.contains("already in use"),
            "{stderr}"
        );
    }
}

#[test]
fn the_server_does_not_start_with_a_bad_configuration() {
    let (code, stderr) = refuses_to_start(&["--upstream", "api.openai.com/v1"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(
        stderr.contains("upstream.base_url: this is not a URL"),
        "{stderr}"
    );
    let (code, stderr) = refuses_to_start(&["--config", "/nowhere/diarist.toml"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(
        stderr.contains("/nowhere/diarist.toml: the file cannot be read"),
        "{stderr}"
    );
}

/// An upstream that begins every answer and ends none.
#[cfg(unix)]
fn endless_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"and \"}}]}\n\n";
            let answer = format!("{head}{:x}\r\n{event}\r\n", event.len());
            // Enough of the request to be answered.
            assert_ne!(connection.read(&mut [0; 16 << 10]).unwrap(), 0);
            connection.write_all(answer.as_bytes()).unwrap();
            open.push(connection);
        }
    });
    address
}

#[test]
#[cfg(unix)]
fn a_stop_cuts_open_answers_and_writes_an_audit_line_for_each() {
    const OPEN: usize = 40;
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.jsonl");
    let base_url = format!("http://{}/v1", endless_upstream());
    let running = Running::spawn(
        serve(&["--upstream", &base_url])
            .env("DIARIST__AUDIT__PATH", &audit)
            .env("DIARIST__SERVER__DRAIN_TIMEOUT", "200ms")
            .env("DIARIST_LOG", "info"),
    );
    let open: Vec<TcpStream> = (0..OPEN)
        .map(|index| {
            let mut connection = TcpStream::connect(running.data).unwrap();
            let path = ["/v1/chat/completions", "/v1/other"][index % 2];
            let body = format!(
                r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{index}"}}]}}"#
            );
            let request = format!(
                "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                running.data,
                body.len()
            );
            connection.write_all(request.as_bytes()).unwrap();
            // The answer has begun.
            assert_ne!(connection.read(&mut [0; 16 << 10]).unwrap(), 0);
            connection
        })
        .collect();

    let (status, log) = running.terminate();
    assert!(status.success(), "{status}: {log}");
    drop(open);
    let lines = std::fs::read_to_string(&audit).unwrap();
    let ends: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["ended"].to_string())
        .collect();
    assert_eq!(ends, vec!["\"hung_up\""; OPEN], "{log}");
    for blame in ["broke off", "lines are lost", "too late"] {
        assert!(!log.contains(blame), "{log}");
    }
}
