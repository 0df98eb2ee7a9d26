//! What came of each request, judged by the bodies that the provider got and by nothing else.

use std::collections::{BTreeMap, BTreeSet};

use crate::population::kinds::Kind;
use crate::population::marks::{Mark, found};
use crate::population::request::Request;

/// What went wrong with a request: which words its body held that it should not have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Another user's words.
    Leak,
    /// What its own user took back.
    TakenBack,
    /// What the same user said in another conversation.
    OtherConversation,
    /// What was said on another branch of this conversation.
    OtherBranch,
    /// Words of several users in one call of the Observer or the Reflector.
    Mixed,
    /// The client got something else than the provider's answer.
    Answer,
    /// What the same user said before beginning anew under the same name, and keeping what canned messages
    /// stood at the end. It is counted and forgiven: a client that left its beginning out sends the same.
    Restarted,
}

/// A request as it was played.
#[derive(Clone, Debug)]
pub struct Sent {
    pub seed: u64,
    pub step: usize,
    pub kind: Kind,
    pub user: usize,
    pub conversation: usize,
    /// Whether memory could have been of use.
    pub long: bool,
    /// `x-diarist-memory` of the answer.
    pub memory: String,
    pub request_id: String,
    /// Filled in from the audit in the end.
    pub reason: String,
    /// Whether its body told it something of its own conversation that it did not hold.
    pub is_beyond: bool,
    pub wrong: BTreeMap<Wrong, Mark>,
    /// How many bodies the provider got for it.
    pub bodies: usize,
    /// For the trace.
    pub story: Vec<String>,
}

impl Sent {
    pub fn new(seed: u64, step: usize, request: &Request) -> Self {
        Self {
            seed,
            step,
            kind: request.kind,
            user: request.user,
            conversation: request.conversation,
            long: false,
            memory: String::new(),
            request_id: String::new(),
            reason: String::new(),
            is_beyond: false,
            wrong: BTreeMap::new(),
            bodies: 0,
            story: Vec::new(),
        }
    }

    pub fn is_active(&self) -> bool {
        self.memory.starts_with("active")
    }

    fn wrongs(&self) -> String {
        let wrong = self.wrong.iter();
        let wrong: Vec<String> = wrong
            .map(|(what, mark)| format!("{what:?} {mark}"))
            .collect();
        wrong.join(", ")
    }

    pub fn describe(&self) -> String {
        format!(
            "DIARIST_SEED={} step {}: user {} conversation {}, {}: {} ({} {})",
            self.seed,
            self.step,
            self.user,
            self.conversation,
            self.wrongs(),
            self.kind.name(),
            self.memory,
            self.reason,
        )
    }
}

/// Judges the body that the provider got for `request`, whose own body was `sent`.
pub fn judge(request: &Request, sent: &[u8], got: &[u8], into: &mut Sent) {
    into.bodies += 1;
    let sent_marks = found(sent);
    for mark in found(got).difference(&sent_marks) {
        let wrong = if mark.user != request.user {
            Wrong::Leak
        } else if mark.conversation != request.conversation {
            match request.kind {
                Kind::Restart => Wrong::Restarted,
                _ => Wrong::OtherConversation,
            }
        } else if request.taken.contains(mark) {
            Wrong::TakenBack
        } else if request.may.contains(mark) {
            into.is_beyond = true;
            continue;
        } else {
            Wrong::OtherBranch
        };
        into.wrong.entry(wrong).or_insert(*mark);
    }
}

/// A mark of a second user in one call of memory's own.
pub fn mixed(body: &[u8]) -> Option<Mark> {
    let marks = found(body);
    let first = marks.first()?.user;
    marks.into_iter().find(|mark| mark.user != first)
}

#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub requests: usize,
    pub long: usize,
    pub with_memory: usize,
    /// Those of them that were told nothing wrong.
    pub right: usize,
    pub beyond: usize,
    pub aligned: usize,
    pub linked: usize,
    pub wrong: [usize; 7],
    /// Why long requests had no memory.
    pub without: BTreeMap<String, usize>,
}

impl Counts {
    fn add(&mut self, sent: &Sent) {
        self.requests += 1;
        self.long += usize::from(sent.long);
        self.with_memory += usize::from(sent.long && sent.is_active());
        let right = sent.wrong.keys().all(|wrong| *wrong == Wrong::Restarted);
        self.right += usize::from(sent.long && sent.is_active() && right);
        self.beyond += usize::from(sent.long && sent.is_beyond);
        self.aligned += usize::from(sent.is_active() && sent.reason == "aligned");
        self.linked += usize::from(sent.is_active() && sent.reason == "compaction_link");
        if sent.long && !sent.is_active() {
            *self.without.entry(sent.reason.clone()).or_default() += 1;
        }
        for wrong in sent.wrong.keys() {
            self.wrong[*wrong as usize] += 1;
        }
    }

    pub fn count(&self, wrong: Wrong) -> usize {
        self.wrong[wrong as usize]
    }

    /// How many in a hundred of the long requests had memory, and nothing wrong in it.
    pub fn share(&self) -> usize {
        100 * self.right / self.long.max(1)
    }
}

/// All that was played.
#[derive(Debug, Default)]
pub struct Table {
    pub kinds: BTreeMap<Kind, Counts>,
    pub all: Counts,
}

