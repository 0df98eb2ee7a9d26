//! The Observer and the Reflector of a run: they answer as the run decided for the job at hand.

use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use diarist::llm::{
    CallError, CallSettings, Endpoint, FailedCall, Finish, ModelClient, Prompt, Reply,
    ReportedUsage,
};
use diarist::memory::PartKind;

use super::finished;
use super::planted::Bug;
use super::range::Range;
use crate::properties::scripted_observer::Mark;
use crate::support::dice::Dice;

/// The last words of an answer that a limit cut.
pub const CUT_HERE: &str = "And while this was writ";

/// What one call is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// An observation, with hints.
    Hints,
    /// An observation without them.
    Plain,
    /// The whole answer in a code fence, thoughts before it.
    Wrapped,
    /// Nothing.
    Empty,
    /// Words, but no observation.
    Prose,
    /// A loop.
    Loop,
    /// A reflection that is longer than what it condenses.
    Longer,
    /// No connection, 5xx, too late.
    Gone,
    /// 429.
    Busy,
    /// A limit of its output cuts it.
    Cut,
    /// A content filter.
    Filtered,
    /// The prompt is too long for it.
    TooLong,
}

/// How the models of a run are.
#[derive(Clone, Copy, Debug)]
pub struct Character {
    /// Size of an observation, in hundredths of what it covers.
    pub observed: u32,
    /// Size of a reflection, in hundredths of what it condenses.
    pub reflected: u32,
    /// How many calls in a hundred go wrong.
    pub trouble: usize,
}

/// The job under way and what its calls are answered with, the next one last.
#[derive(Debug)]
struct Task {
    range: Range,
    message_tokens: u32,
    moods: Vec<Mood>,
}

/// What the calls for a request are about that is observed while its client waits. They come several
/// at a time and name no range: it is found by what is shown.
#[derive(Debug)]
pub struct ClientWait {
    /// The whole chain of the request.
    pub whole: Range,
    /// What each message that can be shown says, by its place: see [`super::shown`].
    pub shown_messages: Vec<(usize, Vec<String>)>,
    /// How much of the chain is observed.
    pub observed: usize,
    /// Whether the client does not send all of it: then what is shown may begin or end with something
    /// that is not.
    pub view: bool,
    /// What each call is answered with follows from this and its range, in whatever order they come.
    pub salt: u64,
    /// Nothing goes wrong.
    pub calm: bool,
}

impl ClientWait {
    /// Whether a range certainly begins and ends with these, of which all that can be shown is shown.
    fn ends(&self, from: usize, to: usize) -> bool {
        let shown = |place: usize| self.shown_messages.iter().any(|(known, _)| *known == place);
        let begins = from == self.observed || from.checked_sub(1).is_none_or(shown);
        begins && (to == self.whole.to_count || shown(to))
    }
}

/// One process's models.
#[derive(Debug)]
pub struct Scripted {
    character: Character,
    bug: Option<Bug>,
    task: Mutex<Option<Task>>,
    client_wait: Mutex<Option<ClientWait>>,
    /// What the Observer was shown and nobody said.
    pub strange: Mutex<Vec<String>>,
    /// Prompts of chunks, to be compared with the words of their range.
    pub prompts: Mutex<Vec<(Range, Prompt)>>,
}

impl Scripted {
    pub fn new(character: Character, bug: Option<Bug>) -> Self {
        Self {
            character,
            bug,
            task: Mutex::default(),
            client_wait: Mutex::default(),
            strange: Mutex::default(),
            prompts: Mutex::default(),
        }
    }

    /// Decides what the job about `range` will be answered.
    pub fn prepare(&self, range: Range, message_tokens: u32, calm: bool, dice: &mut Dice) {
        let kind = range.kind;
        let trouble = if calm { 0 } else { self.character.trouble };
        let moods = (0..8).map(|_| mood(trouble, kind, dice)).collect();
        *self.task() = Some(Task {
            range,
            message_tokens,
            moods,
        });
    }

