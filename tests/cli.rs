//! The real binary, as a person or a supervisor meets it.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use diarist::store::{Admin as _, PepperPlace, SqliteStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::support::patient_store::PATIENCE;

const EX_USAGE: i32 = 64;

/// The binary in an environment of its own: nothing of the machine's reaches it.
fn diarist(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("diarist"));
    command.env_clear().env("HOME", "/home/ada").args(args);
    command
}

fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

fn stderr(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

#[test]
fn config_prints_the_reference() {
    let assert = diarist(&["config"]).assert().success();
    assert_eq!(stdout(&assert), diarist::config::reference());
}

#[test]
fn check_accepts_the_reference_configuration() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), diarist::config::reference()).unwrap();
    let path = file.path().to_str().unwrap();
    let assert = diarist(&["check", "--config", path]).assert().success();
    assert!(stdout(&assert).starts_with("The configuration is valid.\nhint: "));
    assert_eq!(stderr(&assert), "");
}

#[test]
fn check_warns_of_models_that_are_known_not_to_work() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let checked = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        stdout(&diarist(&["check", "--config", path]).assert().success())
    };
    let report = checked(
        "memory.observation.model = \"openai/gpt-5-nano\"\nmemory.reflection.model = \"gpt-4\"",
    );
    assert!(
        report.contains("warning: gpt-4 reads 8,192 tokens, too few as Reflector: it needs 48,000"),
        "{report}"
    );
    assert!(!report.contains("gpt-5-nano"), "{report}");
    let report = checked("memory.model = \"o1-mini\"");
    for name in ["Observer", "Reflector"] {
        let warning =
            format!("warning: o1-mini does not work as {name}: it refuses system messages");
        assert!(report.contains(&warning), "{report}");
    }
    // A window only has to hold the prompts it is asked.
    let report = checked("memory.model = { 8000 = \"gpt-4\", 30000 = \"gpt-4o-mini\" }");
    assert!(!report.contains("warning"), "{report}");
    let report = checked("memory.model = { 9000 = \"gpt-4\", 30000 = \"phi-4\" }");
    assert_eq!(
        report.matches("warning: gpt-4 reads").count(),
        2,
        "{report}"
    );
    assert_eq!(
        report.matches("warning: phi-4 reads").count(),
        2,
        "{report}"
    );
    let report = checked("memory.model = \"a-model-nobody-knows\"");
    assert!(!report.contains("warning"), "{report}");
}

/// What an override makes otherwise is judged with the rest of the configuration that it leaves as it is.
#[test]
fn check_warns_of_bad_models_in_overrides() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let checked = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        stdout(&diarist(&["check", "--config", path]).assert().success())
    };
    let report = checked(
        "memory.model = \"gpt-4o-mini\"\n\
         [[memory.overrides]]\nmodel = \"small-*\"\nobservation.model = \"o1-mini\"\n\
         [[memory.overrides]]\nmodel = \"big-*\"\nupstream = \"*\"\n\
         reflection.observation_tokens = 120000\n\
         [[memory.overrides]]\nmodel = \"fine\"\nreflection.model = \"gpt-4o\"\n",
    );
    for warning in [
        "warning: memory.overrides for model = \"small-*\": o1-mini does not work as Observer",
        "warning: memory.overrides for model = \"big-*\", upstream = \"*\": gpt-4o-mini reads 128,000 \
         tokens, too few as Reflector: it needs 144,000",
    ] {
        assert!(report.contains(warning), "{report}");
    }
    assert_eq!(report.matches("warning").count(), 2, "{report}");
    // What holds for everybody is said once.
    let report = checked(
        "memory.model = \"o1-mini\"\n[[memory.overrides]]\nmodel = \"x\"\n\
         observation.buffer_on_idle = true\n",
    );
    assert_eq!(report.matches("warning").count(), 2, "{report}");
}

