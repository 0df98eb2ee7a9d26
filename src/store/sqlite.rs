//! The store in one SQLite file: WAL, one writer, separate readers for requests and for workers.
//!
//! A verb is a query of the request path, a read of a worker, or a write transaction. These are the runners
//! here; those with `_once` are for a single statement. `verbs` says which, the files it calls hold the statements, `database` runs them,
//! `connection` opens a lost database again.

mod admin;
mod aliases;
mod audit_lines;
mod connection;
mod connections;
mod costs;
mod database;
mod error;
mod expiry;
mod failed_writes;
#[cfg(test)]
mod fault_tests;
mod fill_known_keys;
mod find;
mod forget;
mod forgotten;
mod held_tombstones;
mod known_keys;
mod large_reads;
mod load_chain;
mod message_archive;
mod migrations;
mod observer_allowance;
mod open;
mod operator_requests;
mod overflow_observe;
mod peer_memory;
mod pepper;
mod place;
mod process_lock;
mod queue;
mod quota;
mod read;
mod record;
mod record_batch;
mod record_group;
mod record_standing;
mod savepoint;
mod scoped;
mod seen_messages;
mod shrink;
mod snapshots;
#[cfg(test)]
mod statement_tests;
mod tenant_accounts;
mod thread_export;
mod timers;
mod verbs;
mod verbs_audit;
mod verbs_forget;
mod verbs_seen;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::connection::Connection;
use self::database::{Database, REQUEST_TIMEOUT, Work};
pub use self::error::OpenError;
use self::held_tombstones::HeldTombstones;
use self::known_keys::KnownKeys;
use super::StoreResult;
use super::pepper_file::KeptPepper;
use crate::history::Pepper;
use crate::tasks::Tasks;

/// The pause between two attempts to open a lost database. An attempt is cheap where the file is
/// missing and slow where it is locked; with this pause neither is felt.
const REOPEN_INTERVAL: Duration = Duration::from_secs(5);

/// A store in one SQLite file, or in memory for tests and demonstrations.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    held_tombstones: Arc<HeldTombstones>,
    pepper: Pepper,
}

