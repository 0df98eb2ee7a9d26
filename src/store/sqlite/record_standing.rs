//! Where the requests of a group stand in the store, and which of them can be written together. Reads only.
//! Called by [`super::record_group`].

use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnection;

use super::savepoint::SAVEPOINT;
use super::scoped::scoped_query;
use crate::history::{Link, Scope, ScopedHash};
use crate::store::rows::{self, get};
use crate::store::{RequestRecord, StoreResult};

/// How each request (`$3`: the message before it or null, its lineage or null, its own messages, and its answer or
/// null) stands: whether that message is recorded, its lineage and family, whether the family has an account, whether
/// one of its messages is recorded, whether somebody got the same answer before, and the highest id that a lineage of any
/// owner ever had.
const STANDINGS: &str = "
SELECT p.key,
       p.value ->> 0 IS NULL OR EXISTS (
           SELECT 1 FROM nodes AS n
           WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(p.value ->> 0)),
       l.id, l.family,
       EXISTS (SELECT 1 FROM accounts AS a
               WHERE a.tenant = $1 AND a.resource = $2 AND a.family = l.family),
       p.value ->> 1 IS NULL AND EXISTS (
           SELECT 1 FROM json_each(p.value, '$[2]') AS w CROSS JOIN nodes AS n
           WHERE n.tenant = $1 AND n.resource = $2 AND n.link = unhex(w.value)),
       p.value ->> 3 IS NOT NULL AND EXISTS (
           SELECT 1 FROM answers AS a
           WHERE a.tenant = $1 AND a.resource = $2 AND a.mark = unhex(p.value ->> 3)),
       (SELECT seq FROM sqlite_sequence WHERE name = 'lineages')
FROM json_each($3) AS p
LEFT JOIN lineages AS l ON l.tenant = $1 AND l.resource = $2 AND l.id = p.value ->> 1";

/// Which requests (`$3`: pairs of request and content) confirm a content that some family confirmed.
const CONFIRMED_BEFORE: &str = "
SELECT DISTINCT p.value ->> 0 FROM json_each($3) AS p
WHERE EXISTS (SELECT 1 FROM contents AS c
              WHERE c.tenant = $1 AND c.resource = $2 AND c.content = unhex(p.value ->> 1))";

/// Where a request stands in the store.
pub(super) struct Standing {
    pub(super) lineage: i64,
    pub(super) family: i64,
    /// The lineage is still to be written.
    pub(super) is_new: bool,
}

/// [`STANDINGS`] behind the beginning of the savepoint of the group, as one script.
static BEGIN_STANDINGS: LazyLock<String> = LazyLock::new(|| [SAVEPOINT, STANDINGS].concat());

/// Begins the savepoint of the group. Where each request stands; `None` where it must be written by itself.
pub(super) async fn standings_under_savepoint(
    conn: &mut SqliteConnection,
    scope: &Scope,
    requests: &[&RequestRecord],
) -> StoreResult<Vec<Option<Standing>>> {
    let questions: Vec<Value> = requests.iter().map(|record| question(record)).collect();
    let found = scoped_query(BEGIN_STANDINGS.as_str(), scope)
        .bind(Value::from(questions).to_string())
        .fetch_all(&mut *conn)
        .await?;
    let mut standings: Vec<Option<Standing>> = requests.iter().map(|_| None).collect();
    let (mut unsettled, mut answered_before) = (HashSet::new(), HashSet::new());
    let mut last_id: Option<i64> = None;
    for row in &found {
        let index: usize = rows::int(row, 0)?;
        let (is_connected, lineage): (bool, Option<i64>) = (get(row, 1)?, get(row, 2)?);
        let is_known: bool = get(row, 5)?;
        let record = requests[index];
        if !is_connected {
            continue;
        }
        let standing = match lineage {
            Some(lineage) => Standing {
                lineage,
                family: get(row, 3)?,
                is_new: false,
            },
            None if record.lineage.is_none() && !is_known => {
                let id = match last_id {
                    Some(id) => id + 1,
                    None => get::<Option<i64>>(row, 7)?.unwrap_or_default() + 1,
                };
                last_id = Some(id);
                Standing {
                    lineage: id,
                    family: id,
                    is_new: true,
                }
            }
            None => continue,
        };
        if !get::<bool>(row, 4)? && !record.contents.is_empty() {
            unsettled.insert(index);
        }
        if get(row, 6)? {
            answered_before.insert(index);
        }
        standings[index] = Some(standing);
    }
    let confirmed_before = confirmed_before(conn, scope, requests, &unsettled).await?;
    // The first confirmation of a lineage decides its family, by what other families have confirmed.
    for index in confirmed_before {
        standings[index] = None;
    }
    leave_out_neighbours(&mut standings, requests, &unsettled, &answered_before);
    Ok(standings)
}

