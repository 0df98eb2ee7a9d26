//! Which requests have memory, and what is done for one that does not fit.

use std::time::Duration;

use diarist::memory::alignment::EvidenceLevel;
use diarist::memory::prompt_cache::CacheRulesOverride;
use diarist::proxy::Overflow;
use diarist::proxy::mode::{Glob, Mode, Rule};
use diarist::wire::Placement;

use crate::config::{ConfigInput, assert_problems};

#[test]
fn rules_are_read_from_a_file_and_from_the_environment() {
    let expected = [
        Rule {
            path: Some(Glob::new("/v1/*")),
            model: Some(Glob::new("*-embed")),
            header: None,
            mode: Mode::Off,
        },
        Rule {
            path: None,
            model: None,
            header: Some(("x-task".parse().unwrap(), Some(Glob::new("title*")))),
            mode: Mode::Read,
        },
    ];
    let tables = r#"
        [memory]
        read_only = true
        [[memory.rules]]
        path = "/v1/*"
        model = "*-embed"
        memory = "off"
        [[memory.rules]]
        header = "X-Task"
        value = "title*"
        memory = "read"
    "#;
    let requests = ConfigInput::file(tables).valid().requests;
    assert_eq!(requests.rules.listed, expected);
    assert!(requests.read_only.default);
    let list = r#"[{ path = "/v1/*", model = "*-embed", memory = "off" },
                   { header = "X-Task", value = "title*", memory = "read" }]"#;
    let given = ConfigInput::default().env("DIARIST__MEMORY__RULES", list);
    assert_eq!(given.valid().requests.rules.listed, expected);
    assert!(
        ConfigInput::default()
            .valid()
            .requests
            .rules
            .listed
            .is_empty()
    );
}

#[test]
fn every_wrong_memory_rule_is_reported_with_its_number() {
    let wrong = r#"[
        { model = "x", memry = "off" },
        { model = "x" },
        { model = "x", memory = "maybe" },
        { model = 4, memory = "off" },
        { memory = "off" },
        { header = "x task", memory = "off" },
        { model = "x", value = "y", memory = "off" },
        { path = "v1", memory = "on" },
        { path = "/v1", memory = "on" },
        { path = "v1", memory = "maybe" },
    ]"#;
    let list = wrong.replace('\n', " ");
    assert_problems(
        &ConfigInput::default().env("DIARIST__MEMORY__RULES", &list),
        &[
            "memory.rules: rule 1: there is no key \"memry\" in a rule | did you mean memory?",
            "memory.rules: rule 2: memory is missing",
            "memory.rules: rule 3: \"maybe\" is not a known value of memory",
            "memory.rules: rule 4: model is not a text",
            "memory.rules: rule 5: it has neither path, model nor header",
            "memory.rules: rule 6: \"x task\" is not a header name",
            "memory.rules: rule 7: value is set without header",
            "memory.rules: rule 8: path does not begin with a slash",
            "memory.rules: rule 10: \"maybe\" is not a known value of memory",
            "memory.rules: rule 10: path does not begin with a slash",
        ],
    );
    let none = ConfigInput::default().env("DIARIST__MEMORY__RULES", "all of them");
    assert_problems(
        &none,
        &["memory.rules: found \"all of them\", expected a list of tables"],
    );
}

#[test]
fn every_wrong_member_of_a_list_is_reported() {
    for (key, wrong) in [
        ("server.hosts", ["a b", "http://a"]),
        ("audit.prices", ["x=1", "y"]),
        ("identity.headers", ["a b", "x-api-key"]),
        ("identity.body_fields", ["user", "a..b"]),
        ("identity.task_headers", ["a b", "cookie"]),
        ("identity.credentials", ["a b", "*"]),
        ("identity.token.algorithms", ["none", "XS1"]),
        ("memory.observation.continuation_hints", ["a", "b"]),
        ("memory.observation.observe_attachments", ["image", "a/b/c"]),
        ("memory.observation.omit_blocks", ["<a>", "b c"]),
        ("memory.redact.kinds", ["a", "b"]),
        ("memory.redact.patterns", ["(", "x*"]),
    ] {
        let variable = format!("DIARIST__{}", key.replace('.', "__").to_uppercase());
        let list = serde_json::to_string(&wrong).unwrap();
        let mut given = ConfigInput::default().env(&variable, &list);
        if key.starts_with("identity.token") {
            given = given.env("DIARIST__IDENTITY__TOKEN__SECRET", "0123456789abcdef");
        }
        let beginning = format!("{key}: ");
        assert_problems(&given, &[&beginning, &beginning]);
    }
}

