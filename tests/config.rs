//! Configuration from outside: layers and their order, every problem at once.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod asking;
mod costs;
mod identity;
mod observer;
mod reference;
mod requests;
mod thresholds;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use diarist::config::{self, AuditTarget, Config, ConfigError, Database, Flags, Loaded};
use diarist::llm::{Endpoint, Models};
use diarist::memory::IdleTrigger;
use diarist::proxy::AskUsage;
use diarist::wire::Placement;
use secrecy::ExposeSecret as _;

/// One situation: what each source says.
#[derive(Default)]
struct ConfigInput {
    flags: Flags,
    env: BTreeMap<String, String>,
    file: Option<tempfile::NamedTempFile>,
}

impl ConfigInput {
    fn file(text: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Self {
            file: Some(file),
            ..Self::default()
        }
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        let mut env = self.env.clone();
        env.entry("HOME".to_owned())
            .or_insert_with(|| "/home/ada".to_owned());
        let file = self.file.as_ref().map(tempfile::NamedTempFile::path);
        config::read(&self.flags, &env, file)
    }

    fn valid(&self) -> Config {
        self.load().unwrap().config
    }

    /// Each problem as `key: what | remedy`.
    fn problems(&self) -> Vec<String> {
        let error = self.load().expect_err("a configuration with problems");
        let problems = error.problems().iter();
        problems
            .map(|problem| format!("{}: {} | {}", problem.key, problem.what, problem.remedy))
            .collect()
    }
}

#[track_caller]
fn assert_problems(given: &ConfigInput, beginnings: &[&str]) {
    let problems = given.problems();
    assert_eq!(problems.len(), beginnings.len(), "{problems:#?}");
    for (problem, beginning) in problems.iter().zip(beginnings) {
        assert!(
            problem.starts_with(beginning),
            "{problem:?} vs {beginning:?}"
        );
    }
}

#[test]
fn an_empty_configuration_is_valid_and_gets_the_defaults() {
    let config = ConfigInput::default().valid();

    assert_eq!(config.server.listen, "127.0.0.1:8484".parse().unwrap());
    assert_eq!(config.server.admin, "127.0.0.1:8485".parse().unwrap());
    assert_eq!(config.limits.max_body_bytes, 32 * 1024 * 1024);
    assert_eq!(config.upstream.timeouts.head, Duration::from_mins(10));
    assert_eq!(
        config.upstream.base_url.as_str(),
        "https://api.openai.com/v1"
    );
    assert_eq!(config.memory.placement, Some(Placement::SystemMessage));
    assert_eq!(config.audit, AuditTarget::Stdout);
    assert_eq!(config.requests.ask_usage, AskUsage::Auto);
    assert!(config.memory_enabled);

    let thresholds = &config.memory.policy;
    assert!(!thresholds.share_token_budget && !thresholds.buffer_on_idle);
    assert_eq!(thresholds.early_activation.idle, IdleTrigger::Never);
    assert_eq!(thresholds.early_reflection.idle, IdleTrigger::Never);
    assert_eq!(thresholds.message_tokens, 30_000);
    assert_eq!(thresholds.buffer_tokens, 6_000);
    assert_eq!(thresholds.retention_floor, 6_000);
    assert_eq!(thresholds.block_after, 36_000);
    let observation = &config.memory.observation;
    assert_eq!(observation.max_output_tokens, None);
    assert_eq!(observation.instruction, None);
    assert_eq!(observation.temperature, Some(0.3));
    assert!(observation.model.is_none() && observation.endpoint.is_none());

    let reflection = &config.memory.reflection;
    assert_eq!(thresholds.observation_tokens, 40_000);
    assert_eq!(thresholds.reflect_from, 20_000);
    assert_eq!(thresholds.observation_limit, 48_000);
    assert_eq!(reflection.temperature, Some(0.0));
    assert!(reflection.model.is_none() && reflection.endpoint.is_none());
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let listen = |given: &ConfigInput| given.valid().server.listen.port();

    let mut given = ConfigInput::default();
    assert_eq!(listen(&given), 8484);
    given = ConfigInput::file("[server]\nlisten = \"127.0.0.1:1\"");
    assert_eq!(listen(&given), 1);
    given = given.env("DIARIST__SERVER__LISTEN", "127.0.0.1:2");
    assert_eq!(listen(&given), 2);
    given.flags.listen = Some("127.0.0.1:3".to_owned());
    assert_eq!(listen(&given), 3);
}

