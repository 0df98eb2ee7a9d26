//! Decides the mode of a request: `off`, `read` (memory is sent, nothing is written) or `on`.
//!
//! In this order: `[memory] read_only` always wins; then the request's header; then the first rule of the operator
//! that matches; then headers that name a task. Never looks at messages. Called by `read_request`.

use http::request::Parts;
use http::{HeaderMap, HeaderName};

use super::headers::both_spellings;

pub use crate::memory::Pattern as Glob;

/// The header that sets the mode of one request.
const MEMORY_HEADER: HeaderName = HeaderName::from_static("x-diarist-memory");

/// What memory may do for a request, the strictest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// No memory.
    Off,
    /// Memory is sent, but nothing of the request is recorded.
    Read,
    /// Memory is sent, and the request is recorded.
    On,
}

impl Mode {
    /// The name in header, configuration and audit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::On => "on",
        }
    }

    /// The inverse of [`Mode::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Off, Self::Read, Self::On]
            .into_iter()
            .find(|mode| name.eq_ignore_ascii_case(mode.name()))
    }
}

/// The path without empty parts: as most servers read it.
fn plain_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.fold(String::new(), |plain, part| plain + "/" + part)
}

/// A rule of the operator. A condition that it does not name matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The path of the request, without its query.
    pub path: Option<Glob>,
    /// The requested model.
    pub model: Option<Glob>,
    /// A header that the request has. The second part, if there is one, must match its value.
    pub header: Option<(HeaderName, Option<Glob>)>,
    /// The mode that the rule sets.
    pub mode: Mode,
}

impl Rule {
    fn matches(&self, parts: &Parts, model: &str) -> bool {
        // A slash too many must not lead around a rule.
        let plain = plain_path(parts.uri.path());
        let path = |glob: &Glob| glob.matches(parts.uri.path()) || glob.matches(&plain);
        let header = |(name, value): &(HeaderName, Option<Glob>)| {
            let mut values = parts.headers.get_all(name).iter();
            values.any(|found| match value {
                None => true,
                Some(glob) => found.to_str().is_ok_and(|found| glob.matches(found.trim())),
            })
        };
        self.path.as_ref().is_none_or(path)
            && self.model.as_ref().is_none_or(|glob| glob.matches(model))
            && self.header.as_ref().is_none_or(header)
    }
}

/// What decides the mode if the request does not.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The operator's rules, in order.
    pub listed: Vec<Rule>,
    /// Headers in which chat clients name side tasks: a title, tags. Such a request reads memory and writes none.
    pub tasks: Vec<HeaderName>,
}

impl Rules {
    /// Whether the request is made for a side task. Clients that fill in a template leave the header empty, or leave
    /// the placeholder, if there is no task.
    fn names_task(&self, headers: &HeaderMap) -> bool {
        let names = |value: &str| {
            let nothing = ["", "none", "null", "undefined"];
            !value.starts_with("{{") && !nothing.iter().any(|word| value.eq_ignore_ascii_case(word))
        };
        self.tasks
            .iter()
            .flat_map(|name| headers.get_all(name))
            .any(|value| value.to_str().is_ok_and(|value| names(value.trim())))
    }
}

/// What decided the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecidedBy {
    Default,
    Header,
    /// The rule with this number, from 1.
    Rule(usize),
    /// A header names a side task.
    Task,
    /// The request comes from a sub-agent: it repeats what belongs to the conversation it works for.
    Child,
    ReadOnly,
}

impl std::fmt::Display for DecidedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Header => f.write_str("header"),
            Self::Rule(number) => write!(f, "rule_{number}"),
            Self::Task => f.write_str("task"),
            Self::Child => f.write_str("child"),
            Self::ReadOnly => f.write_str("read_only"),
        }
    }
}

/// A mode, and what decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModeDecision {
    pub(super) mode: Mode,
    pub(super) by: DecidedBy,
}

