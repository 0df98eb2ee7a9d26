//! Facts that were said must reach the model for as long as the conversation lasts, raw or observed; and
//! where an Observer or a Reflector drops one, it is noticed.

use std::collections::BTreeMap;

use diarist_provider::{CallerKind, Conversation, Options, Rules, Style, judge};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{MODES, Mode, conversations, is_long, sign};
use crate::memory::rig::Rig;
use crate::replays::planted::{Kind, Planted, notes, plant, says, strings};
use crate::replays::scripted_observers::{Condensing, Dropping, Extracting, Forgetting, reminded};
use crate::support::depth;

/// Facts in one conversation at most.
const FACTS: usize = 100;

/// In the order of what is played in the plain form: conversations whose names begin so, and
/// how many of them.
const SAMPLE: [(&str, usize); 4] = [("made", 2), ("swe", 1), ("tau-airline", 2), ("tau-long", 0)];

/// Messages of a sampled conversation at most.
const SAMPLED: usize = 120;

/// Conversations with a fact in every message, or in every so-manieth of a long one.
fn planted() -> Vec<(Conversation, Vec<Planted>)> {
    let mut played = conversations();
    played.extend([
        Conversation::generate(41, 60, Style::Coding),
        Conversation::generate(42, 90, Style::Travel),
    ]);
    if !is_long() {
        let mut left: BTreeMap<&str, usize> = SAMPLE.into();
        played.retain(|conversation| {
            let begins = |name: &&&str| conversation.id.starts_with(**name);
            let name = SAMPLE.iter().map(|(name, _)| name).find(begins);
            let left = left.get_mut(name.copied().unwrap_or(SAMPLE[0].0)).unwrap();
            let plays = *left > 0;
            *left -= usize::from(plays);
            plays
        });
        for conversation in &mut played {
            conversation.messages.truncate(SAMPLED);
        }
    }
    let step = |conversation: &Conversation| conversation.messages.len().div_ceil(FACTS);
    played
        .iter()
        .map(|conversation| plant(conversation, step(conversation)))
        .collect()
}

/// Room for everything that must be kept: where there is none, even the most faithful must leave
/// something out. Of what is not planted, one part in so many.
fn room(conversation: &Conversation, facts: &[Planted], one_in: usize) -> String {
    let tokens = Value::Array(conversation.messages.clone())
        .to_string()
        .len()
        / 4;
    (800 + 28 * facts.len() + tokens / one_in).to_string()
}

async fn rig(observations: &str, settings: &[(&str, &str)]) -> Rig {
    let all = [
        ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1200"),
        ("MEMORY__REFLECTION__OBSERVATION_TOKENS", observations),
    ];
    Rig::with(Options::default(), &[&all, settings].concat()).await
}

/// The modes of providers that a conversation is played before in turn. (What one that is asked for JSON
/// demands is not in the facts.)
const TURNS: [&str; 5] = [
    "alternate",
    "single_system",
    "system_first",
    "signature",
    "plain",
];

/// The mode that `conversation` is played in: the next one in turn that takes its own requests.
fn mode(at: usize, conversation: &Conversation) -> Mode {
    let mode = |name: &&str| *MODES.iter().find(|(known, _)| known == name).unwrap();
    let takes = |(name, demand): &Mode| {
        let mut rules = Rules::default();
        demand(&mut rules);
        conversation.requests().all(|sent| {
            let body = body(conversation, sent, name).to_string();
            judge(body.as_bytes(), &rules).is_ok()
        })
    };
    let turns = TURNS.iter().cycle().skip(at % TURNS.len());
    let mut modes = turns.take(TURNS.len()).map(mode);
    modes.find(takes).unwrap()
}

fn body(conversation: &Conversation, sent: usize, mode: &str) -> Value {
    let mut body = conversation.request(sent, "gpt-test", false);
    if mode == "signature" {
        sign(&mut body);
    }
    body
}

