//! The configured database, opened by a command beside the server that may be at work on it.

use anyhow::{Context as _, bail};

use super::sources::ConfigSources;
use crate::config::{Config, Database};
use crate::store::{Admin as _, SqliteStore};

/// Opens it to read, asks, and closes it.
pub(super) fn read(
    sources: &ConfigSources,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    with_store(sources, false, query)
}

/// The same, to write into it.
pub(super) fn write(
    sources: &ConfigSources,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    with_store(sources, true, query)
}

fn with_store(
    sources: &ConfigSources,
    writable: bool,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let config = sources.load()?;
    if config.database == Database::SqliteInMemory {
        bail!("the configured database is in the server's memory: there is nothing to read");
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(async {
            let url = config.database.to_string();
            // Also to write: it is neither made nor migrated from here.
            let mut store = SqliteStore::open_to_read(&url).await?;
            if writable {
                store.close().await;
                store = SqliteStore::open(&url).await?;
            }
            let answer = query(&store, &config).await;
            store.close().await;
            answer
        })
}
