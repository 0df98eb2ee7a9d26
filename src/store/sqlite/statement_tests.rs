//! Two checks on every statement: it names its owner, and it scans no table that grows. The statements are
//! read from the source files, so that none can be left out.

use std::path::PathBuf;

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row as _};

use super::SqliteStore;

/// Statements without an owner, on purpose: the claims of jobs and timers, waiting jobs that become due, the operator's
/// lists, aliases, the keys of the filter, expiry, quotas, receipts and tombstones, the deletion of a whole owner, and checks of
/// the database itself and its pepper; audit lines, which only operators read, and figures of models; and what belongs to an
/// account, which pays for its tenants with all their resources.
const ABOVE_OWNERS: [&str; 88] = [
    "LAST_USE",
    "BYTES_OF_LINEAGES",
    "BYTES_OF_NODES",
    "BYTES_OF_CONTENTS",
    "BYTES_OF_REQUESTS",
    "BYTES_OF_ANSWERS",
    "BYTES_OF_PARTS",
    "BYTES_OF_SNAPSHOTS",
    "BYTES_OF_JOBS",
    "BYTES_OF_MESSAGES",
    "BYTES_OF_EVENTS",
    "BYTES_OF_VIEWS",
    "BYTES_OF_DIGESTS",
    "LONGEST_SILENT",
    "CHECK_VALUE",
    "HAS_HASHES",
    "SET_CHECK_VALUE",
    "NODE_KEYS",
    "VIEW_KEYS",
    "ANSWER_KEYS",
    "NAME_KEYS",
    "PEER_INTRO_KEYS",
    "SAVEPOINT",
    "RELEASE",
    "ROLLBACK_TO",
    "ALIASES",
    "DATA_VERSION",
    "SHARED_THREAD_KEYS",
    "NEW_ALIAS",
    "DROP_ALIAS",
    "TENANTS",
    "CLAIM",
    "MAKE_DUE",
    "CLAIM_TIMER",
    "NEXT_TIMER",
    "OPEN_JOBS",
    "THREADS",
    "THREAD",
    "TENANT_BACKLOGS",
    "SPENT_TOKENS",
    "TENANT_ACCOUNTS",
    "SET_ACCOUNT",
    "ACCOUNT_OF",
    "SWEEP_TENANT_ACCOUNTS",
    "EXPIRE_MESSAGES",
    "GIVE_BACK_SOME",
    "EMPTY_JOURNAL",
    "COPY_JOURNAL",
    "WAIT_FOR_NOBODY",
    "WAIT_AGAIN",
    "FREE_PAGES",
    "ALL_PAGES",
    "NEW_RECEIPT",
    "NEW_TOMBSTONES",
    "ADD_TOMBSTONES",
    "SET_COUNTS",
    "LINEAGES_OF_OWNER",
    "SWEEP_JOBS",
    "SWEEP_SNAPSHOTS",
    "SWEEP_PARTS",
    "SWEEP_ACCOUNTS",
    "SWEEP_SPENDING",
    "RECEIPTS",
    "MARK_AUDITED",
    "MARK_LIFTED",
    "DROP_TOMBSTONES",
    "TOMBSTONE_VERSION",
    "TOMBSTONES",
    "OWNERS_OF_RESOURCES",
    "EXPIRED_THREADS",
    "EXPIRED_JOBS",
    "APPEND_AUDIT_LINES",
    "AUDIT_PAGE",
    "AUDIT_RANGE",
    "AUDIT_REQUEST",
    "SNAPSHOT_ORIGIN",
    "EXPIRE_AUDIT_LINES",
    "SWEEP_AUDIT_LINES",
    "TOKEN_RATIOS",
    "PUT_TOKEN_RATIOS",
    "DROP_OLD_TOKEN_RATIOS",
    "PUT_SEEN_MESSAGES",
    "SIZES_OF_SEEN_MESSAGES",
    "DROP_SEEN_MESSAGES",
    "MARK_LOST_SEEN_MESSAGES",
    "SEEN_MESSAGES",
    "EXPIRE_SEEN_MESSAGES",
    "SWEEP_SEEN_MESSAGES",
];