/// Plays `conversation`, and looks after each turn for every fact that was sent. How many requests did
/// without some message, and which facts were missing where.
async fn missing(
    rig: &Rig,
    conversation: &Conversation,
    facts: &[Planted],
    (name, demand): Mode,
) -> (usize, Vec<(usize, String)>) {
    let (mut shortened, mut missing) = (0, Vec::new());
    rig.provider.rules(demand);
    for sent in conversation.requests() {
        let body = body(conversation, sent, name);
        let answer = rig.send(&body).await;
        let answer_body = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(
            answer.status, 200,
            "{} at {sent}: {answer_body}",
            conversation.id
        );
        let got = rig.provider.record_for(CallerKind::Actor).pop().unwrap();
        let got = got.json().unwrap();
        shortened += usize::from(answer.memory().starts_with("active"));
        let text = strings(&got["messages"]);
        let gone = facts
            .iter()
            .filter(|fact| fact.at < sent && !says(&text, &fact.words));
        missing.extend(gone.map(|fact| (sent, fact.words.clone())));
        rig.quiet().await;
        rig.provider.forget_bodies();
    }
    (shortened, missing)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn no_planted_fact_is_ever_missing() {
    let (mut requests, mut shortened, mut sought, mut reflections) = (0, 0, 0, 0);
    let played = planted();
    let mut modes: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, (conversation, facts)) in played.iter().enumerate() {
        let mode = mode(at, conversation);
        *modes.entry(mode.0).or_default() += 1;
        let mut rig = rig(&room(conversation, facts, 20), &[]).await;
        rig.provider.script(CallerKind::Observer, Extracting);
        rig.provider.script(CallerKind::Reflector, Condensing);
        let (short, missing) = missing(&rig, conversation, facts, mode).await;
        let few = &missing[..missing.len().min(5)];
        let count = missing.len();
        let id = &conversation.id;
        assert_eq!(missing, [], "{id}, {}: {count}, {few:?}", mode.0);
        for sent in conversation.requests() {
            requests += 1;
            sought += facts.iter().filter(|fact| fact.at < sent).count();
        }
        shortened += short;
        let written = "SELECT count(*) FROM parts WHERE kind = 'reflection' AND model <> 'code'";
        reflections += rig.number(written).await;
        rig.stop().await;
    }
    print_line(&format!(
        "{} conversations, {} facts: {requests} requests, {shortened} of them with observations, \
         {reflections} reflections; looked for a fact {sought} times, missed none; modes: {modes:?}",
        played.len(),
        played.iter().map(|(_, facts)| facts.len()).sum::<usize>(),
    ));
    assert!(
        shortened * 3 > requests && reflections > 3,
        "memory was at work"
    );
    let strict = TURNS.iter().filter(|name| **name != "plain");
    assert!(
        strict.clone().all(|name| modes.contains_key(name)),
        "{modes:?}"
    );
}

/// What was dropped, what was noticed, and what was called lost without having been dropped.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    dropped: usize,
    noticed: usize,
    wrong: usize,
}

impl Count {
    fn add(&mut self, dropped: usize, noticed: usize) {
        self.dropped += dropped;
        self.noticed += noticed.min(dropped);
        self.wrong += noticed.saturating_sub(dropped);
    }

    fn describe(&self) -> String {
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        format!(
            "{} dropped, precision {:.3}, recall {:.3}",
            self.dropped,
            share(self.noticed, self.noticed + self.wrong),
            share(self.noticed, self.dropped)
        )
    }
}