/// The mode that the request's header sets. Of several values, the strictest counts. Any other word counts as
/// `off`: who writes `false` or `disabled` wants no memory. An empty value and an unfilled template say nothing.
pub(super) fn from_header(headers: &HeaderMap) -> Option<Mode> {
    let mode = |value: &http::HeaderValue| {
        let text = value.to_str().unwrap_or("?").trim();
        let says_nothing = text.is_empty() || text.starts_with("{{");
        (!says_nothing).then(|| Mode::from_name(text).unwrap_or(Mode::Off))
    };
    both_spellings(headers, &MEMORY_HEADER)
        .filter_map(mode)
        .min()
}

/// `[memory] read_only`, with the overrides for single models.
#[derive(Clone, Debug, Default)]
pub struct ReadOnly {
    /// The overrides, the most specific first.
    pub overrides: Vec<(Glob, bool)>,
    /// For every other model.
    pub default: bool,
}

impl ReadOnly {
    /// Whether no memory may be made for this model.
    pub fn for_all(&self) -> bool {
        self.default && self.overrides.iter().all(|(_, read_only)| *read_only)
    }

    pub(super) fn is_read_only(&self, model: &str) -> bool {
        let mut overrides = self.overrides.iter();
        let found = overrides.find(|(pattern, _)| pattern.matches(model));
        found.map_or(self.default, |(_, read_only)| *read_only)
    }
}

