//! The role of a message.

/// The role of a message's author. `developer` is `System`: providers treat them as one, and clients
/// swap them freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions from the application.
    System,
    /// The person, or the program that speaks for them.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call (also the legacy `function` role).
    Tool,
}

impl Role {
    /// The stable name used in fingerprints, the store and rendered text.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// The inverse of [`Role::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Assistant, Self::Tool]
            .into_iter()
            .find(|role| role.name() == name)
    }
}
