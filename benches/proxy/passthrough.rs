//! The second yardstick: a proxy of hyper that streams both ways and looks at nothing. What it costs, any proxy in Rust
//! on this runtime costs.

use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Serves until the process ends.
pub async fn serve(listen: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    let listener = TcpListener::bind(listen).await?;
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let client = client.clone();
        connections.spawn(async move {
            let service = service_fn(|mut request: Request<Incoming>| {
                let path = request.uri().path().to_owned();
                let uri: Result<Uri, _> = format!("http://{upstream}{path}").parse();
                let client = client.clone();
                async move {
                    *request.uri_mut() = uri?;
                    anyhow::Ok(client.request(request).await?)
                }
            });
            let serving = hyper::server::conn::http1::Builder::new();
            // A client that goes away is no failure of the proxy.
            let _ = serving
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}
