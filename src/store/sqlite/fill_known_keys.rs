//! Reads the keys of earlier runs into the filter of known keys, page by page, while requests are served.
//! Called once for each database that is opened, by [`super::database`].

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::known_keys::{KnownKeys, name_hash};
use crate::history::{Link, Scope};
use crate::store::rows::{self, corrupt, get};
use crate::store::{StoreError, StoreResult};

/// Rows that are read at once.
const PAGE: usize = 10_000;

/// A page is read this long after the one before, so that requests and workers come first.
const PAUSE: Duration = Duration::from_millis(2);

/// Reads all keys of the database into `known_keys`. If a read fails, every request is looked up.
pub(super) async fn fill_known_keys(pool: SqlitePool, known_keys: Arc<KnownKeys>) {
    let mut next = Some(Page::default());
    while let Some(page) = next {
        if page.is_inside_table() {
            tokio::time::sleep(PAUSE).await;
        }
        let read = async {
            let mut conn = pool.acquire().await?;
            add_page(&mut conn, &known_keys, page).await
        };
        next = match read.await {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(
                    error = %error,
                    "the stored keys cannot be read; every request is looked up in the database"
                );
                return;
            }
        };
    }
    known_keys.mark_complete();
}

/// The tables that hold keys.
#[derive(Clone, Copy, Debug, Default)]
enum Table {
    #[default]
    Nodes,
    Views,
    Answers,
    Lineages,
    Snapshots,
}

/// The messages of all owners, after a place (`$1`, `$2`, `$3`), in the order of the table: a JSON array of keys, the place of the
/// last message, and the number of messages. All in one row: each row costs a switch between threads.
const NODE_KEYS: &str = "
SELECT json_group_array(json_array(hex(link), hex(anchor))),
       max(hex(tenant) || '.' || hex(resource) || '.' || hex(link)), count(*)
FROM (SELECT tenant, resource, link, anchor FROM nodes
      WHERE (tenant, resource, link) > (unhex($1), unhex($2), unhex($3))
      ORDER BY tenant, resource, link LIMIT $5)";

/// As [`NODE_KEYS`]: the last links of aligned requests.
const VIEW_KEYS: &str = "
SELECT json_group_array(json_array(hex(tip))),
       max(hex(tenant) || '.' || hex(resource) || '.' || hex(tip)), count(*)
FROM (SELECT tenant, resource, tip FROM views
      WHERE (tenant, resource, tip) > (unhex($1), unhex($2), unhex($3))
      ORDER BY tenant, resource, tip LIMIT $5)";

/// As [`NODE_KEYS`]: answers that may come back as summaries.
const ANSWER_KEYS: &str = "
SELECT json_group_array(json_array(hex(mark), hex(ending))),
       max(hex(tenant) || '.' || hex(resource) || '.' || hex(mark)), count(*)
FROM (SELECT tenant, resource, mark, ending FROM answers
      WHERE (tenant, resource, mark) > (unhex($1), unhex($2), unhex($3))
      ORDER BY tenant, resource, mark LIMIT $5)";

/// As [`NODE_KEYS`]: the names of all conversations with their owners, after an id (`$4`).
const NAME_KEYS: &str = "
SELECT json_group_array(json_array(hex(tenant), hex(resource), thread_key)),
       CAST(max(id) AS TEXT), count(*)
FROM (SELECT id, tenant, resource, thread_key FROM lineages
      WHERE id > $4 AND thread_key IS NOT NULL ORDER BY id LIMIT $5)";

/// As [`NODE_KEYS`]: the ends of all peer intros, which are the roots of their owners, after an id (`$4`).
const PEER_INTRO_KEYS: &str = "
SELECT json_group_array(json_array(hex(to_link))), CAST(max(id) AS TEXT), count(*)
FROM (SELECT id, to_link FROM snapshots WHERE id > $4 AND to_count = 0 ORDER BY id LIMIT $5)";

