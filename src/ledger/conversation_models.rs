//! Which model each conversation asks, so that memory's calls count where their conversation does.

use super::line::Line;
use super::recent::RecentMap;

/// The model of the newest request of each conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct ConversationModels {
    models: RecentMap<String>,
}

fn key(line: &Line<'_>) -> Option<String> {
    let thread = line.thread.as_ref()?;
    Some([line.tenant.as_str(), thread.as_str()].join("\0"))
}

impl ConversationModels {
    /// Takes every request line, in order.
    pub(super) fn note(&mut self, line: &Line<'_>) {
        if let Some(key) = key(line) {
            self.models.set(key, line.model_name().to_owned());
        }
    }

    /// The model of the conversation that a call or a part belongs to; `None` without a request of it before.
    pub(super) fn model_of(&self, line: &Line<'_>) -> Option<&str> {
        let model = self.models.get(&key(line)?)?;
        Some(model.as_str())
    }
}