/// Decides the mode of a request for `model`.
pub(super) fn decide(rules: &Rules, read_only: bool, parts: &Parts, model: &str) -> ModeDecision {
    let by_rule = || {
        let mut listed = rules.listed.iter().zip(1..);
        let (rule, number) = listed.find(|(rule, _)| rule.matches(parts, model))?;
        Some(ModeDecision {
            mode: rule.mode,
            by: DecidedBy::Rule(number),
        })
    };
    let by_task = || {
        rules.names_task(&parts.headers).then_some(ModeDecision {
            mode: Mode::Read,
            by: DecidedBy::Task,
        })
    };
    let decided = match from_header(&parts.headers) {
        Some(mode) => ModeDecision {
            mode,
            by: DecidedBy::Header,
        },
        None => by_rule().or_else(by_task).unwrap_or(ModeDecision {
            mode: Mode::On,
            by: DecidedBy::Default,
        }),
    };
    if read_only && decided.mode == Mode::On {
        return ModeDecision {
            mode: Mode::Read,
            by: DecidedBy::ReadOnly,
        };
    }
    decided
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(headers: &[(&'static str, &str)]) -> Parts {
        let mut request = http::Request::post("/v1/chat/completions?x=1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn rule(path: &str, model: &str, header: Option<(&'static str, &str)>, mode: Mode) -> Rule {
        let glob = |text: &str| (!text.is_empty()).then(|| Glob::new(text));
        Rule {
            path: glob(path),
            model: glob(model),
            header: header.map(|(name, value)| (HeaderName::from_static(name), glob(value))),
            mode,
        }
    }

    fn decided(rules: &[Rule], headers: &[(&'static str, &str)], model: &str) -> (Mode, String) {
        let rules = Rules {
            listed: rules.to_vec(),
            tasks: vec![HeaderName::from_static("x-chat-task")],
        };
        let ModeDecision { mode, by } = decide(&rules, false, &parts(headers), model);
        (mode, by.to_string())
    }

    #[test]
    fn extra_slashes_in_a_path_do_not_bypass_a_rule() {
        let off = rule("/v1/chat/*", "", None, Mode::Off);
        for (path, matches) in [
            ("/v1/chat/completions", true),
            ("/v1//chat/completions/", true),
            ("//v1/chat/completions", true),
            ("/chat/completions", false),
        ] {
            let request = http::Request::post(path).body(()).expect("a request");
            assert_eq!(off.matches(&request.into_parts().0, "m"), matches, "{path}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_counts() {
        let rules = [
            rule("", "", Some(("x-task", "title*")), Mode::Read),
            rule("", "*-embed", None, Mode::Off),
            rule("/v1/chat/*", "gpt-?", Some(("x-task", "")), Mode::Off),
            rule("", "gpt-*", None, Mode::On),
            rule("/other", "", None, Mode::Off),
        ];
        let on = |headers, model| decided(&rules, headers, model);
        assert_eq!(on(&[], "x-embed"), (Mode::Off, "rule_2".into()));
        assert_eq!(on(&[], "x"), (Mode::On, "default".into()));
        assert_eq!(on(&[], "gpt-4"), (Mode::On, "rule_4".into()));
        let title = [("x-task", "title_generation")];
        assert_eq!(on(&title, "gpt-4"), (Mode::Read, "rule_1".into()));
        let other = [("x-task", "tags")];
        assert_eq!(on(&other, "gpt-4"), (Mode::Off, "rule_3".into()));
        assert_eq!(on(&other, "gpt-10"), (Mode::On, "rule_4".into()));
    }

    #[test]
    fn a_task_header_sets_read_mode_and_placeholders_are_ignored() {
        let on = |rules: &[Rule], value| decided(rules, &[("x-chat-task", value)], "m");
        for task in ["title_generation", "tags"] {
            assert_eq!(on(&[], task), (Mode::Read, "task".into()));
        }
        for none in ["", " ", "none", "None", "null", "undefined", "{{TASK}}"] {
            assert_eq!(on(&[], none), (Mode::On, "default".into()), "{none:?}");
        }
        let emoji = [rule("", "", Some(("x-chat-task", "emoji*")), Mode::Off)];
        assert_eq!(on(&emoji, "emoji_generation"), (Mode::Off, "rule_1".into()));
        assert_eq!(on(&emoji, "tags"), (Mode::Read, "task".into()));
    }

    #[test]
    fn a_memory_header_with_underscores_counts_too() {
        for (pairs, mode) in [
            (&[("x_diarist_memory", "off")][..], Mode::Off),
            (
                &[("x-diarist-memory", "on"), ("x_diarist_memory", "off")],
                Mode::Off,
            ),
        ] {
            assert_eq!(decided(&[], pairs, "m"), (mode, "header".into()));
        }
    }

    #[test]
    fn the_memory_header_overrides_rules_but_not_read_only() {
        let rules = [rule("", "", None, Mode::Off)];
        for (value, mode) in [("on", Mode::On), (" READ ", Mode::Read), ("off", Mode::Off)] {
            let headers = [("x-diarist-memory", value)];
            assert_eq!(decided(&rules, &headers, "m"), (mode, "header".into()));
        }
        for unknown in ["maybe", "false", "disabled"] {
            let headers = [("x-diarist-memory", unknown)];
            assert_eq!(decided(&[], &headers, "m"), (Mode::Off, "header".into()));
        }
        for nothing in ["", " ", "{{memory}}"] {
            let headers = [("x-diarist-memory", nothing)];
            assert_eq!(decided(&[], &headers, "m"), (Mode::On, "default".into()));
        }
        let both = [("x-diarist-memory", "on"), ("x-diarist-memory", "read")];
        assert_eq!(decided(&rules, &both, "m"), (Mode::Read, "header".into()));

        let closed = |value| {
            let parts = parts(&[("x-diarist-memory", value)]);
            decide(&Rules::default(), true, &parts, "m")
        };
        let read = ModeDecision {
            mode: Mode::Read,
            by: DecidedBy::ReadOnly,
        };
        assert_eq!(closed("on"), read);
        let read_only = ReadOnly {
            overrides: vec![(Glob::new("*-mini"), false), (Glob::new("gpt-5*"), true)],
            default: false,
        };
        assert!(
            read_only.is_read_only("gpt-5")
                && !read_only.is_read_only("gpt-5-mini")
                && !read_only.is_read_only("o3")
                && !read_only.for_all()
        );
        let some = |all, read_only| {
            let listed = vec![(Glob::new("*"), read_only)];
            ReadOnly {
                overrides: listed,
                default: all,
            }
            .for_all()
        };
        assert!(some(true, true) && !some(true, false) && !some(false, true));
        assert_eq!(closed("off").mode, Mode::Off);
        assert_eq!(closed("read").by, DecidedBy::Header);
    }
}