fn question(record: &RequestRecord) -> Value {
    let required = match record.new_nodes.first() {
        Some(first) if first.count == 1 => None,
        Some(_) => Some(record.parent),
        None => Some(record.tip),
    };
    // A request without a lineage may have been recorded by another process.
    let unplaced = record.new_nodes.iter().filter(|_| record.lineage.is_none());
    let new: Vec<String> = unplaced
        .map(|node| rows::hex_text(node.link.as_bytes()))
        .collect();
    let required = required.map(|link: Link| rows::hex_text(link.as_bytes()));
    let answer = answer_hash(record).map(|hash| rows::hex_text(hash.as_bytes()));
    json!([required, record.lineage, new, answer])
}

/// The hash of the answer to a request, if it may be a summary.
fn answer_hash(record: &RequestRecord) -> Option<ScopedHash> {
    let answer = record.lookup_entries.answer.as_ref();
    answer.map(|(answer, _)| answer.text)
}

/// Which of the `unsettled` requests confirm something that was confirmed before.
async fn confirmed_before(
    conn: &mut SqliteConnection,
    scope: &Scope,
    requests: &[&RequestRecord],
    unsettled: &HashSet<usize>,
) -> StoreResult<Vec<usize>> {
    if unsettled.is_empty() {
        return Ok(Vec::new());
    }
    let mut pairs = Vec::new();
    for index in unsettled {
        for content in &requests[*index].contents {
            pairs.push(json!([index, rows::hex_text(content.key.as_bytes())]));
        }
    }
    let found = scoped_query(CONFIRMED_BEFORE, scope)
        .bind(Value::from(pairs).to_string())
        .fetch_all(conn)
        .await?;
    found.iter().map(|row| rows::int(row, 0)).collect()
}

/// Leaves out what got an answer that somebody got before: what that says of a conversation depends on what is stored.
/// Also what belongs to a lineage or a family of an earlier request of the group, what could join the family of one, because
/// it confirms the same words, and what got the same answer. What is left out is written behind the others.
fn leave_out_neighbours(
    standings: &mut [Option<Standing>],
    requests: &[&RequestRecord],
    unsettled: &HashSet<usize>,
    answered_before: &HashSet<usize>,
) {
    let (mut families, mut contents, mut tips) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut answers, mut left_out) = (HashSet::new(), HashSet::new());
    for (index, place) in standings.iter_mut().enumerate() {
        let record = requests[index];
        let keys = record.contents.iter().map(|content| content.key);
        let is_neighbour = place
            .as_ref()
            .is_some_and(|standing| families.contains(&standing.family))
            || (unsettled.contains(&index) && keys.clone().any(|key| contents.contains(&key)))
            || record
                .new_nodes
                .first()
                .is_some_and(|first| tips.contains(&first.link))
            || answered_before.contains(&index)
            || answer_hash(record).is_some_and(|answer| answers.contains(&answer))
            || keys.clone().any(|key| left_out.contains(&key));
        families.extend(place.as_ref().map(|standing| standing.family));
        // One that has no family yet must find it before a later request confirms the same.
        if is_neighbour && unsettled.contains(&index) {
            left_out.extend(keys.clone());
        }
        contents.extend(keys);
        tips.extend(record.new_nodes.first().map(|first| first.link));
        answers.extend(answer_hash(record));
        if is_neighbour {
            *place = None;
        }
    }
}