#[test]
fn a_source_that_sets_one_key_leaves_the_others_unchanged() {
    let given =
        ConfigInput::file("[memory.observation]\nmessage_tokens = 20000\nbuffer_tokens = 0.5")
            .env("DIARIST__MEMORY__OBSERVATION__BUFFER_TOKENS", "0.25");
    let thresholds = given.valid().memory.policy;
    assert_eq!(thresholds.message_tokens, 20_000);
    assert_eq!(thresholds.buffer_tokens, 5_000);
    assert_eq!(thresholds.retention_floor, 4_000);
}

#[test]
fn every_flag_sets_its_key() {
    let given = ConfigInput {
        flags: Flags {
            listen: Some("127.0.0.1:11".to_owned()),
            admin: Some("127.0.0.1:12".to_owned()),
            upstream: Some("http://10.0.0.1/openai/v1/".to_owned()),
            database: Some("sqlite::memory:".to_owned()),
            audit: Some("audit.jsonl".to_owned()),
        },
        ..ConfigInput::default()
    };
    let config = given.valid();
    assert_eq!(config.server.listen.port(), 11);
    assert_eq!(config.server.admin.port(), 12);
    assert_eq!(
        config.upstream.base_url.as_str(),
        "http://10.0.0.1/openai/v1"
    );
    assert_eq!(config.database, Database::SqliteInMemory);
    assert_eq!(
        config.audit,
        AuditTarget::File(PathBuf::from("audit.jsonl"))
    );
}

#[test]
fn ask_usage_is_read_from_file_and_environment() {
    for (written, asks) in [
        ("auto", AskUsage::Auto),
        ("never", AskUsage::Never),
        ("always", AskUsage::Always),
    ] {
        let given = ConfigInput::file(&format!("[audit]\nask_usage = \"{written}\"\n"));
        assert_eq!(given.valid().requests.ask_usage, asks);
        let given = ConfigInput::default().env("DIARIST__AUDIT__ASK_USAGE", written);
        assert_eq!(given.valid().requests.ask_usage, asks);
    }
}

#[test]
fn text_in_the_environment_is_never_taken_for_a_number() {
    let config = ConfigInput::default()
        .env("DIARIST__MEMORY__MODEL", "4.10")
        .env("DIARIST__MEMORY__BASE_URL", "http://models.internal/v1")
        .env("DIARIST__MEMORY__API_KEY", "007")
        .env("DIARIST__MEMORY__ENABLED", "False")
        .valid();
    assert!(!config.memory_enabled);
    for phase in [&config.memory.observation, &config.memory.reflection] {
        assert_eq!(phase.model, Some(Models::One("4.10".to_owned())));
        let Some(Endpoint::Configured { api_key, .. }) = &phase.endpoint else {
            panic!("{:?}", phase.endpoint);
        };
        assert_eq!(api_key.expose_secret(), "007");
    }
}

#[test]
fn empty_and_foreign_environment_variables_are_ignored() {
    let config = ConfigInput::default()
        .env("DIARIST__MEMORY__MODEL", "")
        .env("DIARIST_PORT", "tcp://10.96.0.1:80")
        .valid();
    assert_eq!(config.memory.observation.model, None);
}

#[test]
fn the_database_is_in_the_data_folder_unless_configured() {
    if cfg!(all(unix, not(target_os = "macos"))) {
        let database = ConfigInput::default().valid().database;
        let expected = PathBuf::from("/home/ada/.local/share/diarist/diarist.db");
        assert_eq!(database, Database::Sqlite(expected));
    }
    for written in ["sqlite:///data/d.db", "/data/d.db"] {
        let given = ConfigInput::file(&format!("[store]\nurl = \"{written}\""));
        let database = given.valid().database;
        assert_eq!(database, Database::Sqlite(PathBuf::from("/data/d.db")));
        assert_eq!(database.to_string(), "sqlite:///data/d.db");
    }
}

