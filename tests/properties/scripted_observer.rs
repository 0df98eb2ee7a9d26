//! A scripted Observer and Reflector, whose texts say what they cover.
//!
//! Each part carries a mark: its kind, how many messages it stands for, the digest of their
//! sequence, and whose they were. So whoever reads a forwarded body can tell what the block in it
//! covers, without asking anybody.

use diarist::memory::{dates, render};

use super::conversation::{Digest, Run};

/// Where a part ends in the text that is sent.
pub const END: &str = "[[end]]";

/// The first day that a note names.
const DAY: jiff::civil::Date = jiff::civil::date(2025, 2, 1);

/// What a part says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Whether it is a reflection.
    pub reflection: bool,
    /// What it covers.
    pub run: Run,
    /// Whose messages they were.
    pub owner: String,
}

impl Mark {
    /// A text of about `tokens` tokens that carries this mark. Every third note has a day and a plan, so
    /// that how they lie to the day of a block is a good part of what is sent.
    pub fn write(&self, tokens: u32) -> String {
        let kind = if self.reflection { 'R' } else { 'C' };
        let Run { count, hash } = self.run;
        let mark = format!("[[{kind} {count} {hash} {}]]", self.owner);
        let wanted = (tokens as usize * 4).saturating_sub(mark.len() + END.len() + 1);
        let day = |days: usize| {
            let day = DAY.saturating_add(jiff::Span::new().days(i64::try_from(days).unwrap()));
            dates::format_date(day)
        };
        // No two alike: a real answer that repeats itself is taken for a loop.
        let note = |at: usize| match at % 3 {
            2 => format!(
                "\nDate: {}\n* User will take way {hash:x}-{at}. (meaning {})\n",
                day(at),
                day(at + 9)
            ),
            _ => format!("* (14:05) User asked for way {hash:x}-{at} over the pass. "),
        };
        let bytes =
            |text: &str| render::max_tokens(text, |text| u32::try_from(text.len()).unwrap());
        // The day that the whole counts from is said once.
        let once = bytes("");
        let mut left = u32::try_from(wanted).unwrap().saturating_sub(once);
        let notes: String = (0..)
            .map_while(|at| {
                let note = note(at);
                left = left.checked_sub(bytes(&note) - once)?;
                Some(note)
            })
            .collect();
        format!("{mark} {notes}{END}")
    }

    /// All marks in `text`, in order. Also reads text written as JSON.
    pub fn read(text: &str) -> Vec<Self> {
        text.split("[[")
            .filter_map(|rest| {
                let (mark, _) = rest.split_once("]]")?;
                let mut fields = mark.split(' ');
                let reflection = match fields.next()? {
                    "C" => false,
                    "R" => true,
                    _ => return None,
                };
                let count = fields.next()?.parse().ok()?;
                let hash = fields.next()?.parse().ok()?;
                let owner = fields.next()?.to_owned();
                Some(Self {
                    reflection,
                    run: Run { count, hash },
                    owner,
                })
            })
            .collect()
    }
}

/// How Observer and Reflector work in one case.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Answers come this many requests later.
    pub late: usize,
    /// Every so many answers one is empty; 0 is never.
    pub empty_every: usize,
    /// Size of an observation, in hundredths of what it covers.
    pub observed: u32,
    /// Size of a reflection, in hundredths of what it condenses; from 100 on there never is one.
    pub reflected: u32,
}

impl Script {
    /// The text of a chunk of `shown`, which weighs `tokens`.
    pub fn observe(self, owner: &str, shown: &[Digest], tokens: u32) -> String {
        Mark {
            reflection: false,
            run: Run::from_digests(shown),
            owner: owner.to_owned(),
        }
        .write(tokens * self.observed / 100)
    }

    /// The text that condenses `sources`, which weigh `tokens`.
    pub fn reflect(self, owner: &str, sources: &[String], tokens: u32) -> String {
        let run = sources
            .iter()
            .flat_map(|source| Mark::read(source))
            .fold(Run::default(), |run, mark| run.then(mark.run));
        Mark {
            reflection: true,
            run,
            owner: owner.to_owned(),
        }
        .write(tokens * self.reflected / 100)
    }

    /// Whether there are reflections at all; where there are none, code keeps the log within bounds.
    pub fn reflects(self) -> bool {
        self.reflected < 100
    }

    /// Whether what this script writes is short enough for budgets to be kept.
    pub fn works(self) -> bool {
        self.observed <= 50 && (self.reflected <= 60 || !self.reflects())
    }
}
