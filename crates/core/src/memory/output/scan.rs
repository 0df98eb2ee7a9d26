//! Finds the sections of an answer by walking over its lines.
//!
//! Knows tags, code fences and lists; does not judge content. Called by [`super::read_answer`] only.

/// The sections of an answer, unchanged.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) observations: String,
    pub(super) current_task: Option<String>,
    pub(super) suggested_response: Option<String>,
    pub(super) title: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Observations,
    Task,
    Response,
    Title,
}

const ALL: [Section; 4] = [
    Section::Observations,
    Section::Task,
    Section::Response,
    Section::Title,
];

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Observations => "observations",
            Self::Task => "current-task",
            Self::Response => "suggested-response",
            Self::Title => "thread-title",
        }
    }

    /// Whether it is a section behind the observations.
    fn is_hint(self) -> bool {
        self != Self::Observations
    }
}

/// A tag at the start of a line, and the rest of the line.
pub(super) struct Tag<'a> {
    section: Section,
    pub(super) closes: bool,
    rest: &'a str,
}

impl Tag<'_> {
    /// Whether a block of observations begins with it.
    pub(super) fn opens_observations(&self) -> bool {
        !self.closes && self.section == Section::Observations
    }
}

/// Splits `answer` into its sections. Without an observations block, or if it is never closed, only
/// list lines and their dates count.
pub(super) fn read_sections(answer: &str) -> Sections {
    let lines: Vec<&str> = unwrap(answer).lines().collect();
    let in_code = lines_in_code(&lines);
    let mut scanner = SectionScanner::default();
    for (index, line) in lines.iter().enumerate() {
        let tag = if in_code[index] {
            None
        } else {
            parse_tag(line)
        };
        match tag {
            Some(tag) if tag.closes => scanner.close(tag.section),
            Some(tag) => {
                scanner.open(tag.section);
                // A section that opens and closes on one line ends there.
                if !tag.rest.trim().is_empty() {
                    scanner.line(tag.rest, &[]);
                }
            }
            None => scanner.line(line, &lines[index + 1..]),
        }
    }
    scanner.end()
}

#[derive(Default)]
struct SectionScanner {
    open: Option<Section>,
    /// Whether a hint interrupted the observations block; it may still continue.
    interrupted: bool,
    /// Lines of the open observations block.
    block: Vec<String>,
    /// Lines of finished blocks.
    finished: Vec<String>,
    /// Lines outside all sections.
    loose: Vec<String>,
    task: Option<String>,
    response: Option<String>,
    title: Option<String>,
    /// Lines of the open hint.
    hint: Vec<String>,
}

impl SectionScanner {
    fn open(&mut self, section: Section) {
        match self.open {
            Some(open) if open.is_hint() => self.finish_hint(),
            Some(Section::Observations) if section != Section::Observations => {
                self.interrupted = true;
            }
            Some(_) => self.finish_block(false),
            None => {}
        }
        if section == Section::Observations && self.interrupted {
            self.finish_block(false);
        }
        self.open = Some(section);
    }

    fn close(&mut self, section: Section) {
        match (self.open, section) {
            (Some(Section::Observations), Section::Observations) => {
                self.finish_block(true);
                self.open = None;
            }
            // The block contained the hint, if it ends while the hint is open or after it.
            (_, Section::Observations) => {
                if self.open.is_some_and(Section::is_hint) {
                    self.finish_hint();
                    self.open = None;
                }
                if self.interrupted {
                    self.finish_block(true);
                }
            }
            (Some(open), _) if open.is_hint() => {
                self.finish_hint();
                self.open = None;
            }
            _ => {}
        }
    }

    fn line(&mut self, line: &str, after: &[&str]) {
        // `… text</observations>`: the closing tag is on the last line of its section.
        if let Some(section) = self.open
            && let Some(before) = closed_at_end(line, section, after)
        {
            self.push(before);
            self.close(section);
            return;
        }
        self.push(line);
    }

    fn push(&mut self, line: &str) {
        let line = line.to_owned();
        match self.open {
            Some(Section::Observations) => self.block.push(line),
            Some(_) => self.hint.push(line),
            // After a hint that interrupted a block: part of the block if that is closed
            // later.
            None if self.interrupted => self.block.push(line),
            None => self.loose.push(line),
        }
    }

    fn finish_block(&mut self, closed: bool) {
        self.interrupted = false;
        let block = std::mem::take(&mut self.block);
        if closed {
            self.finished.extend(block);
        } else {
            self.finished
                .extend(block.into_iter().filter(|l| is_log_line(l)));
        }
    }

    /// The first section of a kind counts.
    fn finish_hint(&mut self) {
        let text = std::mem::take(&mut self.hint).join("\n");
        let hint = match self.open {
            Some(Section::Response) => &mut self.response,
            Some(Section::Title) => &mut self.title,
            _ => &mut self.task,
        };
        if hint.is_none() && !text.trim().is_empty() {
            *hint = Some(text.trim().to_owned());
        }
    }