    /// From here on calls are for a request whose client waits; with `None`, for jobs again.
    pub fn wait(&self, waited: Option<ClientWait>) {
        *self.client_wait.lock().unwrap() = waited;
    }

    /// The answer to a call for a request whose client waits.
    fn answer_in_wait(&self, waited: &ClientWait, prompt: &Prompt) -> Option<String> {
        let shown = log(&prompt.user);
        let Some((from, to)) = super::shown::find(&waited.shown_messages, shown) else {
            // A message that is cut in two is told in parts, and nobody tells them apart here.
            if !waited.view && !prompt.user.contains("\nPart ") {
                let lines: Vec<_> = shown.lines().filter_map(super::shown::line).collect();
                let how = format!(
                    "the Observer is shown {lines:?} of {:?}",
                    waited.shown_messages
                );
                self.strange.lock().unwrap().push(how);
            }
            return None;
        };
        if !waited.ends(from, to) {
            return None;
        }
        let range = waited.whole.piece(from, to);
        let chance = Dice::new(waited.salt ^ u64::try_from(from << 20 | to).unwrap()).next() % 100;
        let trouble = u64::try_from(self.character.trouble / 2).unwrap();
        if !waited.calm && chance < trouble {
            return None;
        }
        let tokens = u32::try_from(shown.len() / 4).unwrap();
        // Longer ones are taken for loops, and nobody asks again.
        let share = (tokens * self.character.observed / 100).min(250);
        let text = with_finished_task(&range, range.mark().write(share)) + &words_of(shown);
        let hints = format!("<current-task>\n{}\n</current-task>", task_mark(&range));
        let prompt = (range, prompt.clone());
        self.prompts.lock().unwrap().push(prompt);
        Some(format!(
            "<observations>\n* {text}\n</observations>\n{hints}"
        ))
    }

    fn task(&self) -> MutexGuard<'_, Option<Task>> {
        self.task.lock().unwrap()
    }
}

#[async_trait]
impl ModelClient for Scripted {
    async fn call(
        &self,
        _endpoint: &Endpoint,
        settings: &CallSettings,
        prompt: &Prompt,
    ) -> Result<Reply, FailedCall> {
        if let Some(waited) = &*self.client_wait.lock().unwrap() {
            let text = self.answer_in_wait(waited, prompt);
            let text = text.ok_or_else(|| CallError::Transient {
                retry_after: None,
                message: String::new(),
            })?;
            return Ok(Reply {
                text,
                usage: ReportedUsage::default(),
                finish: Finish::Stop,
                model: settings.model.clone(),
            });
        }
        let mut task = self.task();
        let task = task.as_mut().expect("a call without a job");
        let mood = task.moods.pop().unwrap_or(Mood::Plain);
        let range = &task.range;
        let task_log = log(&prompt.user).to_owned();
        let mark = match range.kind {
            PartKind::Chunk => {
                self.prompts
                    .lock()
                    .unwrap()
                    .push((range.clone(), prompt.clone()));
                range.mark()
            }
            PartKind::Reflection => reflected(range, &prompt.user),
        };
        let share = match (range.kind, mood) {
            (PartKind::Chunk, _) => task.message_tokens * self.character.observed / 100,
            (PartKind::Reflection, Mood::Longer) => log_tokens(&prompt.user) + 50,
            (PartKind::Reflection, _) => log_tokens(&prompt.user) * self.character.reflected / 100,
        };
        let lines = match range.kind {
            PartKind::Chunk => with_finished_task(range, mark.write(share)),
            PartKind::Reflection => with_finished_tasks(mark.write(share), &task_log),
        } + &words_of(&task_log);
        let message = String::new();
        let text = match mood {
            Mood::Gone => {
                return Err(FailedCall::from(CallError::Transient {
                    retry_after: None,
                    message,
                }));
            }
            Mood::Busy => {
                return Err(FailedCall::from(CallError::RateLimited {
                    retry_after: None,
                    message,
                }));
            }
            Mood::Filtered => {
                return Err(FailedCall::from(CallError::Refused { message }));
            }
            Mood::TooLong => {
                let excess = None;
                return Err(FailedCall::from(CallError::TooLong { message, excess }));
            }
            Mood::Cut => format!("<observations>\n* {lines}\n* {CUT_HERE}"),
            Mood::Empty => String::new(),
            Mood::Prose => "I am sorry, but I can not help with that.".to_owned(),
            Mood::Loop => "* and then the wind turned and nobody said a word\n".repeat(90),
            Mood::Wrapped => {
                format!("Let me think.\n```xml\n<observations>\n* {lines}\n</observations>\n```\n")
            }
            Mood::Plain | Mood::Longer => format!("<observations>\n* {lines}\n</observations>"),
            Mood::Hints => format!(
                "<observations>\n* {lines}\n</observations>\n<current-task>\n{}\n</current-task>\n\
                 <suggested-response>\nGo on after {}.\n</suggested-response>",
                task_mark(range),
                range.to_count
            ),
        };
        let cut = mood == Mood::Cut && self.bug != Some(Bug::CutTakenForWhole);
        Ok(Reply {
            text,
            usage: ReportedUsage::default(),
            finish: if cut { Finish::Length } else { Finish::Stop },
            model: settings.model.clone(),
        })
    }
}

