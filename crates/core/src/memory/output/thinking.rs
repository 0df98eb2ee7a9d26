//! Leaves out what a model thinks aloud before its answer.
//!
//! Servers pass thoughts on in many forms: with both marks, without the first one (it stood in the prompt), without the
//! last one, with drafts of the answer inside. A thought that is taken for an observation would be sent for good; a line
//! that is taken for a thought would be lost. So a mark counts by its place: thoughts stand before the last block. Called
//! by [`super::read_answer`] only.

use super::scan::{is_date, is_list_line, parse_tag};

/// The marks around a thought, in lower case: R1, Qwen and others; Magistral; Seed; Kimi; Command A; Ollama.
const MARKS: [(&str, &str); 11] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reasoning>", "</reasoning>"),
    ("<scratchpad>", "</scratchpad>"),
    ("<seed:think>", "</seed:think>"),
    ("[think]", "[/think]"),
    ("◁think▷", "◁/think▷"),
    ("<|start_thinking|>", "<|end_thinking|>"),
    ("thinking...", "...done thinking."),
];

/// How much of a line is looked at behind a mark.
const LOOK_AHEAD: usize = 64;

/// `answer` without the thinking.
pub(super) fn without_thinking(answer: &str) -> &str {
    let answer = final_channel(answer.trim_start_matches('\u{feff}'));
    // ASCII only, so that places stay the same.
    let lower = answer.to_ascii_lowercase();
    let layout = Layout::new(answer, &lower);
    let begin = match layout.end_of_thoughts() {
        End::At(begin) => begin,
        End::Unclear => return "",
    };
    match layout.unclosed_thought(begin) {
        None => &answer[begin..],
        Some(start) => match layout.last_block.filter(|_| layout.is_finished()) {
            // The model forgot to close its thoughts. A draft would have more of them behind it.
            Some(block) => &answer[block..],
            None => &answer[begin..start],
        },
    }
}

/// gpt-oss writes its thoughts and its answer into channels, which a server may pass on unread, with their marks or
/// without. All of `answer` if it has no channels.
fn final_channel(answer: &str) -> &str {
    const FINAL: &str = "<|start|>assistant<|channel|>final";
    const MESSAGE: &str = "<|message|>";
    let text = answer.trim_start();
    let is_first = text.starts_with("<|channel|>final");
    // Quoted in an observation, it is none.
    let is_real = |at: usize| {
        let before = &answer[..at];
        let has_begun = before.starts_with("<observations") || before.contains("\n<observations");
        text.starts_with("<|") || (before.ends_with("<|end|>") && !has_begun)
    };
    let start = answer.rfind(FINAL).filter(|at| is_real(*at));
    let start = start.map(|at| at + FINAL.len());
    if let Some(start) = start.or(is_first.then_some(0))
        && let Some(message) = answer[start..].find(MESSAGE)
    {
        let text = &answer[start + message + MESSAGE.len()..];
        let ends = ["<|return|>", "<|end|>"];
        let end = ends.iter().filter_map(|end| text.find(end)).min();
        return &text[..end.unwrap_or(text.len())];
    }
    if ["<|channel|>analysis", "<|channel|>commentary"]
        .iter()
        .any(|mark| text.starts_with(mark))
    {
        return "";
    }
    match answer.rsplit_once("assistantfinal") {
        Some((_, text)) if answer.trim_start().starts_with("analysis") => text,
        _ => answer,
    }
}

/// Where the answer begins.
enum End {
    /// Behind the last thought.
    At(usize),
    /// A line of a list ends with a mark, and nothing says whether the list is the answer or a thought.
    Unclear,
}

/// The places in an answer that tell thoughts from observations.
struct Layout<'a> {
    answer: &'a str,
    lower: &'a str,
    /// Every tag that stands for a section: its place, and whether it closes. It begins a line, ends one, or follows the end
    /// of a thought.
    tags: Vec<(usize, bool)>,
    /// Where the last block of observations begins.
    last_block: Option<usize>,
    /// Where the first line of a log begins: a tag, a date, or an item of a list.
    first_log_line: usize,
}

