//! What a client still sends after it was refused.
//!
//! A client of HTTP/1 usually sends its whole body before it reads. If the connection were closed meanwhile, the system
//! would reset it, and the client would see a broken connection instead of the refusal. So what it sends is read and
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

/// Reads on in a task of its own, while the refusal is being sent.
pub(in crate::proxy) fn discard(tasks: &Tasks, parts: &Parts, mut body: IdleTimeout<Incoming>) {
    let waits = headers::lists(&parts.headers, &header::EXPECT, "100-continue");
    if parts.version > Version::HTTP_11 || waits && body.received() == 0 {
        // To read would ask the client to send.
        return;
    }
    let draining = tasks.draining();
    tasks.spawn("discard", async move {
        let most = body.received() + MAX_BYTES;
        let read_on = async {
            while body.received() < most
                && let Some(Ok(_)) = body.frame().await
            {}
        };
        let bounded = tokio::time::timeout(MAX_TIME, read_on);
        // However it ends, the connection ends with it unless the body did.
        let _ended = draining.run_until_cancelled(bounded).await;
    });
}
