//! A filter expression as a tree; printed, it reads as the same tree again.

use std::fmt;
use std::sync::Arc;

use super::lexer::is_plain_name;
use super::like::LikePattern;
use super::number::Number;

/// Words that are no property's name unless in double quotes. `LIKE` and `ESCAPE` are not among them: RocketMQ knows
/// neither, so they may be names of properties there.
pub const KEYWORDS: [&str; 12] =
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"];

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    /// AND of two or more.
    All(Vec<Expression>),
    /// OR of two or more.
    Any(Vec<Expression>),
    /// NOT.
    Not(Box<Expression>),
    /// An operand that is true or false by itself.
    Is(Operand),
    /// One operand compared with another.
    Compare {
        /// The left side.
        left: Operand,
        /// How.
        comparison: Comparison,
        /// The right side.
        right: Operand,
    },
    /// BETWEEN, its bounds included.
    Between {
        /// What is between.
        value: Operand,
        /// NOT BETWEEN.
        is_negated: bool,
        /// The lower bound.
        low: Operand,
        /// The upper bound.
        high: Operand,
    },
    /// IN.
    In {
        /// What is looked for.
        property: Property,
        /// NOT IN.
        is_negated: bool,
        /// Where.
        list: List,
    },
    /// IS NULL.
    IsNull {
        /// What may be absent or unknown.
        value: Operand,
        /// IS NOT NULL.
        is_negated: bool,
    },
    /// A test of a property's text.
    Test {
        /// The property.
        property: Property,
        /// Its NOT form.
        is_negated: bool,
        /// Which test.
        test: TextTest,
    },
}

/// A side of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A number.
    Number(Number),
    /// A text.
    Text(Box<str>),
    /// TRUE or FALSE.
    Boolean(bool),
    /// A property of the message.
    Property(Property),
    /// A condition in parentheses.
    Condition(Box<Expression>),
}

/// A property of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: Arc<str>,
    /// Its place among the expression's properties.
    pub slot: usize,
}

/// How two operands are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
}

/// The values of an IN list, sorted.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// The texts, without doubles.
    pub texts: Vec<Box<str>>,
    /// The numbers.
    pub numbers: Vec<Number>,
}

/// A test of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum TextTest {
    /// CONTAINS.
    Contains(Box<str>),
    /// STARTSWITH.
    StartsWith(Box<str>),
    /// ENDSWITH.
    EndsWith(Box<str>),
    /// LIKE.
    Like(LikePattern),
}

impl Comparison {
    /// All with their symbols.
    pub const ALL: [Comparison; 6] = [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::AtMost,
        Comparison::Greater,
        Comparison::AtLeast,
    ];

    /// As written.
    pub fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "=",
            Comparison::NotEqual => "<>",
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::Greater => ">",
            Comparison::AtLeast => ">=",
        }
    }

    /// Whether it asks for equality, which texts and truth values have too.
    pub fn is_equality(self) -> bool {
        match self {
            Comparison::Equal | Comparison::NotEqual => true,
            Comparison::Less | Comparison::AtMost | Comparison::Greater | Comparison::AtLeast => false,
        }
    }
}

impl Operand {
    /// What it is, for errors.
    pub fn noun(&self) -> &'static str {
        match self {
            Operand::Number(_) => "a number",
            Operand::Text(_) => "a text",
            Operand::Boolean(_) => "TRUE or FALSE",
            Operand::Property(_) => "a property",
            Operand::Condition(_) => "a condition",
        }
    }
}

impl Expression {
    /// How many times, about, a message's properties are looked through.
    pub fn weight(&self) -> usize {
        match self {
            Expression::All(conditions) | Expression::Any(conditions) => {
                conditions.iter().map(Expression::weight).sum()
            }
            Expression::Not(condition) => condition.weight(),
            Expression::Is(operand) | Expression::IsNull { value: operand, .. } => operand.weight(),
            Expression::Compare { left, right, .. } => left.weight() + right.weight(),
            Expression::Between { value, low, high, .. } => 2 * value.weight() + low.weight() + high.weight(),
            // Both its halves are sorted.
            Expression::In { .. } => 2,
            Expression::Test { test: TextTest::Like(pattern), .. } => pattern.weight(),
            Expression::Test { .. } => 1,
        }
    }
}

impl Operand {
    fn weight(&self) -> usize {
        match self {
            Operand::Number(_) | Operand::Text(_) | Operand::Boolean(_) => 0,
            Operand::Property(_) => 1,
            Operand::Condition(condition) => condition.weight(),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |is_negated: bool| if is_negated { "NOT " } else { "" };
        match self {
            Expression::All(conditions) => joined(out, conditions, " AND "),
            Expression::Any(conditions) => joined(out, conditions, " OR "),
            Expression::Not(condition) => {
                out.write_str("NOT ")?;
                inner(out, condition)
            }
            Expression::Is(operand) => write!(out, "{operand}"),
            Expression::Compare { left, comparison, right } => write!(out, "{left} {} {right}", comparison.symbol()),
            Expression::Between { value, is_negated, low, high } => {
                write!(out, "{value} {}BETWEEN {low} AND {high}", not(*is_negated))
            }
            Expression::In { property, is_negated, list } => write!(out, "{property} {}IN {list}", not(*is_negated)),
            Expression::IsNull { value, is_negated } => write!(out, "{value} IS {}NULL", not(*is_negated)),
            Expression::Test { property, is_negated, test } => write!(out, "{property} {}{test}", not(*is_negated)),
        }
    }
}

fn joined(out: &mut fmt::Formatter<'_>, conditions: &[Expression], by: &str) -> fmt::Result {
    for (number, condition) in conditions.iter().enumerate() {
        if number > 0 {
            out.write_str(by)?;
        }
        inner(out, condition)?;
    }
    Ok(())
}

/// A part of a larger condition: whatever binds less than NOT stands in parentheses.
fn inner(out: &mut fmt::Formatter<'_>, condition: &Expression) -> fmt::Result {
    match condition {
        Expression::All(_) | Expression::Any(_) => write!(out, "({condition})"),
        _ => write!(out, "{condition}"),
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Number(number) => write!(out, "{number}"),
            Operand::Text(text) => quoted(out, text),
            Operand::Boolean(true) => out.write_str("TRUE"),
            Operand::Boolean(false) => out.write_str("FALSE"),
            Operand::Property(property) => write!(out, "{property}"),
            Operand::Condition(condition) => write!(out, "({condition})"),
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        if is_plain_name(name) && !KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(name)) {
            return out.write_str(name);
        }
        write!(out, "\"{}\"", name.replace('"', "\"\""))
    }
}

impl fmt::Display for List {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "(";
        for text in &self.texts {
            out.write_str(before)?;
            quoted(out, text)?;
            before = ", ";
        }
        for number in &self.numbers {
            write!(out, "{before}{number}")?;
            before = ", ";
        }
        out.write_str(")")
    }
}

impl fmt::Display for TextTest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, text) = match self {
            TextTest::Contains(text) => ("CONTAINS", &**text),
            TextTest::StartsWith(text) => ("STARTSWITH", &**text),
            TextTest::EndsWith(text) => ("ENDSWITH", &**text),
            TextTest::Like(pattern) => ("LIKE", pattern.text()),
        };
        write!(out, "{word} ")?;
        quoted(out, text)?;
        if let TextTest::Like(pattern) = self
            && let Some(escape) = pattern.escape()
        {
            out.write_str(" ESCAPE ")?;
            quoted(out, escape.encode_utf8(&mut [0; 4]))?;
        }
        Ok(())
    }
}

fn quoted(out: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(out, "'{}'", text.replace('\'', "''"))
}
