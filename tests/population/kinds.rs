//! How clients and applications behave: each conversation is of one kind.

use crate::dice::Dice;

macro_rules! kinds {
    ($($kind:ident $name:literal $floor:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($kind),* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// As it stands in the table.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name),* }
            }

            /// How many in a hundred of the long requests are to have memory at least.
            pub fn floor(self) -> usize {
                match self { $(Kind::$kind => $floor),* }
            }
        }
    };
}

// What it is, how it is called, and its floor.
kinds! {
    Plain "plain" 0,
    Bot "scripted bot" 0,
    Form "form" 0,
    Cached "response cache" 0,
    Examples "few-shot examples" 0,
    Template "template" 0,
    Restart "restart" 0,
    Import "import" 0,
    OffOrRead "off or read" 0,
    Refused "refused" 0,
    HungUp "hung up" 0,
    Window "window" 0,
    WindowKeepsFirst "window, first kept" 0,
    WindowNotice "window, notice" 0,
    SummaryUser "summary as user" 0,
    SummaryAssistant "summary as assistant" 0,
    SummaryAsked "summary, asked for" 0,
    SummaryBehindUsers "summary behind users" 0,
    SummarySystem "summary in system" 0,
    SummaryCanned "summary, canned" 0,
    Pruned "pruned results" 0,
    DroppedRounds "dropped rounds" 0,
    Floating "floating pair" 0,
    Clock "clock" 0,
    Reminder "reminder" 0,
    Rewrites "rewrites" 0,
    Removes "removes" 0,
    RewritesWindow "rewrites, window" 0,
    Regenerates "regenerates" 0,
    Branches "branches" 0,
    SceneThree "scene: three canned" 0,
    SceneLast "scene: last answer" 0,
    SceneQuote "scene: quote" 0,
    SceneSlid "scene: slid to canned" 0,
}

impl Kind {
    /// The kinds that are played by nothing but a scene.
    pub const SCENES: [Kind; 4] = [
        Kind::SceneThree,
        Kind::SceneLast,
        Kind::SceneQuote,
        Kind::SceneSlid,
    ];

    pub fn is_scene(self) -> bool {
        Self::SCENES.contains(&self)
    }

    pub fn summarises(self) -> bool {
        matches!(
            self,
            Self::SummaryUser
                | Self::SummaryAssistant
                | Self::SummaryAsked
                | Self::SummaryBehindUsers
                | Self::SummarySystem
                | Self::SummaryCanned
        )
    }

    /// Whether what the user said first stays in all requests. Whoever leaves it out, and had answers from
    /// elsewhere, may have nothing left of his own.
    pub fn keeps_its_beginning(self) -> bool {
        !matches!(
            self,
            Self::Window
                | Self::WindowNotice
                | Self::WindowKeepsFirst
                | Self::RewritesWindow
                | Self::Restart
        ) && !self.summarises()
    }

    /// Whether its user takes words back.
    pub fn edits(self) -> bool {
        matches!(self, Self::Rewrites | Self::Removes | Self::RewritesWindow)
    }

    /// One that is no scene.
    pub fn drawn(dice: &mut Dice) -> Self {
        // Words that are taken back are half of what is judged.
        if dice.one_in(14) {
            return *dice.pick(&[Self::Rewrites, Self::Removes, Self::RewritesWindow]);
        }
        loop {
            let kind = *dice.pick(Self::ALL);
            if !kind.is_scene() {
                return kind;
            }
        }
    }
}

/// How a conversation is called, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    None,
    Thread,
    Chat,
    /// One name for all conversations of a user.
    User,
    /// One name for everybody.
    Fixed,
}

impl Naming {
    pub fn drawn(dice: &mut Dice) -> Self {
        // Most clients name nothing.
        *dice.pick(&[
            Self::None,
            Self::None,
            Self::Thread,
            Self::Chat,
            Self::User,
            Self::Fixed,
        ])
    }

    /// Whether it names one conversation.
    pub fn names_one(self) -> bool {
        matches!(self, Self::Thread | Self::Chat)
    }

    pub fn headers(self, user: usize, talk: usize) -> Vec<(&'static str, String)> {
        match self {
            Self::None => Vec::new(),
            Self::Thread => vec![("x-diarist-thread", format!("t-{user}-{talk}"))],
            Self::Chat => vec![("x-openwebui-chat-id", format!("chat-{user}-{talk}"))],
            Self::User => vec![("x-session-id", format!("session-of-{user}"))],
            Self::Fixed => vec![("x-session-id", "always-the-same".to_owned())],
        }
    }
}
