//! The text of the replay.

use super::args::{Args, Policy};
use crate::cli::progress;
use crate::cli::terminal::harmless;
use crate::report::{MemoryChange, Size, Story, chart, conversations, grouped, notes, table};

/// One conversation that was played.
pub(super) struct ReplayedConversation {
    pub(super) id: String,
    pub(super) story: Story,
    /// Why it ended early, with or without Diarist.
    pub(super) errors: Vec<String>,
    /// Whether it ended early with Diarist.
    pub(super) incomplete: bool,
}

/// Rows of the picture's bars.
const HEIGHT: usize = 10;

pub(super) fn render(args: &Args, replayed: &[ReplayedConversation]) -> String {
    let prices = args.prices.prices();
    let mut whole = Story::default();
    for conversation in replayed {
        whole.append(conversation.story.clone());
    }
    let mut text = format!(
        "{}: {} conversation{}, {} requests through Diarist to {}{}.\n\
         policy = {}, message_tokens = {}, observation_tokens = {}.\n\n",
        args.file.display(),
        replayed.len(),
        if replayed.len() == 1 { "" } else { "s" },
        grouped(whole.steps.len() as u64),
        args.upstream,
        if args.no_baseline {
            ""
        } else {
            ", and directly"
        },
        args.policy().name(),
        grouped(args.message_tokens().into()),
        grouped(args.observation_tokens.into()),
    );
    let ids: Vec<String> = replayed.iter().map(|one| harmless(&one.id)).collect();
    let stories: Vec<(&str, &Story)> = ids
        .iter()
        .map(String::as_str)
        .zip(replayed.iter().map(|one| &one.story))
        .collect();
    text.push_str(&conversations(&stories));
    if let Some((id, story)) = stories.iter().max_by_key(|(_, story)| longest(story)) {
        let size = Size {
            width: progress::width(),
            height: HEIGHT,
        };
        let picture = chart(&story.steps, size);
        if !picture.is_empty() {
            text.push_str(&format!("\nTokens of each request in {id}\n\n{picture}"));
        }
    }
    text.push_str("\nTotals, as the upstream reported them\n\n");
    text.push_str(&table(&whole, &prices));
    text.push('\n');
    text.push_str(&notes(&whole, &prices));
    if !args.no_baseline {
        text.push_str(
            "Each run began its prompts with its own words, so neither used the cache of the other.\n",
        );
    }
    if whole.count(MemoryChange::Activation) == 0 {
        text.push_str(&match args.policy() {
            Policy::Published => format!(
                "No conversation reached {} tokens of messages, so there was no activation. To see one, lower --message-tokens.\n",
                grouped(args.message_tokens().into())
            ),
            Policy::CostAware => {
                "In no conversation did an activation pay, so there was none.\n".to_owned()
            }
        });
    }
    for (id, one) in ids.iter().zip(replayed) {
        for error in &one.errors {
            text.push_str(&format!("{id}: {error}\n"));
        }
    }
    text
}

fn longest(story: &Story) -> u64 {
    let (direct, proxied) = story.peaks();
    direct.max(proxied).unwrap_or(0)
}
