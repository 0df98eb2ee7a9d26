//! From the values as written to the valid configuration: listeners, limits, database, audit.
//!
//! Each key is checked by a function of its own that knows no other key, so one invalid value never hides the
//! next. Rules between keys come after. The rules of other sections are in `upstream`, `audit_file`,
//! `identity`, `memory`, `rules` and `cache_rules`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};

use super::audit_file::{audit_prices, audit_rotation, audit_target};
use super::cache_rules::cache_rules;
use super::common::{in_range, one_of, positive_duration};
use super::identity::identity;
use super::memory;
use super::otlp::otlp;
use super::parse::{CheckResult, ErrorReported, Invalid};
use super::platform::Platform;
use super::problem::Problem;
use super::rules::rules;
use super::settings::{RawConfig, RawServer, RawStore};
use super::upstream::{self, checked_base_url, placement};
use super::valid::{Config, Database, Override, PepperSettings, UpstreamSettings};
use crate::jobs;
use crate::memory::alignment::EvidenceLevel;
use crate::model_prices::PriceTable;
use crate::proxy::mode::{ReadOnly, Rules};
use crate::proxy::{AskUsage, Limits, Pace, RequestPolicy, holdout};
use crate::server;
use crate::upstream::Timeouts;

/// The valid configuration, unless an error was added to `problems`.
pub(super) fn validate(
    raw: &RawConfig,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Config> {
    let server = server(&raw.server, problems);
    let listen = server.as_ref().ok().map(|(settings, ..)| settings.listen);
    let base_url = checked_base_url(&raw.upstream, listen, problems);
    let host = base_url.as_ref().ok().and_then(|url| url.host_str());
    let host = host.unwrap_or_default().to_owned();
    let placement = placement(&raw.upstream, &host, problems);
    let database = database(&raw.store, env, problems);
    let pepper = pepper(&raw.store, problems);
    let retention = raw.store.retention.check_some(problems, positive_duration);
    // 0 is allowed: no limit, as unset.
    let max_account_bytes = raw.store.max_account_bytes.value.filter(|&bytes| bytes > 0);
    let job_retention = raw.store.job_retention.check(problems, positive_duration);
    let audit = raw.audit.path.check(problems, |text| audit_target(text));
    let audit_rotation = audit_rotation(&raw.audit, problems);
    let store_retention = raw
        .audit
        .store_retention
        .check_some(problems, positive_duration);
    let audit_prices = audit_prices(&raw.audit.prices, problems);
    let otlp = otlp(&raw.otlp, &host, env, problems);
    let requests = requests(raw, problems);
    let prices = match &audit_prices {
        Ok(own) => Ok(Arc::new(PriceTable::new(own.clone()))),
        Err(reported) => Err(*reported),
    };
    let memory = memory::settings(raw, &host, placement, prices, problems);

    let (server, limits, timeouts) = server?;
    let (mut requests, mut memory) = (requests?, memory?);
    let matching = || {
        memory
            .overrides
            .iter()
            .filter(|entry| entry.matches_upstream(&host))
    };
    requests.identity.anonymous = server.listen.ip().is_loopback();
    requests.read_only = ReadOnly {
        overrides: matching()
            .map(|entry| (entry.model_pattern(), entry.read_only))
            .collect(),
        default: raw.memory.read_only.value,
    };
    memory.common.overrides = matching().map(job_override).collect();
    let writes_nothing = !raw.memory.enabled.value || requests.read_only.for_all();
    memory.common.read_only = writes_nothing;
    Ok(Config {
        server,
        limits,
        upstream: UpstreamSettings {
            base_url: base_url?,
            timeouts,
        },
        database: database?,
        pepper: pepper?,
        retention: retention?,
        max_account_bytes,
        job_retention: job_retention?,
        audit: audit?,
        audit_rotation: audit_rotation?,
        audit_store_retention: store_retention?.filter(|_| !writes_nothing),
        audit_prices: audit_prices?,
        otlp: otlp?,
        memory_enabled: raw.memory.enabled.value,
        requests,
        memory: memory.common,
        overrides: memory.overrides,
    })
}

fn job_override(entry: &Override) -> jobs::Override {
    jobs::Override {
        model: entry.model_pattern(),
        settings: entry.settings.clone(),
    }
}

fn server(
    raw: &RawServer,
    problems: &mut Vec<Problem>,
) -> CheckResult<(server::Settings, Limits, Timeouts)> {
    let listen = raw.listen.check(problems, |text| address(text));
    let admin = raw.admin.check(problems, |text| address(text));
    if let (Ok(listen), Ok(admin)) = (listen, admin)
        && overlap(listen, admin)
    {
        let what = if listen == admin {
            format!("the admin port must not be the data port, {listen}")
        } else {
            format!(
                "the admin port must not be the data port: {admin} and server.listen, {listen}, have the same port, \
                 and one of them stands for every address"
            )
        };
        problems.push(raw.admin.problem(what, "write another port number"));
    }
    let hosts = raw
        .hosts
        .check_each(problems, &raw.hosts.value, |host| named_host(host));
    let admin_token = raw.admin_token.check_some(problems, sendable_token);
    let max_body_bytes = raw
        .max_body_bytes
        .check(problems, |&number| above_zero(number));
    let max_buffered_bytes = raw
        .max_buffered_bytes
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
    let max_requests_per_address = raw
        .max_requests_per_address
        .check(problems, |&number| above_zero(number));
    let body_timeout = raw.body_timeout.check(problems, positive_duration);
    let min_body_rate = raw
        .min_body_rate
        .check(problems, |&number| above_zero(number).map(|_| number));
    let idle_timeout = idle_timeout?;
    let settings = server::Settings {
        listen: listen?,
        admin: admin?,
        admin_token: admin_token?,
        hosts: hosts?,
        header_timeout: header_timeout?,
        idle_timeout,
        write_timeout: idle_timeout,
        max_connections: max_connections?,
        // 0 is allowed: open streams are cut at once.
        drain_timeout: raw.drain_timeout.value,
        ..server::Settings::default()
    };
    let limits = Limits {
        max_requests: max_requests?,
        max_requests_per_address: max_requests_per_address?,
        body_pace: Pace {
            grace: body_timeout?,
            min_bytes_per_second: min_body_rate?,
        },
        max_body_bytes: max_body_bytes?,
        max_buffered_bytes: max_buffered_bytes?,
        request_idle: idle_timeout,
        response_idle: idle_timeout,
        tunnel_idle: idle_timeout,
    };
    let timeouts = Timeouts {
        connect: connect_timeout?,
        head: response_timeout?,
        ..Timeouts::default()
    };
    Ok((settings, limits, timeouts))
}

/// How requests are treated. Whether anonymous ones may have memory, and for which models memory is only read,
/// depends on other sections: [`validate`] adds it.
fn requests(raw: &RawConfig, problems: &mut Vec<Problem>) -> CheckResult<RequestPolicy> {
    let ask_usage = raw.audit.ask_usage.check(problems, |text| {
        one_of(
            text,
            &[
                ("auto", AskUsage::Auto),
                ("never", AskUsage::Never),
                ("always", AskUsage::Always),
            ],
        )
    });
    let (cache, affinity) = upstream::prompt_cache(&raw.upstream, problems);
    let holdout = raw.audit.holdout.check(problems, |&share| {
        in_range(share, 0.0, holdout::Share::MAX).map(holdout::Share::new)
    });
    let cache_rules = cache_rules(&raw.audit.cache_rules, problems);
    let identity = identity(raw, problems);
    let listed = rules(&raw.memory.rules, problems);
    let overflow = memory::overflow(&raw.memory.overflow, &raw.memory.overflow_timeout, problems);
    let evidence = raw.memory.evidence.check(problems, |text| {
        let levels = [
            EvidenceLevel::Strict,
            EvidenceLevel::Names,
            EvidenceLevel::Content,
        ];
        one_of(text, &levels.map(|level| (level.name(), level)))
    });
    let identity = identity?;
    Ok(RequestPolicy {
        identity: identity.rules,
        sources: identity.sources,
        rules: Rules {
            listed: listed?,
            tasks: identity.task_headers,
        },
        overflow: overflow?,
        evidence: evidence?,
        ask_usage: ask_usage?,
        cache_marks: raw.upstream.cache_marks.value,
        add_cache_key: cache?.key,
        add_cache_breakpoint: cache?.breakpoint,
        session_affinity: affinity?,
        holdout: holdout?,
        cache_rules: cache_rules?,
        read_only: ReadOnly::default(),
    })
}

/// Whether two listeners would take the same port of one address. Port 0 takes a free one.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // Whether `[::]` takes the port of IPv4 too depends on the system.
    let holds = |one: SocketAddr, other: SocketAddr| {
        one.ip().is_unspecified() && one.is_ipv4() == other.is_ipv4()
    };
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || holds(one, other) || holds(other, one))
}

