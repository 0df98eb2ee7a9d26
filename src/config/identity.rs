//! The rules of `[identity]`: names that can stand in a request, and none that say who somebody is or
//! let them in. Called by `validate`.

use http::HeaderName;

use super::problem::Problem;
use super::settings::RawIdentity;
use super::valid::Identity;
use super::written::{Checked, Wrong};

/// Headers whose values must never be stored or shown, by name and by how names end.
const CREDENTIALS: [&str; 4] = ["authorization", "api-key", "cookie", "proxy-authorization"];
const CREDENTIAL_ENDINGS: [&str; 5] = ["-api-key", "-auth", "-authorization", "-token", "-secret"];

/// Fields that name a person: all conversations of one would be one.
const PERSONS: [&str; 2] = ["user", "safety_identifier"];

pub(super) fn identity(raw: &RawIdentity, problems: &mut Vec<Problem>) -> Checked<Identity> {
    let headers = raw.headers.check(problems, |names| headers(names));
    let body_fields = raw.body_fields.check(problems, |names| fields(names));
    let task_headers = raw.task_headers.check(problems, |names| {
        names.iter().map(|name| header(name)).collect()
    });
    Ok(Identity {
        headers: headers?,
        body_fields: body_fields?,
        task_headers: task_headers?,
    })
}

fn headers(names: &[String]) -> Result<Vec<String>, Wrong> {
    let name = |name: &String| Ok(header(name)?.as_str().to_owned());
    names.iter().map(name).collect()
}

fn header(name: &str) -> Result<HeaderName, Wrong> {
    let Ok(parsed) = name.trim().parse::<HeaderName>() else {
        return Err(Wrong::new(
            format!("\"{name}\" is no name of a header"),
            "write names alone, such as \"x-chat-id\"",
        ));
    };
    let name = parsed.as_str();
    let ends = |ending: &&str| name.ends_with(ending);
    if CREDENTIALS.contains(&name) || CREDENTIAL_ENDINGS.iter().any(ends) {
        return Err(Wrong::new(
            format!("\"{name}\" carries a credential, and names are stored and shown"),
            "name a header that says nothing secret",
        ));
    }
    Ok(parsed)
}

fn fields(paths: &[String]) -> Result<Vec<String>, Wrong> {
    let valid = |path: &String| {
        let path = path.trim();
        if PERSONS.contains(&path) {
            return Err(Wrong::new(
                format!("\"{path}\" names a person, not a conversation"),
                "name a field that is another for each conversation",
            ));
        }
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(Wrong::new(
                format!("\"{path}\" is no field"),
                "write names with a dot between them, such as \"metadata.chat_id\"",
            ));
        }
        Ok(path.to_owned())
    };
    paths.iter().map(valid).collect()
}
