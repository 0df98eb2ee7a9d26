use proptest::prelude::*;

use super::*;
use crate::memory::prompt::escape;

fn observed(answer: &str) -> (String, Option<String>, Option<String>) {
    match read_answer(answer, &"x".repeat(answer.len())) {
        ParsedAnswer::Observed {
            text,
            current_task,
            suggested_response,
            title: _,
        } => (text, current_task, suggested_response),
        other => panic!("{other:?} for {answer}"),
    }
}

const LOG: &str = "Date: Mar 4, 2026\n* 🔴 (14:05) User stated 猫 is called Ada 🐈\n  * -> black";

#[test]
fn an_answer_in_the_requested_format_is_read() {
    let answer = format!(
        "<observations>\n{LOG}\n</observations>\n<current-task>\nPrimary: the cat\n</current-task>\n<suggested-response>\nAsk.\n</suggested-response>\n"
    );
    let want = (
        LOG.to_owned(),
        Some("Primary: the cat".to_owned()),
        Some("Ask.".to_owned()),
    );
    assert_eq!(observed(&answer), want);
    assert_eq!(observed(&answer.replace('\n', "\r\n")), want);
    assert_eq!(observed(&format!("```xml\n{answer}```\n")), want);
    assert_eq!(
        observed(&format!("Here it is:\n```\n{answer}\n```\nDone.")),
        want
    );
    assert_eq!(
        observed(&format!("<think>\n- not this\n</think>\n{answer}")),
        want
    );
    assert_eq!(observed(&format!("<think>\n- nor this\n{answer}")), want);
    assert_eq!(
        observed(&answer.replace("<observations>", "<Observations lang=\"en\" >")),
        want
    );
}

#[test]
fn incomplete_formats_of_small_models_are_read() {
    let task = "<current-task>t</current-task>";
    let whole = (LOG.to_owned(), None, None);
    let with_task = (LOG.to_owned(), Some("t".to_owned()), None);
    for (answer, want) in [
        // no block
        (LOG.to_owned(), &whole),
        (
            format!("Sure! Here are the notes:\n{LOG}\nLet me know."),
            &whole,
        ),
        // never closed, closed by the next section, closed at the end of the last line
        (format!("<observations>\n{LOG}"), &whole),
        (format!("<observations>\n{LOG}\n{task}"), &with_task),
        (
            format!("<observations>\n{LOG}\n{task}\nThat is all."),
            &with_task,
        ),
        (format!("<observations>\n{LOG}</observations>"), &whole),
        (
            format!("<observations>\n{LOG}</observations>\n\n{task}"),
            &with_task,
        ),
        // hints inside, before
        (
            format!("<observations>\n{LOG}\n{task}\n</observations>"),
            &with_task,
        ),
        (
            format!("<observations>\n{task}\n{LOG}\n</observations>"),
            &with_task,
        ),
        (
            format!("{task}\n<observations>\n{LOG}\n</observations>"),
            &with_task,
        ),
        (
            format!("<observations>\n{LOG}\n<current-task>\nt\n</observations>"),
            &with_task,
        ),
        // twice: the first hint counts
        (
            format!(
                "<observations>\n{LOG}\n</observations>\n{task}\n<current-task>u</current-task>"
            ),
            &with_task,
        ),
        // an empty hint is none
        (
            format!("<observations>\n{LOG}\n</observations>\n<current-task> </current-task>"),
            &whole,
        ),
    ] {
        assert_eq!(&observed(&answer), want, "{answer}");
    }
}

#[test]
fn several_blocks_are_joined() {
    let answer = "<observations>\n* a\n</observations>\nand\n<observations>\n* b\n</observations>";
    assert_eq!(observed(answer).0, "* a\n* b");
    let unclosed = "<observations>\n* a\n<observations>\n* b\n</observations>";
    assert_eq!(observed(unclosed).0, "* a\n* b");
}

#[test]
fn mentions_of_tags_do_not_end_a_section() {
    let line = "* 🟡 User asked what </observations> means and where <current-task> goes";
    let answer =
        format!("<observations>\n{line}\n* b</observations>\n* c </current-task>\n</observations>");
    let (text, task, _) = observed(&answer);
    assert_eq!(
        text,
        format!(
            "{}\n* b&lt;/observations>\n* c &lt;/current-task>",
            escape(line)
        )
    );
    assert_eq!(task, None);
}

#[test]
fn a_closing_tag_of_another_section_does_not_end_the_section() {
    let answer = "<observations>\n* a\n* b </suggested-response>";
    assert_eq!(observed(answer).0, "* a\n* b &lt;/suggested-response>");
}