/// A page: its table, and the row that it follows.
#[derive(Clone, Debug, Default)]
struct Page {
    table: Table,
    /// Tenant, resource and key of that row, in hexadecimal.
    place: [String; 3],
    /// Its id, in a table that has one.
    id: i64,
}

impl Page {
    fn is_inside_table(&self) -> bool {
        self.id > 0 || !self.place[2].is_empty()
    }

    fn statement(&self) -> &'static str {
        match self.table {
            Table::Nodes => NODE_KEYS,
            Table::Views => VIEW_KEYS,
            Table::Answers => ANSWER_KEYS,
            Table::Lineages => NAME_KEYS,
            Table::Snapshots => PEER_INTRO_KEYS,
        }
    }

    /// The page behind the row at `last`, the last row of this page.
    fn after(&self, last: &str) -> StoreResult<Self> {
        let mut page = Self {
            table: self.table,
            ..Self::default()
        };
        let mut parts = last.split('.');
        match self.table {
            Table::Lineages | Table::Snapshots => {
                page.id = last.parse().map_err(|_| unreadable())?;
            }
            Table::Nodes | Table::Views | Table::Answers => {
                page.place = [(); 3].map(|()| parts.next().unwrap_or_default().to_owned());
            }
        }
        Ok(page)
    }

    /// The first page of the next table.
    fn next_table(&self) -> Option<Self> {
        let table = match self.table {
            Table::Nodes => Table::Views,
            Table::Views => Table::Answers,
            Table::Answers => Table::Lineages,
            Table::Lineages => Table::Snapshots,
            Table::Snapshots => return None,
        };
        Some(Self {
            table,
            ..Self::default()
        })
    }
}

fn unreadable() -> StoreError {
    corrupt("a page of stored keys is not readable")
}

/// Adds the keys of one page. Returns the next page, or `None` after the last one.
async fn add_page(
    conn: &mut SqliteConnection,
    known_keys: &KnownKeys,
    page: Page,
) -> StoreResult<Option<Page>> {
    let [tenant, resource, key] = &page.place;
    let row = sqlx::query(page.statement())
        .bind(tenant)
        .bind(resource)
        .bind(key)
        .bind(page.id)
        .bind(rows::count(PAGE))
        .fetch_one(conn)
        .await?;
    let items: Vec<Vec<String>> = serde_json::from_str(get(&row, 0)?).map_err(|_| unreadable())?;
    if matches!(page.table, Table::Lineages) {
        for item in &items {
            add_name(known_keys, item)?;
        }
    } else {
        let keys = items.iter().flatten().filter(|key| !key.is_empty());
        let keys: Vec<Vec<u8>> = keys.map(|key| bytes(key)).collect::<StoreResult<_>>()?;
        known_keys.add(keys.iter().map(Vec::as_slice));
    }
    let is_without_ending = |item: &Vec<String>| item.get(1).is_some_and(String::is_empty);
    if matches!(page.table, Table::Answers) && items.iter().any(is_without_ending) {
        known_keys.add_unknown_ending();
    }
    match get::<Option<&str>>(&row, 1)? {
        Some(last) if get::<i64>(&row, 2)? == rows::count(PAGE) => page.after(last).map(Some),
        _ => Ok(page.next_table()),
    }
}

fn add_name(known_keys: &KnownKeys, item: &[String]) -> StoreResult<()> {
    let [tenant, resource, name] = item else {
        return Err(unreadable());
    };
    if let Ok(tenant) = bytes(tenant)?.try_into() {
        let resource = bytes(resource)?.try_into().ok();
        let root = Link::root(&Scope { tenant, resource });
        known_keys.add([&name_hash(&root, name).as_bytes()[..]]);
    }
    Ok(())
}

fn bytes(hex: &str) -> StoreResult<Vec<u8>> {
    rows::hex_bytes(hex).ok_or_else(unreadable)
}