impl<'a> Layout<'a> {
    fn new(answer: &'a str, lower: &'a str) -> Self {
        let mut layout = Self {
            answer,
            lower,
            tags: Vec::new(),
            last_block: None,
            first_log_line: answer.len(),
        };
        let mut at = 0;
        for line in answer.split_inclusive('\n') {
            let tag = parse_tag(line);
            if let Some(tag) = &tag {
                layout.tags.push((at, tag.closes));
                if tag.opens_observations() {
                    layout.last_block = Some(at);
                }
            }
            // `… text</observations>`: the end of a section at the end of a line.
            let text = line.trim_end();
            if let Some(place) = text.rfind("</").filter(|place| *place > 0)
                && text[place..].find('>') == Some(text.len() - place - 1)
                && parse_tag(&text[place..]).is_some()
            {
                layout.tags.push((at + place, true));
            }
            if tag.is_some() || is_date(line) || is_list_line(line) {
                layout.first_log_line = layout.first_log_line.min(at);
            }
            at += line.len();
        }
        // On the same line as the end of a thought.
        for (_, close) in MARKS {
            let joined = format!("{close}<observations");
            for (found, _) in lower.match_indices(&joined) {
                let place = found + close.len();
                layout.tags.push((place, false));
                layout.last_block = layout.last_block.max(Some(place));
            }
        }
        layout.tags.sort_unstable();
        layout
    }

    /// The place behind the last thought that was closed; 0 if there is none.
    fn end_of_thoughts(&self) -> End {
        let is_opened = self
            .opening_mark(0)
            .is_some_and(|(start, _)| start <= self.first_log_line);
        let mut closes = self.closing_marks();
        closes.retain(|(_, end)| !self.is_in_closed_section(*end));
        match self.last_block {
            Some(block) => {
                closes.retain(|(_, end)| *end <= block);
                let end = closes.iter().rev().find(|mark| self.ends_thought(mark));
                End::At(end.map_or(0, |(_, end)| *end))
            }
            None if is_opened => {
                let end = closes.iter().find(|mark| self.ends_thought(mark));
                let end = end.or(closes.first());
                End::At(end.map_or(0, |(_, end)| *end))
            }
            // The list has begun before: thoughts behind it, or marks that the conversation contains.
            None if self.opening_mark(0).is_some() => End::At(0),
            None => match closes.iter().rev().find(|mark| self.ends_thought(mark)) {
                Some((start, _)) if is_list_line(self.line_before(*start)) => End::Unclear,
                Some((_, end)) => End::At(*end),
                None => End::At(0),
            },
        }
    }

    /// Where a thought begins behind `begin` that nothing closes. A mark inside or behind the last block was said in the
    /// conversation.
    fn unclosed_thought(&self, begin: usize) -> Option<usize> {
        let (start, _) = self.opening_mark(begin)?;
        let is_closed = || self.closing_marks().iter().any(|(close, _)| *close > start);
        let is_before_answer = start < self.last_block.unwrap_or(usize::MAX);
        (is_before_answer && (self.last_block.is_some() || !is_closed())).then_some(start)
    }

    /// The first mark at or behind `from` that stands at the start of a line and opens a thought.
    fn opening_mark(&self, from: usize) -> Option<(usize, usize)> {
        let found = MARKS.iter().filter_map(|(open, _)| {
            let mut places = self.lower[from..].match_indices(open);
            let is_mark = |at: usize| self.starts_line(at) && !self.is_in_closed_section(at);
            let place = places.find(|(at, _)| is_mark(from + at));
            place.map(|(at, _)| (from + at, from + at + open.len()))
        });
        found.min()
    }

