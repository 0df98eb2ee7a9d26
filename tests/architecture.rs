//! The shape of the code, checked on the code itself: who imports whom, what the pure modules never
//! touch, what only one module may do, how long a file may be. The check is itself tested, in `planted`.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod circles;
mod names;
mod planted;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use source::{TEST_ONLY, paths, spells, tokens, without_tests};

/// Each module and the modules it may import. `app` knows everything but `cli`, `cli` everything.
const MODULES: &[(&str, &[&str])] = &[
    ("steps", &[]),
    ("history", &[]),
    ("tokens", &["steps"]),
    ("tasks", &["steps"]),
    ("telemetry", &[]),
    ("report", &[]),
    ("model_prices", &[]),
    ("ledger", &["report", "model_prices"]),
    ("wire", &["history"]),
    ("audit", &["history", "wire", "tasks", "telemetry"]),
    ("memory", &["history", "steps", "tokens"]),
    ("provider", &["tokens", "tasks"]),
    ("upstream", &["telemetry", "tasks"]),
    ("llm", &["memory", "wire", "telemetry"]),
    ("store", &["history", "memory", "tasks", "telemetry"]),
    ("lookup", &["history", "memory", "store"]),
    (
        "jobs",
        &[
            "history",
            "steps",
            "wire",
            "tokens",
            "memory",
            "store",
            "lookup",
            "llm",
            "tasks",
            "telemetry",
            "audit",
            "model_prices",
        ],
    ),
    (
        "proxy",
        &[
            "history",
            "wire",
            "memory",
            "store",
            "lookup",
            "jobs",
            "upstream",
            "audit",
            "tasks",
            "telemetry",
            "llm",
        ],
    ),
    ("admin", &["store", "telemetry", "tasks"]),
    ("server", &["proxy", "admin", "tasks", "telemetry"]),
    // It builds the settings of the modules below.
    (
        "config",
        &[
            "model_prices",
            "audit",
            "wire",
            "memory",
            "upstream",
            "llm",
            "jobs",
            "proxy",
            "server",
        ],
    ),
    (
        "app",
        &[
            "history",
            "tokens",
            "tasks",
            "telemetry",
            "config",
            "ledger",
            "model_prices",
            "wire",
            "audit",
            "memory",
            "provider",
            "upstream",
            "llm",
            "store",
            "lookup",
            "jobs",
            "proxy",
            "admin",
            "server",
        ],
    ),
    (
        "cli",
        &[
            "history",
            "tokens",
            "tasks",
            "telemetry",
            "config",
            "report",
            "ledger",
            "model_prices",
            "wire",
            "audit",
            "memory",
            "provider",
            "upstream",
            "llm",
            "store",
            "lookup",
            "jobs",
            "proxy",
            "admin",
            "server",
            "app",
        ],
    ),
];

/// Modules that compute and do nothing else.
const PURE: [&str; 7] = [
    "history",
    "wire",
    "tokens",
    "memory",
    "report",
    "ledger",
    "model_prices",
];

/// Crates and modules a pure module never names.
const IMPURE_PATHS: [&str; 13] = [
    "tokio",
    "tokio_util",
    "futures_util",
    "sqlx",
    "hyper",
    "hyper_util",
    "reqwest",
    "rand",
    "uuid",
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
];

/// Words a pure module never uses, in whatever path.
const IMPURE_WORDS: [&str; 6] = [
    "async",
    "await",
    "Instant",
    "SystemTime",
    "RandomState",
    "Timestamp",
];

const LONGEST_FILE: usize = 600;

// === the checks ===