#[test]
fn overflow_accepts_only_pass_observe_and_trim() {
    let default = ConfigInput::default().valid().requests.overflow;
    assert_eq!(default, Overflow::Pass);
    for (text, overflow) in [
        ("pass", Overflow::Pass),
        ("observe", Overflow::Observe(Duration::from_mins(1))),
        ("trim", Overflow::Trim),
    ] {
        let given = ConfigInput::default().env("DIARIST__MEMORY__OVERFLOW", text);
        assert_eq!(given.valid().requests.overflow, overflow);
    }
    let given = ConfigInput::default()
        .env("DIARIST__MEMORY__OVERFLOW", "cut")
        .env("DIARIST__MEMORY__OVERFLOW_TIMEOUT", "0s");
    assert_problems(
        &given,
        &[
            "memory.overflow: \"cut\" is not a known value | write \"pass\", \"observe\" or \"trim\"",
            "memory.overflow_timeout: the duration must be",
        ],
    );
}

#[test]
fn evidence_accepts_only_strict_names_and_content() {
    assert_eq!(
        ConfigInput::default().valid().requests.evidence,
        EvidenceLevel::Content
    );
    for (text, evidence) in [
        ("strict", EvidenceLevel::Strict),
        ("names", EvidenceLevel::Names),
        ("content", EvidenceLevel::Content),
    ] {
        let given = ConfigInput::default().env("DIARIST__MEMORY__EVIDENCE", text);
        assert_eq!(given.valid().requests.evidence, evidence);
    }
    let given = ConfigInput::default().env("DIARIST__MEMORY__EVIDENCE", "trust");
    assert_problems(&given, &["memory.evidence: \"trust\""]);
}

#[test]
fn rules_of_prompt_caches_are_read() {
    let own = |model: &str, minimum_tokens, step_tokens, minutes| CacheRulesOverride {
        model: Glob::new(model),
        minimum_tokens,
        step_tokens,
        lifetime: Some(Duration::from_mins(minutes)),
        look_back: None,
    };
    let tables = r#"
        [[audit.cache_rules]]
        model = "qwen*"
        minimum_tokens = 0
        step_tokens = 16
        lifetime = "1h"
        [[audit.cache_rules]]
        model = "claude-*"
        lifetime = "60m"
        [[audit.cache_rules]]
        model = "our-claude"
        look_back = 20
    "#;
    let requests = ConfigInput::file(tables).valid().requests;
    let expected = [
        own("qwen*", Some(0), Some(16), 60),
        own("claude-*", None, None, 60),
        CacheRulesOverride {
            lifetime: None,
            look_back: Some(20),
            ..own("our-claude", None, None, 0)
        },
    ];
    assert_eq!(requests.cache_rules, expected);
    assert!(
        ConfigInput::default()
            .valid()
            .requests
            .cache_rules
            .is_empty()
    );
}

#[test]
fn every_wrong_cache_rule_is_reported_with_its_number() {
    let wrong = r#"[
        { model = "x", lifetme = "1h" },
        { step_tokens = 16 },
        { model = 4, step_tokens = 16 },
        { model = "x" },
        { model = "x", step_tokens = 0 },
        { model = "x", minimum_tokens = -1 },
        { model = "x", lifetime = 5 },
        { model = "x", lifetime = "0s" },
        { model = 4, step_tokens = 0, lifetime = 5, other = 1 },
        { model = "x", look_back = 0 },
        { model = "x", lifetime = "5m" },
    ]"#;
    let list = wrong.replace('\n', " ");
    assert_problems(
        &ConfigInput::default().env("DIARIST__AUDIT__CACHE_RULES", &list),
        &[
            "audit.cache_rules: cache rule 1: there is no key \"lifetme\" in a cache rule | did you mean lifetime?",
            "audit.cache_rules: cache rule 2: model is missing",
            "audit.cache_rules: cache rule 3: model is not a text",
            "audit.cache_rules: cache rule 4: it changes nothing",
            "audit.cache_rules: cache rule 5: step_tokens is 0",
            "audit.cache_rules: cache rule 6: minimum_tokens is not a whole number, 0 or more",
            "audit.cache_rules: cache rule 7: lifetime is not a duration with its unit",
            "audit.cache_rules: cache rule 8: lifetime is 0",
            "audit.cache_rules: cache rule 9: there is no key \"other\"",
            "audit.cache_rules: cache rule 9: model is not a text",
            "audit.cache_rules: cache rule 9: lifetime is not a duration",
            "audit.cache_rules: cache rule 9: step_tokens is 0",
            "audit.cache_rules: cache rule 10: look_back is 0",
        ],
    );
}