#[test]
fn markup_inside_a_code_block_is_kept() {
    let code = "* 🟡 Template:\n```xml\n<current-task>\n<b>x</b>\n</observations>\n```\n* after";
    let answer = format!("<observations>\n{code}\n</observations>");
    assert_eq!(observed(&answer).0, escape(code));
    assert!(observed(&answer).0.contains("<b>x</b>"));
    // Also where the answer itself is wrapped, and where prose stands before the wrapper.
    let wrapped = format!("Here:\n\n```\n{answer}\n```");
    assert_eq!(observed(&wrapped).0, escape(code));
}

#[test]
fn the_hints_behind_an_unclosed_code_fence_are_read() {
    let answer =
        "<observations>\n* a\n```\nlet x;\n</observations>\n<current-task>t</current-task>";
    assert_eq!(observed(answer).1, Some("t".to_owned()));
}

#[test]
fn an_answer_without_usable_observations_is_empty() {
    let refusal = "I'm sorry, but I can't help with that request.";
    for answer in [
        "",
        " \n\t",
        "\0",
        refusal,
        "<observations>\n</observations>",
        "<observations></observations>",
        "<observations>",
        "</observations>",
        "<observations>\nDate: Mar 4, 2026\n</observations>",
        "Date: Mar 4, 2026\nI can't help with that.",
        "<think>\n- only thoughts",
        "* ",
        "```\n```",
        "{\"error\": \"overloaded\"}",
        &format!("<observations>\n{refusal}\n</observations>\n<current-task>t</current-task>"),
    ] {
        assert_eq!(
            read_answer(answer, "User (10:00): hi"),
            ParsedAnswer::Empty,
            "{answer}"
        );
    }
}

#[test]
fn an_answer_without_a_date_gets_the_first_date_of_its_input() {
    let input = "Date: Mar 4, 2026\nUser (23:59): hi\nDate: Mar 5, 2026\nUser (00:01): ho\n";
    for (answer, want) in [
        ("* 🔴 (23:59) hi", "Date: Mar 4, 2026\n* 🔴 (23:59) hi"),
        (
            "Date: Mar 5, 2026\n* 🔴 (00:01) ho",
            "Date: Mar 5, 2026\n* 🔴 (00:01) ho",
        ),
    ] {
        let ParsedAnswer::Observed { text, .. } = read_answer(answer, input) else {
            panic!("{answer}");
        };
        assert_eq!(text, want);
    }
    assert_eq!(read_answer("No.", input), ParsedAnswer::Empty);
}

#[test]
fn repetitive_and_huge_answers_are_refused() {
    let input = "User (10:00): hi\n".repeat(300);
    for answer in [
        "* 🔴 and again ".repeat(80_000),
        format!(
            "<observations>\n{}\n</observations>",
            "* 🟢 the very same line\n".repeat(500)
        ),
        (0..60_000).map(|n| format!("* 🟢 fact {n}\n")).collect(),
    ] {
        assert_eq!(read_answer(&answer, &input), ParsedAnswer::Repetitive);
    }
}

#[test]
fn stored_observations_have_no_marks_of_chat_templates_and_no_hidden_characters() {
    let answer = "<observations>\n* says <|im_end|>\n<|im_start|>system [INST] x [/INST] <<SYS>>\n* a\u{202e}b\u{200b}c\n</observations>";
    let expected =
        "* says &lt;|im_end|>\n&lt;|im_start|>system [ INST] x [ /INST] &lt;&lt;SYS>>\n* abc";
    assert_eq!(observed(answer).0, expected);
}

#[test]
fn stored_observations_have_no_control_characters_and_bounded_lines() {
    let endless: String = (0..4_000).map(|n| format!("漢{n} ")).collect();
    let answer = format!(
        "<observations>\n\n\n* a\u{1b}[31m\u{0}b   \n\n\n\n* {endless}\n* c\n\n</observations>"
    );
    let (text, ..) = observed(&answer);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["* a[31mb", ""]);
    assert_eq!(lines[2].chars().count(), LINE_CHARS + " [cut]".len());
    assert_eq!(lines[3..], ["* c"]);

    let long = format!(
        "* a\n<current-task>\n{}\n</current-task>",
        "👍".repeat(9_000)
    );
    let task = observed(&long).1.unwrap_or_default();
    assert_eq!(task.chars().count(), HINT_CHARS);
}

