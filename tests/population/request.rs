//! One request as it is to be sent, and what is true of it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::population::kinds::Kind;
use crate::population::marks::Mark;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// The provider fails with this status.
    Fails(u16),
    /// The client leaves in the middle of the answer.
    HungUp,
    /// The provider breaks the answer off.
    CutOff,
}

/// One request, and what is true of it.
#[derive(Clone, Debug)]
pub struct Request {
    pub user: usize,
    pub conversation: usize,
    pub kind: Kind,
    pub tenant: usize,
    pub headers: Vec<(&'static str, String)>,
    pub messages: Vec<Value>,
    pub reply: Value,
    pub fate: Fate,
    pub stream: bool,
    /// Whether the client waits until memory has nothing left to do.
    pub rests: bool,
    /// Which of the processes it goes to.
    pub process: usize,
    /// What was said on this branch of this conversation.
    pub may: BTreeSet<Mark>,
    /// What its user said and took back.
    pub taken: BTreeSet<Mark>,
}

impl Request {
    pub fn nothing(user: usize, conversation: usize) -> Self {
        Self {
            user,
            conversation,
            kind: Kind::Plain,
            tenant: 0,
            headers: Vec::new(),
            messages: Vec::new(),
            reply: Value::Null,
            fate: Fate::Answered,
            stream: false,
            rests: true,
            process: 0,
            may: BTreeSet::new(),
            taken: BTreeSet::new(),
        }
    }

    pub fn memory(&self) -> &str {
        let mut headers = self.headers.iter();
        headers
            .find(|(name, _)| *name == "x-diarist-memory")
            .map_or("on", |(_, mode)| mode)
    }
}
