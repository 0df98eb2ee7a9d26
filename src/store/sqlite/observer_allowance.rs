//! How many tokens of messages the Observer may be shown of one family of conversations: 1.5 times what is confirmed.
//!
//! A family is a conversation with its branches. The table, whose name `accounts` is older, has two sums for each: tokens
//! that the family has confirmed, and tokens that the Observer was shown. `record` adds to the first, the queue to the second.

use sqlx::sqlite::SqliteConnection;

use super::scoped::scoped_query;
use crate::history::{Link, Scope};
use crate::store::rows::{content_list, get, int};
use crate::store::{RequestRecord, StoreResult};

/// Adds the tokens of those contents (`$3`: pairs of content and tokens) that are new to a family
/// (`$4`). Must run before [`NEW_CONTENTS`], which stores them.
const CREDIT: &str = "
INSERT INTO accounts (tenant, resource, family, confirmed_tokens, shown_tokens)
SELECT $1, $2, $4, coalesce(sum(p.value ->> 1), 0), 0 FROM json_each($3) AS p
WHERE NOT EXISTS (SELECT 1 FROM contents AS c
                  WHERE c.tenant = $1 AND c.resource = $2 AND c.content = unhex(p.value ->> 0)
                    AND c.family = $4)
ON CONFLICT (tenant, resource, family)
DO UPDATE SET confirmed_tokens = accounts.confirmed_tokens + excluded.confirmed_tokens";

/// Contents (`$4`: pairs of content and tokens) that a lineage (`$3`) of a family (`$5`) confirmed. The
/// lineage that confirmed a content first keeps it.
const NEW_CONTENTS: &str = "
INSERT INTO contents (tenant, resource, family, lineage, content)
SELECT $1, $2, $5, $3, unhex(p.value ->> 0) FROM json_each($4) AS p WHERE true
ON CONFLICT (tenant, resource, content, family) DO NOTHING";

/// Adds to the allowance of the family the contents that it confirms for the first time.
pub(super) async fn add_confirmed(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    record: &RequestRecord,
) -> StoreResult<()> {
    if record.contents.is_empty() {
        return Ok(());
    }
    let contents = content_list(&record.contents);
    let tokens = record.contents.iter().map(|c| u64::from(c.tokens)).sum();
    let family = find_or_join_family(conn, scope, lineage, &contents, tokens).await?;
    scoped_query(CREDIT, scope)
        .bind(&contents)
        .bind(family)
        .execute(&mut *conn)
        .await?;
    scoped_query(NEW_CONTENTS, scope)
        .bind(lineage)
        .bind(&contents)
        .bind(family)
        .execute(conn)
        .await?;
    Ok(())
}

/// Two families that share fewer tokens than this may share them by chance, or because all conversations
/// of an application begin with the same greeting.
const MIN_SHARED_TOKENS: u64 = 256;

/// The family of a lineage (`$3`), and whether it has an allowance already.
const FAMILY: &str = "
SELECT l.family, EXISTS (SELECT 1 FROM accounts AS a
                         WHERE a.tenant = $1 AND a.resource = $2 AND a.family = l.family)
FROM lineages AS l WHERE l.tenant = $1 AND l.resource = $2 AND l.id = $3";

/// The family that has confirmed most tokens of some contents (`$3`: pairs of content and tokens), and how
/// many tokens. What more than 64 families say (a greeting, a template) tells nothing about any of them, and is
/// left out: otherwise the first confirmation of each conversation would read one row for every conversation
/// that ever said it.
const LIKEST_FAMILY: &str = "
SELECT c.family, sum(p.value ->> 1) AS tokens
FROM json_each($3) AS p CROSS JOIN contents AS c
WHERE c.tenant = $1 AND c.resource = $2 AND c.content = unhex(p.value ->> 0)
  AND 64 >= (SELECT count(*) FROM (
          SELECT 1 FROM contents AS o
          WHERE o.tenant = $1 AND o.resource = $2 AND o.content = unhex(p.value ->> 0) LIMIT 65))
GROUP BY c.family ORDER BY tokens DESC, c.family LIMIT 1";

/// Moves a family (`$3`) into another (`$4`).
const JOIN_FAMILY: &str =
    "UPDATE lineages SET family = $4 WHERE tenant = $1 AND resource = $2 AND family = $3";

/// The family whose allowance gets a lineage's confirmations. The first confirmation decides it: if at
/// least half of the tokens are contents of another family, the lineage joins that family. A client that
/// edits or prunes its history starts such chains, and the Observer should not be shown the same text with
/// every one of them.
async fn find_or_join_family(
    conn: &mut SqliteConnection,
    scope: &Scope,
    lineage: i64,
    contents: &str,
    tokens: u64,
) -> StoreResult<i64> {
    let row = scoped_query(FAMILY, scope)
        .bind(lineage)
        .fetch_one(&mut *conn)
        .await?;
    let (own, settled) = (get::<i64>(&row, 0)?, get::<bool>(&row, 1)?);
    if settled {
        return Ok(own);
    }
    let likest = scoped_query(LIKEST_FAMILY, scope)
        .bind(contents)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = likest else { return Ok(own) };
    let (other, shared): (i64, u64) = (get(&row, 0)?, int(&row, 1)?);
    if shared < MIN_SHARED_TOKENS || shared * 2 < tokens {
        return Ok(own);
    }
    scoped_query(JOIN_FAMILY, scope)
        .bind(own)
        .bind(other)
        .execute(conn)
        .await?;
    Ok(other)
}

/// Adds tokens (`$3`) that the Observer is shown to what was shown of the family of a message (`$4`).
const CHARGE: &str = "
UPDATE accounts SET shown_tokens = shown_tokens + $3
WHERE tenant = $1 AND resource = $2
  AND family = (SELECT l.family FROM nodes AS n CROSS JOIN lineages AS l
                WHERE n.tenant = $1 AND n.resource = $2 AND n.link = $4
                  AND l.tenant = $1 AND l.resource = $2 AND l.id = n.lineage)";

/// Charges the family of the message `to` for tokens that the Observer is shown.
pub(super) async fn add_shown(
    conn: &mut SqliteConnection,
    scope: &Scope,
    tokens: u32,
    to: Link,
) -> StoreResult<()> {
    scoped_query(CHARGE, scope)
        .bind(tokens)
        .bind(to.as_bytes().as_slice())
        .execute(conn)
        .await?;
    Ok(())
}
