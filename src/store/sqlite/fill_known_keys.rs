//! Reads the keys of earlier runs into the filter of known keys, page by page, while requests are served.
//! Called once for each database that is opened, by [`super::database`].

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};

use super::known_keys::{KnownKeys, name_hash};
use crate::history::{Link, Scope};
use crate::store::{StoreResult, rows};

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

/// The messages of all owners, after a place (`$1`, `$2`, `$3`), in the order of the table.
const NODE_KEYS: &str = "
SELECT tenant, resource, link, anchor FROM nodes
WHERE (tenant, resource, link) > ($1, $2, $3) ORDER BY tenant, resource, link LIMIT $5";

/// As [`NODE_KEYS`]: the last links of aligned requests.
const VIEW_KEYS: &str = "
SELECT tenant, resource, tip FROM views
WHERE (tenant, resource, tip) > ($1, $2, $3) ORDER BY tenant, resource, tip LIMIT $5";

/// As [`NODE_KEYS`]: answers that may come back as summaries.
const ANSWER_KEYS: &str = "
SELECT tenant, resource, mark, ending FROM answers
WHERE (tenant, resource, mark) > ($1, $2, $3) ORDER BY tenant, resource, mark LIMIT $5";

/// The names of all conversations, after an id (`$4`).
const NAME_KEYS: &str = "
SELECT tenant, resource, thread_key, id FROM lineages
WHERE id > $4 AND thread_key IS NOT NULL ORDER BY id LIMIT $5";

/// The ends of all peer intros, which are the roots of their owners, after an id (`$4`).
const PEER_INTRO_KEYS: &str = "
SELECT tenant, resource, to_link, id FROM snapshots
WHERE id > $4 AND to_count = 0 ORDER BY id LIMIT $5";

/// A page: its table, and the row that it follows.
#[derive(Clone, Debug, Default)]
struct Page {
    table: Table,
    /// Tenant, resource and key of that row.
    key: (Vec<u8>, Vec<u8>, Vec<u8>),
    /// Its id, in a table that has one.
    id: i64,
}

impl Page {
    fn is_inside_table(&self) -> bool {
        self.id > 0 || !self.key.2.is_empty()
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

    /// The page behind `last`, the last row of this page.
    fn after(&self, last: &SqliteRow) -> StoreResult<Self> {
        let has_id = matches!(self.table, Table::Lineages | Table::Snapshots);
        let mut page = Self {
            table: self.table,
            ..Self::default()
        };
        if has_id {
            page.id = last.try_get(3)?;
        } else {
            page.key = (last.try_get(0)?, last.try_get(1)?, last.try_get(2)?);
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

/// Adds the keys of one page. Returns the next page, or `None` after the last one.
async fn add_page(
    conn: &mut SqliteConnection,
    known_keys: &KnownKeys,
    page: Page,
) -> StoreResult<Option<Page>> {
    let rows = sqlx::query(page.statement())
        .bind(&page.key.0)
        .bind(&page.key.1)
        .bind(&page.key.2)
        .bind(page.id)
        .bind(rows::count(PAGE))
        .fetch_all(conn)
        .await?;
    for row in &rows {
        match page.table {
            Table::Nodes => {
                let (link, anchor): (&[u8], Option<&[u8]>) = (row.try_get(2)?, row.try_get(3)?);
                known_keys.add([link].into_iter().chain(anchor));
            }
            Table::Views | Table::Snapshots => known_keys.add([row.try_get(2)?]),
            Table::Answers => {
                let (mark, ending): (&[u8], Option<&[u8]>) = (row.try_get(2)?, row.try_get(3)?);
                known_keys.add([mark].into_iter().chain(ending));
                if ending.is_none() {
                    known_keys.add_unknown_ending();
                }
            }
            Table::Lineages => add_name(known_keys, row)?,
        }
    }
    match rows.last() {
        Some(last) if rows.len() == PAGE => page.after(last).map(Some),
        _ => Ok(page.next_table()),
    }
}

fn add_name(known_keys: &KnownKeys, row: &SqliteRow) -> StoreResult<()> {
    let (tenant, resource): (&[u8], &[u8]) = (row.try_get(0)?, row.try_get(1)?);
    if let Ok(tenant) = tenant.try_into() {
        let resource = resource.try_into().ok();
        let root = Link::root(&Scope { tenant, resource });
        let name = name_hash(&root, row.try_get(2)?);
        known_keys.add([&name.as_bytes()[..]]);
    }
    Ok(())
}
