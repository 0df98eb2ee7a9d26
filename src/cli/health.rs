//! `diarist health`: asks the admin port of a running Diarist whether it is well.
//!
//! The image has no curl; its health check calls this. Only the admin address of the configuration
//! counts, so the same file and the same environment serve both the server and its check.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use super::output::print;
use super::sources::ConfigSources;

/// Docker's own default would be 30 s; an answer that takes this long is not a healthy one.
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
        .with_context(|| format!("no healthy answer from the admin port, {admin}"))?;
    anyhow::ensure!(
        status.is_success(),
        "the admin port, {admin}, answers {status}"
    );
    print("healthy\n")?;
    Ok(ExitCode::SUCCESS)
}

async fn fetch_status(admin: SocketAddr) -> reqwest::Result<reqwest::StatusCode> {
    // A proxy in the environment is for the outside world, not for ourselves.
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(DEADLINE)
        .build()?;
    let response = client.get(format!("http://{admin}/healthz")).send().await?;
    Ok(response.status())
}

/// Where to call a listener: one on every address is reached by loopback.
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
    fn a_listener_on_every_address_is_called_by_loopback() {
        let called = |listen: &str| reachable(listen.parse().unwrap()).to_string();
        assert_eq!(called("0.0.0.0:8485"), "127.0.0.1:8485");
        assert_eq!(called("[::]:8485"), "[::1]:8485");
        assert_eq!(called("10.0.0.7:1"), "10.0.0.7:1");
    }
}
