//! What a client still sends after its request was refused, or answered early.
//!
//! A client of HTTP/1 usually sends its whole body before it reads. If the connection were closed meanwhile, the system
//! would reset it, and the client would see a broken connection instead of the answer. So what it sends is read and
//! thrown away, within bounds. HTTP/2 ends one stream without the others.

use std::time::Duration;

use http::request::Parts;
use http::{Version, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::super::headers;
use super::IdleTimeout;
use crate::tasks::Tasks;

/// The most bytes that are thrown away of one request: eight times the largest body by default.
const MAX_BYTES: u64 = 256 << 20;

/// A client that is still sending then is not reading, or is slow on purpose.
const MAX_TIME: Duration = Duration::from_secs(30);

/// A client that sends nothing for so long has read its answer, and waits for the end of the connection.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Throws away what is left of the body of one request.
#[derive(Debug)]
pub(in crate::proxy) struct Discard {
    tasks: Tasks,
    is_http1: bool,
    waits_for_continue: bool,
}

impl Discard {
    pub(in crate::proxy) fn new(tasks: &Tasks, parts: &Parts) -> Self {
        Self {
            tasks: tasks.clone(),
            is_http1: parts.version <= Version::HTTP_11,
            waits_for_continue: headers::lists(&parts.headers, &header::EXPECT, "100-continue"),
        }
    }

    /// Reads on in a task of its own, while the answer is being sent.
    pub(in crate::proxy) fn run(self, mut body: IdleTimeout<Incoming>) {
        // Its connection alone is counted from now on.
        body.release_guard();
        if !self.is_http1 || self.waits_for_continue && !body.was_asked_for() {
            // To read would ask the client to send.
            return;
        }
        let draining = self.tasks.draining();
        self.tasks.spawn("discard", async move {
            let most = body.received() + MAX_BYTES;
            let read_on = async {
                while body.received() < most
                    && let Ok(Some(Ok(_))) = tokio::time::timeout(MAX_PAUSE, body.frame()).await
                {
                }
            };
            let bounded = tokio::time::timeout(MAX_TIME, read_on);
            // However it ends, the connection ends with it unless the body did.
            let _ended = draining.run_until_cancelled(bounded).await;
        });
    }
}
