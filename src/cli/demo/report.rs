//! The text of the demo: the chart, the totals, the facts that are still known, and the observations.

use std::sync::Arc;

use diarist_provider::{Conversation, RecordedRequest};
use serde_json::Value;

use super::args::Args;
use crate::cli::progress;
use crate::cli::replay_client::{observation_block, texts};
use crate::cli::terminal;
use crate::report::{Size, Story, chart, excerpt, grouped, notes, table};
use diarist_provider::CallerKind;

/// The results of both runs.
pub(super) struct DemoRun {
    pub(super) conversation: Conversation,
    pub(super) direct: Vec<Arc<RecordedRequest>>,
    pub(super) with_diarist: Vec<Arc<RecordedRequest>>,
}

/// Rows of the picture's bars.
const HEIGHT: usize = 12;
/// Lines of the observations that are shown, at their beginning and at their end.
const FIRST_LINES: usize = 16;
const LAST_LINES: usize = 12;

/// The line of a block after which its observations begin.
const OBSERVATIONS: &str = "\n<observations>\n";

pub(super) fn render(args: &Args, outcome: &DemoRun, story: &Story) -> String {
    let prices = args.prices.prices();
    let size = Size {
        width: progress::width(),
        height: HEIGHT,
    };
    [
        introduction(args, story),
        format!("Tokens of each request\n\n{}", chart(&story.steps, size)),
        format!(
            "Totals, as the providers counted them\n\n{}",
            table(story, &prices)
        ),
        notes(story, &prices) + &cold_cache_note(story),
        last_request(outcome, story),
        observations(outcome, size.width),
    ]
    .join("\n")
}

fn introduction(args: &Args, story: &Story) -> String {
    format!(
        "Diarist demo: {} user turns with a travel assistant, {} requests in all, sent twice over\n\
         HTTP: straight to a scripted provider, and through Diarist to another. Nothing left this\n\
         machine. Observer and Reflector are scripted as well: they extract, they do not understand.\n\
         message_tokens = {}, observation_tokens = {} (by default 30,000 and 40,000).\n",
        args.turns,
        story.steps.len(),
        grouped(args.message_tokens.into()),
        grouped(args.observation_tokens.into()),
    )
}

/// What the totals do not show: the simulated cache never forgets, but real ones do.
fn cold_cache_note(story: &Story) -> String {
    let (Some(direct), Some(proxied)) = story.peaks() else {
        return String::new();
    };
    format!(
        "The providers simulate OpenAI's prompt cache (from 1,024 tokens, in steps of 128), but it never\n\
         forgets. Real ones do, within minutes or hours: then one request costs up to {} uncached\n\
         tokens without Diarist, and up to {} with it.\n",
        grouped(direct),
        grouped(proxied)
    )
}

/// The last request the provider received through Diarist.
fn last_body(outcome: &DemoRun) -> Option<Value> {
    let received = outcome
        .with_diarist
        .iter()
        .rfind(|entry| entry.is_accepted() && entry.caller == CallerKind::Actor);
    received?.json()
}

/// How far the last request was shortened, and which of the planted facts it still contains.
fn last_request(outcome: &DemoRun, story: &Story) -> String {
    let (Some(body), Some(step)) = (last_body(outcome), story.steps.last()) else {
        return "Nothing reached the provider.\n".to_owned();
    };
    let sent = body["messages"].as_array().map_or(0, Vec::len);
    let from_client = outcome.conversation.requests().last().unwrap_or(0);
    let tokens = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), grouped);
    let received = step.direct.and_then(|tokens| tokens.prompt);
    let block = observation_block(&body).unwrap_or_default();
    let raw: Vec<String> = texts(&body)
        .into_iter()
        .filter(|text| block.is_empty() || !text.contains(&block))
        .collect();
    let facts = &outcome.conversation.facts;
    let (mut in_raw, mut in_block) = (0, 0);
    for fact in facts {
        if raw.iter().any(|text| text.contains(&fact.words)) {
            in_raw += 1;
        } else if block.contains(&fact.words) {
            in_block += 1;
        }
    }
    let example = facts.first().map_or("", |fact| &fact.words);
    format!(
        "The last request had {from_client} messages and {} tokens when the client sent it, and {sent}\n\
         messages and {} tokens when the provider got it. {} of the {} facts the user had stated\n\
         (the first: \"{example}\") are in it word for word: {in_block} in the\n\
         observations, {in_raw} in recent messages.\n",
        tokens(received),
        tokens(step.forwarded.prompt),
        in_block + in_raw,
        facts.len(),
    )
}

/// The observation block of the last request, shortened.
fn observations(outcome: &DemoRun, width: usize) -> String {
    let Some(block) = last_body(outcome).as_ref().and_then(observation_block) else {
        return "No observations were sent.\n".to_owned();
    };
    let block = terminal::harmless(&block);
    let (rules, log) = block.split_once(OBSERVATIONS).unwrap_or(("", &block));
    let first_line = rules.lines().next().unwrap_or_default();
    format!(
        "Its observation block, in the place of all older messages:\n\n\
         {first_line}\n  … {} lines that tell the model how to use what follows …{OBSERVATIONS}{}",
        rules.lines().count().saturating_sub(1),
        excerpt(log, FIRST_LINES, LAST_LINES, width)
    )
}
