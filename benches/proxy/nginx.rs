//! The first yardstick: nginx as a streaming proxy with one worker and open connections to the upstream.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{CORE_UNDER_TEST, pinned};

/// Where Debian, Alpine and a build from source put it.
const PLACES: [&str; 3] = [
    "/usr/sbin/nginx",
    "/usr/local/sbin/nginx",
    "/usr/local/nginx/sbin/nginx",
];

/// The command that starts nginx, or `None` if it is not installed.
pub fn command(
    folder: &Path,
    listen: SocketAddr,
    upstream: SocketAddr,
) -> anyhow::Result<Option<Command>> {
    let Some(program) = PLACES.into_iter().find(|place| Path::new(place).exists()) else {
        return Ok(None);
    };
    let file = folder.join("nginx.conf");
    std::fs::write(&file, configuration(folder, listen, upstream))?;
    let mut command = pinned(CORE_UNDER_TEST, program);
    command.arg("-p").arg(folder).arg("-c").arg(file);
    // It warns that it cannot open the log of its package before it reads the configuration.
    command.stderr(Stdio::null());
    Ok(Some(command))
}

/// `master_process off` makes the one process that was started the worker, so its processor time is that of its id.
/// Answers and bodies stream. With the default buffer of 16 KB, a body of 500 KB takes nginx more than twice as long
/// (measured: 350 and 150 µs), so it has one of 1 MB.
fn configuration(folder: &Path, listen: SocketAddr, upstream: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log error;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    keepalive_requests 1000000000;
    keepalive_timeout 10m;
    tcp_nodelay on;
    upstream scripted {{
        server {upstream};
        keepalive 512;
        keepalive_requests 1000000000;
        keepalive_timeout 10m;
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://scripted;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_request_buffering off;
        }}
    }}
}}
"
    )
}
