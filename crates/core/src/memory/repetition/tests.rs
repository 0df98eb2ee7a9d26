use super::*;

/// A generator of our own, so that the cases never change (Knuth's MMIX constants).
struct Seed(u64);

impl Seed {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

const WORDS: [&str; 40] = [
    "harbour", "invoice", "letter", "garden", "engine", "violin", "ticket", "market", "winter",
    "bridge", "copper", "lantern", "orchard", "passport", "quarry", "river", "saddle", "teacher",
    "umbrella", "village", "wagon", "yellow", "anchor", "basket", "candle", "drawer", "evening",
    "feather", "glacier", "hammer", "island", "jacket", "kitchen", "ladder", "mirror", "needle",
    "opinion", "pencil", "ribbon", "shelter",
];

/// Sentences that are all different.
fn prose(seed: &mut Seed, sentences: usize) -> String {
    (0..sentences)
        .map(|_| {
            let words: Vec<&str> = (0..9 + seed.below(9)).map(|_| seed.pick(&WORDS)).collect();
            format!("{} {}.", words.join(" "), seed.below(1_000_000))
        })
        .collect::<Vec<_>>()
        .join("\n  ")
}

fn transcript_of_prose(seed: &mut Seed) -> String {
    let turns = 20 + seed.below(60);
    (0..turns)
        .map(|turn| {
            let who = if turn % 2 == 0 { "User" } else { "Assistant" };
            format!(
                "{who} ({:02}:{:02}): {}\n",
                8 + turn / 60,
                turn % 60,
                prose(seed, 4)
            )
        })
        .collect()
}

fn honest_log(seed: &mut Seed, lines: usize) -> String {
    (0..lines)
        .map(|n| format!("* 🟡 (10:{:02}) {}\n", n % 60, prose(seed, 1)))
        .collect()
}

/// A repetitive conversation and a correct log of it.
fn faithful(case: u64) -> (String, String) {
    let mut seed = Seed(case * 7_919 + 1);
    let events = 60 + seed.below(140);
    let (subject, tool) = (
        seed.pick(&WORDS),
        seed.pick(&["get_job", "poll", "status", "read_sensor"]),
    );
    let (timed, terse) = (seed.below(3) > 0, seed.below(2) == 0);
    let mut input = format!(
        "Date: Mar 4, 2026\nUser (08:00): Please keep an eye on the {subject} and tell me.\n"
    );
    let mut log =
        format!("Date: Mar 4, 2026\n* 🔴 (08:00) User asked to keep an eye on the {subject}\n");
    let mut value = 200 + seed.below(100);
    for event in 0..events {
        let minute = format!("{:02}:{:02}", 8 + event / 30, event * 2 % 60);
        let time = if timed {
            format!(" ({minute})")
        } else {
            String::new()
        };
        value = value + seed.below(7) - 3;
        match case % 8 {
            0 => {
                let done = event * 100 / events;
                input.push_str(&format!("Tool call {tool} ({minute}): {{\"id\": 4471}}\nTool result {tool}: {{\"state\": \"RUNNING\", \"progress\": {done}}}\n"));
                log.push_str(&if terse {
                    format!("* 🟢{time} {tool} says the job is still RUNNING\n")
                } else {
                    format!("* 🟢{time} {tool}: job 4471 RUNNING, progress {done}\n")
                });
            }
            1 => {
                input.push_str(&format!("Assistant ({minute}): Trying once more.\nTool call run: make {subject}\nTool result run: error: linking with cc failed: exit status 1\n  = note: undefined reference to {subject}_init\n"));
                log.push_str(&format!("* 🟡{time} Build of {subject} failed again: linking with cc failed, undefined reference\n"));
            }
            2 => {
                input.push_str(&format!(
                    "Tool result cargo_test ({minute}): test {subject}::case_{event} ... ok\n"
                ));
                log.push_str(&format!("* 🟢{time} test {subject}::case_{event} is ok\n"));
            }
            3 => {
                let read = format!("{}.{}", value / 10, value % 10);
                input.push_str(&format!("Tool call {tool} ({minute}): {{\"sensor\": \"{subject}\"}}\nTool result {tool}: {read} °C\n"));
                log.push_str(&if terse {
                    format!("* 🟢{time} Sensor of the {subject}: {read} °C\n")
} else {
                    format!("* 🟢{time} Sensor of the {subject} was read\n  * -> {read} °C, within limits\n")
});
            }
            4 => {
                input.push_str(&format!(
                    "User ({minute}): ping {subject}\nAssistant: pong {subject}\n"
                ));
                log.push_str(&format!(
                    "* 🟢{time} User: ping {subject}, assistant: pong\n"
                ));
            }
            5 => {
                input.push_str(&format!("Tool call 查询 ({minute}): {{\"任务\": \"{subject}\"}}\nTool result 查询: 任务正在运行，请稍后再试 👍 进度 {event}\n"));
                log.push_str(&format!(
                    "* 🟢{time} 查询任务 {subject}：任务正在运行，请稍后再试 👍\n"
                ));
            }
            6 => {
                let (a, b) = (2 + seed.below(11), 2 + seed.below(11));
                input.push_str(&format!(
                    "Assistant ({minute}): What is {a} times {b}?\nUser: {}\nAssistant: Correct!\n",
                    a * b
                ));
                log.push_str(&format!(
                    "* 🟡{time} User answered {a} times {b} correctly: {}\n",
                    a * b
                ));
            }
            // One result with everything on one line.
            _ => {
                let sep = if event == 0 {
                    "Tool result query (08:01): ["
                } else {
                    ", "
                };
                input.push_str(&format!(
                    "{sep}{{\"row\": {event}, \"name\": \"{subject}\", \"amount\": {value}}}"
                ));
                log.push_str(&format!(
                    "  * -> row {event} of {subject}: amount {value}\n"
                ));
            }
        }
    }
    if case % 8 == 7 {
        input.push_str("]\n");
    }
    if log.chars().count() < MIN_CHARS {
        log.push_str(&honest_log(&mut seed, 12));
        input.push_str(&transcript_of_prose(&mut seed));
    }
    (input, log)
}

/// An input and an answer that ran into a loop.
fn looping_answer(case: u64) -> (String, String) {
    let mut seed = Seed(case * 104_729 + 5);
    // Every third input is repetitive itself; the loop is longer than it, or has another subject.
    let input = match case % 3 {
        0 => faithful(case / 3).0,
        _ => transcript_of_prose(&mut seed),
    };
    let start = honest_log(&mut seed, seed_lines(case));
    let period: String = match case % 7 {
        0 => format!("* 🟢 (10:05) {}\n", prose(&mut seed, 1)),
        1 => {
            let lines = 2 + seed.below(39);
            honest_log(&mut seed, lines)
        }
        2 => format!("{} ", seed.pick(&WORDS)),
        3 => prose(&mut seed, 3).replace('\n', " "),
        4 => seed
            .pick(&[
                "还在等待用户的回答。",
                "ждём ответа пользователя… ",
                "👍👍 待って ",
            ])
            .to_owned(),
        // Each round differs: a counter, a time.
        _ => String::new(),
    };
    let chars = 8_000 + seed.below(30_000) + start.chars().count() * 2;
    let mut output = start;
    let sentence = prose(&mut seed, 1);
    let words = sentence.trim_end_matches(|c: char| !c.is_alphabetic());
    let mut round = 0;
    while output.chars().count() < chars {
        round += 1;
        output.push_str(&match case % 7 {
            5 => format!("* 🟢 Step {}: {words}\n", 1_000 + round * 7),
            6 => format!("* 🟢 ({:02}:{:02}) {words}\n", round / 60 % 24, round % 60),
            _ => period.clone(),
        });
    }
    (input, output)
}

fn seed_lines(case: u64) -> usize {
    [0, 3, 10, 30][usize::try_from(case % 4).unwrap()]
}

#[test]
fn a_faithful_log_of_a_repetitive_conversation_is_not_flagged() {
    let mut suspicious = 0;
    for case in 0..200 {
        let (input, log) = faithful(case);
        assert!(
            log.chars().count() >= MIN_CHARS,
            "case {case} tests nothing"
        );
        // With another input, these logs would count as loops: they are really repetitive.
        suspicious += usize::from(is_repetitive(&log, &transcript_of_prose(&mut Seed(case))));
        assert!(!is_repetitive(&log, &input), "case {case}:\n{log}");
    }
    println!("0 of 200 faithful logs flagged; {suspicious} of them would be beside another input");
    assert!(suspicious >= 100, "{suspicious}");
}

#[test]
fn an_answer_that_loops_is_flagged_as_repetitive() {
    let missed: Vec<u64> = (0..200)
        .filter(|case| {
            let (input, output) = looping_answer(*case);
            !is_repetitive(&output, &input)
        })
        .collect();
    println!(
        "{} of 200 loops flagged; missed {missed:?}",
        200 - missed.len()
    );
    assert!(missed.len() <= 2, "{missed:?}");
}

/// The published numbers.
#[test]
fn the_thresholds_of_repetition_are_as_published() {
    assert_eq!((MIN_CHARS, MAX_LINE_CHARS), (2_000, 50_000));
    assert_eq!(
        (SAMPLES, SAMPLE_CHARS, FEW_SAMPLES, MAX_REPEATED_PERCENT),
        (50, 200, 5, 40)
    );
    assert_eq!((LINE_CHARS, MIN_LINES, MAX_DUPLICATE_PERCENT), (24, 20, 50));
    assert!(!is_repetitive(&"a".repeat(1_999), ""));
    assert!(is_repetitive(&"a".repeat(2_001), ""));
    // Half of the lines may be repeated, but not one more.
    let mut seed = Seed(3);
    let input = transcript_of_prose(&mut seed).repeat(3);
    let line = "* 🟢 exactly the same line of words and no other\n";
    let (honest, same) = (honest_log(&mut seed, 40), line.repeat(39));
    assert_eq!(duplicate_percent(&(honest.clone() + &same)), 48);
    assert!(!is_repetitive(&(honest.clone() + &same), &input));
    let half = honest.clone() + &line.repeat(42);
    assert_eq!((half.lines().count(), duplicate_percent(&half)), (82, 50));
    assert!(!is_repetitive(&half, &input));
    assert!(is_repetitive(&(honest + &line.repeat(43)), &input));
}

#[test]
fn an_answer_with_an_endless_line_is_repetitive() {
    let words: String = (0..12_000).map(|n| format!("{n} ")).collect();
    assert!(is_repetitive(&words, &words.repeat(2)));
}

#[test]
fn a_line_repeated_between_different_lines_is_found() {
    let mut seed = Seed(11);
    let input = transcript_of_prose(&mut seed);
    let nagging: String = (0..100)
        .map(|n| format!("* 🟢 waiting for the user to answer\n* 🟢 {}\n", n * 7_919))
        .collect();
    assert_eq!(repeated_percent(&nagging), 0);
    assert!(is_repetitive(&nagging, &input));
}

#[test]
fn an_answer_may_repeat_only_as_much_as_its_input() {
    let input = "Tool result build: error: linker failed with code 1\n".repeat(300);
    let faithful = "* 🟡 Build failed: linker failed with code 1\n".repeat(100);
    assert!(!is_repetitive(&faithful, &input));
    assert!(is_repetitive(&faithful.repeat(6), &input));
    // As often, but about something else.
    let other = "* 🟡 Waiting patiently until somebody answers\n".repeat(100);
    assert!(is_repetitive(&other, &input));
}

#[test]
fn an_answer_longer_than_its_input_counts_as_repetitive() {
    let log = honest_log(&mut Seed(1), 400);
    assert!(is_repetitive(&log, "User (10:00): hi"));
    assert!(!is_repetitive(&log, &log));
}
