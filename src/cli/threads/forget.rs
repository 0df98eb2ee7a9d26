//! `diarist threads forget`, `forgotten` and `unforget`: deletes what is remembered of a conversation or a user, and
//! prints a receipt. `diarist tenants forget` uses the same functions.
//!
//! Deletes in the database itself. A running server stops using what was deleted within seconds, and records nothing
//! of it from the deletion on.

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use super::show::find_conversation;
use super::time::time;
use crate::config::Config;
use crate::history::Scope;
use crate::jobs::bundle;
use crate::proxy::identify::users::ids_of_name;
use crate::report::{align_columns, grouped};
use crate::store::{ForgetTarget, Forgetting as _, Receipt, SqliteStore};

/// Attempts to empty the journal. Each waits for readers.
const ATTEMPTS: u32 = 3;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["id", "resource"]))]
pub(in crate::cli) struct ForgetArgs {
    /// The id from the list, the name that the client gave, or the label in the header x-diarist-thread
    id: Option<String>,
    /// Forget all conversations of this user of your application instead
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// The tenant of the user, by its name in `diarist tenants`; needed if several tenants have such a user
    #[arg(long, value_name = "NAME", requires = "resource")]
    tenant: Option<String>,
    /// The issuer (iss) in the signed names of users, if identity.resource.issuer is not set; of Open WebUI:
    /// open-webui
    #[arg(long, value_name = "NAME", requires = "resource")]
    issuer: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ForgottenArgs {
    /// Print one JSON object for each receipt
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct UnforgetArgs {
    /// The number of the receipt, from `diarist threads forgotten`
    pub(in crate::cli) receipt: i64,
}

pub(super) async fn forget(
    store: &SqliteStore,
    config: &Config,
    args: &ForgetArgs,
) -> anyhow::Result<String> {
    if let Some(name) = &args.resource {
        let owners = owners(store, config, name, args).await?;
        let mut text = String::new();
        for (tenant, resource) in owners {
            let resource = Some(resource);
            let target = ForgetTarget::Owner { tenant, resource };
            let (receipt, id) = forget_target(store, config, target).await?;
            text.push_str(&receipt);
            text.push_str(&passes_until_unforgotten(id));
        }
        return Ok(text);
    }
    let id = args.id.as_deref().unwrap_or_default();
    let lineage = find_conversation(store, id).await?;
    let target = ForgetTarget::Thread(lineage);
    let (receipt, id) = forget_target(store, config, target).await?;
    Ok(receipt + &passes_until_unforgotten(id))
}

/// What becomes of the next requests of what receipt `id` names.
pub(in crate::cli) fn passes_until_unforgotten(id: i64) -> String {
    format!(
        "Its next requests pass without memory (bypass; reason=forgotten) until you run \
         `diarist threads unforget {id}`.\n"
    )
}

/// Forgets `target` and returns the receipt as text, with its number.
pub(in crate::cli) async fn forget_target(
    store: &SqliteStore,
    config: &Config,
    target: ForgetTarget,
) -> anyhow::Result<(String, i64)> {
    let forgotten = store.forget_target(&target, now()).await?;
    let receipt = forgotten.context("the conversation was deleted just now")?;
    let mut text = describe(&receipt);
    let mut emptied = store.shrink().await?;
    for _ in 1..ATTEMPTS {
        if !emptied {
            emptied = store.shrink().await?;
        }
    }
    text.push_str(if emptied {
        "The database and its journal hold no text of it any more.\n"
    } else {
        "The journal of the database still holds deleted text, because another process is reading it. A running \
         Diarist empties it in its next pause between writes.\n"
    });
    if let Some(folder) = &config.memory.bundles {
        let folder_name = folder.display();
        let removed = bundle::remove_all(folder)
            .with_context(|| format!("failed model calls in {folder_name} are not deleted"))?;
        text.push_str(&format!(
            "Deleted: all failed model calls in {folder_name} ({removed}). They do not say whose text they hold.\n"
        ));
    }
    text.push_str("Not deleted: backups, logs and earlier lines of audit files.\n");
    Ok((text, receipt.id))
}

/// The users of this name, each with its tenant.
async fn owners(
    store: &SqliteStore,
    config: &Config,
    name: &str,
    args: &ForgetArgs,
) -> anyhow::Result<Vec<([u8; 32], [u8; 32])>> {
    let users = config.requests.identity.users.as_ref();
    let ids = ids_of_name(
        users,
        name,
        args.issuer.as_deref(),
        &config.requests.identity.pepper,
    );
    let mut owners = store.owners_of_resources(&ids).await?;
    if let Some(label) = &args.tenant {
        owners.retain(|(tenant, _)| Scope::format_tenant_label(tenant) == *label);
    }
    let mut tenants: Vec<[u8; 32]> = owners.iter().map(|(tenant, _)| *tenant).collect();
    tenants.dedup();
    match tenants.as_slice() {
        [] => bail!("nothing is remembered of a user {name:?}"),
        [_] => Ok(owners),
        several => {
            let labels = several.iter().map(Scope::format_tenant_label);
            bail!(
                "several tenants have a user {name:?}; add --tenant with one of these: {}",
                labels.collect::<Vec<_>>().join(", ")
            )
        }
    }
}

fn describe(receipt: &Receipt) -> String {
    let what = match receipt.kind.as_str() {
        "thread" => format!(
            "conversation {} of tenant {}",
            receipt.subject, receipt.tenant
        ),
        "resource" => format!("user {} of tenant {}", receipt.subject, receipt.tenant),
        _ => format!("tenant {}", receipt.tenant),
    };
    let at = time(receipt.at_ms, &TimeZone::system());
    format!(
        "Forgotten: {what}. Receipt {}, {at}.\nDeleted: {}.\n",
        receipt.id,
        counts(receipt)
    )
}

/// The numbers of deleted rows.
fn counts(receipt: &Receipt) -> String {
    let counts = receipt.counts.iter().filter(|(_, rows)| **rows > 0);
    let counts: Vec<String> = counts
        .map(|(name, rows)| format!("{name} {}", grouped(*rows)))
        .collect();
    if counts.is_empty() {
        "nothing was stored".to_owned()
    } else {
        counts.join(", ")
    }
}

pub(super) async fn forgotten(store: &SqliteStore, json: bool) -> anyhow::Result<String> {
    let receipts = store.receipts().await?;
    if json {
        return Ok(receipts.iter().map(json_line).collect());
    }
    if receipts.is_empty() {
        return Ok("Nothing was forgotten.\n".to_owned());
    }
    let zone = TimeZone::system();
    let head = [
        "receipt", "kind", "of", "tenant", "time", "lifted", "deleted",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(receipts.iter().map(|receipt| {
        let lifted = receipt.lifted_ms.map(|ms| time(ms, &zone));
        let deleted = if receipt.done {
            counts(receipt)
        } else {
            "not finished: run the same command again".to_owned()
        };
        vec![
            receipt.id.to_string(),
            receipt.kind.clone(),
            receipt.subject.clone(),
            receipt.tenant.clone(),
            time(receipt.at_ms, &zone),
            lifted.unwrap_or_else(|| "-".to_owned()),
            deleted,
        ]
    }));
    Ok(align_columns(&rows, &[]))
}

fn json_line(receipt: &Receipt) -> String {
    let time = |ms| {
        Timestamp::from_millisecond(ms)
            .map(|time| time.to_string())
            .ok()
    };
    let line = json!({
        "receipt": receipt.id,
        "kind": receipt.kind,
        "subject": receipt.subject,
        "tenant": receipt.tenant,
        "time": time(receipt.at_ms),
        "deleted": receipt.counts,
        "done": receipt.done,
        "lifted": receipt.lifted_ms.and_then(time),
    });
    format!("{line}\n")
}

pub(super) async fn unforget(store: &SqliteStore, receipt: i64) -> anyhow::Result<String> {
    if !store.lift(receipt, now()).await? {
        bail!(
            "there is no receipt {receipt} that is not lifted yet; `diarist threads forgotten` lists them"
        );
    }
    Ok(format!(
        "Receipt {receipt} is lifted: a running Diarist remembers these conversations again within seconds. What was \
         deleted does not come back; a client that continues a conversation sends its messages again.\n"
    ))
}

fn now() -> i64 {
    Timestamp::now().as_millisecond()
}
