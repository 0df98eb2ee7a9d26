//! The rules of `[audit]` about its file (where it is, and when a new one begins), its place in the database, and the
//! prices of reports. Called by `validate`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use super::common::positive_duration;
use super::parse::{CheckResult, Invalid, Setting};
use super::problem::Problem;
use super::settings::RawAudit;
use super::valid::AuditTarget;
use crate::audit::Rotation;
use crate::model_prices::NamedPrice;

/// Some hundred lines of the audit.
const LEAST_FILE_BYTES: u64 = 100_000;

const MOST_FILES: u64 = 1_000;

/// When a new file begins, and how many old ones stay.
pub(super) fn audit_rotation(raw: &RawAudit, problems: &mut Vec<Problem>) -> CheckResult<Rotation> {
    let max_bytes = raw.max_file_bytes.check_some(problems, |&bytes| {
        let too_small = || {
            Invalid::new(
                format!(
                    "{bytes} bytes are too small for a file: it would be full after a few lines"
                ),
                format!("write at least {LEAST_FILE_BYTES}, or remove the key"),
            )
        };
        (bytes >= LEAST_FILE_BYTES)
            .then_some(bytes)
            .ok_or_else(too_small)
    });
    let max_age = raw.max_file_age.check_some(problems, positive_duration);
    let keep_files = raw.keep_files.check(problems, |&files| {
        let too_many = || {
            Invalid::new(
                format!("{files} old files are too many: each rotation renames them all"),
                format!("write at most {MOST_FILES}"),
            )
        };
        (files <= MOST_FILES).then_some(files).ok_or_else(too_many)
    });
    Ok(Rotation {
        max_bytes: max_bytes?,
        max_age: max_age?,
        keep_files: keep_files?,
    })
}

/// Warnings for a rotation that does nothing, or deletes what was just written.
pub(super) fn rotation_warnings(raw: &RawAudit) -> Vec<String> {
    let limits = [
        raw.max_file_bytes.value.map(|_| &raw.max_file_bytes.key),
        raw.max_file_age.value.map(|_| &raw.max_file_age.key),
    ];
    let mut warnings: Vec<String> = Vec::new();
    let path = raw.path.value.as_str();
    for key in limits.into_iter().flatten() {
        if matches!(path, "-" | "off") {
            warnings.push(format!(
                "{key} has no effect with audit.path = \"{path}\": only a file is rotated. Remove it, or write the path of \
                 a file."
            ));
        } else if raw.keep_files.value == 0 {
            warnings.push(format!(
                "audit.keep_files is 0: when {key} is reached, all lines of the audit so far are deleted. Write 1 or more to \
                 keep them."
            ));
        }
    }
    warnings
}

/// A warning for lines that are not stored, because this process writes nothing into the database.
pub(super) fn store_warning(raw: &RawAudit, stored: Option<Duration>) -> Option<String> {
    let ignored = raw.store_retention.value.is_some() && stored.is_none();
    ignored.then(|| {
        "audit.store_retention has no effect with memory.enabled = false or memory.read_only = true: then nothing is \
         written into the database. Remove it, or switch memory on."
            .to_owned()
    })
}

/// Prices for reports. Each model has one.
pub(super) fn audit_prices(
    raw: &Setting<Vec<String>>,
    problems: &mut Vec<Problem>,
) -> CheckResult<Vec<NamedPrice>> {
    let mut models = HashSet::new();
    raw.check_each(problems, &raw.value, |text| {
        let price: NamedPrice = text.parse().map_err(|_| {
            Invalid::new(
                format!("\"{text}\" is not a model with its price"),
                "write MODEL=IN,CACHED,OUT or MODEL=IN,CACHED,OUT,WRITE in dollars per million tokens, such as \
                 \"own-model=0.2,0.02,0.8\"",
            )
        })?;
        if !models.insert(price.model.clone()) {
            return Err(Invalid::new(
                format!("{} has two prices", price.model),
                "write one price for each model",
            ));
        }
        Ok(price)
    })
}

/// Where the audit goes.
pub(super) fn audit_target(text: &str) -> Result<AuditTarget, Invalid> {
    match text {
        "-" => Ok(AuditTarget::Stdout),
        "off" => Ok(AuditTarget::Off),
        "" => Err(Invalid::new(
            "the path is empty",
            "write a path, \"-\" or \"off\"",
        )),
        path => Ok(AuditTarget::File(PathBuf::from(path))),
    }
}
