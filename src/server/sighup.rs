//! SIGHUP: the signal to read the configuration again. Used by `app`.

/// The coming signals.
#[derive(Debug)]
pub struct Sighup {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Sighup {
    /// Listens from now on. Without this, the signal would end the process.
    ///
    /// # Errors
    /// If the signal cannot be listened for.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. On systems without it, waits for ever.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        std::future::pending::<()>().await;
    }
}
