//! `diarist tenants`: lists the tenants with memory, makes one tenant an alias of another, so that a rotated key
//! keeps its memory, and forgets one.
//!
//! A running server applies a new alias within seconds. Keys are neither arguments nor printed: see
//! [`tenant_arg`]. Which aliases are allowed is decided by the store.

mod tenant_arg;

use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

use self::tenant_arg::{TenantArg, TenantDirectory, check_header};
use super::database::{read, write};
use super::moved;
use super::output::print;
use super::sources::{ConfigSources, environment};
use super::threads::forget::{forget_target, passes_until_unforgotten};
use crate::config::Config;
use crate::history::Scope;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::aliases::resolve;
use crate::store::{
    AddAliasOutcome, ForgetTarget, Forgetting as _, SqliteStore, TenantRow, Tenants as _,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print one JSON object for each tenant
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sources: ConfigSources,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the tenants with memory, by the names that the audit shows
    List(ListArgs),
    /// Let requests of NEW use the memory of OLD: a rotated key keeps its memory
    Alias(AliasArgs),
    /// Remove an alias: requests of NAME use their own memory again
    Unalias(UnaliasArgs),
    /// Delete everything of one tenant with all its users, and remember nothing of it again
    Forget(ForgetArgs),
    #[command(hide = true, alias = "remove", alias = "rm")]
    Delete(moved::Args),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print one JSON object for each tenant
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct AliasArgs {
    /// The tenant that has the memory: a name from the list, env:NAME for the variable that holds its key, or -
    /// to read its key from standard input
    old: String,
    /// The tenant that gets it, given in the same way
    new: String,
    /// The header in which clients send the key
    #[arg(long, value_name = "NAME", default_value = "authorization")]
    header: String,
    /// Do it although something of NEW was forgotten, and will be remembered again under OLD
    #[arg(long)]
    despite_forgotten: bool,
}

#[derive(Debug, clap::Args)]
struct ForgetArgs {
    /// A name from the list, env:NAME for the variable that holds its key, or - to read its key from standard
    /// input
    name: String,
    /// The header in which clients send the key
    #[arg(long, value_name = "NAME", default_value = "authorization")]
    header: String,
}

#[derive(Debug, clap::Args)]
struct UnaliasArgs {
    /// The tenant that was NEW, given in the same way
    name: String,
    /// The header in which clients send the key
    #[arg(long, value_name = "NAME", default_value = "authorization")]
    header: String,
    /// Do it although something of OLD was forgotten, and will be remembered again if NAME says it
    #[arg(long)]
    despite_forgotten: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sources = &args.sources;
    if args.command.is_some() && args.json {
        return Ok(moved::explain(moved::LIST_OPTION));
    }
    let text = match &args.command {
        None => read(sources, async |store, config| {
            list(store, config, args.json).await
        }),
        Some(Command::List(args)) => read(sources, async |store, config| {
            list(store, config, args.json).await
        }),
        Some(Command::Delete(_)) => return Ok(moved::explain(moved::DELETE)),
        Some(Command::Alias(args)) => {
            if args.old == "-" && args.new == "-" {
                bail!("standard input can hold only one key: give the other with env:NAME");
            }
            // Before the database is opened: a key on the command line is refused even if something else is wrong.
            let environment = environment();
            let old = TenantArg::parse(&args.old, &args.header, &environment)?;
            let new = TenantArg::parse(&args.new, &args.header, &environment)?;
            write(sources, async |store, config| {
                let listed = &config.requests.identity.credentials;
                check_header(&[&old, &new], &args.header, listed)?;
                alias(store, config, (old, new), args.despite_forgotten).await
            })
        }
        Some(Command::Forget(args)) => {
            let name = TenantArg::parse(&args.name, &args.header, &environment())?;
            write(sources, async |store, config| {
                check_header(
                    &[&name],
                    &args.header,
                    &config.requests.identity.credentials,
                )?;
                forget(store, config, name).await
            })
        }
        Some(Command::Unalias(args)) => {
            let name = TenantArg::parse(&args.name, &args.header, &environment())?;
            write(sources, async |store, config| {
                check_header(
                    &[&name],
                    &args.header,
                    &config.requests.identity.credentials,
                )?;
                unalias(store, config, name, args.despite_forgotten).await
            })
        }
    }?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &SqliteStore, config: &Config, json: bool) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    let anonymous = Scope::hash_tenant(&config.requests.identity.pepper, b"");
    if json {
        let tenants = directory.all_tenants().into_iter();
        return Ok(tenants
            .map(|tenant| json_line(&directory, tenant, &anonymous))
            .collect());
    }
    if directory.is_empty() {
        return Ok("No tenant has memory yet.\n".to_owned());
    }
    let head = ["tenant", "conversations", "requests", "last", "served as"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(
        directory
            .all_tenants()
            .into_iter()
            .map(|tenant| cells(&directory, tenant, &anonymous)),
    );
    let sides = [
        ColumnAlign::Left,
        ColumnAlign::Right,
        ColumnAlign::Right,
        ColumnAlign::Left,
        ColumnAlign::Left,
    ];
    Ok(align_columns(&rows, &sides))
}

fn json_line(directory: &TenantDirectory, tenant: [u8; 32], anonymous: &[u8; 32]) -> String {
    let row = directory.row(&tenant);
    let last = row.and_then(|row| Timestamp::from_millisecond(row.last_ms).ok());
    let line = json!({
        "tenant": Scope::format_tenant_label(&tenant),
        "served_as": Scope::format_tenant_label(&resolve(&directory.aliases, tenant)),
        "conversations": row.map_or(0, |row| row.conversations),
        "requests": row.map_or(0, |row| row.requests),
        "last": last.map(|time| time.to_string()),
        "has_credential": tenant != *anonymous,
    });
    format!("{line}\n")
}

fn cells(directory: &TenantDirectory, tenant: [u8; 32], anonymous: &[u8; 32]) -> Vec<String> {
    let row = directory.row(&tenant);
    let number = |field: fn(&TenantRow) -> u64| grouped(row.map_or(0, field));
    let served = resolve(&directory.aliases, tenant);
    let mut served = if served == tenant {
        String::new()
    } else {
        Scope::format_tenant_label(&served)
    };
    if tenant == *anonymous {
        served.push_str("(requests without a credential)");
    }
    vec![
        Scope::format_tenant_label(&tenant),
        number(|row| row.conversations),
        number(|row| row.requests),
        row.map_or_else(|| "-".to_owned(), |row| minute(row.last_ms)),
        served,
    ]
}

fn minute(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(
        |_| "?".to_owned(),
        |time| {
            let time = time.to_zoned(TimeZone::system());
            time.strftime("%Y-%m-%d %H:%M").to_string()
        },
    )
}

async fn alias(
    store: &SqliteStore,
    config: &Config,
    (old, new): (TenantArg, TenantArg),
    despite_forgotten: bool,
) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    let pepper = &config.requests.identity.pepper;
    let (old, new) = (
        directory.tenant(old, pepper)?,
        directory.tenant(new, pepper)?,
    );
    if new == Scope::hash_tenant(pepper, b"") {
        bail!(
            "NEW stands for all requests without a credential: everybody could use the memory of OLD"
        );
    }
    let served = resolve(&directory.aliases, old);
    check_forgotten(
        store,
        (resolve(&directory.aliases, new), served),
        despite_forgotten,
    )
    .await?;
    let now = Timestamp::now().as_millisecond();
    let (old_name, new_name) = (
        Scope::format_tenant_label(&old),
        Scope::format_tenant_label(&new),
    );
    match store.add_alias(new, old, now).await? {
        AddAliasOutcome::Added => {}
        AddAliasOutcome::Unchanged => {
            return Ok(format!("{new_name} is already an alias of {old_name}.\n"));
        }
        AddAliasOutcome::SameTenant => {
            bail!("OLD and NEW are the same tenant, {old_name}")
        }
        AddAliasOutcome::Cycle => {
            bail!("{old_name} is already an alias of {new_name}; this would make a circle")
        }
        AddAliasOutcome::NameInUse(other) => bail!(
            "{new_name} is already an alias of {}; to remove that, run `diarist tenants unalias {new_name}`",
            Scope::format_tenant_label(&other)
        ),
    }
    let mut text = format!(
        "Requests of {new_name} now use the memory of {old_name}; a running Diarist applies this within \
         seconds.\n"
    );
    if directory.row(&served).is_none() {
        text.push_str(&format!(
            "{old_name} has no memory yet: `diarist tenants` lists those that have, if this was meant to be one of them.\n"
        ));
    }
    if let Some(row) = directory.row(&new) {
        text.push_str(&format!(
            "{new_name} has {} of its own, which no request reaches while the alias exists \
             (`diarist tenants unalias {new_name}` removes it).\n",
            conversations(row.conversations)
        ));
    }
    Ok(text)
}

