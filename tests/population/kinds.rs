//! How clients and applications behave: each conversation is of one kind.

use crate::support::dice::Dice;

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

            /// How many in a hundred of the long requests are to have memory at least, and nothing wrong in it.
            pub fn floor(self) -> usize {
                match self { $(Kind::$kind => $floor),* }
            }
        }
    };
}

// What it is, how it is called, and its floor: what 100,000 requests reached under the rules of evidence, less ten. A
// kind that keeps no memory rightly has none, and no scene has. docs/decisions/07-evidence.md has what the rules cost.
kinds! {
    Plain "plain" 60,
    Bot "scripted bot" 60,
    Form "form" 55,
    Cached "response cache" 52,
    Examples "few-shot examples" 75,
    Template "template" 70,
    Restart "restart" 28,
    Import "import" 55,
    OffOrRead "off or read" 50,
    Refused "refused" 40,
    HungUp "hung up" 47,
    Window "window" 27,
    WindowKeepsFirst "window, first kept" 39,
    WindowNotice "window, notice" 4,
    WindowAdding "window, additions" 0,
    EqualAnswers "equal answers" 30,
    SummaryUser "summary as user" 9,
    SummaryAssistant "summary as assistant" 13,
    SummaryAsked "summary, asked for" 10,
    SummaryBehindUsers "summary behind users" 14,
    SummarySystem "summary in system" 16,
    SummaryCanned "summary, canned" 0,
    Pruned "pruned results" 44,
    DroppedRounds "dropped rounds" 70,
    Floating "floating pair" 46,
    Clock "clock" 35,
    Reminder "reminder" 60,
    Rewrites "rewrites" 8,
    Removes "removes" 0,
    RewritesWindow "rewrites, window" 11,
    Regenerates "regenerates" 35,
    Branches "branches" 17,
    SceneThree "scene: three canned" 0,
    SceneLast "scene: last answer" 0,
    SceneQuote "scene: quote" 0,
    SceneSlid "scene: slid to canned" 0,
    SceneBehind "scene: behind a summary" 0,
}

impl Kind {
    /// The kinds that are played by nothing but a scene.
    pub const SCENES: [Kind; 5] = [
        Kind::SceneThree,
        Kind::SceneLast,
        Kind::SceneQuote,
        Kind::SceneSlid,
        Kind::SceneBehind,
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
                | Self::WindowAdding
                | Self::EqualAnswers
                | Self::Removes
                | Self::RewritesWindow
                | Self::Restart
        ) && !self.summarises()
    }

    /// How many conversations of this kind begin together.
    pub fn together(self) -> usize {
        if self == Self::EqualAnswers { 2 } else { 1 }
    }

    /// How a client behaves whose user asks and is answered as another one. One of this kind itself drops its beginning once.
    /// Nobody takes words back, or brings what nobody saw.
    pub fn habit_with_equal_answers(dice: &mut Dice) -> Self {
        *dice.pick(&[
            Self::EqualAnswers,
            Self::EqualAnswers,
            Self::EqualAnswers,
            Self::Plain,
            Self::Window,
            Self::Window,
            Self::WindowKeepsFirst,
            Self::WindowNotice,
            Self::WindowAdding,
            Self::SummaryUser,
            Self::SummaryAssistant,
            Self::SummaryAsked,
            Self::SummaryBehindUsers,
            Self::SummarySystem,
            Self::Floating,
            Self::Clock,
            Self::Reminder,
            Self::Regenerates,
            Self::Branches,
        ])
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
        if dice.one_in(16) {
            return Self::EqualAnswers;
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

    pub fn headers(self, user: usize, conversation: usize) -> Vec<(&'static str, String)> {
        match self {
            Self::None => Vec::new(),
            Self::Thread => vec![("x-diarist-thread", format!("t-{user}-{conversation}"))],
            Self::Chat => vec![("x-openwebui-chat-id", format!("chat-{user}-{conversation}"))],
            Self::User => vec![("x-session-id", format!("session-of-{user}"))],
            Self::Fixed => vec![("x-session-id", "always-the-same".to_owned())],
        }
    }
}