impl SqliteStore {
    /// Opens the database at `url` (`sqlite:///absolute/path`, `sqlite::memory:`), creates it if there
    /// is none, and brings its schema up to date. A database that is lost later stays lost.
    ///
    /// # Errors
    /// Each says what is wrong and what to do. A file that is not Diarist's stays as it is.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        Self::open_with(url, REQUEST_TIMEOUT).await
    }

    /// As [`SqliteStore::open`], with another limit for a query of the request path.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub async fn open_with(url: &str, request_timeout: Duration) -> Result<Self, OpenError> {
        let database = Database::open(url, request_timeout, &Arc::default()).await?;
        let connection = Connection::fixed(url, database);
        Ok(Self::on(connection))
    }

    fn on(connection: Connection) -> Self {
        Self {
            connection,
            held_tombstones: Arc::default(),
            pepper: Pepper::NONE,
        }
    }

    /// The same store for a database with this pepper. A store that opens its database later refuses one that has
    /// another pepper; for an open one, see [`SqliteStore::verify_pepper`].
    #[must_use]
    pub fn with_pepper(mut self, pepper: &KeptPepper) -> Self {
        self.connection.set_pepper(pepper.clone());
        self.held_tombstones = Arc::new(HeldTombstones::new(pepper.value));
        self.pepper = pepper.value;
        self
    }

    /// The same store, whose writer is opened in the background of `tasks`. SQLite's threads have the priority of the
    /// thread that opened them.
    #[must_use]
    pub fn with_background(mut self, tasks: &Tasks) -> Self {
        if let Some(runtime) = tasks.background() {
            self.connection.set_background(runtime);
        }
        self
    }

    /// The file that holds the pepper, if one does.
    pub fn pepper_file(&self) -> Option<&Path> {
        self.connection.pepper_file()
    }

    /// Compares the pepper with the open database.
    ///
    /// # Errors
    /// The database has another pepper, or only one of both has any.
    pub async fn verify_pepper(&self) -> Result<(), OpenError> {
        self.connection.verify_pepper().await
    }

    /// Opens the database at `url` for reading; another process may write to it meanwhile. Creates
    /// nothing and changes no schema. Verbs that write fail.
    ///
    /// # Errors
    /// As [`SqliteStore::open`]; also if there is no such file, or an older Diarist made it.
    pub async fn open_to_read(url: &str) -> Result<Self, OpenError> {
        let connection = Connection::fixed(url, Database::open_to_read(url).await?);
        Ok(Self::on(connection))
    }

    /// Whether this user could open the database file at `path`, or make it. Opens and makes nothing.
    ///
    /// # Errors
    /// A folder has this name, or the file or its folder cannot be written.
    pub fn check_place(path: &Path) -> Result<(), OpenError> {
        place::check(path)
    }

    /// A store for the database at `url` that opens it in the background, as soon as and as often as
    /// that is necessary. Nothing is opened yet. A query of the request path takes at most `request_timeout`.
    pub fn reconnecting(url: &str, request_timeout: Duration) -> Self {
        Self::on(Connection::reopening(url, REOPEN_INTERVAL, request_timeout))
    }

    /// The same store with another pause between two attempts to open the database.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_reopen_interval(mut self, interval: Duration) -> Self {
        self.connection.set_reopen_interval(interval);
        self
    }

    /// The same store without the lock of the process: others may serve with the same database. Nothing is
    /// known without a query, and no request waits for a second one, as for a store that replicas share.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.connection.share();
        self
    }

    /// Opens the database at `url` as the process that serves with it: fails if another one does. For a command that adds
    /// what a running server would not know of.
    ///
    /// # Errors
    /// As [`SqliteStore::open`]; also if a server is running.
    pub async fn open_alone(url: &str) -> Result<Self, OpenError> {
        let database = Database::open_to_serve(url, REQUEST_TIMEOUT, &Arc::default(), None).await?;
        Ok(Self::on(Connection::fixed(url, database)))
    }

    /// Opens the database now and waits for it, unless it is open. For the start of the server.
    ///
    /// # Errors
    /// Why the database cannot be opened. Later verbs of a reconnecting store try again.
    pub async fn open_now(&self) -> Result<(), OpenError> {
        self.connection.open_now().await
    }

    /// Lets another process serve with the database, as the end of this process would. For simulations of a
    /// crash, in which values of the old process live on.
    #[cfg(feature = "testing")]
    pub fn release_lock(&self) {
        if let Ok(database) = self.connection.database() {
            database.release_lock();
        }
    }

    /// Runs one query of the request path. `large_read_of` is the account of one that takes long.
    async fn request_read<T, W>(
        &self,
        large_read_of: Option<[u8; 32]>,
        name: &'static str,
        work: W,
    ) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let database = self.connection.database()?;
        let result = database.request_read(large_read_of, name, work).await;
        self.connection.check_result(&database, result)
    }

    /// Runs queries of workers or of the command line. All of them see the same state.
    async fn read<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let database = self.connection.database()?;
        let result = database.read(name, work).await;
        self.connection.check_result(&database, result)
    }

    /// As [`SqliteStore::read`], for a single statement.
    async fn read_once<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let database = self.connection.database()?;
        let result = database.read_once(name, work).await;
        self.connection.check_result(&database, result)
    }

    /// As [`SqliteStore::write`], for a single statement, which must be read to its end.
    async fn write_once<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let database = self.connection.database()?;
        let result = database.write_once(name, work).await;
        self.connection.check_result(&database, result)
    }

    /// Runs one write transaction.
    async fn write<T, W>(&self, name: &'static str, work: W) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        self.write_new_keys(|_| {}, name, work).await
    }

    /// As [`SqliteStore::write`], for a transaction that adds keys by which requests find something. `add_keys`
    /// adds them to what is known of the database before the transaction begins.
    async fn write_new_keys<T, W>(
        &self,
        add_keys: impl FnOnce(&KnownKeys) + Send,
        name: &'static str,
        work: W,
    ) -> StoreResult<T>
    where
        T: Send + 'static,
        W: Work<T>,
    {
        let database = self.connection.database()?;
        add_keys(database.known_keys());
        let result = database.write(name, work).await;
        self.connection.check_result(&database, result)
    }

    /// The connection that writes, for tests that reach behind the verbs.
    #[cfg(test)]
    async fn writer(&self) -> connections::LentConnection {
        let writer = self.database().writer.acquire().await;
        writer.expect("a connection")
    }

    /// The open database, for tests that reach behind the verbs.
    #[cfg(test)]
    fn database(&self) -> std::sync::Arc<Database> {
        self.connection.database().expect("an open database")
    }
}