#[test]
fn check_lists_every_problem_with_key_and_remedy() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "[server]\nlisten = \"8484\"\n[memry]\nmodel = \"x\"",
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    let assert = diarist(&["check", "--config", path, "--upstream", "nowhere"])
        .env("DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS", "many")
        .assert()
        .code(EX_USAGE);
    let message = stderr(&assert);
    assert!(
        message.starts_with("diarist: the configuration has 4 problems\n"),
        "{message}"
    );
    for key in [
        "server.listen",
        "memry",
        "upstream.base_url",
        "memory.observation.message_tokens",
    ] {
        assert!(message.contains(&format!("\n  {key}: ")), "{message}");
    }
    assert_eq!(message.matches("remedy: ").count(), 4, "{message}");
    assert_eq!(stdout(&assert), "");
}

#[test]
fn every_command_refuses_a_configuration_file_that_cannot_be_read() {
    // `reproduce` needs a bundle before it reads the configuration; `demo` and `replay` read none.
    for command in [
        &["serve"][..],
        &["check"],
        &["config", "--effective"],
        &["audit"],
        &["audit", "--store"],
        &["threads"],
        &["threads", "show", "1"],
        &["threads", "forgotten"],
        &["tenants"],
        &["tenants", "list"],
        &["health"],
    ] {
        let assert = diarist(command)
            .args(["--config", "/nowhere/diarist.toml"])
            .timeout(PATIENCE)
            .assert()
            .code(EX_USAGE);
        let message = stderr(&assert);
        assert!(
            message.contains("/nowhere/diarist.toml: the file cannot be read"),
            "{command:?}: {message}"
        );
    }
}

#[test]
fn effective_config_shows_the_source_of_each_value_and_no_secret() {
    let assert = diarist(&["config", "--effective", "--listen", "127.0.0.1:1"])
        .env("DIARIST__MEMORY__BASE_URL", "http://models/v1")
        .env("DIARIST__MEMORY__API_KEY", "sk-hunter2")
        .assert()
        .success();
    let text = stdout(&assert);
    assert!(
        text.contains("listen = \"127.0.0.1:1\"  # --listen\n"),
        "{text}"
    );
    assert!(
        text.contains("base_url = \"http://models/v1\"  # DIARIST__MEMORY__BASE_URL\n"),
        "{text}"
    );
    assert!(
        text.contains("message_tokens = 30000  # default\n"),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
    // Its default depends on the environment.
    if cfg!(all(unix, not(target_os = "macos"))) {
        let database =
            "[store]\nurl = \"sqlite:///home/ada/.local/share/diarist/diarist.db\"  # default\n";
        assert!(text.contains(database), "{text}");
    }
}

#[test]
fn mistakes_on_the_command_line_are_usage_errors_and_help_is_not() {
    diarist(&["--listen"]).assert().code(EX_USAGE);
    diarist(&["remember"]).assert().code(EX_USAGE);
    diarist(&[]).assert().code(EX_USAGE);
    let help = stdout(&diarist(&["--help"]).assert().success());
    assert!(help.contains("config") && help.contains("check"), "{help}");
    let version = stdout(&diarist(&["--version"]).assert().success());
    assert_eq!(
        version.trim(),
        format!("diarist {}", env!("CARGO_PKG_VERSION"))
    );
}

/// An admin port that answers one request with `status`; the request's first line comes back.
fn admin(status: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answered = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        connection.write_all(answer.as_bytes()).unwrap();
        let head = String::from_utf8(head).unwrap();
        head.lines().next().unwrap().to_owned()
    });
    (address, answered)
}

#[test]
fn health_queries_the_admin_port_and_sets_the_exit_code() {
    let (address, answered) = admin("200 OK");
    // A proxy for the outside world must not be asked.
    diarist(&["health", "--admin", &address])
        .env("HTTP_PROXY", "http://127.0.0.1:9")
        .assert()
        .success();
    assert_eq!(answered.join().unwrap(), "GET /healthz HTTP/1.1");

    let (address, answered) = admin("503 Service Unavailable");
    let assert = diarist(&["health", "--admin", &address]).assert().code(1);
    answered.join().unwrap();
    assert!(
        stderr(&assert).contains("answers 503"),
        "{}",
        stderr(&assert)
    );
}