/// Scans that are intended: an index in order under a LIMIT, a partial index of open jobs, what an operator has
/// deleted, the deletion of a whole owner, the sums and the list for a quota, the one row that says who pays for a tenant,
/// the figures of some hundred models, what processes have seen (a few large rows, read at a start), and whether a table is
/// empty.
const EXPECTED_SCANS: [(&str, &str); 50] = [
    (
        "BYTES_OF_LINEAGES",
        "SCAN lineages USING COVERING INDEX lineages_by_family",
    ),
    (
        "BYTES_OF_NODES",
        "SCAN nodes USING COVERING INDEX nodes_by_lineage",
    ),
    (
        "BYTES_OF_CONTENTS",
        "SCAN contents USING COVERING INDEX contents_by_lineage",
    ),
    (
        "BYTES_OF_REQUESTS",
        "SCAN requests USING COVERING INDEX requests_by_lineage",
    ),
    (
        "BYTES_OF_ANSWERS",
        "SCAN answers USING COVERING INDEX answers_by_lineage",
    ),
    ("BYTES_OF_PARTS", "SCAN parts"),
    ("BYTES_OF_SNAPSHOTS", "SCAN snapshots"),
    ("BYTES_OF_JOBS", "SCAN jobs"),
    ("BYTES_OF_MESSAGES", "SCAN messages"),
    ("BYTES_OF_EVENTS", "SCAN events"),
    ("BYTES_OF_VIEWS", "SCAN views"),
    ("BYTES_OF_DIGESTS", "SCAN digests"),
    (
        "LONGEST_SILENT",
        "SEARCH l USING INDEX lineages_by_family (tenant=?)",
    ),
    ("CHECK_VALUE", "SCAN pepper"),
    (
        "HAS_HASHES",
        "SCAN lineages USING COVERING INDEX lineages_by_time",
    ),
    ("HAS_HASHES", "SCAN aliases"),
    (
        "HAS_HASHES",
        "SCAN tombstones USING COVERING INDEX tombstones_by_receipt",
    ),
    ("HAS_HASHES", "SCAN tenant_accounts"),
    ("STANDINGS", "SCAN sqlite_sequence"),
    ("RECEIPTS", "SCAN receipts"),
    ("TOMBSTONE_VERSION", "SCAN receipts"),
    (
        "TOMBSTONES",
        "SCAN tombstones USING COVERING INDEX tombstones_by_receipt",
    ),
    ("EXPIRED_JOBS", "SCAN j USING INDEX jobs_by_route"),
    (
        "OWNERS_OF_RESOURCES",
        "SCAN l USING COVERING INDEX lineages_by_family",
    ),
    (
        "LINEAGES_OF_OWNER",
        "SEARCH lineages USING COVERING INDEX lineages_by_family (tenant=?)",
    ),
    (
        "SWEEP_JOBS",
        "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (tenant=?)",
    ),
    (
        "SWEEP_SNAPSHOTS",
        "SEARCH snapshots USING COVERING INDEX snapshots_by_to (tenant=?)",
    ),
    (
        "SWEEP_PARTS",
        "SEARCH parts USING INDEX sqlite_autoindex_parts_1 (tenant=?)",
    ),
    (
        "SWEEP_ACCOUNTS",
        "SEARCH accounts USING PRIMARY KEY (tenant=?)",
    ),
    (
        "SWEEP_SPENDING",
        "SEARCH spending USING PRIMARY KEY (tenant=?)",
    ),
    (
        "SHARED_THREAD_KEYS",
        "SCAN l USING COVERING INDEX lineages_by_key",
    ),
    ("ALIASES", "SCAN aliases"),
    ("TENANT_ACCOUNTS", "SCAN tenant_accounts"),
    ("CLAIM", "SEARCH t USING PRIMARY KEY (tenant=?)"),
    ("TENANT_BACKLOGS", "SEARCH t USING PRIMARY KEY (tenant=?)"),
    (
        "ACCOUNT_OF",
        "SEARCH tenant_accounts USING PRIMARY KEY (tenant=?)",
    ),
    (
        "SWEEP_TENANT_ACCOUNTS",
        "SEARCH tenant_accounts USING PRIMARY KEY (tenant=?)",
    ),
    ("TENANTS", "SCAN lineages USING INDEX lineages_by_family"),
    (
        "PEER_DIGESTS",
        "SEARCH d USING INDEX digests_by_time (tenant=? AND resource=?)",
    ),
    ("THREADS", "SCAN l USING INDEX lineages_by_time"),
    ("OPEN_JOBS", "SCAN jobs USING COVERING INDEX jobs_by_route"),
    (
        "SWEEP_AUDIT_LINES",
        "SEARCH audit_lines USING COVERING INDEX audit_lines_by_thread (tenant=?)",
    ),
    ("TOKEN_RATIOS", "SCAN token_ratios"),
    ("DROP_OLD_TOKEN_RATIOS", "SCAN token_ratios"),
    ("SEEN_MESSAGES", "SCAN seen_messages"),
    ("SIZES_OF_SEEN_MESSAGES", "SCAN seen_messages"),
    ("MARK_LOST_SEEN_MESSAGES", "SCAN seen_messages"),
    ("EXPIRE_SEEN_MESSAGES", "SCAN seen_messages"),
    ("SWEEP_SEEN_MESSAGES", "SCAN seen_messages"),
    (
        "TENANT_BACKLOGS",
        "SCAN jobs USING COVERING INDEX jobs_by_route",
    ),
];

