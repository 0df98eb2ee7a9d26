//! `diarist tenants`: who has memory, and declaring that one tenant is another, so that a rotated key
//! keeps its memory.
//!
//! A running server follows within seconds. No key is taken from the command line or shown: see
//! [`named`]. Decides nothing about aliases; the store does.

mod tenant_arg;

use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use self::tenant_arg::{TenantArg, TenantDirectory};
use super::database::{read, write};
use super::output::print;
use super::sources::{ConfigSources, environment};
use crate::history::Scope;
use crate::report::{ColumnAlign, align_columns, grouped};
use crate::store::aliases::resolve;
use crate::store::{AddAliasOutcome, SqliteStore, TenantRow, Tenants as _};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(flatten)]
    sources: ConfigSources,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Who has memory, under the names that the audit shows
    List(ListArgs),
    /// From now on requests of NEW belong to OLD: a rotated key keeps its memory
    Alias(AliasArgs),
    /// Take it back: requests of NAME are its own again
    Unalias(UnaliasArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    sources: ConfigSources,
}

#[derive(Debug, clap::Args)]
struct AliasArgs {
    /// Whose memory it is: a name from the list, env:NAME for the variable that holds the key, or - for
    /// the key on standard input
    old: String,
    /// Who is to have it: likewise
    new: String,
    /// The header that keys travel in
    #[arg(long, value_name = "NAME", default_value = "authorization")]
    header: String,
    #[command(flatten)]
    sources: ConfigSources,
}

#[derive(Debug, clap::Args)]
struct UnaliasArgs {
    /// What was called NEW
    name: String,
    /// The header that keys travel in
    #[arg(long, value_name = "NAME", default_value = "authorization")]
    header: String,
    #[command(flatten)]
    sources: ConfigSources,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let text = match &args.command {
        None => read(&args.sources, async |store, _| list(store).await),
        Some(Command::List(args)) => read(&args.sources, async |store, _| list(store).await),
        Some(Command::Alias(args)) => {
            if args.old == "-" && args.new == "-" {
                bail!("standard input holds one key: give the other by env:NAME");
            }
            // Before anything is opened: what looks like a key is refused whatever else is wrong.
            let environment = environment();
            let old = TenantArg::parse(&args.old, &args.header, &environment)?;
            let new = TenantArg::parse(&args.new, &args.header, &environment)?;
            write(&args.sources, async |store, _| alias(store, old, new).await)
        }
        Some(Command::Unalias(args)) => {
            let name = TenantArg::parse(&args.name, &args.header, &environment())?;
            write(&args.sources, async |store, _| unalias(store, name).await)
        }
    }?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &SqliteStore) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    if directory.is_empty() {
        return Ok("Nobody has memory yet.\n".to_owned());
    }
    let head = ["tenant", "conversations", "requests", "last", "served as"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(
        directory
            .all_tenants()
            .into_iter()
            .map(|tenant| cells(&directory, tenant)),
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

fn cells(directory: &TenantDirectory, tenant: [u8; 32]) -> Vec<String> {
    let row = directory.row(&tenant);
    let number = |field: fn(&TenantRow) -> u64| grouped(row.map_or(0, field));
    let served = resolve(&directory.aliases, tenant);
    let mut served = if served == tenant {
        String::new()
    } else {
        Scope::format_tenant_label(&served)
    };
    if tenant == Scope::hash_tenant(b"") {
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

async fn alias(store: &SqliteStore, old: TenantArg, new: TenantArg) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    let (old, new) = (directory.tenant(old)?, directory.tenant(new)?);
    if new == Scope::hash_tenant(b"") {
        bail!("requests without a credential would be served as somebody: anybody could be them");
    }
    let now = Timestamp::now().as_millisecond();
    let (old_name, new_name) = (
        Scope::format_tenant_label(&old),
        Scope::format_tenant_label(&new),
    );
    match store.add_alias(new, old, now).await? {
        AddAliasOutcome::Added => {}
        AddAliasOutcome::Unchanged => {
            return Ok(format!("{new_name} is served as {old_name} already.\n"));
        }
        AddAliasOutcome::SameTenant => {
            bail!("{old_name} is served as itself: OLD and NEW are one tenant")
        }
        AddAliasOutcome::Cycle => {
            bail!("{old_name} is served as {new_name} already; this would lead in a circle")
        }
        AddAliasOutcome::NameInUse(other) => bail!(
            "{new_name} is served as {} already; `diarist tenants unalias {new_name}` takes that back",
            Scope::format_tenant_label(&other)
        ),
    }
    let mut text = format!(
        "Requests of {new_name} belong to {old_name} from now on; a running Diarist follows within \
         seconds.\n"
    );
    if let Some(row) = directory.row(&new) {
        text.push_str(&format!(
            "{new_name} has {} of its own, which nobody reaches as long as this stands \
             (`diarist tenants unalias {new_name}` takes it back).\n",
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

async fn unalias(store: &SqliteStore, name: TenantArg) -> anyhow::Result<String> {
    let directory = TenantDirectory::load(store).await?;
    let tenant = directory.tenant(name)?;
    let name = Scope::format_tenant_label(&tenant);
    if !store.remove_alias(tenant).await? {
        bail!("{name} is served as itself: there is nothing to take back");
    }
    Ok(format!(
        "Requests of {name} are its own again; a running Diarist follows within seconds.\n"
    ))
}