#[cfg(unix)]
#[test]
fn check_warns_of_a_secret_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let checked = |text: &str, mode: u32| {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        stdout(&diarist(&["check", "--config", path]).assert().success())
    };
    let secret = "memory.model = \"gpt-4o-mini\"\nmemory.api_key = \"sk-of-the-file\"\n\
         memory.base_url = \"https://host.example/v1\"\n";
    let report = checked(secret, 0o644);
    assert!(report.contains(&format!("chmod 600 {path}")), "{report}");
    assert!(report.contains("DIARIST__MEMORY__API_KEY"), "{report}");
    assert!(!report.contains("sk-of-the-file"), "{report}");
    assert!(!checked(secret, 0o600).contains("chmod"));
    assert!(!checked("memory.model = \"gpt-4o-mini\"\n", 0o644).contains("chmod"));
}

#[test]
fn check_warns_of_a_path_where_no_database_can_be_created() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let checked = |database: &std::path::Path| {
        let database = database.to_str().unwrap();
        stdout(
            &diarist(&["check", "--database", database])
                .assert()
                .success(),
        )
    };
    let is_folder = checked(folder.path());
    assert!(
        is_folder.contains("is a folder; name a file in it"),
        "{is_folder}"
    );
    let below_file = checked(&file.join("x.db"));
    assert!(below_file.contains("a-file is no folder"), "{below_file}");
    let fine = checked(&folder.path().join("missing/x.db"));
    assert!(!fine.contains("requests have no memory"), "{fine}");
    assert!(!folder.path().join("missing").exists(), "nothing is made");
}

#[test]
fn check_warns_of_an_audit_file_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let checked = |name: &str| {
        let audit = folder.path().join(name);
        let audit = audit.to_str().unwrap();
        let mut check = diarist(&["check", "--audit", audit]);
        stdout(&check.timeout(PATIENCE).assert().success())
    };
    let nowhere = checked("nowhere/audit.jsonl");
    assert!(
        nowhere.contains("warning: audit.path: cannot write to"),
        "{nowhere}"
    );
    assert!(!checked("audit.jsonl").contains("audit.path"));
    // To open a pipe would wait for its reader.
    if cfg!(unix) {
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert!(!checked("pipe").contains("audit.path"));
    }
    assert!(
        !folder.path().join("audit.jsonl").exists(),
        "nothing is made"
    );
}

/// Opens and closes the database as a server does.
fn serve_once(database: &str) {
    let place = PepperPlace {
        secret: None,
        file: None,
        database: Some(Path::new(database)),
    };
    let pepper = place.find_or_make().unwrap();
    let url = format!("sqlite://{database}");
    let store = SqliteStore::reconnecting(&url, PATIENCE).with_pepper(&pepper);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        store.open_now().await.unwrap();
        store.close().await;
    });
}

#[test]
fn check_reports_an_unusable_database_and_a_missing_pepper() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("prose"), "no database, but long enough to be one").unwrap();
    let prose = stdout(
        &diarist(&["check", "--database", &at("prose")])
            .assert()
            .success(),
    );
    assert!(prose.contains("is not a SQLite database"), "{prose}");
    assert!(!prose.contains("has no pepper"), "{prose}");
    // An empty file becomes a new database, with a pepper.
    std::fs::write(at("empty"), "").unwrap();
    let empty = stdout(
        &diarist(&["check", "--database", &at("empty")])
            .assert()
            .success(),
    );
    assert!(!empty.contains("pepper"), "{empty}");
    serve_once(&at("empty"));
    let fine = stdout(
        &diarist(&["check", "--database", &at("empty")])
            .assert()
            .success(),
    );
    assert!(
        !fine.contains("pepper") && !fine.contains("warning: cannot"),
        "{fine}"
    );
    std::fs::remove_file(at("empty.pepper")).unwrap();
    let lost = diarist(&["check", "--database", &at("empty")])
        .assert()
        .failure();
    assert_eq!(lost.get_output().status.code(), Some(EX_USAGE));
    let message = stderr(&lost);
    assert!(
        message.contains("was made with a pepper, and there is none"),
        "{message}"
    );
}

