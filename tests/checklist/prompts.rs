//! What the models are asked, how their answers are read, and which of them is kept.

use diarist::memory::observe::{self, ObserveInput, ParsedAnswer, PreviousHints, RequestedHints};
use diarist::memory::reflect::{
    self, ReflectInput, ReflectionAttempt, ReflectionAttempts, ReflectionVerdict,
};

use super::Check;

pub const CHECKS: &[Check] = &[
    (&[59], an_answer_without_observations_is_empty),
    (
        &[93, 94, 95],
        the_observer_prompt_contains_the_instruction_and_title_request,
    ),
    (&[103], a_tag_mentioned_in_a_line_does_not_end_the_block),
    (&[104], an_unclosed_or_missing_block_is_read),
    (&[105], markup_in_a_code_fence_does_not_end_the_block),
    (&[106], several_observation_blocks_are_joined),
    (&[107], a_missing_hint_is_read_as_none),
    (&[108], repetitive_answers_are_recognised),
    (&[110], a_line_is_cut_at_ten_thousand_characters),
    (
        &[111, 112],
        the_earlier_log_is_shortened_to_its_token_budget,
    ),
    (&[116], a_reflection_is_good_enough_only_below_its_target),
    (&[117, 119], unusable_answers_end_after_four_attempts),
    (&[118], a_usable_answer_after_an_unusable_one_is_taken),
    (&[124], a_partial_reflection_keeps_the_newer_days_unchanged),
    (&[127], the_reflector_prompt_contains_the_instruction),
    (&[129], the_model_decides_the_first_reflection_level),
    (&[130], the_current_task_is_not_an_observation),
];

pub const INPUT: ObserveInput<'_> = ObserveInput {
    previous_hints: PreviousHints {
        task: None,
        response: None,
    },
    transcript: "Date: Mar 4, 2026\nUser (14:05): hi\n",
    piece: (1, 1),
    earlier: "",
    application: "",
    nonce: "k7Qz91ab",
    now_date: "Mar 5, 2026",
    instruction: None,
    focus: None,
    hints: RequestedHints::ALL,
    title: None,
    attachments: &[],
};

fn the_observer_prompt_contains_the_instruction_and_title_request() {
    let plain = observe::prompt(&INPUT);
    let prompt = observe::prompt(&ObserveInput {
        instruction: Some("Record ticket numbers."),
        ..INPUT
    });
    assert!(
        prompt.system.starts_with(&plain.system)
            && prompt.system.contains("Record ticket numbers.")
    );
    assert_eq!(prompt.user, plain.user);
    assert_eq!(observe::prompt(&INPUT).system, plain.system);

    assert!(!plain.system.contains("title"), "{}", plain.system);
    let titled = observe::prompt(&ObserveInput {
        title: Some(""),
        ..INPUT
    });
    assert!(titled.system.contains("title"));
}

fn read(answer: &str) -> (String, Option<String>) {
    read_of(answer, INPUT.transcript)
}

fn read_of(answer: &str, transcript: &str) -> (String, Option<String>) {
    match observe::read_answer(answer, transcript) {
        ParsedAnswer::Observed {
            text, current_task, ..
        } => (text, current_task),
        other => panic!("{other:?}"),
    }
}

fn an_answer_without_observations_is_empty() {
    for answer in [
        "",
        " \n",
        "<observations>\n</observations>",
        "<observations>\nDate: Mar 4, 2026\n</observations>",
        "<observations>\n</observations>\n<current-task>\ngo on\n</current-task>",
        "I'm sorry, but I can't help with that.",
    ] {
        assert_eq!(
            observe::read_answer(answer, INPUT.transcript),
            ParsedAnswer::Empty,
            "{answer:?}"
        );
    }
    // Published, the cursor passes over what nobody observed. Here code covers it, a line a message.
    let covered = observe::observations_by_code(INPUT.transcript);
    assert!(
        covered.starts_with("Date: Mar 4, 2026\n* ") && covered.contains("hi"),
        "{covered}"
    );
}

