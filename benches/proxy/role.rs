//! The parts that this program plays in processes of its own, so that their processor time is their own: the scripted
//! upstream and the plain pass-through. They end when their standard input does, so they never outlive who started them.

use std::io::Read as _;
use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::sync::oneshot;

use crate::{passthrough, upstream};

/// The hidden first argument.
pub const UPSTREAM: &str = "role-upstream";
/// The hidden first argument.
pub const PASSTHROUGH: &str = "role-passthrough";

/// Plays the part that the arguments name, until the standard input ends. `None` if they name none.
pub fn play(arguments: &[String]) -> Option<anyhow::Result<()>> {
    let name = arguments.get(1)?.as_str();
    [UPSTREAM, PASSTHROUGH]
        .contains(&name)
        .then(|| run(name, &arguments[2..]))
}

fn run(name: &str, addresses: &[String]) -> anyhow::Result<()> {
    let addresses: Vec<SocketAddr> = addresses
        .iter()
        .map(|address| address.parse().context("an address"))
        .collect::<anyhow::Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (ended, end) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(ended);
    });
    let played = runtime.block_on(async {
        let playing = async {
            match (name, addresses.as_slice()) {
                (UPSTREAM, [listen]) => upstream::serve(*listen).await,
                (PASSTHROUGH, [listen, upstream]) => passthrough::serve(*listen, *upstream).await,
                _ => anyhow::bail!("{name} with other addresses"),
            }
        };
        tokio::select! {
            result = playing => result,
            _ = end => Ok(()),
        }
    });
    runtime.shutdown_background();
    played
}
