//! Leaves out blocks that clients put into user messages, such as the state of an editor. They are cut from
//! the text for the Observer, never from what is forwarded.
//!
//! ```text
//! Where is the bug?
//! <environment_details>        a tag that the operator lists, alone on its line
//! # Open tabs
//! src/main.rs
//! </environment_details>       its end, alone on its line
//! ```
//! Only such a block is left out, as a whole. Text that mentions a tag in a sentence, behind a `>`, indented
//! or in a code fence stays, and a tag that is never closed cuts nothing. Called by
//! [`super::rendered_text`].

use std::collections::HashMap;
use std::ops::RangeInclusive;

/// `text` with each block with one of these `tags` replaced by a note.
pub(super) fn replace_blocks(text: &str, tags: &[String]) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let blocks = find_blocks(&lines, tags);
    if blocks.is_empty() {
        return text.to_owned();
    }
    let mut out: Vec<String> = Vec::new();
    let mut at = 0;
    for (block, tag) in blocks {
        out.extend(
            lines[at..*block.start()]
                .iter()
                .map(|line| (*line).to_owned()),
        );
        out.push(note(tag));
        at = block.end() + 1;
    }
    out.extend(lines[at..].iter().map(|line| (*line).to_owned()));
    out.join("\n")
}

/// The note that replaces a block.
pub(super) fn note(tag: &str) -> String {
    format!("[left out, not said by the user: {tag}]")
}

/// The lines of each block and its tag, in order; blocks inside another block are left out.
fn find_blocks<'a>(lines: &[&str], tags: &'a [String]) -> Vec<(RangeInclusive<usize>, &'a str)> {
    let mut open: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut blocks: Vec<(RangeInclusive<usize>, &str)> = Vec::new();
    let mut fence = None;
    for (at, line) in lines.iter().enumerate() {
        let line = line.trim_end();
        if let Some(open_fence) = fence {
            if closes_fence(line, open_fence) {
                fence = None;
            }
            continue;
        }
        fence = opening_fence(line);
        let Some((tag, end)) = parse_tag(line, tags) else {
            continue;
        };
        let open = open.entry(tag).or_default();
        if !end {
            open.push(at);
        } else if let Some(start) = open.pop() {
            blocks.push((start..=at, tag));
        }
    }
    // Of two nested blocks, the outer one comes first and includes the inner one.
    blocks.sort_by_key(|(block, _)| *block.start());
    let mut until = 0;
    blocks.retain(|(block, _)| {
        let outer = *block.start() >= until;
        if outer {
            until = block.end() + 1;
        }
        outer
    });
    blocks
}

/// The tag that a line consists of, and whether it is a closing tag.
fn parse_tag<'a>(line: &str, tags: &'a [String]) -> Option<(&'a str, bool)> {
    let name = line.strip_prefix('<')?.strip_suffix('>')?;
    let (name, end) = match name.strip_prefix('/') {
        Some(name) => (name, true),
        None => (name, false),
    };
    let tag = tags.iter().find(|tag| *tag == name)?;
    Some((tag, end))
}

/// A code fence: its character, and how often it is repeated.
type Fence = (char, usize);

fn opening_fence(line: &str) -> Option<Fence> {
    let (fence, rest) = fence_run(line)?;
    // A backtick behind the fence makes it inline code.
    (fence.0 == '~' || !rest.contains('`')).then_some(fence)
}

fn closes_fence(line: &str, (mark, min_count): Fence) -> bool {
    fence_run(line).is_some_and(|((other, count), rest)| {
        other == mark && count >= min_count && rest.trim().is_empty()
    })
}

