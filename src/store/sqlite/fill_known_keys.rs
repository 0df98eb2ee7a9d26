//! Reads the keys of earlier runs into the filter of known keys, page by page, while requests are served.
//! Called once for each database that is opened, by [`super::database`].

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnection;

use super::connections::Connections;
use super::known_keys::{KnownKeys, name_hash};
use crate::history::{Link, Scope};
use crate::store::rows::{self, corrupt, get};
use crate::store::{StoreError, StoreResult};

/// Rows that are read at once.
const PAGE: usize = 10_000;

/// A page is read this long after the one before, so that requests and workers come first.
const PAUSE: Duration = Duration::from_millis(2);

/// Reads all keys of the database into `known_keys`. If a read fails, every request is looked up.
pub(super) async fn fill_known_keys(connections: Connections, known_keys: Arc<KnownKeys>) {
    fill_by_pages(connections, known_keys, PAGE).await;
}

async fn fill_by_pages(connections: Connections, known_keys: Arc<KnownKeys>, page_rows: usize) {
    let mut next = Some(Page::default());
    while let Some(page) = next {
        if page.is_inside_table() {
            tokio::time::sleep(PAUSE).await;
        }
        let read = async {
            let mut conn = connections.acquire().await?;
            let next = add_page(&mut conn, &known_keys, page, page_rows).await?;
            conn.keep();
            StoreResult::Ok(next)
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

/// Adds the keys of one page of `page_rows`. Returns the next page, or `None` after the last one.
async fn add_page(
    conn: &mut SqliteConnection,
    known_keys: &KnownKeys,
    page: Page,
    page_rows: usize,
) -> StoreResult<Option<Page>> {
    let [tenant, resource, key] = &page.place;
    let row = sqlx::query(page.statement())
        .bind(tenant)
        .bind(resource)
        .bind(key)
        .bind(page.id)
        .bind(rows::count(page_rows))
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
        Some(last) if get::<i64>(&row, 2)? == rows::count(page_rows) => page.after(last).map(Some),
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

#[cfg(test)]
mod tests {
    use sqlx::query;

    use super::*;
    use crate::store::SqliteStore;

    const OWNERS: u8 = 3;
    const ROWS: u8 = 7;

    /// Rows of every table with keys, of `ROWS` conversations of each owner. Every second owner has a resource.
    async fn insert_rows(conn: &mut SqliteConnection) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for (owner, number) in (0..OWNERS).flat_map(|owner| (0..ROWS).map(move |row| (owner, row)))
        {
            let resource = if owner % 2 == 0 { vec![] } else { vec![9; 32] };
            let key = |kind: u8, len: usize| {
                let mut key = vec![owner ^ 0x5a; len];
                key[0..3].copy_from_slice(&[kind, number, owner]);
                key
            };
            let id = i64::from(owner) * 100 + i64::from(number) + 1;
            let name = format!("name {id}");
            let [link, anchor, tip] = [key(1, 32), key(2, 16), key(3, 32)];
            let [mark, ending, end] = [key(4, 16), key(5, 16), key(6, 32)];
            let statements = [
                "INSERT INTO lineages (id, tenant, resource, thread_key, model, requests, first_ms, last_ms)
                 VALUES ($3, $1, $2, $4, 'm', 1, 1, 1)",
                "INSERT INTO nodes (tenant, resource, link, parent, count, role, tokens, closed, turn_end, born,
                                    confirmed, seen_ms, live, lineage, anchor)
                 VALUES ($1, $2, $5, zeroblob(32), 1, 'user', 1, 1, 1, 1, 1, 1, 1, $3, $6)",
                "INSERT INTO views (tenant, resource, tip, count, base, runs, client, path, lineage)
                 VALUES ($1, $2, $7, 1, $5, '[]', 0, 0, $3)",
                "INSERT INTO answers (tenant, resource, mark, tip, lineage, ending)
                 VALUES ($1, $2, $8, $5, $3, $9)",
                "INSERT INTO snapshots (tenant, resource, to_link, to_count, eligible_from, parts, tokens, cause,
                                        segments, at_ms)
                 VALUES ($1, $2, $10, 0, 1, '[]', 1, 'threshold', '[]', 1)",
            ];
            for statement in statements {
                let insert = query(statement)
                    .bind(vec![owner; 32])
                    .bind(&resource)
                    .bind(id)
                    .bind(&name)
                    .bind(&link)
                    .bind(&anchor)
                    .bind(&tip)
                    .bind(&mark)
                    .bind(&ending)
                    .bind(&end);
                insert.execute(&mut *conn).await.expect("a row");
            }
            let scope = Scope {
                tenant: [owner; 32],
                resource: resource.try_into().ok(),
            };
            let name = name_hash(&Link::root(&scope), &name);
            keys.extend([
                link,
                anchor,
                tip,
                mark,
                ending,
                end,
                name.as_bytes().to_vec(),
            ]);
        }
        keys
    }

    /// A key that is left out would be a conversation without its memory.
    #[tokio::test]
    async fn all_stored_keys_are_read_whatever_the_size_of_a_page() {
        for page_rows in [1, 2, 7, 20, PAGE] {
            let store = SqliteStore::open("sqlite::memory:").await.expect("a store");
            let connections = store.database().writer.clone();
            let mut conn = connections.acquire().await.expect("open");
            let keys = insert_rows(&mut conn).await;
            drop(conn);
            let known_keys = Arc::new(KnownKeys::new());
            fill_by_pages(connections, Arc::clone(&known_keys), page_rows).await;
            for (index, key) in keys.iter().enumerate() {
                assert!(
                    !known_keys.excludes_key(key),
                    "{page_rows} rows: key {index}"
                );
            }
            assert!(known_keys.excludes_key(&[0xee; 32]));
        }
    }
}
