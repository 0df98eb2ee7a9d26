//! The connections of one kind to a database, in front of the pool that opens them.
//!
//! The pool tests each connection that it gets back: one more trip to SQLite's thread and back, for every query. Here, a
//! connection whose work ended well is kept ready without a test. Any other goes back to the pool, which tests it, and
//! opens another one if it is broken. Decides nothing about transactions. Called by [`super::database`].

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::Connection as _;
use sqlx::Sqlite;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The connections of one kind.
#[derive(Clone)]
pub(super) struct Connections {
    pool: SqlitePool,
    /// One for each connection that the pool may open.
    turns: Arc<Semaphore>,
    ready: Arc<Mutex<Ready>>,
}

/// Connections that wait for work.
#[derive(Default)]
struct Ready {
    connections: Vec<PoolConnection<Sqlite>>,
    /// No more are kept.
    closed: bool,
}

impl Connections {
    pub(super) fn new(pool: SqlitePool) -> Self {
        let most = pool.options().get_max_connections() as usize;
        Self {
            pool,
            turns: Arc::new(Semaphore::new(most)),
            ready: Arc::default(),
        }
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection; opens one if none is ready and there may be more.
    ///
    /// # Errors
    /// None is free for as long as the pool waits, or none can be opened.
    pub(super) async fn acquire(&self) -> sqlx::Result<LentConnection> {
        let acquiring = async {
            let turn = Arc::clone(&self.turns).acquire_owned().await;
            let turn = turn.map_err(|_| sqlx::Error::PoolClosed)?;
            let ready = self.ready().connections.pop();
            let connection = match ready {
                Some(connection) => connection,
                None => self.pool.acquire().await?,
            };
            Ok(self.guard(connection, turn))
        };
        tokio::time::timeout(self.pool.options().get_acquire_timeout(), acquiring)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// A connection that is free now.
    pub(super) fn try_acquire(&self) -> Option<LentConnection> {
        let turn = Arc::clone(&self.turns).try_acquire_owned().ok()?;
        let ready = self.ready().connections.pop();
        let connection = ready.or_else(|| self.pool.try_acquire())?;
        Some(self.guard(connection, turn))
    }

    fn guard(
        &self,
        connection: PoolConnection<Sqlite>,
        turn: OwnedSemaphorePermit,
    ) -> LentConnection {
        LentConnection {
            connection,
            ready: Arc::clone(&self.ready),
            turn,
        }
    }

    /// Waits until all connections are given back, and closes them.
    pub(super) async fn close(&self) {
        let ready = {
            let mut ready = self.ready();
            ready.closed = true;
            std::mem::take(&mut ready.connections)
        };
        drop(ready);
        self.pool.close().await;
    }

    /// How many there can be.
    #[cfg(test)]
    pub(super) fn most(&self) -> u32 {
        self.pool.options().get_max_connections()
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // The pool would get them back in a task, and there may be no runtime any more.
        for connection in self.connections.drain(..) {
            drop(connection.detach());
        }
    }
}

/// A connection that is lent to one piece of work. If it is dropped, it goes back to the pool.
pub(super) struct LentConnection {
    connection: PoolConnection<Sqlite>,
    ready: Arc<Mutex<Ready>>,
    turn: OwnedSemaphorePermit,
}

impl LentConnection {
    /// Keeps it ready: its work has ended well.
    pub(super) fn keep(self) {
        let Self {
            connection,
            ready,
            turn,
        } = self;
        let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.closed {
            drop(ready);
            drop(connection);
        } else {
            ready.connections.push(connection);
        }
        // Whoever waits finds the connection.
        drop(turn);
    }

    /// Closes it without ending its transaction first.
    pub(super) async fn close_hard(self) {
        // An error while closing would add nothing to the one before.
        let _closed = self.connection.detach().close_hard().await;
    }
}

impl Deref for LentConnection {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for LentConnection {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;

    /// At most one connection. Only that one has the temporary tables that it makes.
    fn one() -> Connections {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_millis(50));
        Connections::new(pool.connect_lazy("sqlite::memory:").expect("a pool"))
    }

    async fn run(conn: &mut SqliteConnection, statement: &'static str) -> bool {
        sqlx::query(statement).execute(conn).await.is_ok()
    }

    #[tokio::test]
    async fn a_connection_is_lent_again_whether_it_was_kept_or_given_back() {
        let connections = one();
        let mut conn = connections.acquire().await.expect("a connection");
        assert!(run(&mut conn, "CREATE TEMP TABLE t (a)").await);
        conn.keep();
        let mut conn = connections.try_acquire().expect("ready");
        assert!(run(&mut conn, "INSERT INTO t VALUES (1)").await);
        assert!(connections.try_acquire().is_none());
        let second = connections.acquire().await.map(|_| ());
        assert!(matches!(second, Err(sqlx::Error::PoolTimedOut)));
        drop(conn);
        let mut conn = connections.acquire().await.expect("given back");
        assert!(run(&mut conn, "INSERT INTO t VALUES (2)").await);
        conn.close_hard().await;
        let mut conn = connections.acquire().await.expect("another one");
        assert!(!run(&mut conn, "INSERT INTO t VALUES (3)").await);
    }

    /// Whoever waits first for a turn and then for the pool waits no longer than for one of both.
    #[tokio::test]
    async fn a_turn_and_a_connection_of_the_pool_share_one_deadline() {
        let connections = one();
        let _held = connections.pool.acquire().await.expect("a connection");
        let turn = Arc::clone(&connections.turns).acquire_owned().await;
        tokio::time::pause();
        let started = tokio::time::Instant::now();
        let (acquired, ()) = tokio::join!(connections.acquire(), async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            drop(turn);
        });
        assert!(matches!(
            acquired.map(|_| ()),
            Err(sqlx::Error::PoolTimedOut)
        ));
        let waited = started.elapsed();
        assert!(waited < Duration::from_millis(60), "{waited:?}");
    }

    #[tokio::test]
    async fn closing_waits_for_lent_connections_and_nothing_is_lent_afterwards() {
        let connections = one();
        connections.acquire().await.expect("open").keep();
        let conn = connections.acquire().await.expect("ready");
        let mut closing = std::pin::pin!(connections.close());
        let in_time = tokio::time::timeout(Duration::from_millis(50), closing.as_mut()).await;
        assert!(in_time.is_err());
        conn.keep();
        closing.await;
        assert!(connections.acquire().await.is_err());
    }

    #[test]
    fn ready_connections_may_outlive_the_runtime() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let connections = runtime.block_on(async {
            let connections = one();
            connections.acquire().await.expect("open").keep();
            connections
        });
        drop(runtime);
        drop(connections);
    }
}
