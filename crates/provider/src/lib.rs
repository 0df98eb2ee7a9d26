//! A scripted provider: the independent judge of what Diarist sends upstream.
//!
//! It accepts and refuses requests as the real chat-completions API does ([`judge()`], [`Rules`]),
//! simulates the API's prompt cache ([`PromptCache`]), answers as a [`Script`] says, misbehaves as a
//! [`Behaviour`] says, and records every byte that it receives ([`RecordedRequest`]). Tests, `demo` and
//! `replay` read their numbers from that record. It never uses `wire`, `history` or `memory`: a mistake
//! there must not hide itself here.
//!
//! # In five steps
//!
//! ```no_run
//! use diarist_provider::{Behaviour, CallerKind, Conversation, Options, Provider, Replay, Style};
//!
//! # async fn story() -> Result<(), Box<dyn std::error::Error>> {
//! // 1. Start one. By default it makes up answers for conversations. Requests with the model
//! //    `observer-mini` (or that look like an Observer's) get a faithful Observer, and
//! //    Reflector requests likewise.
//! let provider = Provider::start(Options::default()).await?;
//!
//! // 2. Set its rules and its script.
//! provider.rules(|rules| rules.alternate = true);
//! let conversation = Conversation::generate(1, 120, Style::Travel);
//! provider.script(CallerKind::Actor, Replay::from_conversations([&conversation]));
//!
//! // 3. Let it misbehave: from now on, or for the next requests of one caller.
//! provider.inject(CallerKind::Actor, Behaviour { frame_bytes: Some(7), ..Behaviour::default() });
//! provider.inject_next(CallerKind::Observer, 2, &Behaviour::rate_limited(1));
//!
//! // 4. Send it requests: `provider.base_url()` is the URL for a client.
//!
//! // 5. Read what arrived.
//! let record = provider.wait_for(1).await?;
//! assert!(record[0].is_accepted());
//! println!("{:?} {:?}", record[0].prompt_usage, record[0].ending);
//! # Ok(()) }
//! ```

mod answer;
mod behaviour;
pub mod cache;
mod caller;
mod chat;
pub mod conversation;
pub mod judge;
mod message;
mod observer;
mod options;
mod prompt;
mod record;
mod reflector;
mod refusal;
mod request_handler;
mod routes;
pub mod script;
mod sending;
mod server;
mod socket;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

pub use behaviour::{Behaviour, Cut, Failure, LineEnd};
pub use cache::{CacheKind, Lost, PromptCache, PromptUsage, SimulatedCache};
pub use caller::{CallerKind, IdentifyCaller, OBSERVER_MODEL, REFLECTOR_MODEL};
pub use conversation::{Conversation, Fact, Style};
pub use judge::{AcceptedRequest, Rules, judge, signature_for};
pub use observer::{Observer, ObserverStyle};
pub use options::Options;
pub use prompt::{CountTokens, Prompt, estimate_tokens};
pub use record::{Credential, Ending, RecordedRequest, Stage, Verdict};
pub use reflector::Reflector;
pub use refusal::Refusal;
pub use script::{
    DefaultScript, DirectiveScript, FixedReply, Replay, Reply, Script, ScriptInput, ToolCall,
};

use request_handler::{ServerState, lock};

/// How long [`Provider::wait_for`] waits: longer than anything that still makes progress.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The record did not become what [`Provider::wait_for`] waits for.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the condition did not hold after {waited:?}; the provider's record has {held} requests")]
pub struct WaitTimeout {
    /// How many requests the record had.
    pub held: usize,
    /// How long it waited.
    pub waited: Duration,
}

/// A running provider on a free loopback port. Dropping it closes the port and all connections.
pub struct Provider {
    address: SocketAddr,
    shared: Arc<ServerState>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Provider {
    /// Starts a provider on `127.0.0.1` and a free port, on the current tokio runtime.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ServerState::new(options));
        let accepting = server::accept(listener, Arc::clone(&shared));
        shared.tasks.spawn(accepting);
        Ok(Self { address, shared })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`: the origin, without a path.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL for a client (or Diarist): the origin and `/v1`. Any other base path works too,
    /// because routes are recognised by the end of a path.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.origin())
    }

    /// Changes the rules from the next request on.
    pub fn rules(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut lock(&self.shared.rules));
    }

    /// Changes the script of one caller from the next request on.
    pub fn script(&self, caller: CallerKind, script: impl Script + 'static) {
        lock(&self.shared.scripts).insert(caller, Arc::new(script));
    }

    /// Sets the default behaviour towards one caller.
    pub fn inject(&self, caller: CallerKind, behaviour: Behaviour) {
        lock(&self.shared.schedule).set_default(caller, behaviour);
    }

    /// Queues a behaviour for the next `times` requests of one caller, before the default one.
    pub fn inject_next(&self, caller: CallerKind, times: usize, behaviour: &Behaviour) {
        lock(&self.shared.schedule).queue(caller, times, behaviour);
    }

    /// All requests so far, oldest first. Cheap: entries are shared, not copied.
    pub fn record(&self) -> Vec<Arc<RecordedRequest>> {
        self.shared.record.snapshot()
    }

    /// The record of one caller.
    pub fn record_for(&self, caller: CallerKind) -> Vec<Arc<RecordedRequest>> {
        let mut record = self.record();
        record.retain(|entry| entry.caller == caller);
        record
    }

    /// Waits until this many requests have ended, in whatever way, and returns the record.
    ///
    /// # Errors
    /// [`WaitTimeout`] after half a minute.
    pub async fn wait_for(
        &self,
        requests: usize,
    ) -> Result<Vec<Arc<RecordedRequest>>, WaitTimeout> {
        self.wait_until(|record| {
            let ended = record.iter().filter(|entry| entry.ending != Ending::Open);
            ended.count() >= requests
        })
        .await
    }

    /// Waits until `condition` holds for the record, and returns it. The condition is checked again
    /// after every change: a request came, was decided, or ended.
    ///
    /// # Errors
    /// [`WaitTimeout`] after half a minute.
    pub async fn wait_until(
        &self,
        condition: impl Fn(&[Arc<RecordedRequest>]) -> bool,
    ) -> Result<Vec<Arc<RecordedRequest>>, WaitTimeout> {
        let waiting = self.shared.record.wait(condition);
        tokio::time::timeout(WAIT_TIMEOUT, waiting)
            .await
            .map_err(|_| WaitTimeout {
                held: self.record().len(),
                waited: WAIT_TIMEOUT,
            })
    }

    /// Empties the prompt cache, as a provider does after a while.
    pub fn forget_prompts(&self) {
        lock(&self.shared.cache).forget();
    }

    /// Lets this much time pass for the prompt cache.
    pub fn skip_time(&self, duration: Duration) {
        lock(&self.shared.cache).skip_time(duration);
    }

    /// Frees the bodies of all requests so far; the rest of the record stays.
    pub fn forget_bodies(&self) {
        self.shared.record.forget_bodies();
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.closing.cancel();
    }
}
