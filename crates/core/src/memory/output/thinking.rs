//! Leaves out what a model thinks aloud before its answer.
//!
//! Servers pass thoughts on in many forms: with both marks, without the first one (it stood in the prompt), without the
//! last one, with drafts of the answer inside. A thought that is taken for an observation would be sent for good, so what
//! may be either is left out. Marks inside of a closed section are words of the conversation. Called by
//! [`super::read_answer`] only.

use super::scan::parse_tag;

/// The marks around a thought, in lower case: R1, Qwen and others; Magistral; Seed; Kimi; Command A.
const MARKS: [(&str, &str); 9] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[think]", "[/think]"),
    ("◁think▷", "◁/think▷"),
    ("<|start_thinking|>", "<|end_thinking|>"),
];

/// gpt-oss writes its thoughts and its answer into channels, which a server may pass on unread.
const FINAL_CHANNEL: &str = "<|channel|>final<|message|>";
const OTHER_CHANNELS: [&str; 2] = ["<|channel|>analysis", "<|channel|>commentary"];
const ENDS_OF_CHANNEL: [&str; 2] = ["<|return|>", "<|end|>"];

/// `answer` without the thinking.
pub(super) fn without_thinking(answer: &str) -> &str {
    let answer = last_channel(answer);
    let marks = marks_outside_of_sections(answer);
    let last_close = marks.iter().rposition(|mark| mark.closes);
    let begin = last_close.map_or(0, |index| marks[index].end);
    let behind = &marks[last_close.map_or(0, |index| index + 1)..];
    match behind.first() {
        None => &answer[begin..],
        Some(unclosed) => {
            let before = &answer[begin..unclosed.start];
            let thought = &answer[unclosed.end..];
            finished_answer(thought).unwrap_or(before)
        }
    }
}

/// The final channel; all of `answer` if it has no channels.
fn last_channel(answer: &str) -> &str {
    if let Some(start) = answer.rfind(FINAL_CHANNEL) {
        let text = &answer[start + FINAL_CHANNEL.len()..];
        let ends = ENDS_OF_CHANNEL.iter().filter_map(|end| text.find(end));
        return &text[..ends.min().unwrap_or(text.len())];
    }
    if OTHER_CHANNELS.iter().any(|name| answer.contains(name)) {
        ""
    } else {
        answer
    }
}

/// A mark of thinking.
struct Mark {
    start: usize,
    end: usize,
    closes: bool,
}

/// The marks in `answer`, in order. One that begins a thought stands at the start of a line; one that ends it does too, or
/// at the end of a line, or directly before the answer. A mark before which a section was opened, and behind which it is
/// closed, was said in the conversation.
fn marks_outside_of_sections(answer: &str) -> Vec<Mark> {
    let mut marks = Vec::new();
    // Those since the last tag: the next tag decides what they are.
    let mut undecided = Vec::new();
    let mut offset = 0;
    for line in answer.split_inclusive('\n') {
        match parse_tag(line) {
            Some(tag) if tag.closes => undecided.clear(),
            Some(_) => marks.append(&mut undecided),
            None => {
                undecided.extend(marks_of_line(line, offset));
                let rest = undecided.last().map(|mark| answer[mark.end..].trim_start());
                // A tag on the same line as the mark.
                if rest.is_some_and(|rest| rest.starts_with("<observations")) {
                    marks.append(&mut undecided);
                }
            }
        }
        offset += line.len();
    }
    marks.append(&mut undecided);
    marks
}

fn marks_of_line(line: &str, offset: usize) -> Vec<Mark> {
    // ASCII only, so that places stay the same.
    let lower = line.to_ascii_lowercase();
    let text_start = line.len() - line.trim_start_matches(['\u{feff}', ' ', '\t']).len();
    let mut marks = Vec::new();
    for (open, close) in MARKS {
        if lower[text_start..].starts_with(open) {
            let start = offset + text_start;
            let end = start + open.len();
            marks.push(Mark {
                start,
                end,
                closes: false,
            });
        }
        // Of several, the last one that can end a thought.
        let ends_thought = |at: &usize| {
            let rest = lower[at + close.len()..].trim();
            *at == text_start || rest.is_empty() || rest.starts_with("<observations")
        };
        let found = lower.match_indices(close).map(|(at, _)| at);
        if let Some(at) = found.filter(ends_thought).last() {
            let (start, end) = (offset + at, offset + at + close.len());
            marks.push(Mark {
                start,
                end,
                closes: true,
            });
        }
    }
    marks.sort_by_key(|mark| mark.start);
    marks
}

/// The last block of a thought that was never closed, if nothing but sections follows it up to the end: the model forgot
/// the mark. A draft has more thoughts behind it.
fn finished_answer(thought: &str) -> Option<&str> {
    let ends = thought.trim_end().trim_end_matches('`').trim_end();
    let last_line = ends.lines().last()?;
    let last_tag = &last_line[last_line.rfind('<')?..];
    let is_finished = parse_tag(last_tag).is_some_and(|tag| tag.closes);
    let start = if thought.trim_start().starts_with("<observations") {
        0
    } else {
        thought.rfind("\n<observations")?
    };
    is_finished.then(|| &thought[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "<observations>\n* real\n</observations>";

    #[test]
    fn thoughts_before_an_answer_are_left_out_in_every_form() {
        for (open, close) in MARKS {
            for thoughts in [
                format!("{open}\n- idea\n{close}\n"),
                // The mark stood in the prompt.
                format!("- idea\n- more{close}\n"),
                format!(
                    "Sure!\n{open} - idea\n<observations>\n* draft\n</observations>\nso\n{close}\n"
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
                format!("- idea\n{close}"),
                format!("{open}\n- idea"),
                format!("{open}\n<observations>\n* draft\n</observations>\nI wonder whether"),
            ] {
                assert_eq!(without_thinking(&thoughts).trim(), "", "{thoughts}");
            }
        }
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
        ] {
            assert_eq!(without_thinking(answer), answer);
        }
    }

    #[test]
    fn the_final_channel_is_the_answer() {
        let before = "<|channel|>analysis<|message|>- idea<|end|><|start|>assistant";
        let answer = format!("{before}<|channel|>final<|message|>{BLOCK}<|return|>");
        assert_eq!(without_thinking(&answer), BLOCK);
        assert_eq!(without_thinking(before), "");
    }
}
