//! Bundles as files: readable by the owner only, bounded in number and size.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most bundles in a folder. The oldest goes first.
const MAX_FILES: usize = 50;

/// The largest bundle, in bytes. Any prompt that a model can read fits.
const MAX_BYTES: usize = 8 * 1024 * 1024;

const PREFIX: &str = "diarist-call-";

/// Writes the bundle of a job and replaces an earlier one of that job.
pub(super) fn write(folder: &Path, kind: &str, job: &str, text: &[u8]) -> io::Result<PathBuf> {
    if text.len() > MAX_BYTES {
        return Err(io::Error::other(format!(
            "the bundle has {} bytes, more than {MAX_BYTES}",
            text.len()
        )));
    }
    create_folder(folder)?;
    let path = folder.join(format!("{PREFIX}{kind}-{job}.json"));
    // Written under another name first, so that a reader never finds half a file.
    let temporary = folder.join(format!("{PREFIX}{kind}-{job}.part"));
    // A file that a crash left behind may have other permissions.
    let _absent = fs::remove_file(&temporary);
    let mut file = create_private(&temporary)?;
    file.write_all(text)?;
    drop(file);
    fs::rename(&temporary, &path)?;
    prune(folder)?;
    Ok(path)
}

/// Removes every bundle in a folder, with what a crash left half written. Returns how many.
pub(super) fn remove_all(folder: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(folder)
}

fn create_private(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    // Never follows a link that somebody put there.
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.open(path)
}

fn prune(folder: &Path) -> io::Result<()> {
    let mut bundles: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Other files in the folder are not ours to delete.
            name.starts_with(PREFIX) && name.ends_with(".json")
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    bundles.sort_unstable();
    let surplus = bundles.len().saturating_sub(MAX_FILES);
    for (_, path) in bundles.drain(..surplus) {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_can_read_a_bundle_and_old_bundles_are_deleted() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("deeper/bundles");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        let mut last = PathBuf::new();
        for job in 0..i64::try_from(MAX_FILES).unwrap() + 10 {
            last = write(&folder, "chunk", &job.to_string(), b"words").unwrap();
        }
        let rewritten = write(&folder, "chunk", "59", b"other words").unwrap();
        assert_eq!(last, rewritten, "one a job");
        let left = fs::read_dir(&folder).unwrap().count();
        assert_eq!(left, MAX_FILES + 1, "and what is not ours");
        assert_eq!(fs::read(&last).unwrap(), b"other words");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&last).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let endless = vec![b'x'; MAX_BYTES + 1];
        assert!(write(&folder, "chunk", "1000", &endless).is_err());
    }
}
