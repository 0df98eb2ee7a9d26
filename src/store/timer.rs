//! Timers of idle conversations. When a conversation has been idle for long enough, memory that waits for a
//! threshold may be used at once. Values only.

use crate::history::{Link, Scope};

/// When to act, in milliseconds since 1970. `None`: never, or it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// From then on, observations may replace messages.
    pub activate_ms: Option<i64>,
    /// From then on, a reflection may replace observations.
    pub reflect_ms: Option<i64>,
}

impl Alarms {
    /// The earlier of them.
    pub fn next(self) -> Option<i64> {
        self.activate_ms.into_iter().chain(self.reflect_ms).min()
    }

    /// The alarms that are due at `now_ms`, and those that are not.
    pub fn split_due(self, now_ms: i64) -> (Self, Self) {
        let split = |moment: Option<i64>| {
            (
                moment.filter(|ms| *ms <= now_ms),
                moment.filter(|ms| *ms > now_ms),
            )
        };
        let (activate, reflect) = (split(self.activate_ms), split(self.reflect_ms));
        let alarms = |activate_ms, reflect_ms| Self {
            activate_ms,
            reflect_ms,
        };
        (alarms(activate.0, reflect.0), alarms(activate.1, reflect.1))
    }
}

/// The timer that the newest request of a conversation sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTimer {
    /// The alarms; at least one.
    pub alarms: Alarms,
    /// The time zone that its client named, if any.
    pub zone: Option<String>,
}

/// A claimed timer. `fence` changes with every claim and every newer request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    /// The owner.
    pub scope: Scope,
    /// The lineage it belongs to.
    pub lineage: i64,
    /// The last link of the request that set it.
    pub tip: Link,
    /// The model it asked for.
    pub model: String,
    /// See [`NewTimer::zone`].
    pub zone: Option<String>,
    /// The alarms.
    pub alarms: Alarms,
    /// The lease's fencing number.
    pub fence: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_become_due_one_after_the_other() {
        let alarms = Alarms {
            activate_ms: Some(5),
            reflect_ms: Some(9),
        };
        assert_eq!(alarms.next(), Some(5));
        let (come, left) = alarms.split_due(5);
        assert_eq!((come.activate_ms, come.reflect_ms), (Some(5), None));
        assert_eq!((left.activate_ms, left.reflect_ms), (None, Some(9)));
        assert_eq!(left.next(), Some(9));
        assert_eq!(left.split_due(9).1.next(), None);
    }
}