/// Tables that any statement may scan: the list of links in a parameter, and intermediate tables of the
/// statement itself.
const SMALL_TABLES: [&str; 22] = [
    "due", "r", "latest", "p", "below", "up", "used", "heirs", "busy", "depth", "alias", "hit",
    "answer", "begun", "longest", "newest", "w", "ends", "cover", "own", "held", "CONSTANT",
];

/// Files without a statement of a verb: the schema of a database, and tests.
const OTHER_FILES: [&str; 4] = [
    "open.rs",
    "statement_tests.rs",
    "fault_tests.rs",
    "peer_memory/tests.rs",
];

/// The text of every file that may hold a statement. The folder is read, so a new file cannot be
/// forgotten here.
fn sources() -> Vec<String> {
    let mut folders = vec![PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/store/sqlite"
    ))];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if !OTHER_FILES.iter().any(|other| path.ends_with(other)) {
                sources.push(std::fs::read_to_string(path).expect("text"));
            }
        }
    }
    sources
}

/// Every statement with its name: a constant with a literal.
fn statements() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for source in sources() {
        for inline in ["query(\"", "query_as(\"", "query_scalar(\""] {
            assert!(!source.contains(inline), "a statement without a name");
        }
        for rest in source.split("const ").skip(1) {
            assert!(
                !rest
                    .split('\n')
                    .next()
                    .expect("a line")
                    .contains(": &'static str"),
                "write `&str`"
            );
            let Some((name, text)) = rest.split_once(": &str =") else {
                continue;
            };
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if name.chars().all(is_name) {
                let text = text.split('"').nth(1).expect("a literal");
                found.push((name.to_owned(), text.to_owned()));
            }
        }
    }
    assert!(found.len() > 110, "the files were understood");
    found
}

/// How often a statement reads or changes a table with an owner; insertions do not count.
fn mentions(text: &str) -> usize {
    let words: Vec<_> = text
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    let tables = [
        "lineages",
        "nodes",
        "contents",
        "accounts",
        "parts",
        "snapshots",
        "requests",
        "jobs",
        "costs",
        "timers",
        "spending",
        "events",
        "views",
        "answers",
        "digests",
        "told",
        "messages",
        "audit_lines",
    ];
    words
        .windows(2)
        .filter(|w| ["FROM", "JOIN", "UPDATE"].contains(&w[0]) && tables.contains(&w[1]))
        .count()
}

