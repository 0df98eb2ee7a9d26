//! The check, checked: planted violations are found, and what is allowed passes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{LONGEST_FILE, PURE, files_of_test_modules, import_violations, too_long};

/// The violations of a planted file, without their places.
fn planted(path: &str, text: &str) -> Vec<String> {
    let violations = import_violations(Path::new(path), text);
    violations
        .iter()
        .map(|violation| violation.splitn(3, ':').nth(2).unwrap().trim().to_owned())
        .collect()
}

#[test]
fn a_forbidden_import_is_found_however_it_is_spelled() {
    for text in [
        "use crate::store::Store;",
        "use crate::{history::ChainedMessage, store::{Store, Scope}};",
        "use crate::{self as it, store};",
        "fn f() { crate::store::open(); }",
        "type T = Vec<crate::store::Row>;",
        "use super::super::store::Store;",
        "use super::{super::store};",
        "macro_rules! m { () => { $crate::store::x() }; }",
        "use crate /* by the way */ :: store;",
    ] {
        assert_eq!(
            planted("crates/core/src/wire/chat.rs", text),
            ["`wire` must not import `store`"],
            "{text}"
        );
    }
    assert_eq!(
        planted("src/store.rs", "use super::proxy::Flow;"),
        ["`store` must not import `proxy`"]
    );
    assert_eq!(
        planted(
            "crates/provider/src/judge.rs",
            "use diarist_core::wire::parse;"
        ),
        ["`provider` must not import `wire`"]
    );
}

#[test]
fn a_module_that_is_not_in_the_table_is_found() {
    assert_eq!(
        planted("src/proxy.rs", "use crate::util::join;"),
        ["`proxy` must not import `util`"]
    );
    assert_eq!(
        planted("src/util.rs", "use crate::store::Store;"),
        ["`util` must not import `store`"]
    );
}

#[test]
fn allowed_code_has_no_violation() {
    for text in [
        "use crate::history::ChainedMessage;",
        "use super::spans::Span;",
        "use crate::wire::splice;",
        "pub(in crate::store) fn f() {}",
        "// use crate::store::Store;\n/* crate::store /* nested */ crate::store */",
        "const A: &str = \"use crate::store::Store; tokio::spawn\";",
        "const A: &str = r#\"a \" crate::store::x\"#; const B: char = '\"';",
        "const A: char = '\\''; const B: &str = \"\\\" crate::store::x\";",
        "fn f<'a>(x: &'a str) -> &'a str { x }",
        "use std::time::Duration;",
        "#[cfg(test)]\nmod tests { use crate::store::Store; fn f() { tokio::spawn(async {}); } }",
        "#[cfg(test)]\nmod tests;\nfn f() {}",
    ] {
        assert_eq!(
            planted("crates/core/src/wire/chat.rs", text),
            [""; 0],
            "{text}"
        );
    }
}

#[test]
fn code_after_a_test_module_is_checked_again() {
    let text = "#[cfg(test)]\nmod tests { mod inner { fn f() {} } }\nuse crate::store::Store;";
    let violations = import_violations(Path::new("crates/core/src/wire.rs"), text);
    assert_eq!(
        violations,
        ["crates/core/src/wire.rs:3: `wire` must not import `store`"]
    );
}

#[test]
fn impurity_in_a_pure_module_is_found() {
    for (text, found) in [
        ("async fn f() {}", "async"),
        ("fn f() { g().await; }", "await"),
        ("use std::time::Instant;", "Instant"),
        ("fn f() { std::time::SystemTime::now(); }", "SystemTime"),
        ("use tokio::sync::mpsc;", "tokio::sync::mpsc"),
        ("use std::{fmt, fs};", "std::fs"),
        ("fn f() { std::fs::read(p); }", "std::fs::read"),
        ("use std::net::TcpStream;", "std::net::TcpStream"),
        ("use hyper::Uri;", "hyper::Uri"),
        ("use reqwest::Client;", "reqwest::Client"),
        ("use rand::random;", "rand::random"),
    ] {
        for top_module in PURE {
            let expected = format!("`{found}` in the pure module `{top_module}`");
            assert_eq!(
                planted(&format!("src/{top_module}/x.rs"), text),
                [expected],
                "{text}"
            );
        }
        assert_eq!(planted("src/proxy/x.rs", text), [""; 0], "{text}");
    }
}

#[test]
fn sql_and_spawned_tasks_outside_their_modules_are_found() {
    let sql = "use sqlx::SqlitePool;";
    assert_eq!(
        planted("src/admin/list.rs", sql),
        ["`sqlx` outside `store`"]
    );
    assert_eq!(planted("src/store/sqlite.rs", sql), [""; 0]);
    for spawn in [
        "fn f() { tokio::spawn(g()); }",
        "use tokio::{spawn, select};",
    ] {
        let found = planted("src/jobs/queue.rs", spawn);
        assert_eq!(
            found,
            ["`tokio::spawn` outside `tasks`: nobody would wait for the task"]
        );
        assert_eq!(planted("src/tasks.rs", spawn), [""; 0]);
    }
}

#[test]
fn files_of_test_modules_are_recognised() {
    let text = "#[cfg(test)]\nmod tests;\nmod other;".to_owned();
    let files = files_of_test_modules(&BTreeMap::from([(PathBuf::from("src/wire.rs"), text)]));
    let expected = ["src/wire/tests", "src/wire/tests.rs"].map(PathBuf::from);
    assert_eq!(files, BTreeSet::from(expected));
}

#[test]
fn a_file_that_is_too_long_is_found() {
    let lines = |n: usize| "x\n".repeat(n);
    assert_eq!(too_long(Path::new("a.rs"), &lines(LONGEST_FILE)), None);
    assert!(too_long(Path::new("a.rs"), &lines(LONGEST_FILE + 1)).is_some());
}
