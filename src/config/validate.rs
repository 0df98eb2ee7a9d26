//! From what was written to what is valid: addresses, URLs, limits, paths.
//!
//! Each key is judged by a function of its own that knows nothing of the others, so one wrong value
//! never hides the next; rules between keys come after. The rules of memory are in `memory`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use url::{Host, Url};

use super::common::{base_url, positive_duration};
use super::identity;
use super::memory;
use super::parse::{CheckResult, ErrorReported, Invalid};
use super::platform::Platform;
use super::problem::Problem;
use super::reload::ConfigValues;
use super::settings::{RawConfig, RawServer, RawStore};
use super::valid::{
    AskUsage, AuditTarget, Config, Database, Placement, ServerSettings, UpstreamSettings,
};

/// The valid configuration, unless something wrong with it has joined `problems`.
pub(super) fn validate(
    raw: &RawConfig,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Config> {
    let server = server(&raw.server, problems);
    let base_url = raw.upstream.base_url.check(problems, |text| base_url(text));
    let placement = raw
        .upstream
        .placement
        .check(problems, |text| placement(text));
    let database = database(&raw.store, env, problems);
    let audit = raw.audit.path.check(problems, |text| audit(text));
    let ask_usage = raw.audit.ask_usage.check(problems, |text| ask_usage(text));
    let identity = identity::identity(raw, problems);
    let memory = memory::validate(raw, problems);

    if let (Ok(server), Ok(url)) = (&server, &base_url)
        && points_at(url, server.listen)
    {
        problems.push(raw.upstream.base_url.problem(
            "this is the data port itself: requests would go round in circles",
            "write the base URL of the provider",
        ));
    }
    Ok(Config {
        server: server?,
        upstream: UpstreamSettings {
            base_url: base_url?,
            placement: placement?,
        },
        database: database?,
        audit: audit?,
        ask_usage: ask_usage?,
        identity: identity?,
        memory: memory?,
        values: ConfigValues::default(),
    })
}

fn server(raw: &RawServer, problems: &mut Vec<Problem>) -> CheckResult<ServerSettings> {
    let listen = raw.listen.check(problems, |text| address(text));
    let admin = raw.admin.check(problems, |text| address(text));
    if let (Ok(listen), Ok(admin)) = (listen, admin)
        && listen == admin
        && listen.port() != 0
    {
        problems.push(raw.admin.problem(
            format!("the admin port cannot be the data port, {listen}"),
            "give the two ports different numbers",
        ));
    }
    let max_body_bytes = raw
        .max_body_bytes
        .check(problems, |&number| above_zero(number));
    let header_timeout = raw.header_timeout.check(problems, positive_duration);
    let idle_timeout = raw.idle_timeout.check(problems, positive_duration);
    let connect_timeout = raw.connect_timeout.check(problems, positive_duration);
    let response_timeout = raw.response_timeout.check(problems, positive_duration);
    let max_connections = raw
        .max_connections
        .check(problems, |&number| above_zero(number));
    let max_requests = raw
        .max_requests
        .check(problems, |&number| above_zero(number));
    Ok(ServerSettings {
        listen: listen?,
        admin: admin?,
        max_body_bytes: max_body_bytes?,
        header_timeout: header_timeout?,
        idle_timeout: idle_timeout?,
        connect_timeout: connect_timeout?,
        response_timeout: response_timeout?,
        // Nothing is a fair answer here: cut at once.
        drain_timeout: raw.drain_timeout.value,
        max_connections: max_connections?,
        max_requests: max_requests?,
    })
}

fn address(text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        Invalid::new(
            format!("\"{text}\" is not an IP address and a port"),
            "write both, such as \"127.0.0.1:8484\", \"0.0.0.0:8484\" or \"[::1]:8484\"",
        )
    })
}

fn above_zero(number: u64) -> Result<usize, Invalid> {
    match usize::try_from(number) {
        Ok(0) => Err(Invalid::new(
            "0 would let nothing through",
            "write a number above 0",
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(Invalid::new(
            format!("{number} is beyond this machine"),
            "write a smaller number",
        )),
    }
}

/// Whether requests to `url` would arrive at `listen`, as far as can be told without a look-up.
fn points_at(url: &Url, listen: SocketAddr) -> bool {
    let ip = match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip),
        Some(Host::Domain("localhost")) => IpAddr::from([127, 0, 0, 1]),
        _ => return false,
    };
    let reaches = ip == listen.ip() || listen.ip().is_unspecified() && ip.is_loopback();
    listen.port() != 0 && url.port_or_known_default() == Some(listen.port()) && reaches
}