/// Whether a statement is bound to one owner in every place.
fn names_owner(text: &str) -> bool {
    let tables = mentions(text);
    let named = |condition: &str| text.matches(condition).count() == tables;
    let inserts_owned = || {
        text.contains("(tenant, resource,")
            && (text.contains("($1, $2,") || text.contains("SELECT $1, $2,"))
    };
    let is_insertion = text.contains("INSERT INTO");
    named("tenant = $1")
        && named("resource = $2")
        && if is_insertion {
            inserts_owned()
        } else {
            tables > 0
        }
}

#[test]
fn every_statement_names_its_owner() {
    for (name, text) in statements() {
        if !ABOVE_OWNERS.contains(&name.as_str()) {
            assert!(names_owner(&text), "{name}: {text}");
        }
    }
}

#[test]
fn the_owner_check_finds_a_missing_owner() {
    let owned = "DELETE FROM jobs WHERE tenant = $1 AND resource = $2 AND id = $3";
    assert!(names_owner(owned));
    for (spoil, into) in [
        ("tenant = $1 AND ", ""),
        (" AND resource = $2", ""),
        ("id = $3", "id IN (SELECT id FROM nodes)"),
        ("jobs", "no_table"),
    ] {
        assert!(!names_owner(&owned.replace(spoil, into)), "{spoil}");
    }
    let insertion = "INSERT INTO jobs (tenant, resource, id) VALUES ($1, $2, $3)";
    assert!(names_owner(insertion));
    assert!(!names_owner(&insertion.replace("$2, $3", "$3, $2")));
    assert!(!names_owner(
        &insertion.replace("tenant, resource, id", "id, tenant, resource")
    ));
}

/// An exemption without a statement would hold for the next one with its name.
#[test]
fn every_exemption_has_its_statement() {
    let statements = statements();
    let exempt = ABOVE_OWNERS.iter().copied();
    for name in exempt.chain(EXPECTED_SCANS.iter().map(|(name, _)| *name)) {
        let has_name = |(known, _): &(String, String)| known == name;
        assert!(statements.iter().any(has_name), "{name}");
    }
}

async fn scans(conn: &mut SqliteConnection) -> Vec<String> {
    let mut scans = Vec::new();
    for (name, text) in statements() {
        let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}")))
            .fetch_all(&mut *conn)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for row in rows {
            let detail: String = row.get(3);
            if is_scan(&detail) && !EXPECTED_SCANS.contains(&(name.as_str(), detail.as_str())) {
                scans.push(format!("{name}: {detail}"));
            }
        }
    }
    scans
}

fn is_scan(detail: &str) -> bool {
    // A search by the owner alone scans everything of that owner.
    if detail.ends_with("(tenant=? AND resource=?)") || detail.ends_with("(tenant=?)") {
        return true;
    }
    detail.strip_prefix("SCAN ").is_some_and(|what| {
        let table = what.split(' ').next().unwrap_or_default();
        !SMALL_TABLES.contains(&table) && !table.starts_with("(subquery")
    })
}

#[tokio::test]
async fn no_statement_scans_a_table_that_grows() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("diarist.db").display());
    let store = SqliteStore::open(&url).await.expect("a store");
    let database = store.database();
    for pool in [
        &database.writer,
        &database.request_readers,
        &database.worker_readers,
    ] {
        let mut conn = pool.acquire().await.expect("a connection");
        let found = scans(&mut conn).await;
        assert!(found.is_empty(), "{found:#?}");
    }
}

#[tokio::test]
async fn the_scan_check_finds_a_missing_index_or_statistics() {
    for (spoil, expected) in [
        ("DROP INDEX jobs_due", "CLAIM"),
        ("DROP INDEX nodes_by_parent", "LONGEST"),
        ("DELETE FROM sqlite_stat1", "LONGEST"),
    ] {
        let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
        let mut conn = store.writer().await;
        for statement in [spoil, "ANALYZE sqlite_schema"] {
            sqlx::query(statement)
                .execute(&mut *conn)
                .await
                .expect("spoiled");
        }
        let found = scans(&mut conn).await;
        assert!(
            found.iter().any(|scan| scan.starts_with(expected)),
            "{spoil}: {found:#?}"
        );
    }
}