/// An IPv4 address that is written as IPv6 (`::ffff:127.0.0.1`) is that IPv4 address: the same clients reach it.
fn address(text: &str) -> Result<SocketAddr, Invalid> {
    let parsed = text.parse().map(|mut address: SocketAddr| {
        address.set_ip(address.ip().to_canonical());
        address
    });
    parsed.map_err(|_| {
        let numeric = text.replacen("localhost", "127.0.0.1", 1);
        if numeric.parse::<SocketAddr>().is_ok() {
            return Invalid::new(
                format!("\"{text}\" has a name in the place of the IP address"),
                format!("write \"{numeric}\""),
            );
        }
        Invalid::new(
            format!("\"{text}\" is not an IP address with a port"),
            "write both, such as \"127.0.0.1:8484\", \"0.0.0.0:8484\" or \"[::1]:8484\"",
        )
    })
}

fn named_host(host: &str) -> Result<String, Invalid> {
    if server::is_host(host) {
        return Ok(host.to_owned());
    }
    Err(Invalid::new(
        format!("\"{host}\" is not a host name or an address"),
        "write names without a scheme, port or path, such as \"diarist.lan\"",
    ))
}

fn sendable_token(token: &SecretString) -> Result<SecretString, Invalid> {
    let text = token.expose_secret();
    if text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(token.clone());
    }
    Err(Invalid::new(
        "the token is shorter than 16 characters, or has a character that a header cannot carry",
        "write a longer one of letters and digits, such as the output of: openssl rand -hex 32",
    ))
}