fn a_tag_mentioned_in_a_line_does_not_end_the_block() {
    let (text, _) = read(
        "<observations>\n* User asked what the </observations> tag is for\n* and for <current-task>\n</observations>",
    );
    assert_eq!(
        text.lines().filter(|line| line.starts_with("* ")).count(),
        2,
        "{text}"
    );
}

fn an_unclosed_or_missing_block_is_read() {
    for answer in [
        "<observations>\n* one\n  * -> two\n- three\n1. four",
        // No block at all: the lines of lists alone.
        "Here is what I noted.\n* one\n  * -> two\n- three\n1. four\nThat is all.",
    ] {
        let (text, _) = read(answer);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("Date:"))
            .collect();
        assert_eq!(
            lines,
            ["* one", "  * -> two", "- three", "1. four"],
            "{answer}"
        );
    }
    let (text, task) = read("<observations>\n* one\n<current-task>\ngo on\n</current-task>");
    assert!(
        text.ends_with("* one") && task.as_deref() == Some("go on"),
        "{text}"
    );
}

fn markup_in_a_code_fence_does_not_end_the_block() {
    let answer = "<observations>\n* 🔴 The template:\n```xml\n<note>\n  <b>x</b>\n</observations>\n</note>\n```\n* after\n</observations>";
    let (text, _) = read(answer);
    assert!(
        text.contains("<note>\n  <b>x</b>\n") && text.contains("</note>"),
        "{text}"
    );
    assert!(text.ends_with("* after"), "{text}");
}

fn a_missing_hint_is_read_as_none() {
    let with = "<observations>\n* one\n</observations>\n<current-task>\ngo on\n</current-task>\n\
                <suggested-response>\nAsk.\n</suggested-response>";
    let hints = |answer: &str| match observe::read_answer(answer, INPUT.transcript) {
        ParsedAnswer::Observed {
            current_task,
            suggested_response,
            ..
        } => (current_task, suggested_response),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        hints(with),
        (Some("go on".to_owned()), Some("Ask.".to_owned()))
    );
    assert_eq!(
        hints("<observations>\n* one\n</observations>"),
        (None, None)
    );
    let empty = "<observations>\n* one\n</observations>\n<current-task>\n</current-task>";
    assert_eq!(hints(empty), (None, None));
}

/// Lines of which no two say the same, in words without a number.
fn honest(from: usize, lines: usize) -> String {
    let letter = |c: char| char::from(b'a' + u8::try_from(c.to_digit(16).unwrap()).unwrap());
    let word = |at: usize| -> String {
        let hash = blake3::hash(&at.to_le_bytes()).to_hex();
        hash.chars().take(9).map(letter).collect()
    };
    let line = |at: usize| {
        let words = [at, at + 100_000, at + 200_000].map(word).join(" ");
        format!("* 🟡 {words}\n")
    };
    (from..from + lines).map(line).collect()
}

