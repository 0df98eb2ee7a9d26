//! SIGHUP: the configuration is to be read anew.

/// The signals to come.
#[derive(Debug)]
pub struct Sighup {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Sighup {
    /// Listens from now on: without, the signal would end the process.
    ///
    /// # Errors
    /// If the signal cannot be listened for.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    /// The next one. Where there is no such signal, it never comes.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        std::future::pending::<()>().await;
    }
}
