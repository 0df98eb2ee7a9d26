//! Every target with its seeds, and with every input that has failed before.

use std::panic::catch_unwind;
use std::path::Path;

use diarist_fuzz::{TARGETS, Target, target};

#[test]
fn every_target_passes_with_its_seeds_and_its_earlier_failures() {
    let mut failed = Vec::new();
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(seeds.len() >= 5, "{} has hardly any seeds", target.name);
        let seeds = seeds
            .into_iter()
            .enumerate()
            .map(|(number, seed)| (format!("seed {number}"), seed));
        for (name, input) in seeds.chain(found(target)) {
            if catch_unwind(|| (target.check)(&input)).is_err() {
                failed.push(format!("{}: {name}", target.name));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The inputs that have failed before.
fn found(target: Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("found")
        .join(target.name);
    // A target for which nothing was ever found has no folder.
    let files = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        files => files.expect("the folder of found inputs"),
    };
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.expect("an entry").path();
        (
            path.display().to_string(),
            std::fs::read(path).expect("an input"),
        )
    };
    files.map(read).collect()
}

#[test]
fn every_folder_of_found_inputs_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for file in std::fs::read_dir(folder).expect("the folder is there") {
        let name = file.expect("an entry").file_name();
        let name = name.to_string_lossy();
        assert!(
            name == "README.md" || target(&name).is_some(),
            "nothing replays {name}"
        );
    }
}
