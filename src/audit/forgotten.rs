//! The audit line of a deletion. Made by `app`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::record::milliseconds;

/// One line. Only these lines have the field `forgot`. The order of the fields does not change; new fields go to the
/// end.
#[derive(Clone, Debug, Serialize)]
pub struct ForgottenRecord {
    /// When, RFC 3339 in UTC with milliseconds: of the deletion, or of its lifting.
    #[serde(serialize_with = "milliseconds")]
    pub time: Timestamp,
    /// `thread`, `resource` or `tenant`.
    pub forgot: String,
    /// The number of the receipt.
    pub receipt: i64,
    /// The id of the conversation, or a short hash.
    pub subject: String,
    /// A short hash; never the credential.
    pub tenant: String,
    /// How many rows of each kind were deleted.
    pub deleted: BTreeMap<String, u64>,
    /// Whether an operator has allowed memory for it again.
    pub lifted: bool,
}
