//! The open connections of the admin port. At the bound a new one closes another: the oldest of the address that holds
//! most, so that one address cannot keep the health checks of another out. Used by [`super`] only.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tokio_util::sync::CancellationToken;

use crate::proxy::network;

/// The most connections on the admin port. Health checks and a metrics server need a few; more would take the file
/// descriptors of clients.
const MAX_CONNECTIONS: usize = 64;

/// The open connections, each with its peer's [`network`], the oldest first. Loopback counts as an address like others.
#[derive(Debug, Default)]
pub(super) struct AdminConnections(VecDeque<(IpAddr, CancellationToken)>);

impl AdminConnections {
    /// Adds a connection of `address`, which `closed` closes. A connection has ended when its token is cancelled.
    pub(super) fn add(&mut self, address: IpAddr, closed: CancellationToken) {
        self.0.retain(|(_, connection)| !connection.is_cancelled());
        self.0.push_back((network(address), closed));
        if self.0.len() > MAX_CONNECTIONS
            && let Some(place) = self.place_to_close()
            && let Some((_, connection)) = self.0.remove(place)
        {
            connection.cancel();
        }
    }

    /// The oldest connection of the address with most connections. Of two such addresses the one that has held its oldest
    /// connection for longer gives way.
    fn place_to_close(&self) -> Option<usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (address, _) in &self.0 {
            *counts.entry(*address).or_default() += 1;
        }
        let most = counts.values().max()?;
        self.0
            .iter()
            .position(|(address, _)| counts[address] == *most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn a_flood_of_one_address_closes_its_own_connections_only() {
        let mut connections = AdminConnections::default();
        let checks: Vec<_> = (0..8).map(|_| CancellationToken::new()).collect();
        for check in &checks {
            connections.add(address(1), check.clone());
        }
        for _ in 0..1_000 {
            connections.add(address(2), CancellationToken::new());
        }
        assert!(!checks.iter().any(CancellationToken::is_cancelled));
        assert_eq!(connections.0.len(), MAX_CONNECTIONS);
        // Two addresses that flood share what others leave.
        for _ in 0..1_000 {
            connections.add(address(3), CancellationToken::new());
        }
        let open_count = |last| {
            let held = connections.0.iter();
            held.filter(|(held, _)| *held == address(last)).count()
        };
        assert_eq!([open_count(1), open_count(2), open_count(3)], [8, 28, 28]);
    }

    #[test]
    fn ended_admin_connections_do_not_count() {
        let mut connections = AdminConnections::default();
        for _ in 0..1_000 {
            let connection = CancellationToken::new();
            connections.add(address(1), connection.clone());
            connection.cancel();
        }
        assert_eq!(connections.0.len(), 1);
    }
}
