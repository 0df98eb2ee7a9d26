//! `diarist threads export` and `import`: one conversation as JSON, to keep it or to move it to another database.

use anyhow::{Context as _, bail};

use super::show::find_conversation;
use crate::store::{Forgetting as _, ImportOutcome, SqliteStore};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ExportArgs {
    /// The id from the list, the name that the client gave, or the label in the header x-diarist-thread
    id: String,
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ImportArgs {
    /// The file that export wrote
    file: std::path::PathBuf,
}

pub(super) async fn export(store: &SqliteStore, args: &ExportArgs) -> anyhow::Result<String> {
    let lineage = find_conversation(store, &args.id).await?;
    let file = store.export_thread(lineage).await?;
    let file = file.with_context(|| format!("conversation {lineage} was deleted just now"))?;
    Ok(format!("{file:#}\n"))
}

pub(super) async fn import(store: &SqliteStore, args: &ImportArgs) -> anyhow::Result<String> {
    let name = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let file = serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
    match store.import_thread(file).await? {
        ImportOutcome::Imported(lineage) => Ok(format!(
            "Imported as conversation {lineage}. It serves the tenant and user that it was exported from.\n"
        )),
        ImportOutcome::AlreadyStored => {
            bail!("this conversation, or one with the same beginning, is in the database already")
        }
        ImportOutcome::OtherPepper => bail!(
            "this conversation comes from a database with another pepper, or one of the two has none, so no request \
             would find it here; import it into a database that has the same pepper (store.pepper or the pepper \
             file): a new one gets the pepper that is there when `diarist serve` first starts"
        ),
        ImportOutcome::Forgotten => bail!(
            "this conversation was forgotten here; `diarist threads forgotten` lists the receipts, and \
             `diarist threads unforget RECEIPT` allows it again"
        ),
    }
}