/// Tables in the environment are JSON, so lists of them may be too.
#[test]
fn a_list_of_tables_in_the_environment_may_be_json() {
    let given = |text: &str| {
        let given = ConfigInput::default().env("DIARIST__AUDIT__CACHE_RULES", text);
        given.valid().requests.cache_rules
    };
    let toml = given(r#"[{ model = "qwen*", step_tokens = 16, lifetime = "1m" }]"#);
    let json = given(r#"[{"model": "qwen*", "step_tokens": 16, "lifetime": "1m"}]"#);
    assert_eq!((toml.len(), toml), (1, json));
}

#[test]
fn settings_without_effect_and_immediate_deletions_cause_warnings() {
    let warnings = |text: &str| ConfigInput::file(text).load().unwrap().warnings;
    let rules = r#"
        [audit]
        path = "a.jsonl"
        cache_rules = [
            { model = "gpt*", step_tokens = 1 }, { model = "qwen*", step_tokens = 1 },
            { model = "gpt-5*", step_tokens = 2 }, { model = "*", step_tokens = 3 },
        ]
    "#;
    let messages = warnings(rules);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].contains("cache rule 3 never counts: cache rule 1 "),
        "{messages:?}"
    );
    for (text, part) in [
        (
            "max_file_bytes = 100000",
            "audit.max_file_bytes has no effect with audit.path = \"-\"",
        ),
        (
            "max_file_age = \"1d\"\npath = \"off\"",
            "audit.max_file_age has no effect",
        ),
        (
            "max_file_age = \"1d\"\npath = \"a\"\nkeep_files = 0",
            "audit.keep_files is 0",
        ),
        (
            "store_retention = \"30d\"\n[memory]\nenabled = false",
            "audit.store_retention has no effect with memory.enabled = false",
        ),
        (
            "store_retention = \"30d\"\n[memory]\nread_only = true",
            "audit.store_retention has no effect",
        ),
        ("store_retention = \"30d\"", ""),
        ("path = \"a\"\nkeep_files = 0", ""),
        ("max_file_age = \"1d\"\npath = \"a\"", ""),
    ] {
        let messages = warnings(&format!("[audit]\n{text}"));
        assert_eq!(
            messages.len(),
            usize::from(!part.is_empty()),
            "{text}: {messages:?}"
        );
        assert!(messages.concat().contains(part), "{messages:?}");
    }
}

#[test]
fn prices_of_the_audit_are_checked() {
    let prices = |text: &str| ConfigInput::file(&format!("[audit]\nprices = [{text}]"));
    let valid = prices(r#""own=1,0.1,4", "gpt-5=1.25,0.125,10,1.5""#).valid();
    let models: Vec<_> = valid.audit_prices.iter().map(|it| &it.model).collect();
    assert_eq!(models, ["own", "gpt-5"]);
    let problems = prices(r#""own=1,0.1""#).problems().concat();
    assert!(
        problems.contains("\"own=1,0.1\" is not a model with its price"),
        "{problems}"
    );
    let problems = prices(r#""own=1,1,1", "own=2,2,2""#).problems().concat();
    assert!(problems.contains("own has two prices"), "{problems}");
}

#[test]
fn problems_are_described_in_plain_words() {
    let problems = |text: &str| ConfigInput::file(text).problems().concat();
    let url = problems("[upstream]\nbase_url = \"api.openai.com/v1\"");
    assert!(
        url.contains("it does not begin with https:// or http://"),
        "{url}"
    );
    let bytes = problems("[audit]\nmax_file_bytes = 0");
    assert!(
        bytes.contains("0 bytes are too small for a file"),
        "{bytes}"
    );
    let number = problems("[server]\nmax_requests = -1");
    assert!(
        number.contains("expected a whole number, 0 or more"),
        "{number}"
    );
}

/// A message that the model's template leaves out takes the conversation with it.
#[test]
fn observations_stand_inside_the_system_message_unless_the_host_reads_several() {
    let placement = |url: &str, name: &str| {
        let text = format!("[upstream]\nbase_url = \"{url}\"\nplacement = \"{name}\"");
        ConfigInput::file(&text).valid().memory.placement
    };
    for host in [
        "api.openai.com",
        "API.Anthropic.com",
        "api.deepseek.com",
        "api.x.ai",
    ] {
        let url = format!("https://{host}/v1");
        let place = placement(&url, "auto");
        assert_eq!(place, Some(Placement::SystemMessage), "{host}");
    }
    for host in [
        "127.0.0.1:1",
        "api.groq.com",
        "mine.openai.azure.com",
        "openrouter.ai",
        "notopenai.com",
    ] {
        let url = format!("https://{host}/v1");
        let place = placement(&url, "auto");
        assert_eq!(place, Some(Placement::AppendToSystem), "{host}");
        let place = placement(&url, "system_message");
        assert_eq!(place, Some(Placement::SystemMessage), "{host}");
    }
}

#[test]
fn an_ipv4_address_written_as_ipv6_is_loopback() {
    let config = ConfigInput::default()
        .env("DIARIST__SERVER__LISTEN", "[::ffff:127.0.0.1]:8484")
        .valid();
    assert_eq!(config.server.listen, "127.0.0.1:8484".parse().unwrap());
    assert!(config.requests.identity.anonymous);
}