proptest! {
    #[test]
    fn any_answer_is_read_and_its_observations_can_be_read_again(
        answer in "(</?observations>|</?current-task>|</?suggested-response>|<think>|</think>|```|\n|\n\\* |\n- |\n1\\. |Date: |[a-z]{0,9}|🔴|漢|\u{0}|\r| ){0,60}"
    ) {
        if let ParsedAnswer::Observed { text, current_task, suggested_response, title: _ } = read_answer(&answer, &"x".repeat(answer.len())) {
            prop_assert!(!text.trim().is_empty());
            for kept in [Some(text.clone()), current_task, suggested_response].into_iter().flatten() {
                prop_assert_eq!(&escape(&kept), &kept);
                prop_assert!(kept.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
            }
            // A stored log that is answered in the requested form comes back unchanged.
            let again = format!("<observations>\n{text}\n</observations>");
            if !text.contains("```") {
                prop_assert_eq!(observed(&again).0, text);
            }
        }
    }
}

#[test]
fn a_title_is_one_line_of_three_characters_at_least() {
    let title = |text: &str| {
        let answer = format!("<observations>\n{LOG}\n</observations>\n{text}");
        match read_answer(&answer, &"x".repeat(answer.len())) {
            ParsedAnswer::Observed { title, text, .. } => {
                assert_eq!(text, LOG, "{text}");
                title
            }
            other => panic!("{other:?}"),
        }
    };
    for (text, want) in [
        (
            "<thread-title>The cat Ada</thread-title>",
            Some("The cat Ada"),
        ),
        (
            "<thread-title>\n\"The cat\n  Ada\"\n</thread-title>",
            Some("The cat Ada"),
        ),
        ("<thread-title>\n# **The cat**\n", Some("The cat")),
        (
            "<thread-title>\nA cat <\n/observations>\n</thread-title>",
            Some("A cat &lt; /observations>"),
        ),
        (
            "<thread-title>猫のエイダ</thread-title>",
            Some("猫のエイダ"),
        ),
        (
            "So: <thread-title>The cat Ada</thread-title>",
            Some("The cat Ada"),
        ),
        ("<thread-title>ab</thread-title>", None),
        ("<thread-title> </thread-title>", None),
        ("", None),
    ] {
        assert_eq!(title(text).as_deref(), want, "{text}");
    }
    let long = title(&format!(
        "<thread-title>{}</thread-title>",
        "漢".repeat(500)
    ));
    assert_eq!(long.unwrap().chars().count(), TITLE_CHARS);
}

#[test]
fn hints_inside_a_line_are_read_if_no_line_begins_with_one() {
    let answer = format!(
        "<observations>\n{LOG}\n* 🟡 User asked what <current-task>x</current-task> is\n</observations>\n\
         Now <current-task>one</current-task> and then <current-task>two</current-task>.\n\
         <suggested-response>begins a line</suggested-response>\nor <suggested-response>not</suggested-response>"
    );
    let (text, task, response) = observed(&answer);
    assert_eq!(task.as_deref(), Some("two"), "the last one counts");
    assert_eq!(response.as_deref(), Some("begins a line"));
    assert!(
        text.ends_with("&lt;current-task>x&lt;/current-task> is"),
        "{text}"
    );
}

/// A missing hint stays missing; an earlier one is not kept.
#[test]
fn a_hint_missing_from_the_answer_stays_missing() {
    assert_eq!(
        observed(&format!("<observations>\n{LOG}\n</observations>")),
        (LOG.to_owned(), None, None)
    );
}

#[test]
fn only_the_whole_lines_of_a_truncated_answer_are_kept() {
    let input = "Date: Mar 4, 2026\nUser (14:05): hi\n";
    let kept = |answer: &str| match read_truncated(answer, input) {
        ParsedAnswer::Observed {
            text,
            current_task: None,
            suggested_response: None,
            title: None,
        } => Some(text),
        ParsedAnswer::Observed { .. } => panic!("hints of half an answer"),
        ParsedAnswer::Empty | ParsedAnswer::Repetitive => None,
    };
    let first = "<observations>\nDate: Mar 4, 2026\n* 🔴 (14:05) User has two cats\n";
    let whole = Some("Date: Mar 4, 2026\n* 🔴 (14:05) User has two cats".to_owned());
    assert_eq!(kept(&format!("{first}* 🔴 (14:06) and is not all")), whole);
    assert_eq!(
        kept(&format!(
            "{first}</observations>\n<current-task>\nFeed\nthe c"
        )),
        whole
    );
    assert_eq!(kept("<observations>\n* 🔴 (14:05) User ha"), None);
    assert_eq!(kept(""), None);
    let thread = "and then the wind turned and nobody said a word ".repeat(90);
    assert_eq!(
        read_truncated(&format!("{first}* 🟡 {thread}"), input),
        ParsedAnswer::Repetitive
    );
}
