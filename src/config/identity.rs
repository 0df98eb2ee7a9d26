//! The rules of `[identity]`: names that can stand in a request, none that say who somebody is or let
//! them in, and who may say which user is talking. Called by `validate`.

use http::HeaderName;

use super::parse::{CheckResult, ErrorReported, Invalid};
use super::problem::Problem;
use super::settings::{RawConfig, RawResource};
use super::token_verification::{RawVerification, token_verification};
use super::valid::{IdentitySettings, ResourceIdentity, SetBy};

/// Headers whose values must never be stored or shown, by name and by how names end.
const CREDENTIALS: [&str; 4] = ["authorization", "api-key", "cookie", "proxy-authorization"];
const CREDENTIAL_ENDINGS: [&str; 5] = ["-api-key", "-auth", "-authorization", "-token", "-secret"];

/// Of these, those that may hold a signed name: it is verified and never stored.
const TOKEN_ENDING: &str = "-token";

/// Fields that name a person: all conversations of one would be one.
const PERSON_FIELDS: [&str; 2] = ["user", "safety_identifier"];

pub(super) fn identity(
    raw: &RawConfig,
    problems: &mut Vec<Problem>,
) -> CheckResult<IdentitySettings> {
    let (names, raw_token) = (&raw.identity, RawVerification::from(&raw.token));
    let headers = names.headers.check(problems, |names| headers(names));
    let body_fields = names
        .body_fields
        .check(problems, |names| body_fields(names));
    let task_headers = names.task_headers.check(problems, |names| {
        names.iter().map(|name| header(name)).collect()
    });
    let resource = resource(&raw.resource, problems);
    let token = token_verification(&raw_token, problems);
    Ok(IdentitySettings {
        headers: headers?,
        body_fields: body_fields?,
        task_headers: task_headers?,
        resource: resource?,
        token: token?,
    })
}

/// Who sets a header, before it is known whether that is enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetByKind {
    TrustedProxy,
    Application,
    Signed,
}

fn resource(
    raw: &RawResource,
    problems: &mut Vec<Problem>,
) -> CheckResult<Option<ResourceIdentity>> {
    let header = raw.header.check_some(problems, |name| user_header(name));
    let set_by = raw.set_by.check_some(problems, |text| set_by(text));
    let signature = token_verification(&RawVerification::from(raw), problems);
    let (header, set_by, signature) = (header?, set_by?, signature?);
    let keys = if raw.secret.value.is_some() {
        &raw.secret.key
    } else {
        &raw.keys_file.key
    };
    let problem = match (header, set_by, signature) {
        (None, None, None) => return Ok(None),
        (Some(header), Some(SetByKind::Signed), Some(signature)) => {
            let set_by = SetBy::Signed(signature);
            return Ok(Some(ResourceIdentity { header, set_by }));
        }
        (Some(header), Some(SetByKind::TrustedProxy), None) => {
            let set_by = SetBy::TrustedProxy;
            return Ok(Some(ResourceIdentity { header, set_by }));
        }
        (Some(header), Some(SetByKind::Application), None) => {
            let set_by = SetBy::Application;
            return Ok(Some(ResourceIdentity { header, set_by }));
        }
        (None, _, _) => raw.header.problem(
            "no header is named in which users would be",
            "name it, such as \"x-openwebui-user-id\", or remove what else this section says",
        ),
        (Some(_), None, _) => raw.set_by.problem(
            "nobody says who sets the header: if clients can, each reaches the memory of all",
            "write \"trusted-proxy\", \"application\" or \"signed\"",
        ),
        (Some(_), Some(SetByKind::Signed), None) => raw.set_by.problem(
            "there is no key to verify signatures with",
            "set secret or keys_file beside it",
        ),
        (Some(_), Some(_), Some(_)) => raw.set_by.problem(
            format!("{keys} is set, but only what is signed is verified"),
            "write set_by = \"signed\", or remove the key",
        ),
    };
    problems.push(problem);
    Err(ErrorReported)
}

fn set_by(text: &str) -> Result<SetByKind, Invalid> {
    let remedy = "write \"trusted-proxy\", \"application\" or \"signed\"";
    match text.trim() {
        "trusted-proxy" => Ok(SetByKind::TrustedProxy),
        "application" => Ok(SetByKind::Application),
        "signed" => Ok(SetByKind::Signed),
        "client" | "clients" | "browser" | "user" => Err(Invalid::new(
            format!(
                "what a {text} writes proves nothing: it could name any user and reach their memory"
            ),
            "have a proxy or a server of yours set the header, or a signed one; \
             x-diarist-resource, which any client may write, parts users and shares nothing",
        )),
        _ => Err(Invalid::new(
            format!("\"{text}\" says nothing of who sets it"),
            remedy,
        )),
    }
}

/// A header that names a user. It is hashed, never stored; but what is part of the credential would
/// make a tenant of each user, or of each token.
fn user_header(name: &str) -> Result<HeaderName, Invalid> {
    let name = name.trim();
    if name.to_ascii_lowercase().ends_with(TOKEN_ENDING)
        && let Ok(parsed) = name.parse()
    {
        return Ok(parsed);
    }
    header(name).map_err(|_| {
        Invalid::new(
            format!("\"{name}\" is no header that can name a user"),
            "name one that carries no credential; for tokens in Authorization there is [identity.token]",
        )
    })
}

fn headers(names: &[String]) -> Result<Vec<String>, Invalid> {
    let name = |name: &String| Ok(header(name)?.as_str().to_owned());
    names.iter().map(name).collect()
}

fn header(name: &str) -> Result<HeaderName, Invalid> {
    let Ok(parsed) = name.trim().parse::<HeaderName>() else {
        return Err(Invalid::new(
            format!("\"{name}\" is no name of a header"),
            "write names alone, such as \"x-chat-id\"",
        ));
    };
    let name = parsed.as_str();
    let ends = |ending: &&str| name.ends_with(ending);
    if CREDENTIALS.contains(&name) || CREDENTIAL_ENDINGS.iter().any(ends) {
        return Err(Invalid::new(
            format!("\"{name}\" carries a credential, and names are stored and shown"),
            "name a header that says nothing secret",
        ));
    }
    Ok(parsed)
}

fn body_fields(paths: &[String]) -> Result<Vec<String>, Invalid> {
    let valid = |path: &String| {
        let path = path.trim();
        if PERSON_FIELDS.contains(&path) {
            return Err(Invalid::new(
                format!("\"{path}\" names a person, not a conversation"),
                "name a field that is another for each conversation",
            ));
        }
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(Invalid::new(
                format!("\"{path}\" is no field"),
                "write names with a dot between them, such as \"metadata.chat_id\"",
            ));
        }
        Ok(path.to_owned())
    };
    paths.iter().map(valid).collect()
}
