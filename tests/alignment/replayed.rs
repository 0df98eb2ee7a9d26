//! Plays requests as they were recorded, with longer texts, and counts what came of them.

use std::collections::{BTreeMap, BTreeSet};

use diarist_provider::{CallerKind, Options, Rules, ScriptInput, judge, script};
use serde_json::Value;

use crate::alignment::inflate::{Inflate, marks};
use crate::alignment::oracle::{ModelInputs, Oracle};
use crate::memory::rig::Rig;

/// One request, and what the model had answered.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub run: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
    pub reply: Value,
}

impl RecordedRequest {
    /// Reads JSON Lines of `run`, `headers`, `body` and `server_replied`. Tools that were sent before
    /// are written as `<same tools as line 2, …>`.
    pub fn read_all(text: &str) -> Vec<Self> {
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.iter().map(|line| Self::read(line, &lines)).collect()
    }

    fn read(line: &Value, all: &[Value]) -> Self {
        let mut body = line["body"].clone();
        if let Some(same) = body["tools"].as_str() {
            let number = same.trim_start_matches("<same tools as line ");
            let number: usize = number.split(',').next().unwrap().parse().unwrap();
            body["tools"] = all[number - 1]["body"]["tools"].clone();
        }
        if body["tools"].is_null() {
            body.as_object_mut().unwrap().remove("tools");
        }
        Self {
            body,
            ..Self::from_json(line)
        }
    }

    /// One that holds all it says.
    pub fn from_json(line: &Value) -> Self {
        let headers = line["headers"].as_object().unwrap();
        Self {
            run: line["run"].as_str().unwrap().to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
            body: line["body"].clone(),
            reply: line["server_replied"].clone(),
        }
    }

    /// The conversation a run belongs to: one that is restored is the same one, and so is one in which
    /// the calls have the same ids.
    fn conversation(&self) -> String {
        if self.run.starts_with("openai-python") {
            return "openai-python".to_owned();
        }
        self.run.replace("-restore", "")
    }
}

/// How requests are played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlayOptions {
    /// Against the strictest provider.
    pub strict: bool,
    /// With another process from the middle on.
    pub restart: bool,
    /// With so little room for observations that they are condensed.
    pub reflect: bool,
    /// With the words of messages kept.
    pub keep: bool,
}

impl PlayOptions {
    fn rules(self) -> Rules {
        if self.strict {
            Rules::strict()
        } else {
            Rules::default()
        }
    }

    async fn rig(self) -> Rig {
        let options = Options {
            rules: self.rules(),
            ..Options::default()
        };
        let (messages, observations) = if self.reflect {
            ("2000", "1000")
        } else {
            ("1000", "20000")
        };
        // A strict provider wants one system message; what that costs where it has to be found out is
        // tested elsewhere.
        let placement = if self.strict {
            "append_to_system"
        } else {
            "auto"
        };
        let keep = if self.keep {
            "always"
        } else {
            "until_observed"
        };
        let settings = [
            ("MEMORY__KEEP_MESSAGES", keep),
            ("UPSTREAM__PLACEMENT", placement),
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", messages),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", observations),
        ];
        Rig::with(options, &settings).await
    }
}

/// What came of one request.
#[derive(Debug)]
pub struct RequestOutcome {
    pub run: String,
    /// `reason` of the audit.
    pub reason: String,
    pub active: bool,
    /// Marks that the notes tell of.
    pub noted: BTreeSet<String>,
    /// Marks of this request.
    pub sent: BTreeSet<String>,
    pub left_out: usize,
    pub gone: usize,
}

/// What came of a recording.
#[derive(Debug, Default)]
pub struct Row {
    pub requests: usize,
    /// The accepted ones, in order.
    pub outcomes: Vec<RequestOutcome>,
    /// Asked once and never gone on with: titles, summaries, dead ends.
    pub side: usize,
    pub refused: usize,
    pub calls: usize,
    pub reflections: usize,
    /// Bytes of messages that the Observer was shown.
    pub shown: usize,
    /// Bytes of messages that were confirmed.
    pub new: usize,
    pub wrong: Vec<String>,
}

impl Row {
    /// Requests with memory for this reason.
    pub fn by(&self, reason: &str) -> usize {
        let outcomes = self.outcomes.iter();
        outcomes
            .filter(|outcome| outcome.active && outcome.reason == reason)
            .count()
    }

    /// Messages that observations stood for, all requests together.
    pub fn left_out(&self) -> usize {
        self.outcomes.iter().map(|outcome| outcome.left_out).sum()
    }

    pub fn active(&self) -> usize {
        self.outcomes
            .iter()
            .filter(|outcome| outcome.active)
            .count()
    }

    /// What the Observer was shown for each byte that was new, in hundredths.
    pub fn ratio(&self) -> usize {
        (self.shown * 100).div_ceil(self.new.max(1))
    }

    /// How many requests have memory, run by run.
    pub fn runs(&self) -> BTreeMap<&str, usize> {
        let mut runs = BTreeMap::new();
        for outcome in &self.outcomes {
            *runs.entry(outcome.run.as_str()).or_default() += usize::from(outcome.active);
        }
        runs
    }

    pub const TITLES: &str = "client             requests exact aligned compacted  raw side left out gone refused calls (refl.) shown/new wrong";

