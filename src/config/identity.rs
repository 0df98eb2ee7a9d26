//! The rules of `[identity]`: which headers and fields name a conversation, and who may say which user is
//! talking.
//!
//! A name may be stored and shown, so a header with a credential is refused. Called by `validate`.

use http::HeaderName;

use super::common::one_of;
use super::parse::{CheckResult, ErrorReported, Invalid, Setting};
use super::problem::Problem;
use super::settings::{RawConfig, RawResource};
use super::token_verification::{RawVerification, token_verification};
use crate::llm::CredentialHeaders;
use crate::proxy::identify::users::{Proof, Users};
use crate::proxy::identify::{IdentityRules, Sources};

/// Headers whose values must never be stored or shown: by name, and by the end of the name.
const CREDENTIALS: [&str; 4] = ["authorization", "api-key", "cookie", "proxy-authorization"];
const CREDENTIAL_ENDINGS: [&str; 5] = ["-api-key", "-auth", "-authorization", "-token", "-secret"];

/// A header with this ending may hold a signed token: it is verified and never stored.
const TOKEN_ENDING: &str = "-token";

/// Fields that name a person: all conversations of one person would become one conversation.
const PERSON_FIELDS: [&str; 2] = ["user", "safety_identifier"];

/// The valid `[identity]`.
pub(super) struct Identity {
    /// Who a request belongs to. Only the listener knows whether anonymous requests may have memory.
    pub(super) rules: IdentityRules,
    /// Where clients name a conversation.
    pub(super) sources: Sources,
    /// Headers that name a task beside the conversation.
    pub(super) task_headers: Vec<HeaderName>,
}

pub(super) fn identity(raw: &RawConfig, problems: &mut Vec<Problem>) -> CheckResult<Identity> {
    let (names, raw_token) = (&raw.identity, RawVerification::from(&raw.token));
    let headers = names
        .headers
        .check_each(problems, &names.headers.value, |name| {
            header(name).map(|name| name.as_str().to_owned())
        });
    let fields = &names.body_fields;
    let body_fields = fields.check_each(problems, &fields.value, |path| body_field(path));
    let task_headers = &names.task_headers;
    let task_headers = task_headers.check_each(problems, &task_headers.value, |name| header(name));
    let users = users(&raw.resource, problems);
    let credentials = credential_headers(&names.credentials, problems);
    let new_tenants_per_hour = names
        .new_tenants_per_hour
        .check(problems, |&number| new_tenants(number));
    let subjects = token_verification(&raw_token, problems);
    let users = users?;
    let user_header = users.as_ref().map(|users| users.header.clone());
    Ok(Identity {
        sources: Sources::new(&headers?, &body_fields?),
        task_headers: task_headers?,
        rules: IdentityRules {
            users,
            credentials: credentials?.without_user(user_header),
            new_tenants_per_hour: Some(new_tenants_per_hour?),
            subjects: subjects?,
            ..IdentityRules::default()
        },
    })
}

/// Who sets a header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetBy {
    /// A proxy that removes the header from requests of clients, or the only application that reaches the
    /// data port. Both are trusted in the same way.
    Trusted,
    /// Anybody: the value is a token that is verified.
    Signed,
}

/// How users of the application are known; `None` if no header is named.
fn users(raw: &RawResource, problems: &mut Vec<Problem>) -> CheckResult<Option<Users>> {
    let header = raw.header.check_some(problems, |name| user_header(name));
    let set_by = raw.set_by.check_some(problems, |text| set_by(text));
    let verifier = token_verification(&RawVerification::from(raw), problems);
    let (header, set_by, verifier) = (header?, set_by?, verifier?);
    let keys = if raw.secret.value.is_some() {
        &raw.secret.key
    } else {
        &raw.keys_file.key
    };
    let problem = match (header, set_by, verifier) {
        (None, None, None) => return Ok(None),
        (Some(header), Some(SetBy::Signed), Some(verifier)) => {
            let proof = Proof::Token(verifier);
            return Ok(Some(Users { header, proof }));
        }
        (Some(header), Some(SetBy::Trusted), None) => {
            let proof = Proof::TrustedHeader;
            return Ok(Some(Users { header, proof }));
        }
        (None, _, _) => raw.header.problem(
            "no header is named, but other keys of this section are set",
            "name the header with the user, such as \"x-openwebui-user-id\", or remove the other keys",
        ),
        (Some(_), None, _) => raw.set_by.problem(
            "set_by is missing: if clients can set the header, each client can reach the memory of every user",
            "write \"trusted-proxy\", \"application\" or \"signed\"",
        ),
        (Some(_), Some(SetBy::Signed), None) => raw.set_by.problem(
            "\"signed\" needs a key to verify signatures with",
            "set secret or keys_file in the same section",
        ),
        (Some(_), Some(SetBy::Trusted), Some(_)) => raw.set_by.problem(
            format!("{keys} is set, but only a signed header is verified"),
            "write set_by = \"signed\", or remove the key",
        ),
    };
    problems.push(problem);
    Err(ErrorReported)
}

