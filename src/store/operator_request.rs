//! What an operator asks of a conversation. A value only; each backend keeps it with the lineage.

/// What an operator asks of a conversation. The conversation's next request completes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// Read the waiting jobs again: another process has changed them.
    Refresh,
    /// Observe everything that is confirmed, however few tokens it has.
    Observe {
        /// What the operator wants the Observer to look for above all, in the operator's own words.
        focus: Option<String>,
    },
}

impl OperatorRequest {
    pub(super) fn number(&self) -> i64 {
        match self {
            Self::Refresh => 1,
            Self::Observe { .. } => 2,
        }
    }

    pub(super) fn focus(&self) -> Option<&str> {
        match self {
            Self::Observe { focus } => focus.as_deref(),
            Self::Refresh => None,
        }
    }

    pub(super) fn from_number(number: i64, focus: Option<String>) -> Option<Self> {
        match number {
            1 => Some(Self::Refresh),
            2 => Some(Self::Observe { focus }),
            _ => None,
        }
    }
}
