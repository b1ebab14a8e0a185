//! Asks a condition of one message's properties, without copying any of them.

use std::cmp::Ordering;

use super::expression::{Comparison, Expression, List, Operand, Property, TextTest};
use super::number::Number;
use super::truth::Truth;

/// The properties of one message that an expression names, by slot.
#[derive(Debug, Clone, Copy)]
pub struct Evaluation<'m> {
    slots: &'m [Option<&'m str>],
}

/// What an operand is in one message.
#[derive(Debug, Clone, Copy)]
enum Value<'m> {
    Null,
    Boolean(bool),
    Number(Number),
    Text(&'m str),
}

impl<'m> Evaluation<'m> {
    /// Of a message with these properties.
    pub fn new(slots: &'m [Option<&'m str>]) -> Evaluation<'m> {
        Evaluation { slots }
    }

    /// What the condition comes to.
    pub fn truth(self, condition: &Expression) -> Truth {
        match condition {
            Expression::All(conditions) => Truth::all(conditions.iter().map(|condition| self.truth(condition))),
            Expression::Any(conditions) => Truth::any(conditions.iter().map(|condition| self.truth(condition))),
            Expression::Not(condition) => self.truth(condition).not(),
            Expression::Is(operand) => equal(self.value(operand), Value::Boolean(true)),
            Expression::Compare { left, comparison, right } => {
                compare(self.value(left), *comparison, self.value(right))
            }
            Expression::Between { value, is_negated, low, high } => {
                let value = self.value(value);
                let from_low = compare(value, Comparison::AtLeast, self.value(low));
                let to_high = compare(value, Comparison::AtMost, self.value(high));
                Truth::all([from_low, to_high].into_iter()).not_if(*is_negated)
            }
            Expression::In { property, is_negated, list } => match self.property(property) {
                None => Truth::Unknown,
                Some(value) => is_in(list, value).not_if(*is_negated),
            },
            Expression::IsNull { value, is_negated } => {
                Truth::from(matches!(self.value(value), Value::Null)).not_if(*is_negated)
            }
            Expression::Test { property, is_negated, test } => match self.property(property) {
                None => Truth::Unknown,
                Some(value) => Truth::from(passes(test, value)).not_if(*is_negated),
            },
        }
    }

    fn value<'v>(self, operand: &'v Operand) -> Value<'v>
    where
        'm: 'v,
    {
        match operand {
            Operand::Number(number) => Value::Number(*number),
            Operand::Text(text) => Value::Text(text),
            Operand::Boolean(is_true) => Value::Boolean(*is_true),
            Operand::Property(property) => self.property(property).map_or(Value::Null, Value::Text),
            Operand::Condition(condition) => match self.truth(condition) {
                Truth::True => Value::Boolean(true),
                Truth::False => Value::Boolean(false),
                Truth::Unknown => Value::Null,
            },
        }
    }

    fn property(self, property: &Property) -> Option<&'m str> {
        self.slots[property.slot]
    }
}

fn compare(left: Value<'_>, comparison: Comparison, right: Value<'_>) -> Truth {
    let fits: fn(Ordering) -> bool = match comparison {
        Comparison::Equal => return equal(left, right),
        Comparison::NotEqual => return equal(left, right).not(),
        Comparison::Less => Ordering::is_lt,
        Comparison::AtMost => Ordering::is_le,
        Comparison::Greater => Ordering::is_gt,
        Comparison::AtLeast => Ordering::is_ge,
    };
    match (number(left), number(right)) {
        (Some(left), Some(right)) => Truth::from(fits(left.compare(right))),
        _ => Truth::Unknown,
    }
}

/// A text is compared as what stands on the other side.
fn equal(left: Value<'_>, right: Value<'_>) -> Truth {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => Truth::from(left == right),
        (Value::Boolean(left), Value::Boolean(right)) => Truth::from(left == right),
        // As Java reads truth values: every other text is false.
        (Value::Boolean(boolean), Value::Text(text)) | (Value::Text(text), Value::Boolean(boolean)) => {
            Truth::from(text.eq_ignore_ascii_case("true") == boolean)
        }
        (Value::Number(_), Value::Number(_) | Value::Text(_)) | (Value::Text(_), Value::Number(_)) => {
            match (number(left), number(right)) {
                (Some(left), Some(right)) => Truth::from(left == right),
                _ => Truth::Unknown,
            }
        }
        (Value::Null, _) | (_, Value::Null) => Truth::Unknown,
        (Value::Boolean(_), Value::Number(_)) | (Value::Number(_), Value::Boolean(_)) => {
            unreachable!("the parser lets no truth value be compared with a number")
        }
    }
}

fn number(value: Value<'_>) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number),
        Value::Text(text) => Number::of_property(text),
        Value::Null | Value::Boolean(_) => None,
    }
}

fn is_in(list: &List, value: &str) -> Truth {
    if list.texts.binary_search_by(|text| (**text).cmp(value)).is_ok() {
        return Truth::True;
    }
    if list.numbers.is_empty() {
        return Truth::False;
    }
    match Number::of_property(value) {
        Some(value) => Truth::from(list.numbers.binary_search_by(|number| number.compare(value)).is_ok()),
        None => Truth::Unknown,
    }
}

fn passes(test: &TextTest, value: &str) -> bool {
    match test {
        TextTest::Contains(text) => value.contains(&**text),
        TextTest::StartsWith(text) => value.starts_with(&**text),
        TextTest::EndsWith(text) => value.ends_with(&**text),
        TextTest::Like(pattern) => pattern.matches(value),
    }
}