fn placement(text: &str) -> Result<Placement, Invalid> {
    match text {
        "auto" => Ok(Placement::Auto),
        "system_message" => Ok(Placement::SystemMessage),
        "append_to_system" => Ok(Placement::AppendToSystem),
        "segments" => Ok(Placement::Segments),
        "off" => Ok(Placement::Off),
        _ => Err(Invalid::new(
            format!("\"{text}\" is not a placement"),
            "write \"auto\", \"system_message\", \"append_to_system\", \"segments\" or \"off\"",
        )),
    }
}

fn database(
    raw: &RawStore,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Database> {
    if let Some(configured) = raw.url.check_some(problems, |text| database_url(text))? {
        return Ok(configured);
    }
    let Some(folder) = Platform::CURRENT.data_folder(env) else {
        problems.push(raw.url.problem(
            format!(
                "there is no place for it: {} is not set",
                Platform::CURRENT.home_variable()
            ),
            "set store.url, such as \"sqlite:///var/lib/diarist/diarist.db\"",
        ));
        return Err(ErrorReported);
    };
    Ok(Database::Sqlite(folder.join("diarist.db")))
}

fn database_url(text: &str) -> Result<Database, Invalid> {
    let example = "write \"sqlite:///\" and an absolute path, or \"sqlite::memory:\"";
    let Some(rest) = text.strip_prefix("sqlite:") else {
        let scheme = text.split_once(':').map(|(scheme, _)| scheme);
        return Err(match scheme {
            Some("postgres" | "postgresql") => {
                Invalid::new("PostgreSQL is not available in this version", example)
            }
            // Only the scheme is shown: the rest may hold a password.
            Some(scheme) => Invalid::new(
                format!("\"{scheme}:\" is not a database Diarist knows"),
                example,
            ),
            None => Invalid::new(
                format!("\"{text}\" is not a database URL"),
                format!("write \"sqlite://{text}\" if this is a path"),
            ),
        });
    };
    if rest == ":memory:" {
        return Ok(Database::SqliteInMemory);
    }
    if rest.contains('?') {
        return Err(Invalid::new(
            "a database URL takes no options after ?",
            "remove them",
        ));
    }
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() || path.ends_with('/') {
        return Err(Invalid::new(
            "the path of the database file is missing",
            example,
        ));
    }
    Ok(Database::Sqlite(PathBuf::from(without_drive_slash(path))))
}

/// The third slash of `sqlite:///C:/data/diarist.db` belongs to the URL, not to the path.
fn without_drive_slash(path: &str) -> &str {
    match path.as_bytes() {
        [b'/', drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic() => &path[1..],
        _ => path,
    }
}

fn audit(text: &str) -> Result<AuditTarget, Invalid> {
    match text {
        "-" => Ok(AuditTarget::Stdout),
        "off" => Ok(AuditTarget::Off),
        "" => Err(Invalid::new(
            "the path is empty",
            "write a path, \"-\" or \"off\"",
        )),
        path => Ok(AuditTarget::File(PathBuf::from(path))),
    }
}

fn ask_usage(text: &str) -> Result<AskUsage, Invalid> {
    match text {
        "auto" => Ok(AskUsage::Auto),
        "never" => Ok(AskUsage::Never),
        "always" => Ok(AskUsage::Always),
        _ => Err(Invalid::new(
            format!("\"{text}\" is no way to ask for usage"),
            "write \"auto\", \"never\" or \"always\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases() {
        let file = |path: &str| Database::Sqlite(PathBuf::from(path));
        let valid = |text| database_url(text).unwrap();
        assert_eq!(valid("sqlite:///var/d.db"), file("/var/d.db"));
        assert_eq!(valid("sqlite://d.db"), file("d.db"));
        assert_eq!(valid("sqlite:d.db"), file("d.db"));
        assert_eq!(valid("sqlite:///a%20b.db"), file("/a%20b.db"));
        assert_eq!(valid("sqlite:///C:/data/d.db"), file("C:/data/d.db"));
        assert_eq!(valid("sqlite::memory:"), Database::SqliteInMemory);
        for wrong in [
            "",
            "sqlite:",
            "sqlite://",
            "sqlite:///dir/",
            "d.db",
            "sqlite:a?mode=ro",
        ] {
            assert!(database_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_data_port_is_recognised_as_an_upstream() {
        let loops =
            |url: &str, listen: &str| points_at(&url.parse().unwrap(), listen.parse().unwrap());
        assert!(loops("http://127.0.0.1:8484/v1", "127.0.0.1:8484"));
        assert!(loops("http://localhost:8484/v1", "127.0.0.1:8484"));
        assert!(loops("http://127.0.0.1:8484/v1", "0.0.0.0:8484"));
        assert!(loops("http://127.0.0.1", "127.0.0.1:80"));
        assert!(!loops("http://127.0.0.1:8485/v1", "127.0.0.1:8484"));
        assert!(!loops("http://10.0.0.1:8484/v1", "127.0.0.1:8484"));
        assert!(!loops("https://api.openai.com/v1", "0.0.0.0:443"));
    }
}
