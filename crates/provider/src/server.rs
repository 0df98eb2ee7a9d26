//! The HTTP side of the provider: accepts connections, opens a record entry for every request, and
//! passes the request to its route.
//!
//! Knows nothing about the content of requests. Started by [`super::Provider::start`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::request_handler::{RequestHandler, ServerState};
use super::routes;
use super::sending::Body;
use super::socket::Socket;

/// Accepts connections until the provider closes.
pub(super) async fn accept(listener: TcpListener, shared: Arc<ServerState>) {
    loop {
        let accepted = tokio::select! {
            () = shared.closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        // A failed accept is the client's fault, or a temporary shortage of descriptors;
        // continue.
        let Ok((stream, _)) = accepted else { continue };
        let connection = shared.connections.fetch_add(1, Ordering::Relaxed);
        let task = serve(stream, connection, Arc::clone(&shared));
        shared.tasks.spawn(task);
    }
}

async fn serve(stream: TcpStream, connection: u64, shared: Arc<ServerState>) {
    // If it cannot be set, only latency suffers.
    let _ = stream.set_nodelay(true);
    let (socket, reset) = Socket::new(stream);
    let service = service_fn(|request| {
        let handler = RequestHandler {
            shared: Arc::clone(&shared),
            connection,
            reset: Arc::clone(&reset),
        };
        dispatch(handler, request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new());
    let serving = http
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    tokio::select! {
        // The watches of the requests record how a connection ended.
        _ = serving => {}
        () = shared.closing.cancelled() => {}
    }
}

async fn dispatch(
    handler: RequestHandler,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let watch = handler.shared.record.open(handler.entry(&request));
    // Servers differ; many take a slash too many.
    let segments = request.uri().path().split('/').filter(|it| !it.is_empty());
    if segments.rev().take(2).eq(["completions", "chat"]) {
        handler.chat(request, watch).await
    } else {
        routes::answer(&handler, request, watch).await
    }
}