    /// All marks that may close a thought, in order.
    fn closing_marks(&self) -> Vec<(usize, usize)> {
        let found = MARKS.iter().flat_map(|(_, close)| {
            let places = self.lower.match_indices(close);
            places.map(|(at, _)| (at, at + close.len()))
        });
        let mut marks: Vec<(usize, usize)> = found.collect();
        marks.sort_unstable();
        marks
    }

    /// Whether a mark stands where a thought ends: at the start or the end of a line, or directly before the answer.
    fn ends_thought(&self, (start, end): &(usize, usize)) -> bool {
        let rest = bounded(&self.answer[*end..]);
        let line = rest.lines().next().unwrap_or_default().trim_start();
        line.is_empty()
            || self.starts_line(*start)
            || line.starts_with("```")
            || parse_tag(line).is_some()
            || is_date(line)
            // In the middle of a sentence they are arrows and ticks.
            || (is_list_line(line) && !line.starts_with(['→', '✅']) && !line.starts_with("->"))
    }

    fn starts_line(&self, at: usize) -> bool {
        let before = &self.lower.as_bytes()[at.saturating_sub(LOOK_AHEAD)..at];
        let blank = |byte: &&u8| matches!(**byte, b' ' | b'\t');
        match before.iter().rev().find(|byte| !blank(byte)) {
            Some(byte) => *byte == b'\n',
            None => true,
        }
    }

    /// The beginning of the line on which `at` stands.
    fn line_before(&self, at: usize) -> &str {
        let start = self.answer[..at].rfind('\n').map_or(0, |end| end + 1);
        &self.answer[start..at]
    }

    /// Whether the next tag behind `at` closes a section, so that what stands there is in the section.
    fn is_in_closed_section(&self, at: usize) -> bool {
        let next = self.tags.partition_point(|(place, _)| *place < at);
        self.tags.get(next).is_some_and(|(_, closes)| *closes)
    }

    /// Whether the answer ends with the end of a section.
    fn is_finished(&self) -> bool {
        let text = self.answer.trim_end().trim_end_matches('`').trim_end();
        let last_tag = text.rfind('<').map(|at| &text[at..]);
        let last_tag = last_tag.filter(|tag| tag.find('>') == Some(tag.len() - 1));
        last_tag.and_then(parse_tag).is_some_and(|tag| tag.closes)
    }
}

