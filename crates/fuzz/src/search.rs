//! The program that libFuzzer drives. The variable `DIARIST_FUZZ_TARGET` names the target; the arguments are
//! libFuzzer's. With `DIARIST_FUZZ_SEEDS`, the seeds are first written into that folder.

#![no_main]

use std::sync::LazyLock;

use diarist_fuzz::{TARGETS, Target, target};
use libfuzzer_sys::fuzz_target;

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("DIARIST_FUZZ_TARGET").unwrap_or_default();
    let names = TARGETS.map(|target| target.name).join(", ");
    target(&name).unwrap_or_else(|| panic!("DIARIST_FUZZ_TARGET must be one of: {names}"))
});

fn write_seeds() {
    let Some(folder) = std::env::var_os("DIARIST_FUZZ_SEEDS").map(std::path::PathBuf::from) else {
        return;
    };
    std::fs::create_dir_all(&folder).expect("the folder for seeds can be made");
    for (number, seed) in (CHOSEN.seeds)().iter().enumerate() {
        std::fs::write(folder.join(format!("{number:04}")), seed).expect("a seed can be written");
    }
}

fuzz_target!(init: write_seeds(), |data: &[u8]| (CHOSEN.check)(data));