#[test]
fn every_problem_is_listed_at_once() {
    let given = ConfigInput::file(
        r#"
        [server]
        listen = "8484"
        max_requests = "lots"
        lisen = "127.0.0.1:1"
        header_timeout = 30
        connect_timeout = "0s"
        [upstream]
        base_url = "ftp://files"
        placement = "top"
        [store]
        url = "postgres://ada:secret@db/diarist"
        [audit]
        ask_usage = "sometimes"
        [memory]
        scope = "resource"
        model = "a"
        [memory.observation]
        model = "b"
        message_tokens = 0
        buffer_activation = 500
        [memory.reflection]
        api_key = "sk-alone"
        "#,
    )
    .env("DIARIST__SEVER__LISTEN", "127.0.0.1:1")
    .env("DIARIST__MEMORY__REFLECTION", "cheap");
    assert_problems(
        &given,
        &[
            "server.lisen: there is no such key | did you mean server.listen?",
            "memory.reflection: this is a section, not a key | set the keys inside DIARIST__MEMORY__REFLECTION",
            "sever.listen: there is no such key | did you mean DIARIST__SERVER__LISTEN?",
            "server.header_timeout: found 30, expected a duration with its unit",
            "server.max_requests: found \"lots\", expected a whole number",
            "server.listen: \"8484\" is not an IP address with a port",
            "server.connect_timeout: the duration must be greater than 0",
            "upstream.base_url: \"ftp://\" is not supported",
            "upstream.placement: \"top\" is not a known value | write \"auto\", ",
            "store.url: PostgreSQL is not available",
            "audit.ask_usage: \"sometimes\" is not a known value | write \"auto\", \"never\" or \"always\"",
            "memory.scope: \"resource\" needs to know which user is talking",
            "memory.observation.model: memory.model is also set",
            "memory.reflection.api_key: memory.reflection.base_url is missing",
            "memory.observation.message_tokens: the number of tokens must be greater than 0",
            "memory.observation.buffer_activation: 500 is neither",
        ],
    );
}

#[test]
fn problems_name_their_source_but_contain_no_secret() {
    let mut given = ConfigInput::file(
        "[store]\nurl = \"mysql://ada:hunter2@db\"\n[memory]\napi_key = 12345\nbase_url = 'http://u:hunter2@h'",
    )
    .env("DIARIST__SERVER__ADMIN", "nowhere")
    .env("DIARIST__MEMORY__OBSERVATION__API_KEY", "hunter2 with blanks");
    given.flags.upstream = Some("http://ada:hunter2@host/v1".to_owned());
    let text = given.load().unwrap_err().to_string();
    assert!(
        !text.contains("hunter2") && !text.contains("12345"),
        "{text}"
    );
    assert!(text.contains("(from DIARIST__SERVER__ADMIN)"), "{text}");
    assert!(text.contains("(from --upstream)"), "{text}");
    let path = given.file.as_ref().unwrap().path().display().to_string();
    assert!(text.contains(&format!("(from {path})")), "{text}");
}

#[test]
fn an_invalid_file_does_not_hide_problems_of_other_sources() {
    let given = ConfigInput::file("[memory]\napi_key = \"sk-hunter2\nmodel = \"x\"")
        .env("DIARIST__SERVER__LISTEN", "nowhere");
    let problems = given.problems();
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(
        problems[0].contains("the file is not valid TOML"),
        "{problems:#?}"
    );
    assert!(problems[0].contains("line 2"), "{problems:#?}");
    assert!(!problems[0].contains("hunter2"), "{problems:#?}");
    assert!(problems[1].starts_with("server.listen"), "{problems:#?}");
}

#[test]
fn the_error_names_a_missing_configuration_file() {
    let missing = PathBuf::from("/nowhere/diarist.toml");
    let error = config::load(&Flags::default(), &BTreeMap::new(), Some(&missing)).unwrap_err();
    assert_eq!(error.problems()[0].key, "/nowhere/diarist.toml");
    assert!(error.problems()[0].what.contains("cannot be read"));
}

