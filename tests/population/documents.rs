//! Applications that put documents of the user beside the questions. Users who ask the same and are answered the same
//! differ by nothing else.

use serde_json::Value;

use crate::population::conversation::{Conversation, Line};
use crate::population::kinds::Kind;
use crate::population::marks::Mark;
use crate::population::words::{self, message};
use crate::support::dice::Dice;

/// Marks of documents have numbers from here on, that of a question with its own.
const DOCUMENTS: usize = 20_000;

/// Questions that are older have their document, where only old ones have one.
const OLD: usize = 2;

/// Where an application puts documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Documents {
    None,
    BehindQuestions,
    InFrontOfQuestions,
    BehindOldQuestions,
    BehindAnswers,
    /// No later request has it.
    BehindNewestQuestion,
}

impl Documents {
    pub fn drawn(kind: Kind, dice: &mut Dice) -> Self {
        if kind != Kind::EqualAnswers {
            return Self::None;
        }
        if dice.one_in(2) {
            return Self::None;
        }
        *dice.pick(&[
            Self::BehindQuestions,
            Self::InFrontOfQuestions,
            Self::BehindOldQuestions,
            Self::BehindAnswers,
            Self::BehindNewestQuestion,
        ])
    }
}

impl Conversation {
    fn document_mark(&self, question: usize) -> Mark {
        Mark {
            user: self.user,
            conversation: self.id,
            number: DOCUMENTS + question,
        }
    }

    /// The marks of documents that a later request may have as well.
    pub fn document_marks(&self) -> Vec<Mark> {
        if matches!(
            self.documents,
            Documents::None | Documents::BehindNewestQuestion
        ) {
            return Vec::new();
        }
        let lines = self.now.messages.iter();
        let questions = lines.filter(|line| line.is_question()).count();
        (0..questions)
            .map(|question| self.document_mark(question))
            .collect()
    }

    /// The messages from one on, with the documents beside the questions.
    pub fn with_documents(&self, from: usize) -> Vec<Value> {
        let role = ["system", "user"][self.id % 2];
        let (dropped, kept) = self.now.messages.split_at(from);
        let count = |lines: &[Line]| lines.iter().filter(|line| line.is_question()).count();
        let (mut number, questions) = (count(dropped), count(&self.now.messages));
        let mut all = Vec::new();
        for line in kept {
            let is_answer = line.role() == "assistant" && line.value["tool_calls"].is_null();
            let (asks, newest) = (line.is_question(), number + 1 == questions);
            let old = number + OLD < questions;
            let document = message(role, words::own(self.document_mark(number), 220));
            let (in_front, behind) = match self.documents {
                Documents::None => (false, false),
                Documents::BehindQuestions => (false, asks),
                Documents::InFrontOfQuestions => (asks, false),
                Documents::BehindOldQuestions => (false, asks && old),
                Documents::BehindAnswers => (false, is_answer),
                Documents::BehindNewestQuestion => (false, asks && newest),
            };
            number += usize::from(asks);
            all.extend(in_front.then(|| document.clone()));
            all.push(line.value.clone());
            all.extend(behind.then_some(document));
        }
        all
    }
}