/// Three or more of one of the two characters, with at most three spaces before them, and what follows.
fn fence_run(line: &str) -> Option<(Fence, &str)> {
    let text = line.trim_start_matches(' ');
    let mark = text.chars().next().filter(|c| ['`', '~'].contains(c))?;
    let rest = text.trim_start_matches(mark);
    let count = text.len() - rest.len();
    (count >= 3 && line.len() - text.len() <= 3).then_some(((mark, count), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(text: &str) -> String {
        let tags = ["env", "todo"].map(str::to_owned);
        replace_blocks(text, &tags)
    }

    #[test]
    fn a_whole_block_becomes_a_note() {
        let note = note("env");
        for (text, left) in [
            ("<env>\nopen: a.rs\n</env>", note.clone()),
            ("<env>\r\nopen: a.rs\r\n</env>\r\n", format!("{note}\n")),
            (
                "Why?\n<env>\n\n</env> \nNow.",
                format!("Why?\n{note}\nNow."),
            ),
            ("<env>\n</env>\n<env>\n</env>", format!("{note}\n{note}")),
            (
                "<env>\n<env>\na\n</env>\nb\n</env>\nc",
                format!("{note}\nc"),
            ),
            (
                "<env>\n<todo>\na\n</env>\nb\n</todo>",
                format!("{note}\nb\n</todo>"),
            ),
            ("<env>\n```\ncode\n```\n</env>", note.clone()),
            (
                "```\ncode\n```\n<env>\n</env>",
                format!("```\ncode\n```\n{note}"),
            ),
            // The block that was opened before is never closed.
            (
                "<env>\nmine\n<env>\na\n</env>",
                format!("<env>\nmine\n{note}"),
            ),
        ] {
            assert_eq!(cut(text), left, "{text:?}");
        }
    }

    #[test]
    fn text_that_only_mentions_a_tag_stays_unchanged() {
        for text in [
            "",
            "What does <env> mean, and </env>?",
            "<env> begins it\nand this is mine\n</env>",
            "<env>\nand this is mine\n</env> ends it",
            "<env>\nnever closed",
            "never opened\n</env>",
            "</env>\nthe wrong way round\n<env>",
            "<env>one line</env>",
            " <env>\nindented\n </env>",
            "> <env>\n> quoted\n> </env>",
            "```xml\n<env>\nfenced\n</env>\n```",
            "~~~\n```\n<env>\nfenced\n</env>\n~~~",
            "````\n```\n<env>\n</env>\n````",
            "```\n<env>\nthe fence is never closed\n</env>",
            "<env>\nmy question:\n```\n</env>\n```",
            "<env>\nmy question:\n```\n</env>",
            "<ENV>\nanother\n</ENV>",
            "<env x=\"1\">\nanother\n</env>",
            "<task>\nmine\n</task>",
        ] {
            assert_eq!(cut(text), text, "{text:?}");
        }
    }

    #[test]
    fn text_that_only_resembles_a_fence_is_no_fence() {
        let note = note("env");
        for text in ["``` a `b`", "``", "    ```", "``~"] {
            let block = format!("{text}\n<env>\nx\n</env>");
            assert_eq!(cut(&block), format!("{text}\n{note}"));
        }
    }

    /// Whether `left` is `text` with some blocks replaced by their notes, and without any other change.
    fn only_blocks_are_replaced(text: &[&str], left: &[&str]) -> bool {
        let Some((first, left)) = left.split_first() else {
            return text.is_empty();
        };
        let Some(tag) = ["env", "todo"].into_iter().find(|tag| *first == note(tag)) else {
            return text.first() == Some(first) && only_blocks_are_replaced(&text[1..], left);
        };
        let (start, end) = (format!("<{tag}>"), format!("</{tag}>"));
        let mut ends = (1..text.len()).filter(|at| text[*at] == end);
        text.first().is_some_and(|line| *line == start)
            && ends.any(|at| only_blocks_are_replaced(&text[at + 1..], left))
    }

    proptest! {
        /// The rest is the original text, in order, with one note for each removed block.
        #[test]
        fn only_closed_blocks_are_replaced_by_notes(
            lines in proptest::collection::vec("<env>|</env>|<todo>|</todo>|```|~~~~|[a-z]{1,3}| <env>|x <env>", 0..24),
        ) {
            let text = lines.join("\n");
            let left = cut(&text);
            let [before, after] = [&text, &left].map(|text| text.split('\n').collect::<Vec<_>>());
            prop_assert!(only_blocks_are_replaced(&before, &after), "{text}\n--\n{left}");
        }
    }
}
