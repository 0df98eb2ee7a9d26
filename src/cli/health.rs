//! `diarist health`: asks the admin port of a running Diarist whether it is healthy.
//!
//! The health check of the container image calls this, since the image has no curl. It reads only the admin
//! address of the configuration, so it can have the same file and environment as the server.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use super::output::print;
use super::sources::ConfigSources;

/// A server that needs longer is not healthy. (Docker's default is 30 s.)
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let admin = reachable(args.sources.load()?.server.admin);
    let status = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?
        .block_on(fetch_status(admin))
        .with_context(|| format!("the admin port {admin} cannot be reached"))?;
    anyhow::ensure!(
        status.is_success(),
        "the admin port {admin} answers {status}"
    );
    print("healthy\n")?;
    Ok(ExitCode::SUCCESS)
}

async fn fetch_status(admin: SocketAddr) -> reqwest::Result<reqwest::StatusCode> {
    // Without the proxy of the environment: the admin port is usually on this machine.
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(DEADLINE)
        .build()?;
    let response = client.get(format!("http://{admin}/healthz")).send().await?;
    Ok(response.status())
}

/// The address to call: a listener on all addresses is called by loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_called_on_loopback() {
        let called = |listen: &str| reachable(listen.parse().unwrap()).to_string();
        assert_eq!(called("0.0.0.0:8485"), "127.0.0.1:8485");
        assert_eq!(called("[::]:8485"), "[::1]:8485");
        assert_eq!(called("10.0.0.7:1"), "10.0.0.7:1");
    }
}