/// The beginning of `text`.
fn bounded(text: &str) -> &str {
    let mut end = text.len().min(LOOK_AHEAD);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "<observations>\n* real\n</observations>";

    #[test]
    fn thoughts_before_a_block_are_left_out_in_every_form() {
        for (open, close) in MARKS {
            for thoughts in [
                format!("{open}\n- idea\n{close}\n"),
                format!("{open}plan{close}\n"),
                // The mark stood in the prompt.
                format!("- idea\n- more{close}\n"),
                format!(
                    "Sure!\n{open}\n- idea\n<observations>\n* draft\n</observations>\nso\n{close}\n"
                ),
                format!("{open}\nI must end with {close} then\n{close}"),
                format!("{open}\n<observations>\n* a draft without an end\n{close}\n\n"),
                format!(
                    "{}\n- idea\n{}\n",
                    open.to_uppercase(),
                    close.to_uppercase()
                ),
            ] {
                let answer = format!("{thoughts}{BLOCK}");
                assert_eq!(without_thinking(&answer).trim(), BLOCK, "{answer}");
            }
            for thoughts in [
                format!("{open}\n- idea\n{close}\n"),
                format!("- idea\n- more{close}"),
                format!("{open}\n- idea"),
                format!("{open}\n<observations>\n* draft\n</observations>\nI wonder whether"),
            ] {
                assert_eq!(without_thinking(&thoughts).trim(), "", "{thoughts}");
            }
        }
    }

    #[test]
    fn thoughts_before_a_bare_list_are_left_out() {
        for (thoughts, list) in [
            ("<think>plan</think>", "* 🔴 (10:01) User changes src/a2.rs"),
            ("<think>\nplan\ndone.</think>", "Date: Mar 4, 2026\n* 🔴 a"),
            ("<think>plan</think>", "```\nDate: Mar 4, 2026\n* a\n```"),
            ("[THINK]Fine.[/THINK]", "Date: Mar 4, 2026\n* a"),
            ("- THOUGHT src/a1.rs\nfine</think>", "* 🔴 real"),
            ("I write it now.</think>", "Date: Mar 4, 2026\n* a"),
            ("- a thought\n</think>\n", "* 🔴 real"),
            ("<think>a\n</think>\n", "* User asked for </think>\n* and b"),
        ] {
            let answer = format!("{thoughts}{list}");
            assert_eq!(without_thinking(&answer).trim(), list, "{answer}");
        }
        // It may be the answer, or the last idea.
        assert_eq!(without_thinking("* wants what ends with </think>\n* b"), "");
    }

    #[test]
    fn an_answer_behind_thoughts_that_were_not_closed_is_read() {
        let answer = format!("<think>\n- idea\n{BLOCK}\n<current-task>\nt</current-task>\n");
        assert!(without_thinking(&answer).trim().starts_with(BLOCK));
    }

    #[test]
    fn marks_that_the_conversation_contains_are_no_thoughts() {
        for answer in [
            "<observations>\n* User asked what </think> means\n<think>\n* and </think>\n</observations>\n",
            "<observations>\n* User asked what `</think>` means in R1",
            "* User asked what </think> means",
            "<observations>\n* a\n</observations>\n<current-task>\nexplain </think>\n</current-task>",
            // Never closed; closed at the end of a line.
            "<observations>\n* a\n* drop all up to </think>\n* b\n<current-task>t</current-task>",
            "* a\n<current-task>\nstrip all up to </think>\n</current-task>",
            "* a\n<thread-title>Stripping <think></think></thread-title>",
            "Date: May 3, 2026\n* a\n* the template:\n<think>\nplan\n</think>\n* b",
            "* R1 emits <think>plan</think> → drop it\n* b",
            "<observations>\n* a\n<think>\n</think>\n</observations>\n<observations>\n* b\n</observations>",
            "<observations>\n* strip up to </think>\n* x</observations>\n<observations>\n* b\n</observations>",
            "<observations>\n* a\n* prints `<|end|><|start|>assistant<|channel|>final<|message|>`\n* c\n</observations>",
            "<observations>\n* a\n* drop all up to </think>\n<thinking>\n* b</observations>",
            "<observations>\n* 🔴 vLLM prints `<|channel|>analysis<|message|>`\n* and `<|channel|>final<|message|>`\n* c\n</observations>",
        ] {
            assert_eq!(without_thinking(answer), answer);
        }
    }

    #[test]
    fn the_final_channel_is_the_answer() {
        let before = "<|channel|>analysis<|message|>- idea<|end|>";
        for begin in [
            "<|start|>assistant<|channel|>final<|message|>",
            "<|start|>assistant<|channel|>final <|constrain|>text<|message|>",
        ] {
            let answer = format!("{before}{begin}{BLOCK}<|return|>");
            assert_eq!(without_thinking(&answer), BLOCK);
        }
        assert_eq!(
            without_thinking(&format!("<|channel|>final<|message|>{BLOCK}")),
            BLOCK
        );
        assert_eq!(without_thinking(before), "");
        assert_eq!(
            without_thinking(&format!("analysisWe should.assistantfinal{BLOCK}")),
            BLOCK
        );
    }

    #[test]
    fn long_answers_of_marks_take_no_long_time() {
        let marks = "</think>".repeat(100_000) + &" ".repeat(1 << 20);
        assert_eq!(without_thinking(&marks).trim(), "");
        let lines = format!("</think>{}* a b\n", "\n".repeat(1 << 20));
        assert_eq!(without_thinking(&lines).trim(), "* a b");
    }
}