#[test]
fn the_code_obeys_its_architecture() {
    let sources = all_sources();
    let tests_only = files_of_test_modules(&sources);
    let mut violations = Vec::new();
    for (path, text) in &sources {
        violations.extend(too_long(path, text));
        if !tests_only.iter().any(|root| path.starts_with(root)) {
            violations.extend(import_violations(path, text));
        }
    }
    for (path, text) in self::sources("tests") {
        violations.extend(too_long(&path, &text));
    }
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn the_module_table_is_complete_and_has_no_import_circle() {
    let named: BTreeSet<&str> = MODULES.iter().map(|&(top_module, _)| top_module).collect();
    assert_eq!(named.len(), MODULES.len());
    let libraries = ["src/lib.rs", "crates/core/src/lib.rs"].map(|path| read(&root().join(path)));
    let declared = libraries
        .iter()
        .flat_map(|library| library.lines())
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let with_provider: BTreeSet<&str> = declared.chain(["provider"]).collect();
    assert_eq!(with_provider, named);
    // A module stands in the table after everything that it imports, so no imports form a circle.
    for (at, (top_module, imports)) in MODULES.iter().enumerate() {
        for import in *imports {
            let before = MODULES[..at].iter().any(|(earlier, _)| earlier == import);
            assert!(
                before,
                "{top_module} imports {import}, which does not stand before it"
            );
        }
    }
}

/// What is wrong with one file of `src`, tests inside it left out.
fn import_violations(path: &Path, text: &str) -> Vec<String> {
    let module = module_path(path);
    let Some(top_module) = module.first().map(String::as_str) else {
        return Vec::new();
    };
    let tokens = without_tests(&tokens(text));
    let mut violations = BTreeSet::new();
    for used in paths(&tokens) {
        let resolved = resolve(&module, &used.segments);
        let path_text = used.segments.join("::");
        let mut violation = |what: &str| {
            violations.insert((
                used.line,
                format!("{}:{}: {what}", path.display(), used.line),
            ));
        };
        if let Some(target) = resolved
            && target != top_module
            && !may_import(top_module, &target)
        {
            violation(&format!("`{top_module}` must not import `{target}`"));
        }
        if PURE.contains(&top_module) && IMPURE_PATHS.iter().any(|path| within(&path_text, path)) {
            violation(&format!("`{path_text}` in the pure module `{top_module}`"));
        }
        if top_module != "store" && within(&path_text, "sqlx") {
            violation("`sqlx` outside `store`");
        }
        let spawns = [
            "tokio::spawn",
            "tokio::task::spawn",
            "tokio::task::spawn_local",
        ];
        if top_module != "tasks" && spawns.contains(&path_text.as_str()) {
            violation(&format!(
                "`{path_text}` outside `tasks`: nobody would wait for the task"
            ));
        }
    }
    if PURE.contains(&top_module) {
        for token in &tokens {
            if IMPURE_WORDS.contains(&token.text.as_str()) {
                let what = format!("`{}` in the pure module `{top_module}`", token.text);
                violations.insert((
                    token.line,
                    format!("{}:{}: {what}", path.display(), token.line),
                ));
            }
        }
    }
    violations
        .into_iter()
        .map(|(_, violation)| violation)
        .collect()
}

fn too_long(path: &Path, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > LONGEST_FILE).then(|| {
        format!(
            "{}: {lines} lines, more than {LONGEST_FILE}",
            path.display()
        )
    })
}

fn may_import(top_module: &str, target: &str) -> bool {
    let allowed = MODULES.iter().find(|&&(name, _)| name == top_module);
    allowed.is_some_and(|(_, imports)| imports.contains(&target))
}

fn within(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// `src/proxy/flow.rs` is the module `proxy::flow`, `crates/core/src/wire/chat.rs` is `wire::chat`,
/// and the whole of `crates/provider` is the module `provider`. The roots of the other two packages are
/// no module: they only declare.
fn module_path(path: &Path) -> Vec<String> {
    let (prefix, inner) = if let Ok(inner) = path.strip_prefix("crates/provider/src") {
        (Some("provider".to_owned()), inner)
    } else if let Ok(inner) = path.strip_prefix("crates/core/src") {
        (None, inner)
    } else {
        (None, path.strip_prefix("src").unwrap_or(path))
    };
    let inner = inner.with_extension("");
    let parts = inner.iter().map(|part| part.to_string_lossy().into_owned());
    let parts = parts.filter(|part| part != "lib" && part != "main");
    prefix.into_iter().chain(parts).collect()
}

/// The module a path leads into, if it leads into one of ours: by `crate`, by `super`, or by the name
/// of one of our packages.
fn resolve(module: &[String], segments: &[String]) -> Option<String> {
    let in_provider = module
        .first()
        .is_some_and(|top_module| top_module == "provider");
    let supers = segments
        .iter()
        .take_while(|segment| *segment == "super")
        .count();
    match segments.first()?.as_str() {
        "crate" if in_provider => Some("provider".to_owned()),
        "crate" | "diarist_core" => segments.get(1).cloned(),
        "diarist_provider" => Some("provider".to_owned()),
        "super" if supers >= module.len() => segments.get(supers).cloned(),
        _ => None,
    }
    .filter(|target| target != "self")
}

// === finding files ===

/// Files (without extension) and folders of modules that are declared `#[cfg(test)] mod name;`.
fn files_of_test_modules(sources: &BTreeMap<PathBuf, String>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for (path, text) in sources {
        let tokens = tokens(text);
        for at in 0..tokens.len() {
            if spells(&tokens[at..], &TEST_ONLY)
                && let Some(rest) = tokens.get(at + TEST_ONLY.len()..)
                && let [word, name, end, ..] = rest
                && (word.text.as_str(), end.text.as_str()) == ("mod", ";")
            {
                let folder = path.with_extension("").join(&name.text);
                found.insert(folder.with_extension("rs"));
                found.insert(folder);
            }
        }
    }
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The sources of the three packages.
fn all_sources() -> BTreeMap<PathBuf, String> {
    let folders = ["src", "crates/core/src", "crates/provider/src"];
    folders.into_iter().flat_map(sources).collect()
}

/// Every Rust file under `folder`, by its path from the root of the repository.
fn sources(folder: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("it is below the root");
                found.insert(name.to_owned(), read(&path));
            }
        }
    }
    assert!(!found.is_empty(), "nothing to check in {folder}");
    found
}