fn repetitive_answers_are_recognised() {
    let is_loop =
        |answer: &str, input: &str| observe::read_answer(answer, input) == ParsedAnswer::Repetitive;
    let long = format!("User (14:05): {}", honest(50_000, 4_000));
    // Below 2,000 characters never.
    assert!(!is_loop(&"* a\n".repeat(499), &long));
    assert!(is_loop(&"a".repeat(2_001), &long));
    // Windows of 200 characters, of which more than 40 % were there before: a long period as well.
    let (once, period) = (honest(0, 150), honest(200, 40));
    assert!(!is_loop(&once, &long));
    assert!(is_loop(&(once + &period.repeat(12)), &long));
    // A line of more than 50,000 characters, whatever it says.
    let words = |chars: usize| {
        format!(
            "* {}",
            honest(0, 2_000)
                .replace('\n', " ")
                .chars()
                .take(chars)
                .collect::<String>()
        )
    };
    assert!(!is_loop(&words(49_998), &long));
    assert!(is_loop(&words(49_999), &long));
    // Of 20 lines and more, more than half said before; they are so much shorter than the others that the
    // windows say nothing. Of 82 lines 41 are half, of 83 lines 42 are more.
    let wide: Vec<String> = honest(0, 160)
        .lines()
        .map(|line| line[7..].to_owned())
        .collect();
    let wide: String = wide
        .chunks(4)
        .map(|four| format!("* 🟡 {}\n", four.join(" ")))
        .collect();
    let same = |times| wide.clone() + &"* 🟢 exactly the same line of words\n".repeat(times);
    assert_eq!(same(42).lines().count(), 82);
    assert!(!is_loop(&same(42), &long));
    assert!(is_loop(&same(43), &long));
    // Beside an input that repeats itself as often it is a faithful log (published: a known fault).
    let polled = "Tool result build: linker failed with code 1\n".repeat(300);
    let log = "* 🟡 Build failed: linker failed with code 1\n".repeat(100);
    assert!(!is_loop(&log, &polled) && is_loop(&log, &long));
}

fn several_observation_blocks_are_joined() {
    let (text, _) =
        read("<observations>\n* one\n</observations>\nand\n<observations>\n* two\n</observations>");
    assert!(text.contains("* one") && text.contains("* two"));
}

fn a_line_is_cut_at_ten_thousand_characters() {
    let word = |at: usize| blake3::hash(&at.to_le_bytes()).to_hex()[..9].to_owned() + " ";
    let line: String = (0..1_500).map(word).collect();
    let transcript = format!("{}User (14:05): {line}{line}", INPUT.transcript);
    let (text, _) = read_of(
        &format!("<observations>\n* {line}\n</observations>"),
        &transcript,
    );
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!((10_000..10_010).contains(&longest), "{longest}");
}

fn the_earlier_log_is_shortened_to_its_token_budget() {
    let line =
        |at: usize| format!("* 🟡 (10:{at:02}) User told of step {at} on the way over the pass");
    let log: Vec<String> = (0..50).map(line).collect();
    let log = format!("Date: Mar 3, 2026\n{}", log.join("\n"));
    let tokens = |text: &str| text.len().div_ceil(4);
    let shown = observe::earlier(&log, 200, tokens);
    assert!(tokens(&shown) <= 200, "{}", tokens(&shown));
    assert!(
        shown.contains("step 49 ") && !shown.contains("step 0 "),
        "{shown}"
    );
    // Each line that stays is a line of the log as it was written.
    let kept = shown.lines().filter(|line| !line.contains("left out"));
    for line in kept {
        assert!(log.lines().any(|known| known == line), "{line}");
    }

    assert_eq!(observe::earlier(&log, usize::MAX, tokens), log);
    assert_eq!(shown.matches("left out").count(), 1, "{shown}");
    let memory = diarist::config::load(
        &diarist::config::Flags::default(),
        &[("HOME".to_owned(), "/home/ada".to_owned())].into(),
        None,
    );
    let shown = memory.unwrap().memory.observer.previous_tokens;
    assert_eq!(shown, Some(2_000));
}

fn a_reflection_is_good_enough_only_below_its_target() {
    // 20,500 tokens in 400 lines: 390 lines are condensed, 19,988 tokens, to 14,991.
    assert_eq!(reflect::target_tokens(19_988), 14_991);
    assert_eq!(
        reflect::verdict_for(14_990, 19_988, 14_991),
        ReflectionVerdict::GoodEnough
    );
    // Equal is not below.
    assert_eq!(
        reflect::verdict_for(14_991, 19_988, 14_991),
        ReflectionVerdict::Smaller
    );
    assert_eq!(
        reflect::verdict_for(19_987, 19_988, 14_991),
        ReflectionVerdict::Smaller
    );
    assert_eq!(
        reflect::verdict_for(19_988, 19_988, 14_991),
        ReflectionVerdict::Rejected
    );
}