    fn end(mut self) -> Sections {
        if self.open.is_some_and(Section::is_hint) {
            self.finish_hint();
        }
        if self.open == Some(Section::Observations) || self.interrupted {
            self.finish_block(false);
        }
        self.inline_hints();
        let has_list = self.finished.iter().any(|line| is_list_line(line));
        if !has_list {
            self.finished = self.loose;
            self.finished.retain(|line| is_log_line(line));
        }
        Sections {
            observations: self.finished.join("\n"),
            current_task: self.task,
            suggested_response: self.response,
            title: self.title,
        }
    }

    /// Hints in the middle of a line; the last one counts. Used only if no line begins with one,
    /// and never on the observations, which may mention such tags.
    fn inline_hints(&mut self) {
        for section in ALL.into_iter().filter(|section| section.is_hint()) {
            let mut hint_text = None;
            for line in &mut self.loose {
                while let Some((start, end, text)) = find_inline(line, section) {
                    hint_text = Some(text).filter(|text| !text.is_empty()).or(hint_text);
                    line.replace_range(start..end, "");
                }
            }
            let hint = match section {
                Section::Response => &mut self.response,
                Section::Title => &mut self.title,
                _ => &mut self.task,
            };
            if hint.is_none() {
                *hint = hint_text;
            }
        }
    }
}

/// The position and text of the first `<name>text</name>` of this section in `line`.
fn find_inline(line: &str, section: Section) -> Option<(usize, usize, String)> {
    let (open, close) = (
        format!("<{}>", section.name()),
        format!("</{}>", section.name()),
    );
    let start = line.find(&open)?;
    let from = start + open.len();
    let length = line[from..].find(&close)?;
    let text = line[from..from + length].trim().to_owned();
    Some((start, from + length + close.len(), text))
}

/// The tag at the start of `line`, if there is one; white space and attributes inside the brackets are
/// allowed.
pub(super) fn parse_tag(line: &str) -> Option<Tag<'_>> {
    let inner = line.trim_start().strip_prefix('<')?;
    let (closes, inner) = match inner.strip_prefix('/') {
        Some(inner) => (true, inner),
        None => (false, inner),
    };
    let (name, rest) = inner.split_once('>')?;
    let name = name.split_whitespace().next()?;
    let section = ALL
        .into_iter()
        .find(|section| name.eq_ignore_ascii_case(section.name()))?;
    Some(Tag {
        section,
        closes,
        rest,
    })
}

/// The text before a closing tag at the end of `line`, if the section can end here: nothing follows, or
/// the tag of another section. Otherwise the line only mentions the tag.
fn closed_at_end<'a>(line: &'a str, section: Section, after: &[&str]) -> Option<&'a str> {
    let line = line.trim_end();
    let start = line.rfind("</")?;
    let closing = parse_tag(&line[start..])?;
    let next = after.iter().find(|line| !line.trim().is_empty());
    let ends = next.is_none_or(|next| {
        parse_tag(next).is_some_and(|next| !next.closes || next.section != section)
    });
    (closing.section == section && closing.rest.is_empty() && ends).then(|| &line[..start])
}

/// Whether `line` is an item of a list.
pub(super) fn is_list_line(line: &str) -> bool {
    let line = line.trim_start();
    let marked = ["- ", "* ", "+ ", "• ", "-> ", "→ ", "🔴", "🟡", "🟢", "✅"]
        .iter()
        .any(|mark| {
            line.strip_prefix(mark)
                .is_some_and(|rest| !rest.trim().is_empty())
        });
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let numbered = digits > 0
        && [". ", ") "]
            .iter()
            .any(|mark| line[digits..].starts_with(mark));
    marked || numbered
}

/// Whether `line` is kept outside of an observations block.
fn is_log_line(line: &str) -> bool {
    is_list_line(line) || is_date(line)
}

/// Whether `line` begins a day.
pub(super) fn is_date(line: &str) -> bool {
    line.trim_start().starts_with("Date:")
}

/// `answer` without a code fence around all of it.
fn unwrap(answer: &str) -> &str {
    let inner = answer.trim();
    let opened = inner
        .strip_prefix("```")
        .and_then(|rest| rest.split_once('\n'));
    match opened {
        Some((_, body)) if body.ends_with("```") => &body[..body.len() - 3],
        _ => answer,
    }
}

/// For every line, whether it is inside a code fence that is closed again. A fence directly before an
/// opening tag wraps a section and is no code, except inside the observations.
fn lines_in_code(lines: &[&str]) -> Vec<bool> {
    let mut inside = vec![false; lines.len()];
    let mut fence: Option<usize> = None;
    let mut observing = false;
    for (index, line) in lines.iter().enumerate() {
        let bare = line.trim_start_matches(['*', '-', ' ', '\t']);
        if !bare.starts_with("```") {
            if let (None, Some(tag)) = (fence, parse_tag(line))
                && tag.section == Section::Observations
            {
                observing = !tag.closes;
            }
            continue;
        }
        let next = lines[index + 1..].iter().find(|l| !l.trim().is_empty());
        let wraps = !observing && next.and_then(|l| parse_tag(l)).is_some_and(|t| !t.closes);
        match fence.take() {
            Some(start) => inside[start..=index].fill(true),
            None if wraps => {}
            None => fence = Some(index),
        }
    }
    inside
}
