//! The database, row by row: whose marks stand in whose rows, and in which columns at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use diarist::history::Pepper;
use diarist::proxy::identify::tenant_of_key;
use diarist::store::PepperPlace;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

use super::marks::{self, Owner, SEPARATORS};

/// The only columns that hold words; the jobs' until they are observed.
const WORDS: [&str; 7] = [
    "jobs.payload",
    "parts.text",
    "parts.current_task",
    "parts.suggested_response",
    "parts.lost",
    "snapshots.segments",
    "lineages.title",
];

/// A value with marks in it.
#[derive(Debug)]
struct Hit {
    column: String,
    /// Tenant and resource of the row; `None` where its table has no owner.
    owner: Option<(Vec<u8>, Vec<u8>)>,
    marks: BTreeSet<Owner>,
}

#[derive(Debug)]
pub struct Rows {
    hits: Vec<Hit>,
    /// The pepper of the database.
    pepper: Pepper,
}

pub fn contains(bytes: &[u8], what: &[u8]) -> bool {
    memchr::memmem::find(bytes, what).is_some()
}

/// How many rows each table holds, but for those of migrations, statistics and the pepper.
pub async fn counted(file: &Path) -> BTreeMap<String, i64> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut database = options.connect().await.unwrap();
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
                    AND name NOT LIKE '\\_sqlx%' ESCAPE '\\' AND name NOT LIKE '%fts%'
                    AND name <> 'pepper'";
    let tables: Vec<String> = sqlx::query_scalar(tables)
        .fetch_all(&mut database)
        .await
        .unwrap();
    let mut counted = BTreeMap::new();
    for table in tables {
        let rows = AssertSqlSafe(format!("SELECT count(*) FROM \"{table}\""));
        let rows = sqlx::query_scalar(rows)
            .fetch_one(&mut database)
            .await
            .unwrap();
        counted.insert(table, rows);
    }
    counted
}

/// Reads every value of every table.
pub async fn rows(file: &Path) -> Rows {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut database = options.connect().await.unwrap();
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table'";
    let tables: Vec<String> = sqlx::query_scalar(tables)
        .fetch_all(&mut database)
        .await
        .unwrap();
    assert!(tables.len() > 10, "{tables:?}");
    let mut hits = Vec::new();
    for table in tables {
        hits.extend(of_table(&mut database, &table).await);
    }
    let place = PepperPlace {
        secret: None,
        file: None,
        database: Some(file),
    };
    let pepper = place.find().unwrap().value;
    assert_ne!(pepper, Pepper::NONE);
    Rows { hits, pepper }
}

async fn of_table(database: &mut SqliteConnection, table: &str) -> Vec<Hit> {
    let columns = format!("SELECT name FROM pragma_table_info('{table}')");
    let columns: Vec<String> = sqlx::query_scalar(AssertSqlSafe(columns))
        .fetch_all(&mut *database)
        .await
        .unwrap();
    let owned = columns.iter().any(|name| name == "tenant")
        && columns.iter().any(|name| name == "resource");
    let as_bytes: Vec<String> = columns
        .iter()
        .map(|name| format!("CAST(\"{name}\" AS BLOB) AS \"{name}\""))
        .collect();
    let all = format!("SELECT {} FROM \"{table}\"", as_bytes.join(", "));
    let rows = sqlx::query(AssertSqlSafe(all))
        .fetch_all(database)
        .await
        .unwrap();
    let value = |row: &SqliteRow, name: &str| -> Vec<u8> {
        row.try_get::<Option<Vec<u8>>, _>(name)
            .unwrap()
            .unwrap_or_default()
    };
    let mut hits = Vec::new();
    for row in &rows {
        for column in &columns {
            let marks: BTreeSet<Owner> = marks::found(&value(row, column))
                .into_iter()
                .map(|(_, owner)| owner)
                .collect();
            if !marks.is_empty() {
                hits.push(Hit {
                    column: format!("{table}.{column}"),
                    owner: owned.then(|| (value(row, "tenant"), value(row, "resource"))),
                    marks,
                });
            }
        }
    }
    hits
}

impl Rows {
    /// Each row holds marks of its owner alone, in the columns that are for words.
    pub fn judge(&self) {
        let mut resources = BTreeMap::new();
        for hit in &self.hits {
            let words = WORDS.contains(&hit.column.as_str());
            assert!(words, "{} holds words of {:?}", hit.column, hit.marks);
            let (tenant, resource) = hit.owner.clone().expect("a row that has an owner");
            assert_eq!(
                hit.marks.len(),
                1,
                "{} holds words of {:?}",
                hit.column,
                hit.marks
            );
            let owner = *hit.marks.first().unwrap();
            let key = owner.credential();
            assert_eq!(
                tenant_of_key("authorization", &key, &self.pepper)
                    .unwrap()
                    .to_vec(),
                tenant,
                "{owner:?}"
            );
            assert_eq!(resource.is_empty(), owner.resource().is_none(), "{owner:?}");
            let one = resources.entry((tenant, resource)).or_insert(owner);
            assert_eq!(*one, owner, "two owners under one scope");
        }
    }

    pub fn owners(&self) -> BTreeSet<Owner> {
        self.hits.iter().flat_map(|hit| hit.marks.clone()).collect()
    }

    /// The ways of spelling marks that came through.
    pub fn shapes(&self) -> BTreeSet<&'static str> {
        let owners = self.owners().into_iter();
        owners
            .map(|owner| SEPARATORS[owner.0 % SEPARATORS.len()])
            .collect()
    }
}
