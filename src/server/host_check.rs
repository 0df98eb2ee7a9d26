//! Which names a loopback listener answers to.
//!
//! A web page can make its own name point to 127.0.0.1 and so reach a listener that only this machine should
//! reach (DNS rebinding). The browser still sends the page's name, so a name that is not this machine's own is
//! refused. Beyond loopback any name may lead here, and nothing is checked. Called by [`super`], for both ports.

use std::net::{IpAddr, SocketAddr};

use http::header::HOST;
use http::uri::Authority;
use http::{Request, Uri};

/// The names of one port.
#[derive(Clone, Debug)]
pub(super) struct HostCheck {
    loopback: bool,
    /// Names that the operator allows beside those of this machine.
    hosts: Vec<String>,
}

impl HostCheck {
    pub(super) fn new(listen: SocketAddr, hosts: &[String]) -> Self {
        Self {
            loopback: listen.ip().is_loopback(),
            hosts: hosts.to_vec(),
        }
    }

    /// The first name in `request` that this port does not answer to. A request without a name passes: no
    /// browser sends one.
    pub(super) fn foreign_name<B>(&self, request: &Request<B>) -> Option<String> {
        if !self.loopback {
            return None;
        }
        let target = request.uri().authority().map(Authority::as_str);
        let headers = request.headers().get_all(HOST).iter();
        let named = headers.map(|value| value.to_str().unwrap_or_default());
        let mut names = target.into_iter().chain(named);
        let foreign = names.find(|name| !self.allows(name))?;
        Some(foreign.to_owned())
    }

    fn allows(&self, name: &str) -> bool {
        let Ok(authority) = name.parse::<Authority>() else {
            return false;
        };
        let host = authority.host().trim_end_matches('.');
        is_this_machine(host) || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let last = host.rsplit('.').next().unwrap_or_default();
    // Systems and browsers resolve every name below `localhost` to this machine (RFC 6761).
    last.eq_ignore_ascii_case("localhost")
        || address
            .parse()
            .is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
}

/// Whether `name` can stand in `server.hosts`: a name or address, without a port.
pub(super) fn is_host(name: &str) -> bool {
    let uri: Option<Uri> = format!("http://{name}/").parse().ok();
    uri.is_some_and(|uri| uri.host() == Some(name) && uri.port().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(check: &HostCheck, uri: &str, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check.foreign_name(&request.body(()).expect("a request"))
    }

    #[test]
    fn a_loopback_listener_accepts_only_local_and_configured_host_names() {
        let check = HostCheck::new(
            "127.0.0.1:8484".parse().expect("an address"),
            &["Box.lan".to_owned()],
        );
        for own in [
            "localhost:8484",
            "LOCALHOST",
            "localhost.",
            "app.localhost:1",
            "127.0.0.1:8484",
            "127.8.0.1",
            "[::1]:8484",
            "[::ffff:127.0.0.1]:8484",
            "box.LAN:99",
        ] {
            assert_eq!(foreign(&check, "/v1/models", &[own]), None, "{own}");
        }
        for other in [
            "rebind.example:8484",
            "localhost.example",
            "notlocalhost",
            "10.0.0.1",
            "127.0.0.1.example",
            "[::2]",
            "",
            "a b",
        ] {
            let refused = foreign(&check, "/v1/models", &[other]);
            assert_eq!(refused.as_deref(), Some(other));
        }
        assert_eq!(foreign(&check, "/v1/models", &[]), None);
        let second = foreign(&check, "/", &["localhost", "rebind.example"]);
        assert_eq!(second.as_deref(), Some("rebind.example"));
        let target = foreign(&check, "http://rebind.example/", &["localhost"]);
        assert_eq!(target.as_deref(), Some("rebind.example"));
    }

    #[test]
    fn a_public_listener_accepts_every_host_name() {
        let check = HostCheck::new("0.0.0.0:8484".parse().expect("an address"), &[]);
        assert_eq!(foreign(&check, "/", &["proxy.example"]), None);
    }

    #[test]
    fn a_configured_host_name_has_no_port_and_no_scheme() {
        for good in ["box.lan", "10.0.0.7", "[fe80::1]", "host.docker.internal"] {
            assert!(is_host(good), "{good}");
        }
        for bad in [
            "",
            "box.lan:80",
            "http://box.lan",
            "box.lan/",
            "a b",
            "u@box",
        ] {
            assert!(!is_host(bad), "{bad}");
        }
    }
}