/// Lost items of one kind, by the retention that stands with a part.
fn lost(retention: &Value, kind: &str) -> usize {
    let number = |at: usize| retention[kind][at].as_u64().unwrap_or(0);
    usize::try_from(number(1) - number(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn facts_that_an_observer_drops_are_noticed() {
    // By kind and by who said it: the user, or an assistant or a tool.
    let mut counts: BTreeMap<(Kind, bool), Count> = BTreeMap::new();
    let mut ratio = false;
    for (conversation, facts) in planted() {
        let goes = |fact: &&Planted| !fact.number.is_multiple_of(3);
        let dropped: Vec<&Planted> = facts.iter().filter(goes).collect();
        let mut rig = rig("20000", &[]).await;
        let words = dropped.iter().map(|fact| fact.words.clone()).collect();
        rig.provider
            .script(CallerKind::Observer, Dropping { words });
        rig.play(&conversation).await;

        // The leading system message is not counted.
        let head = usize::from(conversation.messages[0]["role"] == "system");
        let mut database = rig.database().await;
        let chunks =
            sqlx::query("SELECT from_count, to_count, retention FROM parts WHERE kind = 'chunk'");
        for row in chunks.fetch_all(&mut database).await.unwrap() {
            let [from, to] =
                [0, 1].map(|at| usize::try_from(row.get::<i64, _>(at)).unwrap() + head);
            let retention: Value = serde_json::from_str(row.get(2)).unwrap();
            let speakers = [(true, &retention), (false, &retention["others"])];
            for (kind, (by_user, kept)) in Kind::ALL.iter().flat_map(|k| speakers.map(|s| (*k, s)))
            {
                let here = dropped.iter().filter(|fact| {
                    fact.kind == kind && fact.by_user == by_user && (from..to).contains(&fact.at)
                });
                let (here, noticed) = (here.count(), lost(kept, kind.name()));
                if here != noticed {
                    let at = format!("{} {from}-{to}", conversation.id);
                    print_line(&format!(
                        "{at}: {kind:?}, by the user: {by_user}: {here} dropped, {noticed} noticed"
                    ));
                }
                counts
                    .entry((kind, by_user))
                    .or_default()
                    .add(here, noticed);
            }
        }
        ratio |= rig
            .metrics()
            .await
            .contains("diarist_observation_retention_ratio_bucket{");
        rig.stop().await;
    }
    let mut sum = Count::default();
    for ((kind, by_user), count) in &counts {
        let whose = if *by_user { "user's" } else { "others'" };
        print_line(&format!("{whose} {kind:?}: {}", count.describe()));
        // The JSON of tools puts every string in quotes, often within quotes and cut off: one that is gone
        // changes which of them close which.
        if (*kind, *by_user) != (Kind::Quote, false) {
            sum.dropped += count.dropped;
            sum.noticed += count.noticed;
            sum.wrong += count.wrong;
        }
    }
    print_line(&format!(
        "dropped by an Observer, all but others' quotes: {}",
        sum.describe()
    ));
    assert!(ratio, "the metrics tell how much is kept");
    let least = depth::long_or(6, 2);
    assert!(
        counts.values().all(|count| count.dropped >= least),
        "{counts:?}"
    );
    assert_eq!((sum.noticed, sum.wrong), (sum.dropped, 0), "{counts:?}");
}

/// What the Reflector was told of, what was gone from what it wrote, and what became of it.
struct Reflected {
    /// Asked again with a list, and how many of what it dropped was on it.
    reminders: usize,
    listed: Count,
    /// By the retention of what was kept in the end.
    kept: Count,
    missing: Vec<(usize, String)>,
    /// As the metrics count them.
    counted: f64,
}

/// A conversation whose Reflector drops every third fact, where so much of what matters may be lost.
async fn forgotten(conversation: &Conversation, facts: &[Planted], may: &str) -> Reflected {
    let settings = [("MEMORY__REFLECTION__MAX_LOSS", may)];
    // This Reflector merges nothing, so its log grows.
    let mut rig = rig(&room(conversation, facts, 14), &settings).await;
    let goes = facts.iter().filter(|fact| fact.number % 3 == 1);
    let words: Vec<String> = goes.map(|fact| fact.words.clone()).collect();
    rig.provider.script(CallerKind::Observer, Extracting);
    let forgetting = Forgetting {
        words: words.clone(),
        lines: may == "0",
    };
    rig.provider.script(CallerKind::Reflector, forgetting);
    let mut reflected = Reflected {
        reminders: 0,
        listed: Count::default(),
        kept: Count::default(),
        missing: Vec::new(),
        counted: 0.0,
    };
    let mut checked = 0;
    for sent in conversation.requests() {
        let body = conversation.request(sent, "gpt-test", false);
        assert_eq!(rig.send(&body).await.status, 200);
        let got = rig.provider.record_for(CallerKind::Actor).pop().unwrap();
        let text = strings(&got.json().unwrap()["messages"]);
        let gone = facts
            .iter()
            .filter(|fact| fact.at < sent && !says(&text, &fact.words));
        reflected
            .missing
            .extend(gone.map(|fact| (sent, fact.words.clone())));
        rig.quiet().await;
        let calls = rig.provider.record_for(CallerKind::Reflector);
        for call in &calls[checked..] {
            let shown = strings(&call.json().unwrap()["messages"]);
            if shown.contains("\n<missing-") {
                let log = shown.split("\n<missing-").next().unwrap();
                let dropped = words.iter().filter(|words| log.contains(words.as_str()));
                reflected.reminders += 1;
                reflected
                    .listed
                    .add(dropped.count(), reminded(&shown, &words).len());
            }
        }
        checked = calls.len();
        rig.provider.forget_bodies();
    }
    let mut database = rig.database().await;
    let written =
        "SELECT text, retention, sources FROM parts WHERE kind = 'reflection' AND model <> 'code'";
    for row in sqlx::query(written).fetch_all(&mut database).await.unwrap() {
        let (text, retention): (String, String) = (row.get(0), row.get(1));
        let before = "SELECT text FROM parts WHERE id IN (SELECT value FROM json_each($1))";
        let before: Vec<String> = sqlx::query_scalar(before)
            .bind(row.get::<String, _>(2))
            .fetch_all(&mut database)
            .await
            .unwrap();
        let before = before.join("\n");
        let gone = facts
            .iter()
            .filter(|fact| before.contains(&fact.words) && !says(&text, &fact.words));
        let retention: Value = serde_json::from_str(&retention).unwrap();
        reflected.kept.add(gone.count(), lost(&retention, "high"));
    }
    let name = "diarist_reflections_reminded_total";
    reflected.counted = rig.metric(name).await;
    rig.stop().await;
    reflected
}

/// Long enough to be condensed several times.
fn long() -> Vec<(Conversation, Vec<Planted>)> {
    let mut played = planted();
    played.retain(|(conversation, _)| conversation.messages.len() >= 60);
    played
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn facts_dropped_by_a_reflector_are_requested_again_and_restored() {
    let (mut reminders, mut listed) = (0, Count::default());
    for (conversation, facts) in long() {
        let reflected = forgotten(&conversation, &facts, "0").await;
        assert_eq!(reflected.missing, [], "{}", conversation.id);
        assert_eq!(reflected.kept.dropped, 0, "{}", conversation.id);
        // Counted by the process, which plays others too.
        assert!(
            reflected.counted >= reflected.reminders as f64,
            "{}",
            conversation.id
        );
        reminders += reflected.reminders;
        listed.dropped += reflected.listed.dropped;
        listed.noticed += reflected.listed.noticed;
        listed.wrong += reflected.listed.wrong;
    }
    print_line(&format!("{reminders} reminders: {}", listed.describe()));
    assert!(reminders > 3);
    assert_eq!(
        listed.noticed, listed.dropped,
        "each reminder lists all that is gone"
    );
}

/// Where anything may be lost, what was lost is written down all the same.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn facts_that_a_reflector_may_drop_are_counted() {
    let mut kept = Count::default();
    for (conversation, facts) in long() {
        let reflected = forgotten(&conversation, &facts, "1").await;
        assert_eq!(reflected.reminders, 0, "{}", conversation.id);
        kept.dropped += reflected.kept.dropped;
        kept.noticed += reflected.kept.noticed;
        kept.wrong += reflected.kept.wrong;
    }
    print_line(&format!("dropped by a Reflector: {}", kept.describe()));
    assert!(kept.dropped > 10);
    assert_eq!((kept.noticed, kept.wrong), (kept.dropped, 0));
}

#[test]
fn facts_are_planted_in_every_kind_of_message() {
    let made = Conversation::generate(5, 60, Style::Coding);
    let (planted, facts) = plant(&made, 1);
    let is_in_message = |fact: &&Planted| strings(&planted.messages[fact.at]).contains(&fact.words);
    assert_eq!(facts.iter().filter(is_in_message).count(), facts.len());
    for role in ["user", "assistant", "tool"] {
        let by = facts
            .iter()
            .filter(|fact| planted.messages[fact.at]["role"] == role);
        assert!(by.count() > 10, "{role}");
    }
    let calls = facts.iter().filter(|fact| {
        planted.messages[fact.at]["tool_calls"]
            .to_string()
            .contains("remark")
    });
    assert!(calls.count() > 3);
    let all = strings(&json!(planted.messages));
    assert!(notes(&all).len() >= facts.len() * 9 / 10);
}

#[expect(clippy::print_stdout, reason = "the numbers are the point")]
fn print_line(text: &str) {
    println!("{text}");
}