fn set_by(text: &str) -> Result<SetBy, Invalid> {
    match text.trim() {
        "client" | "clients" | "browser" | "user" => Err(Invalid::new(
            format!(
                "a header set by a {text} proves nothing: it could name any user and reach their memory"
            ),
            "let a proxy or a server of yours set the header, or use a signed one; to separate users \
             without sharing memory, clients can send x-diarist-resource",
        )),
        text => one_of(
            text,
            &[
                ("trusted-proxy", SetBy::Trusted),
                ("application", SetBy::Trusted),
                ("signed", SetBy::Signed),
            ],
        ),
    }
}

/// A header that names a user. Its value is hashed and never stored. A header of the credential is refused:
/// the tenant is derived from it, so each user, or each token, would be a tenant of its own.
fn user_header(name: &str) -> Result<HeaderName, Invalid> {
    let name = name.trim();
    if name.to_ascii_lowercase().ends_with(TOKEN_ENDING)
        && let Ok(parsed) = name.parse()
    {
        return Ok(parsed);
    }
    header(name).map_err(|_| {
        if name.parse::<HeaderName>().is_err() {
            return Invalid::new(
                format!("the header \"{name}\" cannot name a user: no header has such a name"),
                "write one name, such as \"x-user-id\"",
            );
        }
        Invalid::new(
            format!("the header \"{name}\" cannot name a user"),
            "name a header without a credential; for tokens in Authorization use [identity.token]",
        )
    })
}

fn credential_headers(
    raw: &Setting<Vec<String>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<CredentialHeaders> {
    if raw.value.is_empty() {
        problems.push(raw.problem(
            "without a header that carries a credential, nobody could be told apart",
            "name the headers of your upstream and gateway, or write [\"known\"]",
        ));
        return Err(ErrorReported);
    }
    CredentialHeaders::parse(&raw.value).map_err(|names| {
        problems.extend(names.into_iter().map(|name| {
            raw.problem(
                format!("\"{name}\" is neither a header name nor the ending of some"),
                "write names such as \"x-company-key\", endings such as \"*-api-key\", or \"known\"",
            )
        }));
        ErrorReported
    })
}

fn new_tenants(number: u64) -> Result<u32, Invalid> {
    match u32::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(Invalid::new(
            format!("{number} is out of range"),
            format!("write a number from 1 to {}", u32::MAX),
        )),
    }
}

fn header(name: &str) -> Result<HeaderName, Invalid> {
    let Ok(parsed) = name.trim().parse::<HeaderName>() else {
        return Err(Invalid::new(
            format!("\"{name}\" is not a header name"),
            "write names only, such as \"x-chat-id\"",
        ));
    };
    let name = parsed.as_str();
    let ends = |ending: &&str| name.ends_with(ending);
    if CREDENTIALS.contains(&name) || CREDENTIAL_ENDINGS.iter().any(ends) {
        return Err(Invalid::new(
            format!("\"{name}\" carries a credential, but this value is stored and shown"),
            "name a header without a secret",
        ));
    }
    Ok(parsed)
}

fn body_field(path: &str) -> Result<String, Invalid> {
    let path = path.trim();
    if PERSON_FIELDS.contains(&path) {
        return Err(Invalid::new(
            format!("\"{path}\" names a person, not a conversation"),
            "name a field that differs from conversation to conversation",
        ));
    }
    if path.is_empty() || path.split('.').any(str::is_empty) {
        return Err(Invalid::new(
            format!("\"{path}\" is not a field"),
            "write names separated by dots, such as \"metadata.chat_id\"",
        ));
    }
    Ok(path.to_owned())
}
