//! The rules of `[otlp]`. The standard variables of OpenTelemetry count where a key is not set: operators set
//! them for all programs of a machine. Called by `validate`.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::common::base_url_like;
use super::parse::{CheckResult, Invalid};
use super::problem::Problem;
use super::settings::RawOtlp;
use crate::audit::OtlpSettings;

/// What chooses the newest names of the GenAI conventions.
const LATEST: &str = "gen_ai_latest_experimental";

/// The variable that counts where `otlp.endpoint` is not set.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The usual address of a collector on this machine.
const COLLECTOR: &str = "http://127.0.0.1:4318";

fn collector(text: &str) -> Result<Url, Invalid> {
    base_url_like(text, COLLECTOR)
}

/// A warning if the variable of the endpoint counts and cannot be used. It is no error: all programs of a machine have
/// it.
pub(super) fn variable_warning(raw: &RawOtlp, env: &BTreeMap<String, String>) -> Option<String> {
    let written = variable(env, ENDPOINT).filter(|_| raw.endpoint.value.is_none())?;
    let (traces, metrics) = exported(raw, env);
    let is_bad = (traces || metrics) && collector(written).is_err();
    is_bad.then(|| {
        format!(
            "The environment variable {ENDPOINT} holds no address of a collector, so nothing is exported. Write a URL \
             without a password or a query, such as {COLLECTOR}, or set otlp.endpoint."
        )
    })
}

/// What `name` is set to, unless that is empty.
fn variable<'a>(env: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    let value = env.get(name).map(|value| value.trim());
    value.filter(|it| !it.is_empty())
}

/// Whether traces and metrics are exported if there is an endpoint.
fn exported(raw: &RawOtlp, env: &BTreeMap<String, String>) -> (bool, bool) {
    let is = |name: &str, value: &str| {
        variable(env, name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    let is_on = !is("OTEL_SDK_DISABLED", "true");
    let traces = raw.traces.value && !is("OTEL_TRACES_EXPORTER", "none");
    let metrics = raw.metrics.value && !is("OTEL_METRICS_EXPORTER", "none");
    (is_on && traces, is_on && metrics)
}

/// Where spans and metrics go; `None` if nothing is exported. `upstream` is the host of the provider.
pub(super) fn otlp(
    raw: &RawOtlp,
    upstream: &str,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<OtlpSettings>> {
    let endpoint = raw.endpoint.check_some(problems, |text| collector(text));
    let headers = raw.export_headers.check_some(problems, export_headers);
    let opt_in = raw.semconv_opt_in.check_some(problems, |text| names(text));
    let (endpoint, headers, opt_in) = (endpoint?, headers?, opt_in?);
    let by_variable = || -> Option<Url> {
        let text = variable(env, ENDPOINT)?;
        collector(text).ok()
    };
    let Some(endpoint) = endpoint.or_else(by_variable) else {
        return Ok(None);
    };
    let (traces, metrics) = exported(raw, env);
    if !(traces || metrics) {
        return Ok(None);
    }
    let latest_names = opt_in.unwrap_or_else(|| {
        let listed = variable(env, "OTEL_SEMCONV_STABILITY_OPT_IN").unwrap_or_default();
        listed.split(',').any(|name| name.trim() == LATEST)
    });
    Ok(Some(OtlpSettings {
        endpoint,
        headers: headers.unwrap_or_default(),
        traces,
        metrics,
        propagate: raw.propagate.value,
        latest_names,
        upstream: upstream.to_owned(),
    }))
}

/// Whether the newest names are chosen.
fn names(text: &str) -> Result<bool, Invalid> {
    match text.trim() {
        LATEST => Ok(true),
        "" => Ok(false),
        other => Err(Invalid::new(
            format!("\"{other}\" is not known"),
            format!("write \"{LATEST}\", or remove the key"),
        )),
    }
}

fn export_headers(text: &SecretString) -> Result<Vec<(HeaderName, HeaderValue)>, Invalid> {
    let items = text.expose_secret().split(',');
    let items = items.map(str::trim).filter(|item| !item.is_empty());
    items
        .map(|item| header(item).ok_or_else(not_a_header))
        .collect()
}

fn header(item: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = item.split_once('=')?;
    let mut value: HeaderValue = value.trim().parse().ok()?;
    value.set_sensitive(true);
    Some((name.trim().parse().ok()?, value))
}

/// Quotes nothing: the value may be a credential.
fn not_a_header() -> Invalid {
    Invalid::new(
        "one of the headers is not a name and a value",
        "write name=value, with commas between several",
    )
}
