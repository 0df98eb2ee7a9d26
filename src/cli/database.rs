//! Opens the configured database for a command. A server may be using it at the same time.

use anyhow::{Context as _, anyhow, bail};

use super::sources::ConfigSources;
use crate::app::pepper_place;
use crate::config::{Config, Database};
use crate::store::{Admin as _, OpenError, SqliteStore};

/// Opens the database for reading, runs `query`, and closes it.
pub(super) fn read<T>(
    sources: &ConfigSources,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_store(sources, Access::Read, query)
}

/// Opens the database for writing, runs `query`, and closes it.
pub(super) fn write(
    sources: &ConfigSources,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    with_store(sources, Access::Write, query)
}

/// As [`write()`], but fails if a server is using the database: it would not know of what is added.
pub(super) fn write_alone(
    sources: &ConfigSources,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    with_store(sources, Access::Alone, query)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Alone,
}

fn with_store<T>(
    sources: &ConfigSources,
    access: Access,
    query: impl AsyncFnOnce(&SqliteStore, &Config) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let config = sources.load()?;
    if config.database == Database::SqliteInMemory {
        bail!("the configured database is in the memory of the server, so no command can read it");
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(async {
            let url = config.database.to_string();
            // Also before writing: this fails if the database does not exist or needs a migration, and a command
            // does neither create nor migrate one.
            let pepper = pepper_place(&config).find()?;
            let opened = SqliteStore::open_to_read(&url).await;
            let mut store = opened.map_err(with_advice)?.with_pepper(&pepper);
            store.verify_pepper().await?;
            let mut config = config;
            config.requests.identity.pepper = pepper.value;
            if access != Access::Read {
                store.close().await;
                store = match access {
                    Access::Alone => SqliteStore::open_alone(&url).await?,
                    Access::Read | Access::Write => SqliteStore::open(&url).await?,
                };
                store = store.with_pepper(&pepper);
            }
            let answer = query(&store, &config).await;
            store.close().await;
            answer
        })
}

fn with_advice(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Missing(path) => anyhow!(
            "there is no database at {}: give the same --config or --database as `diarist serve`, which creates \
             the database when it starts",
            path.display()
        ),
        other => other.into(),
    }
}