    /// One line of the table.
    pub fn format_row(&self, client: &str) -> String {
        let (aligned, compacted) = (self.by("aligned"), self.by("compaction_link"));
        format!(
            "{client:18} {:8} {:5} {:7} {:9} {:4} {:4} {:8} {:4} {:7} {:5} {:7} {:6}.{:02} {:5}",
            self.requests,
            self.active() - aligned - compacted,
            aligned,
            compacted,
            self.outcomes.len() - self.active(),
            self.side,
            self.left_out(),
            self.outcomes
                .iter()
                .map(|outcome| outcome.gone)
                .sum::<usize>(),
            self.refused,
            self.calls,
            self.reflections,
            self.ratio() / 100,
            self.ratio() % 100,
            self.wrong.len(),
        )
    }
}

fn messages(body: &Value) -> &[Value] {
    body["messages"].as_array().unwrap()
}

/// Plays `lines` in order, each judged by the provider's record.
pub async fn play(lines: &[RecordedRequest], how: PlayOptions) -> Row {
    let mut rig = how.rig().await;
    let mut row = Row::default();
    let mut oracle = Oracle::default();
    let mut inflates: BTreeMap<String, Inflate> = BTreeMap::new();
    let mut accepted: Vec<Value> = Vec::new();
    for (at, request) in lines.iter().enumerate() {
        if how.restart && at == lines.len() / 2 {
            rig.restart().await;
        }
        row.requests += 1;
        let conversation = request.conversation();
        let inflate = inflates
            .entry(conversation.clone())
            .or_insert_with(|| Inflate::new(&conversation));
        let mut body = request.body.clone();
        inflate.request(&mut body);
        let reply = inflate.reply(&request.reply);
        rig.provider
            .script(CallerKind::Actor, move |_: &ScriptInput<'_>| reply.clone());

        let before = rig.provider.record_for(CallerKind::Actor).len();
        let headers: Vec<(&str, &str)> = request
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let answer = rig.send_as("Bearer sk-test", &headers, &body).await;
        rig.quiet().await;
        let arrived = rig.provider.record_for(CallerKind::Actor).split_off(before);
        if answer.status != 200 {
            row.refused += 1;
            // Only what the client made wrong by itself is refused.
            if judge(body.to_string().as_bytes(), &how.rules()).is_ok() {
                row.wrong.push(format!("{at}: refused"));
            }
            continue;
        }
        if arrived.len() != 1 || !arrived[0].is_accepted() {
            let refusal = arrived[0].refusal();
            row.wrong.push(format!("{at}: {refusal:?} at first"));
        }
        let sent = arrived.last().unwrap().json().unwrap();
        let judged = oracle.check(
            &conversation,
            messages(&body),
            messages(&sent),
            &model_inputs(&rig),
        );
        if judged.is_wrong() {
            row.wrong
                .push(format!("{at} ({}): {judged:?}", request.run));
        }
        let line = rig.audit_entry(&answer).await;
        let reason = line["reason"].as_str().unwrap_or_default();
        row.outcomes.push(RequestOutcome {
            run: request.run.clone(),
            reason: reason.to_owned(),
            active: answer.memory().starts_with("active"),
            noted: judged.in_notes,
            sent: marks(&body.to_string()).into_iter().collect(),
            left_out: judged.left_out,
            gone: judged.gone.len(),
        });
        accepted.push(body);
    }
    row.side = side_calls(&accepted);
    row.calls = rig.provider.record_for(CallerKind::Observer).len();
    row.reflections = rig.provider.record_for(CallerKind::Reflector).len();
    let lengths: BTreeMap<&String, usize> = inflates
        .values()
        .flat_map(|inflate| inflate.lengths.iter().map(|(mark, length)| (mark, *length)))
        .collect();
    row.shown = marks(&model_inputs(&rig).history)
        .iter()
        .filter_map(|mark| lengths.get(mark))
        .sum();
    row.new = confirmed(&accepted)
        .iter()
        .filter_map(|mark| lengths.get(mark))
        .sum();
    row
}

/// What the models of memory were shown so far.
fn model_inputs(rig: &Rig) -> ModelInputs {
    let prompts = |part| {
        let record = rig.provider.record_for(part);
        let bodies = record.into_iter().map(|entry| entry.json().unwrap());
        bodies.map(|body| script::text(messages(&body).last().unwrap()))
    };
    ModelInputs {
        history: prompts(CallerKind::Observer)
            .map(|prompt| prompt[prompt.rfind("history to observe").unwrap()..].to_owned())
            .collect(),
        condensed: prompts(CallerKind::Reflector).collect(),
    }
}

/// Requests whose newest message no later one repeats; but for the last.
fn side_calls(bodies: &[Value]) -> usize {
    let newest = |body: &Value| messages(body).last().cloned().unwrap();
    let is_repeated = |at: usize| {
        let newest = newest(&bodies[at]);
        let mut later = bodies[at + 1..].iter();
        later.any(|body| messages(body).contains(&newest))
    };
    (0..bodies.len().saturating_sub(1))
        .filter(|at| !is_repeated(*at))
        .count()
}

/// Marks of messages that were not the newest of a request.
fn confirmed(bodies: &[Value]) -> BTreeSet<String> {
    bodies
        .iter()
        .filter_map(|body| messages(body).split_last())
        .flat_map(|(_, before)| before)
        .flat_map(|message| marks(&message.to_string()))
        .collect()
}
