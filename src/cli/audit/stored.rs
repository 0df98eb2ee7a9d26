//! `diarist audit --store`: the same answers from the lines in the database, and the observations that a request carried.

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::input;
use super::watch::{self, PAUSE};
use super::why::{Explained, LineBefore, LineOf, explain_lines, not_found};
use crate::audit::with_rotated;
use crate::cli::database;
use crate::cli::progress;
use crate::cli::sources::ConfigSources;
use crate::cli::terminal::harmless;
use crate::config::{AuditTarget, Config};
use crate::history::Scope;
use crate::ledger::Ledger;
use crate::memory::SnapshotId;
use crate::model_prices::PriceTable;
use crate::report::grouped;
use crate::store::{AuditLines as _, AuditPage, AuditRequest, Snapshots as _, SqliteStore};

/// Lines that are read at once: some ten megabytes. Each page takes several switches between threads, which cost time on
/// a busy machine.
const PAGE: u32 = 10_000;

/// Calls `take` with each line.
///
/// # Errors
///
/// The database cannot be read, or no line was ever stored in it.
pub(super) fn each_line(
    sources: &ConfigSources,
    mut take: impl FnMut(&[u8]),
) -> anyhow::Result<()> {
    database::read(sources, async |store, config| {
        let (first, last) = store.audit_range().await?;
        ensure!(
            last > 0 || config.audit_store_retention.is_some(),
            "the database has no audit lines: set audit.store_retention, and `diarist serve` stores them from then on"
        );
        let behind = first - 1;
        let bar = progress::lines_bar("reading", last.abs_diff(behind));
        let mut after = behind;
        while let Some(page) = store.audit_page(after, PAGE).await? {
            take_page(&page, &mut take);
            after = page.last;
            bar.set_position(after.abs_diff(behind));
        }
        bar.finish_and_clear();
        Ok(())
    })
}

fn take_page(page: &AuditPage, take: &mut impl FnMut(&[u8])) {
    for line in page.lines.split('\n') {
        take(line.as_bytes());
    }
}

/// Prints `text` of the ledger whenever lines were stored, until nobody reads it.
///
/// # Errors
///
/// The database cannot be read, or the report cannot be written.
pub(super) fn watch(
    sources: &ConfigSources,
    mut ledger: Ledger,
    text: impl Fn(&Ledger) -> String,
) -> anyhow::Result<()> {
    database::read(sources, async |store, _| {
        let (mut after, mut has_news) = (0, true);
        loop {
            while let Some(page) = store.audit_page(after, PAGE).await? {
                take_page(&page, &mut |line| ledger.add(line));
                (after, has_news) = (page.last, true);
            }
            if std::mem::take(&mut has_news) && !watch::print_report(&text(&ledger))? {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

/// The explanation of request `id`, and the observations that it carried. If the database has no line of it, its line
/// is looked for in the configured file.
///
/// # Errors
///
/// No line is found, or the database or the file cannot be read.
pub(super) fn why(
    id: &str,
    sources: &ConfigSources,
    prices: &PriceTable,
) -> anyhow::Result<String> {
    database::read(sources, async |store, config| {
        let stored = store.audit_request(id).await?;
        let explained = match &stored {
            Some(request) => explain_stored(store, id, request, prices).await?,
            None => explain_from_file(id, config, prices)?,
        };
        let block = block_text(store, &explained, stored.as_ref()).await?;
        Ok(explained.text + &block)
    })
}

async fn explain_stored(
    store: &SqliteStore,
    id: &str,
    request: &AuditRequest,
    prices: &PriceTable,
) -> anyhow::Result<Explained> {
    let found = request.line.clone().into_bytes();
    let mut before = LineBefore::new(&found);
    let mut after = 0;
    while let Some(page) = store.audit_page_of(request, after, PAGE).await? {
        take_page(&page, &mut |line| before.take(line));
        after = page.last;
    }
    let before = before.found();
    explain_lines(id, &found, before.as_deref(), prices)
}

fn explain_from_file(id: &str, config: &Config, prices: &PriceTable) -> anyhow::Result<Explained> {
    let AuditTarget::File(path) = &config.audit else {
        bail!("{}", not_found(id));
    };
    let files = with_rotated(path);
    let mut found = LineOf::new(id);
    input::each_line(&files, |line| found.take(line))?;
    let found = found.found().with_context(|| not_found(id))?;
    let mut before = LineBefore::new(&found);
    input::each_line(&files, |line| before.take(line))?;
    explain_lines(id, &found, before.found().as_deref(), prices)
}

/// The observations in the request, as they were sent; empty if it had none. `stored` is its line, if the database
/// has it.
async fn block_text(
    store: &SqliteStore,
    explained: &Explained,
    stored: Option<&AuditRequest>,
) -> anyhow::Result<String> {
    let Some(number) = &explained.snapshot else {
        return Ok(String::new());
    };
    let gone = format!(
        "\nIts observations (snapshot {}) are not in this database any more: their conversation was deleted because of its \
         age, of a quota, or by an operator; or this is a new database, or an older copy.\n",
        harmless(number)
    );
    let Ok(id) = number.parse().map(SnapshotId) else {
        return Ok(gone);
    };
    let origin = store.snapshot_origin(id).await?;
    let Some((owner, _)) = origin.filter(|origin| may_have_carried(explained, stored, origin))
    else {
        return Ok(gone);
    };
    let Some(snapshot) = store.snapshot(&owner, id).await? else {
        return Ok(gone);
    };
    let block = snapshot.segments.concat();
    let note = explained.trimmed.map_or_else(String::new, |messages| {
        format!(
            " Behind them, without their hints, stood a note that {} messages were left out.",
            grouped(messages)
        )
    });
    Ok(format!(
        "\nIt carried these observations (snapshot {number}, {} bytes).{note}\n\n{}\n",
        grouped(block.len() as u64),
        harmless(block.trim_end())
    ))
}

/// Whether the request can have carried a snapshot of this owner and time. A new database, or one that was restored from
/// a backup, gives numbers a second time: the number may name a block of another user, or of another conversation.
fn may_have_carried(
    explained: &Explained,
    stored: Option<&AuditRequest>,
    (owner, made_ms): &(Scope, i64),
) -> bool {
    let made = Timestamp::from_millisecond(*made_ms).ok();
    let made = made.map(|made| TimeZone::UTC.to_datetime(made));
    // The end and not the beginning: some snapshots are made while their request waits.
    let was_made_before = made
        .zip(explained.end)
        .is_some_and(|(made, end)| made <= end);
    was_made_before
        && owner.tenant_label() == explained.tenant
        && stored.is_none_or(|request| request.is_of(owner))
}