#[test]
fn a_missing_home_folder_is_a_problem_only_for_the_default_database() {
    let load = |flags: &Flags| config::load(flags, &BTreeMap::new(), None);
    let error = load(&Flags::default()).unwrap_err();
    assert_eq!(error.problems().len(), 1);
    assert_eq!(error.problems()[0].key, "store.url");
    let flags = Flags {
        database: Some("sqlite::memory:".to_owned()),
        ..Flags::default()
    };
    assert!(load(&flags).is_ok());
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    assert_problems(
        &ConfigInput::file("[server]\nadmin = \"127.0.0.1:8484\""),
        &["server.admin: the admin port must not be the data port"],
    );
    let ports = |listen: &str, admin: &str| {
        ConfigInput::file(&format!(
            "[server]\nlisten = \"{listen}\"\nadmin = \"{admin}\""
        ))
    };
    for (listen, admin) in [
        ("0.0.0.0:8484", "127.0.0.1:8484"),
        ("[::1]:8484", "[::]:8484"),
    ] {
        assert_problems(
            &ports(listen, admin),
            &["server.admin: the admin port must not be the data port"],
        );
    }
    for (listen, admin) in [
        ("0.0.0.0:8484", "127.0.0.1:8485"),
        ("0.0.0.0:8484", "[::1]:8484"),
        ("127.0.0.1:8484", "[::]:8484"),
    ] {
        assert!(ports(listen, admin).load().is_ok(), "{listen} {admin}");
    }
    assert_problems(
        &ports("localhost:8484", "127.0.0.1:8485"),
        &[
            "server.listen: \"localhost:8484\" has a name in the place of the IP address | write \"127.0.0.1:8484\"",
        ],
    );
    assert!(
        ConfigInput::file("[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"")
            .load()
            .is_ok()
    );
    assert_problems(
        &ConfigInput::file("[upstream]\nbase_url = \"http://localhost:8484/v1\""),
        &["upstream.base_url: this is Diarist's own data port"],
    );
    assert_problems(
        &ConfigInput::file("[memory]\nbase_url = \"http://host/v1\""),
        &["memory.base_url: memory.api_key is missing"],
    );
    assert_problems(
        &ConfigInput::file("[memory.observation]\nmessage_tokens = 5000\nbuffer_tokens = 6000"),
        &[
            "memory.observation.buffer_tokens: 6000 makes 6000 tokens, but it must be above 0 and below message_tokens (5000)",
        ],
    );
    assert_problems(
        &ConfigInput::file("[memory.reflection]\nblock_after = 39999"),
        &["memory.reflection.block_after: 39999 tokens are less than observation_tokens (40000)"],
    );
}

#[test]
fn the_model_of_one_phase_serves_both_if_they_share_an_endpoint() {
    let models = |text: &str| {
        let memory = ConfigInput::file(text).valid().memory;
        (memory.observation.model, memory.reflection.model)
    };
    let small = || Some(Models::One("small".to_owned()));
    assert_eq!(models("memory.model = \"small\""), (small(), small()));
    assert_eq!(
        models("memory.reflection.model = \"small\""),
        (small(), small())
    );
    // The place of the Observer alone: its model is unknown where the conversations are.
    let elsewhere =
        "[memory.observation]\nmodel = \"small\"\nbase_url = \"http://h/v1\"\napi_key = \"k\"";
    assert_eq!(models(elsewhere), (small(), None));
}

#[test]
fn the_endpoint_of_a_phase_overrides_the_common_endpoint() {
    let memory = ConfigInput::file(
        "[memory]\nbase_url = \"http://common/v1\"\napi_key = \"k1\"\n\
         [memory.reflection]\nbase_url = \"http://own/v1/\"\napi_key = \"k2\"",
    )
    .valid()
    .memory;
    let url = |endpoint: Option<Endpoint>| match endpoint {
        Some(Endpoint::Configured { base_url, .. }) => base_url.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(url(memory.observation.endpoint), "http://common/v1");
    assert_eq!(url(memory.reflection.endpoint), "http://own/v1");
}

#[test]
fn secrets_are_in_neither_debug_output_nor_effective_configuration() {
    let given = ConfigInput::file(
        "[memory]\nbase_url = \"http://h/v1\"\napi_key = \"sk-hunter2\"\n\
         [identity.token]\nsecret = \"hunter2 and some more bytes\"",
    );
    let config = given.valid();
    assert!(!format!("{config:?}").contains("hunter2"));
    let file = given.file.as_ref().map(tempfile::NamedTempFile::path);
    let env = BTreeMap::from([("HOME".to_owned(), "/home/ada".to_owned())]);
    let text = config::effective(&given.flags, &env, file).unwrap();
    assert!(text.contains("api_key = \"[redacted]\""), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn hints_mention_unknown_prices_and_open_ports() {
    let hints = |text: &str| ConfigInput::file(text).valid().hints().join("\n");
    assert!(hints("").contains("60,000 tokens"));
    assert_eq!(hints("memory.model = \"gpt-5-nano\""), "");
    let unpriced = "memory.model = { \"9000\" = \"gpt-5-nano\", \"90000\" = \"small\" }";
    assert!(hints(unpriced).contains("No price of small is known"));
    for decided in [
        "audit.prices = [\"small=1,1,1\"]",
        "memory.cost.observer_input = 0.1",
        "memory.policy = \"published\"",
        "memory.observation.message_tokens = 9000",
    ] {
        assert_eq!(hints(&format!("{unpriced}\n{decided}")), "", "{decided}");
    }
    assert!(hints("memory.enabled = false").contains("plain proxy"));
    let open = hints("[server]\nlisten = \"0.0.0.0:1\"\nadmin = \"0.0.0.0:2\"");
    assert!(open.contains("without a credential") && open.contains("server.admin_token"));
}

#[test]
fn a_misspelled_section_is_recognised() {
    assert_problems(
        &ConfigInput::file("[upstrem]\nbase_url = \"http://host/v1\"\n[colours]\nred = 1"),
        &[
            "colours: there is no such section | remove it",
            "upstrem: there is no such section | did you mean [upstream]?",
        ],
    );
}

#[test]
fn probable_mistakes_in_settings_cause_warnings() {
    let warnings = |given: ConfigInput| given.load().unwrap().warnings;
    assert_eq!(warnings(ConfigInput::default()), Vec::<String>::new());
    let given = ConfigInput::file("upstream.base_url = \"http://host/v1/chat/completions\"")
        .env("DIARIST_MEMORY_MODEL", "cheap")
        .env("DIARIST_PORT", "tcp://10.96.0.1:80");
    let warnings = warnings(given);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("Did you mean DIARIST__MEMORY__MODEL?"));
    assert!(warnings[1].contains("Remove /chat/completions."));
}

#[test]
fn an_opentelemetry_endpoint_that_is_no_url_causes_a_warning() {
    let variable = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let warnings = |given: ConfigInput| given.env(variable, "collector").load().unwrap().warnings;
    let found = warnings(ConfigInput::default());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(variable) && found[0].contains("http://127.0.0.1:4318"));
    let set = ConfigInput::file("otlp.endpoint = \"http://127.0.0.1:4318\"");
    let off = ConfigInput::default().env("OTEL_SDK_DISABLED", "true");
    for unused in [set, off] {
        assert_eq!(warnings(unused), Vec::<String>::new());
    }
    assert_problems(
        &ConfigInput::file("otlp.endpoint = \"collector\""),
        &[
            "otlp.endpoint: this is not a URL: it does not begin with https:// or http:// | write a URL such as \"http://127.0.0.1:4318\"",
        ],
    );
}

#[test]
fn an_unencrypted_public_address_causes_a_warning() {
    // An address of memory's own needs a key of its own.
    let warnings = |section: &str, url: &str| {
        let key = if section == "upstream" {
            ""
        } else {
            "api_key = \"k\""
        };
        let text = format!("[{section}]\nbase_url = \"{url}\"\n{key}");
        ConfigInput::file(&text).load().unwrap().warnings
    };
    for fine in [
        "https://host.example/v1",
        "http://127.0.0.1:1/v1",
        "http://[::1]:1/v1",
        "http://localhost:1/v1",
        "http://ollama:11434/v1",
    ] {
        assert_eq!(warnings("memory", fine), Vec::<String>::new(), "{fine}");
    }
    for section in [
        "upstream",
        "memory",
        "memory.observation",
        "memory.reflection",
    ] {
        for plain in ["http://host.example/v1", "http://192.0.2.1/v1"] {
            let found = warnings(section, plain);
            assert_eq!(found.len(), 1, "{section} {found:?}");
            let start = format!("{section}.base_url is http://");
            assert!(found[0].starts_with(&start), "{found:?}");
        }
    }
}