impl Table {
    pub fn from_requests(all: &[Sent]) -> Self {
        let mut table = Self::default();
        for sent in all {
            table.kinds.entry(sent.kind).or_default().add(sent);
            table.all.add(sent);
        }
        table
    }

    pub fn print(&self) {
        println!(
            "{:<22} {:>8} {:>6} {:>7} {:>6} {:>7} {:>8} {:>5} {:>6} {:>6} {:>6} {:>7}  without memory",
            "kind",
            "requests",
            "long",
            "memory%",
            "right%",
            "beyond%",
            "aligned",
            "link",
            "leaks",
            "taken",
            "other",
            "branch"
        );
        for (kind, counts) in &self.kinds {
            row(kind.name(), counts);
        }
        row("all", &self.all);
    }
}

fn row(name: &str, counts: &Counts) {
    let without = counts.without.iter();
    let without: Vec<String> = without
        .map(|(why, count)| format!("{why} {count}"))
        .collect();
    println!(
        "{name:<22} {:>8} {:>6} {:>7} {:>6} {:>7} {:>8} {:>5} {:>6} {:>6} {:>6} {:>7}  {}",
        counts.requests,
        counts.long,
        100 * counts.with_memory / counts.long.max(1),
        counts.share(),
        100 * counts.beyond / counts.long.max(1),
        counts.aligned,
        counts.linked,
        counts.count(Wrong::Leak),
        counts.count(Wrong::TakenBack),
        counts.count(Wrong::OtherConversation),
        counts.count(Wrong::OtherBranch),
        without.join(", "),
    );
}

/// The first request of each conversation in which something went wrong, those of another kind than the ones
/// before them first, and those that are forgiven last.
pub fn first_of_each(all: &[Sent]) -> Vec<&Sent> {
    let mut conversations = BTreeSet::new();
    let wrong = all.iter().filter(|sent| !sent.wrong.is_empty());
    let mut first: Vec<&Sent> = wrong
        .filter(|sent| conversations.insert((sent.seed, sent.conversation)))
        .collect();
    let mut times: BTreeMap<(Kind, Wrong), usize> = BTreeMap::new();
    first.sort_by_cached_key(|sent| {
        let worst = *sent.wrong.keys().next().unwrap();
        let time = times.entry((sent.kind, worst)).or_default();
        *time += 1;
        (worst == Wrong::Restarted, *time)
    });
    first
}

/// Every request of the conversations of the first few `cases`.
pub fn trace(all: &[Sent], cases: &[&Sent]) {
    let conversations: BTreeSet<(u64, usize)> = cases
        .iter()
        .map(|sent| (sent.seed, sent.conversation))
        .collect();
    for (seed, conversation) in conversations {
        println!("\nDIARIST_SEED={seed} conversation {conversation}");
        let mut before: &[String] = &[];
        let its = all.iter();
        for sent in its.filter(|sent| (sent.seed, sent.conversation) == (seed, conversation)) {
            let (how, messages) = sent.story.split_first().unwrap();
            println!(
                "  {} {} {} {}",
                sent.step,
                sent.memory,
                sent.reason,
                sent.wrongs()
            );
            println!("    {how}");
            println!("    {}", shortened(messages, before));
            before = messages;
        }
    }
}

/// What is new in `messages`; how many were in the request `before`.
fn shortened(messages: &[String], before: &[String]) -> String {
    let (mut parts, mut same) = (Vec::new(), 0);
    for message in messages {
        if before.contains(message) {
            same += 1;
            continue;
        }
        if same > 0 {
            parts.push(format!("[{same} as before]"));
        }
        same = 0;
        parts.push(message.clone());
    }
    if same > 0 {
        parts.push(format!("[{same} as before]"));
    }
    parts.join(" | ")
}

#[test]
fn the_judge_detects_marks_of_other_users_and_conversations() {
    let mark = |user, conversation, number| Mark {
        user,
        conversation,
        number,
    };
    let request = Request {
        may: BTreeSet::from([mark(1, 1, 1), mark(1, 1, 4)]),
        taken: BTreeSet::from([mark(1, 1, 2)]),
        ..Request::nothing(1, 1)
    };
    let judged = |got_mark: Mark| {
        let mut sent = Sent::new(0, 0, &request);
        let got = format!("{got_mark} {}", mark(1, 1, 4));
        judge(
            &request,
            mark(1, 1, 4).to_string().as_bytes(),
            got.as_bytes(),
            &mut sent,
        );
        sent.wrong.pop_first().map(|(wrong, _)| wrong)
    };
    assert_eq!(judged(mark(1, 1, 1)), None);
    assert_eq!(judged(mark(2, 3, 1)), Some(Wrong::Leak));
    assert_eq!(judged(mark(1, 1, 2)), Some(Wrong::TakenBack));
    assert_eq!(judged(mark(1, 2, 2)), Some(Wrong::OtherConversation));
    assert_eq!(judged(mark(1, 1, 3)), Some(Wrong::OtherBranch));
    let both = format!("{} {}", mark(1, 1, 1), mark(2, 2, 1));
    assert_eq!(mixed(both.as_bytes()), Some(mark(2, 2, 1)));
}
