//! The arguments of `diarist replay`.

use std::path::PathBuf;

use crate::cli::prices;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// File of JSON lines, one conversation each: {"id", "source", "tools", "messages"}
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Base URL of the provider, or "scripted" for one inside this process.
    /// The key comes from DIARIST_API_KEY or OPENAI_API_KEY
    #[arg(long, value_name = "URL")]
    pub(super) upstream: String,
    /// The model of the conversation; a real upstream needs one
    #[arg(long, value_name = "M")]
    pub(super) model: Option<String>,
    /// The model of Observer and Reflector; without it the same model
    #[arg(long, value_name = "M")]
    pub(super) memory_model: Option<String>,
    /// As memory.policy. "cost_aware" takes the prices below as those of [memory.cost]. Without it: "published" with
    /// --message-tokens, otherwise "cost_aware"
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// As memory.observation.message_tokens, whose default is 30,000
    #[arg(long, value_name = "N")]
    message_tokens: Option<u32>,
    /// As memory.reflection.observation_tokens
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub(super) observation_tokens: u32,
    /// Play only the first N conversations of the file
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,
    /// Do not play them directly; this saves half of the requests, but there is no comparison
    #[arg(long)]
    pub(super) no_baseline: bool,
    /// Keep the memory in this database, for `diarist threads`
    #[arg(long, value_name = "URL")]
    pub(super) database: Option<String>,
    #[command(flatten)]
    pub(super) prices: prices::PriceArgs,
}

impl Args {
    pub(super) fn message_tokens(&self) -> u32 {
        self.message_tokens.unwrap_or(30_000)
    }

    /// The policy, by the rule of "auto": the prices are known here.
    pub(super) fn policy(&self) -> Policy {
        let by_threshold = self.message_tokens.map(|_| Policy::Published);
        self.policy.or(by_threshold).unwrap_or(Policy::CostAware)
    }
}

/// When memory is made and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Policy {
    #[value(name = "published")]
    Published,
    #[value(name = "cost_aware")]
    CostAware,
}

impl Policy {
    /// Its name in the configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::CostAware => "cost_aware",
        }
    }
}
