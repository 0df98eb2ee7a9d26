//! The place of a database file: what stands there, and whether a server can make the file. Opens no database. Called by
//! [`super::open`], and by `diarist check` for a configuration whose server does not run.

use std::fs::Metadata;
use std::path::Path;

use super::error::OpenError;

/// Tells a file from another one that was put in its place: device and inode.
#[cfg(unix)]
pub(super) fn file_identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

/// Other systems do not let anybody delete or replace an open file.
#[cfg(not(unix))]
pub(super) fn file_identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

/// SQLite would speak of a disk error.
pub(super) async fn refuse_folder(path: &Path) -> Result<(), OpenError> {
    let found = tokio::fs::metadata(path).await;
    if found.is_ok_and(|found| found.is_dir()) {
        return Err(OpenError::Folder(path.to_owned()));
    }
    Ok(())
}

/// Creates the folder and an empty file that only its owner may read. SQLite itself would make the file
/// readable for everybody; it gives its journals the rights of the file.
pub(super) async fn create_file(path: &Path) -> Result<(), OpenError> {
    let place = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::StorageFull => OpenError::Full(path.to_owned()),
        std::io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly(path.to_owned()),
        _ => OpenError::Inaccessible {
            path: path.to_owned(),
            reason: error.to_string(),
        },
    };
    if tokio::fs::try_exists(path).await.map_err(place)? {
        return Ok(());
    }
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        let mut builder = tokio::fs::DirBuilder::new();
        #[cfg(unix)]
        builder.mode(0o700);
        builder
            .recursive(true)
            .create(folder)
            .await
            .map_err(place)?;
    }
    let mut options = tokio::fs::OpenOptions::new();
    options.write(true).create(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path).await.map(drop).map_err(place)
}

/// Whether this user could open the database at `path`, or make it, as far as that shows without doing it.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    if path.is_dir() {
        return Err(OpenError::Folder(path.to_owned()));
    }
    let inaccessible = |reason: String| OpenError::Inaccessible {
        path: path.to_owned(),
        reason,
    };
    if path.exists() && !may_write(path) {
        return Err(OpenError::ReadOnly(path.to_owned()));
    }
    let whole = std::path::absolute(path).map_err(|error| inaccessible(error.to_string()))?;
    // SQLite makes its journals beside the file. Missing folders are made, inside the first one that exists.
    let mut folders = whole.parent().into_iter().flat_map(Path::ancestors);
    let Some(folder) = folders.find(|folder| folder.exists()) else {
        return Ok(());
    };
    let shown = folder.display();
    if !folder.is_dir() {
        return Err(inaccessible(format!("{shown} is no folder")));
    }
    if !may_write(folder) {
        return Err(inaccessible(format!(
            "this user may not write to the folder {shown}"
        )));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Elsewhere only the flag of the file is looked at.
#[cfg(not(target_os = "linux"))]
fn may_write(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| !found.permissions().readonly())
}