/// What the hints of a chunk say: where they were written.
pub fn task_mark(range: &Range) -> String {
    let whole = range.whole();
    format!(
        "[[T {} {}]] {}",
        range.to_count,
        whole.hash,
        finished::task(whole)
    )
}

/// `text`, followed by the end of the task that was open before `range`, where the range has one.
fn with_finished_task(range: &Range, text: String) -> String {
    let end = finished::line(range);
    match end {
        Some(end) => format!("{text}\n{end}"),
        None => text,
    }
}

/// `text`, followed by every end of a task in `log`: a Reflector drops none.
fn with_finished_tasks(text: String, log: &str) -> String {
    let ends = log.lines().filter(|line| line.contains('✅'));
    ends.fold(text, |all, end| format!("{all}\n{end}"))
}

/// A line with words of what was shown: an answer about something else is no observation.
fn words_of(shown: &str) -> String {
    // The first line ends the fence, whose code is another one in each run.
    let lines = shown.lines().skip(1);
    let lines = lines.filter(|line| !line.contains("[["));
    let words = lines.flat_map(|line| line.split(|c: char| !c.is_ascii_alphabetic()));
    let mut long: Vec<&str> = words.filter(|word| word.len() >= 5).collect();
    long.sort_unstable();
    long.dedup();
    long.truncate(8);
    format!("\n* 🟢 {}", long.join(" "))
}

/// The log as the prompt shows it.
fn log(user: &str) -> &str {
    let fenced = user.split_once("<history-").map_or("", |(_, rest)| rest);
    fenced.rsplit_once("</history-").map_or("", |(log, _)| log)
}

fn log_tokens(user: &str) -> u32 {
    u32::try_from(log(user).len() / 4).unwrap()
}

/// The mark of a reflection follows from the marks in its sources, not from the range it claims.
fn reflected(range: &Range, user: &str) -> Mark {
    let run = Mark::read(log(user)).iter().fold(
        crate::properties::conversation::Run::default(),
        |run, mark| run.then(mark.run),
    );
    Mark {
        reflection: true,
        run,
        owner: range.owner.clone(),
    }
}

fn mood(trouble: usize, kind: PartKind, dice: &mut Dice) -> Mood {
    use Mood::{
        Busy, Cut, Empty, Filtered, Gone, Hints, Longer, Loop, Plain, Prose, TooLong, Wrapped,
    };
    if dice.chance(trouble) {
        let moods: &[Mood] = match kind {
            PartKind::Chunk => &[
                Empty, Empty, Prose, Loop, Gone, Gone, Busy, Filtered, TooLong, Cut,
            ],
            PartKind::Reflection => &[
                Empty, Prose, Loop, Longer, Longer, Gone, Busy, Filtered, Cut,
            ],
        };
        *dice.pick(moods)
    } else {
        *dice.pick(&[Hints, Hints, Plain, Wrapped])
    }
}