/// A server brings an older one up to date, and its hashes stay as they are.
#[test]
fn check_gives_the_hint_about_the_pepper_for_an_older_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old");
    let path = path.to_str().unwrap();
    serve_once(path);
    std::fs::remove_file(format!("{path}.pepper")).unwrap();
    let older =
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    for change in ["DELETE FROM pepper", older] {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let options = SqliteConnectOptions::new().filename(path);
            let mut database = options.connect().await.unwrap();
            sqlx::raw_sql(change).execute(&mut database).await.unwrap();
            database.close().await.unwrap();
        });
        let checked = diarist(&["check", "--database", path]).assert().success();
        let checked = stdout(&checked);
        assert!(
            checked.contains("hint: ") && checked.contains("has no pepper"),
            "{change}: {checked}"
        );
    }
}

#[test]
fn a_synonym_of_a_command_is_answered_with_the_real_command() {
    for (words, named) in [
        (
            ["threads", "delete", "1"].as_slice(),
            "diarist threads forget",
        ),
        (&["stats"], "diarist audit"),
    ] {
        let assert = diarist(words).assert().failure();
        assert!(stderr(&assert).contains(named), "{words:?}");
    }
}

/// Hidden commands only say where to look.
#[test]
fn the_error_for_a_wrong_command_lists_existing_commands() {
    let answer = |words: &[&str]| stderr(&diarist(words).assert().code(EX_USAGE));
    for words in [&["bogus"][..], &["lgos"], &["xyz", "--json"]] {
        let answer = answer(words);
        assert!(
            answer.contains("the subcommands are: serve, check, config"),
            "{answer}"
        );
        assert!(!answer.contains("logs"), "{answer}");
    }
    let typo = answer(&["threds"]);
    assert!(typo.contains("'threads'"), "{typo}");
    for words in [&["tenant", "forget", "x"][..], &["srve", "check"]] {
        let answer = answer(words);
        assert!(!answer.contains("the subcommands are: \n"), "{answer}");
        assert!(
            answer.contains("'tenants'") || answer.contains("'serve'"),
            "{answer}"
        );
    }
    let nested = answer(&["threads", "bogus"]);
    assert!(
        nested.contains("the subcommands are: show, observe, reflect"),
        "{nested}"
    );
}

#[test]
fn options_may_stand_in_front_of_a_subcommand() {
    let stderr_of = |words: &[&str]| stderr(&diarist(words).assert().failure());
    for command in ["show", "export", "observe"] {
        let behind = stderr_of(&["threads", command, "7", "--database", "/nowhere/x.db"]);
        let front = stderr_of(&["threads", "--database", "/nowhere/x.db", command, "7"]);
        assert!(
            behind.contains("there is no database at /nowhere/x.db"),
            "{behind}"
        );
        assert_eq!(front, behind);
    }
    let tenants = stderr_of(&["tenants", "--database", "/nowhere/x.db", "list"]);
    assert!(tenants.contains("/nowhere/x.db"), "{tenants}");
    // Those of the list mean nothing to another command.
    for words in [
        ["threads", "--limit", "5", "show", "7"].as_slice(),
        &["threads", "--json", "show", "7"],
        &["tenants", "--json", "forget", "7"],
    ] {
        assert!(stderr_of(words).contains("behind it"), "{words:?}");
    }
    assert!(stderr_of(&["threads", "--limit", "0"]).contains("--limit"));
}

#[test]
fn health_fails_with_one_line_if_no_server_runs() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let assert = diarist(&["health", "--admin", &free.to_string()])
        .assert()
        .code(1);
    let message = stderr(&assert);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("Connection refused"), "{message}");
}
