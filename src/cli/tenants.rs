//! `diarist tenants`: who has memory, and declaring that one tenant is another, so that a rotated key
//! keeps its memory.
//!
//! A running server follows within seconds. No key is taken from the command line or shown: see
//! [`named`]. Decides nothing about aliases; the store does.

mod named;

use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use self::named::{Known, Named};
use super::database::{read, write};
use super::output::print;
use super::sources::{Sources, environment};
use crate::history::Scope;
use crate::report::{Side, align, grouped};
use crate::store::aliases::resolve;
use crate::store::{Aliased, SqliteStore, Store as _, TenantRow};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
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
    sources: Sources,
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
    sources: Sources,
}

#[derive(Debug, clap::Args)]
struct UnaliasArgs {
    /// What was called NEW
    name: String,
    /// The header that keys travel in
    #[arg(long, value_name = "NAME", default_value = "authorization")]
    header: String,
    #[command(flatten)]
    sources: Sources,
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
            let old = Named::parse(&args.old, &args.header, &environment)?;
            let new = Named::parse(&args.new, &args.header, &environment)?;
            write(&args.sources, async |store, _| alias(store, old, new).await)
        }
        Some(Command::Unalias(args)) => {
            let name = Named::parse(&args.name, &args.header, &environment())?;
            write(&args.sources, async |store, _| unalias(store, name).await)
        }
    }?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &SqliteStore) -> anyhow::Result<String> {
    let known = Known::of(store).await?;
    if known.is_empty() {
        return Ok("Nobody has memory yet.\n".to_owned());
    }
    let head = ["tenant", "conversations", "requests", "last", "served as"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(known.all().into_iter().map(|tenant| cells(&known, tenant)));
    let sides = [Side::Left, Side::Right, Side::Right, Side::Left, Side::Left];
    Ok(align(&rows, &sides))
}

fn cells(known: &Known, tenant: [u8; 32]) -> Vec<String> {
    let row = known.row(&tenant);
    let number = |of: fn(&TenantRow) -> u64| grouped(row.map_or(0, of));
    let served = resolve(&known.aliases, tenant);
    let mut served = if served == tenant {
        String::new()
    } else {
        Scope::label_of(&served)
    };
    if tenant == Scope::tenant_of(b"") {
        served.push_str("(requests without a credential)");
    }
    vec![
        Scope::label_of(&tenant),
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

async fn alias(store: &SqliteStore, old: Named, new: Named) -> anyhow::Result<String> {
    let known = Known::of(store).await?;
    let (old, new) = (known.tenant(old)?, known.tenant(new)?);
    if new == Scope::tenant_of(b"") {
        bail!("requests without a credential would be served as somebody: anybody could be them");
    }
    let now = Timestamp::now().as_millisecond();
    let (old_name, new_name) = (Scope::label_of(&old), Scope::label_of(&new));
    match store.alias(new, old, now).await? {
        Aliased::New => {}
        Aliased::Known => return Ok(format!("{new_name} is served as {old_name} already.\n")),
        Aliased::Itself => bail!("{old_name} is served as itself: OLD and NEW are one tenant"),
        Aliased::Cycle => {
            bail!("{old_name} is served as {new_name} already; this would lead in a circle")
        }
        Aliased::Taken(other) => bail!(
            "{new_name} is served as {} already; `diarist tenants unalias {new_name}` takes that back",
            Scope::label_of(&other)
        ),
    }
    let mut text = format!(
        "Requests of {new_name} belong to {old_name} from now on; a running Diarist follows within \
         seconds.\n"
    );
    if let Some(row) = known.row(&new) {
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

async fn unalias(store: &SqliteStore, name: Named) -> anyhow::Result<String> {
    let known = Known::of(store).await?;
    let tenant = known.tenant(name)?;
    let name = Scope::label_of(&tenant);
    if !store.unalias(tenant).await? {
        bail!("{name} is served as itself: there is nothing to take back");
    }
    Ok(format!(
        "Requests of {name} are its own again; a running Diarist follows within seconds.\n"
    ))
}