fn above_zero(number: u64) -> Result<usize, Invalid> {
    match usize::try_from(number) {
        Ok(0) => Err(Invalid::new(
            "the number must be greater than 0",
            "write a number above 0",
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(Invalid::new(
            format!("{number} is too large for this machine"),
            "write a smaller number",
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
                "there is no default folder for the database: the variable {} is not set",
                Platform::CURRENT.home_variable()
            ),
            "set store.url, such as \"/var/lib/diarist/diarist.db\"",
        ));
        return Err(ErrorReported);
    };
    Ok(Database::Sqlite(folder.join("diarist.db")))
}

/// A shorter secret could be guessed.
const MIN_PEPPER_BYTES: usize = 32;

fn pepper(raw: &RawStore, problems: &mut Vec<Problem>) -> CheckResult<PepperSettings> {
    let secret = raw.pepper.check_some(problems, |secret| {
        if secret.expose_secret().len() >= MIN_PEPPER_BYTES {
            return Ok(secret.clone());
        }
        Err(Invalid::new(
            format!("the pepper is shorter than {MIN_PEPPER_BYTES} bytes"),
            "write a random one, such as the output of: openssl rand -hex 32",
        ))
    });
    let file = raw.pepper_file.check_some(problems, |path| {
        if path.trim().is_empty() {
            return Err(Invalid::new(
                "the path is empty",
                "write the path of a file, or remove the key",
            ));
        }
        Ok(PathBuf::from(path))
    });
    Ok(PepperSettings {
        secret: secret?,
        file: file?,
    })
}

/// A path, or a URL that begins with `sqlite:`.
fn database_url(text: &str) -> Result<Database, Invalid> {
    let example = "write a path such as \"/var/lib/diarist/diarist.db\", or \"sqlite::memory:\"";
    if text.contains('?') {
        return Err(Invalid::new(
            "a database must not have options after ?",
            "remove the ? and everything behind it",
        ));
    }
    let path = match text.split_once(':') {
        _ if text.starts_with(['/', '.']) => text,
        Some(("sqlite", ":memory:")) => return Ok(Database::SqliteInMemory),
        Some(("sqlite", rest)) => without_drive_slash(rest.strip_prefix("//").unwrap_or(rest)),
        Some(("postgres" | "postgresql", _)) => {
            return Err(Invalid::new(
                "PostgreSQL is not available in this version",
                example,
            ));
        }
        // Only the scheme is shown: the rest may hold a password. A single letter is a drive.
        Some((scheme, _)) if scheme.len() != 1 => {
            let what = format!("\"{scheme}:\" is not a known kind of database");
            return Err(Invalid::new(what, example));
        }
        _ => text,
    };
    if path.is_empty() || path.ends_with('/') {
        return Err(Invalid::new(
            "the name of the database file is missing",
            example,
        ));
    }
    Ok(Database::Sqlite(PathBuf::from(path)))
}

/// The third slash of `sqlite:///C:/data/diarist.db` belongs to the URL, not to the path.
fn without_drive_slash(path: &str) -> &str {
    match path.as_bytes() {
        [b'/', drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic() => &path[1..],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sqlite_paths_and_urls_are_accepted_as_databases() {
        let file = |path: &str| Database::Sqlite(PathBuf::from(path));
        let valid = |text| database_url(text).unwrap();
        assert_eq!(valid("/var/d.db"), file("/var/d.db"));
        assert_eq!(valid("./d.db"), file("./d.db"));
        assert_eq!(valid("d.db"), file("d.db"));
        assert_eq!(valid("C:/data/d.db"), file("C:/data/d.db"));
        assert_eq!(valid("sqlite:///var/d.db"), file("/var/d.db"));
        assert_eq!(valid("sqlite://d.db"), file("d.db"));
        assert_eq!(valid("sqlite:d.db"), file("d.db"));
        assert_eq!(valid("sqlite:///a%20b.db"), file("/a%20b.db"));
        assert_eq!(valid("sqlite:///C:/data/d.db"), file("C:/data/d.db"));
        assert_eq!(valid("sqlite::memory:"), Database::SqliteInMemory);
        for wrong in [
            "",
            "/var/dir/",
            ":memory:",
            "sqlite:",
            "sqlite://",
            "sqlite:///dir/",
            "sqlite:a?mode=ro",
            "mysql://host/d",
        ] {
            assert!(database_url(wrong).is_err(), "{wrong}");
        }
    }
}