/// 400 lines of 51.25 tokens are condensed from 20,000 on; here a day has ten of them, and is never cut.
fn a_partial_reflection_keeps_the_newer_days_unchanged() {
    let day = |day: usize| {
        let line = |at: usize| format!("* 🟡 (10:{at:02}) event {at} of day {day}\n");
        format!("Date: day {day}\n{}", (0..10).map(line).collect::<String>())
    };
    let log: Vec<String> = (1..=60).map(|at| day(at).trim_end().to_owned()).collect();
    let source = reflect::ReflectionSource::from_parts(&log);
    // 512.5 tokens a day: in halves of a token, 1,025.
    let weigh = |text: &str| u32::try_from(text.matches("Date:").count()).unwrap() * 1_025;
    let (older, newer) = source.split_older(40_000, weigh);
    // At least 20,000: whole days, in the place of 390 lines.
    assert_eq!(weigh(older), 41_000);
    assert!(newer.starts_with("Date: day 41\n"), "{newer}");
    let reflected = reflect::join_newer("Date: day 1\n* 🔴 much happened", newer);
    for line in log[40..].iter().flat_map(|day| day.lines()) {
        assert!(reflected.contains(line), "{line}");
    }
    assert!(reflected.ends_with(newer) && !reflected.contains("of day 40"));
}

fn ladder() -> ReflectionAttempts {
    ReflectionAttempts::new(1, 20_000, 15_000, 0.05)
}

fn attempt(tokens: u32) -> ReflectionAttempt {
    ReflectionAttempt {
        text: format!("* {tokens}"),
        tokens,
        loss: 0.0,
        restored: None,
        lost_items: String::new(),
        partial: None,
    }
}

fn unusable_answers_end_after_four_attempts() {
    let mut ladder = ladder();
    let mut calls = 0;
    while ladder.next_attempt().is_some() {
        ladder.answer_unusable();
        calls += 1;
    }
    // Levels 1 to 4.
    assert_eq!(calls, 4);
    assert_eq!(ladder.take_best(), None);
}

fn a_usable_answer_after_an_unusable_one_is_taken() {
    let mut ladder = ladder();
    ladder.answer_unusable();
    assert_eq!(ladder.next_attempt().map(|ask| ask.level), Some(2));
    ladder.add_attempt(attempt(12_000));
    assert_eq!(ladder.next_attempt(), None);
    assert_eq!(ladder.take_best(), Some(("* 12000".to_owned(), 12_000)));
}

fn the_reflector_prompt_contains_the_instruction() {
    let plain = ReflectInput {
        observations: "* 🔴 one",
        nonce: "k7Qz91ab",
        now_date: "Mar 5, 2026",
        level: 1,
        instruction: None,
        focus: None,
        lost_items: None,
    };
    let input = ReflectInput {
        instruction: Some("Keep ticket numbers."),
        ..plain
    };
    assert!(
        reflect::prompt(&input)
            .system
            .contains("Keep ticket numbers.")
    );
    assert!(
        !reflect::prompt(&plain)
            .system
            .contains("Keep ticket numbers.")
    );
}

fn the_model_decides_the_first_reflection_level() {
    assert_eq!(reflect::start_level("google/gemini-2.5-flash", false), 2);
    assert_eq!(reflect::start_level("gpt-5-nano", false), 1);
    assert_eq!(reflect::start_level("gpt-5-nano", true), 0);
    assert_eq!(reflect::levels(2), 2..=4);
    assert_eq!(reflect::levels(0), 0..=3);
}

fn the_current_task_is_not_an_observation() {
    let (text, task) =
        read("<observations>\n* one\n</observations>\n<current-task>\n* two\n</current-task>");
    assert_eq!(task.as_deref(), Some("* two"));
    assert!(!text.contains("two"), "{text}");
}
