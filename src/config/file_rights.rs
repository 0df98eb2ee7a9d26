//! Whether other users of this machine can read a file, and a warning for a configuration file with a secret.

use std::path::Path;

use super::layers::Layers;

/// Keys whose value is a secret.
const SECRETS: [&str; 5] = [
    "memory.api_key",
    "memory.observation.api_key",
    "memory.reflection.api_key",
    "server.admin_token",
    "store.pepper",
];

/// A warning if `file` holds a secret and others can read it.
pub(super) fn secret_warning(layers: &Layers, file: Option<&Path>) -> Option<String> {
    let file = file.filter(|file| is_readable_by_others(file))?;
    let name = file.display().to_string();
    let key = SECRETS
        .into_iter()
        .find(|key| layers.origin(key) == Some(name.as_str()))?;
    let variable = key.to_uppercase().replace('.', "__");
    Some(format!(
        "{name} holds a secret ({key}), and other users of this machine can read it. Run chmod 600 {name}, or set the \
         environment variable DIARIST__{variable} instead."
    ))
}

/// Whether the file's mode lets the group or others read it.
#[cfg(unix)]
#[must_use]
pub fn is_readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // A pipe or a device, such as /dev/stderr, holds nothing.
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.mode() & 0o044 != 0)
}

/// Only Unix has such modes.
#[cfg(not(unix))]
#[must_use]
pub fn is_readable_by_others(_: &Path) -> bool {
    false
}
