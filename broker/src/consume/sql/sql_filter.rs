//! A compiled SQL filter: what a poll asks of each message.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_message::FrameView;

use super::PROPERTIES_MAX;
use super::error::SqlError;
use super::evaluation::Evaluation;
use super::expression::Expression;
use super::parser::{Parsed, parse};
use super::truth::Truth;

/// The message's tag as a property.
pub const TAG: &str = "TAGS";
/// The message's keys, a blank between two, as a property.
pub const KEYS: &str = "KEYS";
/// The message's id as a property.
pub const MESSAGE_ID: &str = "UNIQ_KEY";

/// A condition ready to be asked of messages. Two are equal if their texts are.
#[derive(Debug)]
pub struct SqlFilter {
    text: Arc<str>,
    expression: Expression,
    /// Slots of the properties that the expression names.
    properties: BTreeMap<Arc<str>, usize>,
    weight: usize,
}

impl SqlFilter {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Where the expression is none, or which limit it exceeds.
    pub fn compile(text: &str) -> Result<SqlFilter, SqlError> {
        let Parsed { expression, properties } = parse(text)?;
        let weight = 1 + expression.weight();
        Ok(SqlFilter { text: text.into(), expression, properties, weight })
    }

    /// As the client wrote it.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The condition.
    #[cfg(test)]
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// How often, about, one question reads the properties of a message.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Whether the message is wanted: only if the condition is TRUE.
    pub fn wants(&self, message: &FrameView) -> bool {
        self.truth(message) == Truth::True
    }

    /// What the condition comes to in a message.
    pub fn truth(&self, message: &FrameView) -> Truth {
        let mut slots = [None; PROPERTIES_MAX];
        let joined;
        if let Some(slot) = self.properties.get(KEYS) {
            let mut keys = message.keys();
            slots[*slot] = match (keys.next(), keys.next()) {
                (None, _) => None,
                (Some(only), None) => Some(only),
                (Some(_), Some(_)) => {
                    joined = message.keys().collect::<Vec<_>>().join(" ");
                    Some(joined.as_str())
                }
            };
        }
        if let Some(slot) = self.properties.get(TAG) {
            slots[*slot] = message.tag();
        }
        if let Some(slot) = self.properties.get(MESSAGE_ID) {
            slots[*slot] = Some(message.id());
        }
        // Both sorted by name: one walk finds all. No producer's property has the name of one of the above.
        let mut named = self.properties.iter().peekable();
        for (name, value) in message.properties() {
            while named.next_if(|(wanted, _)| &***wanted < name).is_some() {}
            match named.next_if(|(wanted, _)| &***wanted == name) {
                Some((_, slot)) => slots[*slot] = Some(value),
                None if named.peek().is_none() => break,
                None => {}
            }
        }
        Evaluation::new(&slots).truth(&self.expression)
    }
}

impl PartialEq for SqlFilter {
    fn eq(&self, other: &SqlFilter) -> bool {
        self.text == other.text
    }
}

impl Eq for SqlFilter {}