fn conversations(number: u64) -> String {
    match number {
        1 => "1 conversation".to_owned(),
        many => format!("{} conversations", grouped(many)),
    }
}

async fn forget(store: &SqliteStore, config: &Config, name: TenantArg) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    let tenant = directory.tenant(name, &config.requests.identity.pepper)?;
    let target = ForgetTarget::Owner {
        tenant,
        resource: None,
    };
    let (mut text, receipt) = forget_target(store, config, target).await?;
    let served = resolve(&directory.aliases, tenant);
    if served == tenant {
        text.push_str(&passes_until_unforgotten(receipt));
    } else {
        text.push_str(&format!(
            "Its requests are served as tenant {}, whose memory is not deleted: `diarist tenants forget {}` does \
             that.\n",
            Scope::format_tenant_label(&served),
            Scope::format_tenant_label(&served)
        ));
    }
    Ok(text)
}

/// Refuses to serve requests as another tenant if something is forgotten of the first one: a receipt holds for the
/// tenant that was served when it was written, because each tenant has hashes of its own.
async fn check_forgotten(
    store: &SqliteStore,
    (served, other): ([u8; 32], [u8; 32]),
    despite_forgotten: bool,
) -> anyhow::Result<()> {
    if despite_forgotten || served == other {
        return Ok(());
    }
    let (name, other) = (
        Scope::format_tenant_label(&served),
        Scope::format_tenant_label(&other),
    );
    let receipts = store.receipts().await?;
    let receipts = receipts
        .iter()
        .filter(|receipt| receipt.tenant == name && receipt.lifted_ms.is_none());
    match receipts.count() {
        0 => Ok(()),
        count => bail!(
            "something of {name} is forgotten ({count} in `diarist threads forgotten`). Requests that say it again would be \
             remembered under {other}, where those receipts do not hold. If you accept that, add --despite-forgotten"
        ),
    }
}

async fn unalias(
    store: &SqliteStore,
    config: &Config,
    name: TenantArg,
    despite_forgotten: bool,
) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    let tenant = directory.tenant(name, &config.requests.identity.pepper)?;
    let served = resolve(&directory.aliases, tenant);
    check_forgotten(store, (served, tenant), despite_forgotten).await?;
    let name = Scope::format_tenant_label(&tenant);
    if !store.remove_alias(tenant).await? {
        bail!("{name} is not an alias of another tenant");
    }
    Ok(format!(
        "Requests of {name} use their own memory again; a running Diarist applies this within seconds.\n"
    ))
}
