//! A Diarist inside this process, on free loopback ports, for `demo` and `replay`.
//!
//! It is built like the one of `serve` and uses real sockets. Its configuration is made here, and it reads nothing
//! from the environment.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::config::{self, ENVIRONMENT_PREFIX, Flags};
use crate::tasks::Tasks;

/// One running Diarist.
pub(super) struct Harness {
    base_url: String,
    quiet: Box<dyn Fn(Duration) -> BoxFuture<'static, bool> + Send + Sync>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Harness {
    /// Starts one in front of `upstream`. `settings` are configuration keys with their values, such
    /// as `("memory.observation.message_tokens", "2000")`; the database is in memory unless they
    /// say otherwise, and no audit is written.
    ///
    /// # Errors
    ///
    /// An invalid setting, or any error of the start.
    pub(super) async fn start(upstream: &str, settings: &[(&str, String)]) -> anyhow::Result<Self> {
        let any_port = || Some("127.0.0.1:0".to_owned());
        let flags = Flags {
            listen: any_port(),
            admin: any_port(),
            upstream: Some(upstream.to_owned()),
            database: None,
            audit: Some("off".to_owned()),
        };
        let variable =
            |key: &str| ENVIRONMENT_PREFIX.to_owned() + &key.to_uppercase().replace('.', "__");
        let mut env = BTreeMap::from([(variable("store.url"), "sqlite::memory:".to_owned())]);
        env.extend(
            settings
                .iter()
                .map(|(key, value)| (variable(key), value.clone())),
        );
        let config = config::load(&flags, &env, None)?;

        let app = Box::pin(App::build(&config)).await?;
        let base_url = format!("http://{}/v1", app.data_addr().context("no address")?);
        let quiet = Box::new(app.quiet());
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = Tasks::new().spawn("diarist", async move {
            Box::pin(app.run(stopped.map(|_| std::future::pending()))).await;
        });
        Ok(Self {
            base_url,
            quiet,
            stop,
            task: ended,
        })
    }

    /// The base URL for a client.
    pub(super) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Waits until memory has nothing left to do; `false` if that took longer than `within`.
    pub(super) async fn quiet(&self, within: Duration) -> bool {
        (self.quiet)(within).await
    }

    /// Stops it as SIGTERM would, and closes its database.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        // Sending fails only if it has already ended.
        let _ = self.stop.send(());
        self.task.await.context("Diarist did not stop as expected")
    }
}
