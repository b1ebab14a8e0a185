//! Reads an expression by recursive descent; what it returns has the types that evaluation relies on.
//!
//! ```text
//! any ─▶ all { OR all }    all ─▶ not { AND not }    not ─▶ NOT not │ predicate
//! predicate ─▶ operand [ comparison ]                operand ─▶ literal │ property │ ( any )
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_message::RESERVED_PROPERTY_KEYS;

use super::error::SqlError;
use super::expression::{Comparison, Expression, KEYWORDS, List, Operand, Property, TextTest};
use super::lexer::{Lexer, Token, TokenKind, shown};
use super::like::LikePattern;
use super::number::Number;
use super::sql_filter::{KEYS, MESSAGE_ID, TAG};
use super::{EXPRESSION_BYTES_MAX, LIST_VALUES_MAX, NESTING_MAX, PATTERN_BYTES_MAX, PROPERTIES_MAX};

const CONDITION: &str = "a condition";
const OPERAND: &str = "a property, a number, a text, TRUE, FALSE, NOT or (";
const TEXT: &str = "a text in single quotes";

/// An expression and the slots of the properties it names.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The condition.
    pub expression: Expression,
    /// Slot by name.
    pub properties: BTreeMap<Arc<str>, usize>,
}

/// Reads a whole text as one condition.
pub fn parse(text: &str) -> Result<Parsed, SqlError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(SqlError::TooLong { bytes: text.len() });
    }
    let mut lexer = Lexer::new(text);
    let ahead = lexer.token()?;
    let mut parser = Parser { lexer, ahead, depth: 0, properties: BTreeMap::new() };
    let expression = parser.condition(Parser::any)?;
    match parser.ahead.kind {
        TokenKind::End => Ok(Parsed { expression, properties: parser.properties }),
        _ => Err(parser.unexpected("AND, OR or the end of the expression")),
    }
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    /// The token not taken yet.
    ahead: Token<'t>,
    depth: usize,
    properties: BTreeMap<Arc<str>, usize>,
}

impl<'t> Parser<'t> {
    // --- Conditions, from what binds least to what binds most. Each may turn out to be a mere operand, as a number in
    // parentheses is; who needs a condition checks that it is one.

    fn any(&mut self) -> Result<Operand, SqlError> {
        self.chain(Parser::all, "OR", Expression::Any)
    }

    fn all(&mut self) -> Result<Operand, SqlError> {
        self.chain(Parser::not, "AND", Expression::All)
    }

    fn chain(
        &mut self,
        part: fn(&mut Self) -> Result<Operand, SqlError>,
        word: &str,
        of: fn(Vec<Expression>) -> Expression,
    ) -> Result<Operand, SqlError> {
        let at = self.ahead.at;
        let first = part(self)?;
        if !self.is_word(word) {
            return Ok(first);
        }
        let mut conditions = vec![self.as_condition(first, at)?];
        while self.take_word(word)? {
            conditions.push(self.condition(part)?);
        }
        Ok(Operand::Condition(Box::new(of(conditions))))
    }

    fn not(&mut self) -> Result<Operand, SqlError> {
        if !self.is_word("NOT") {
            return self.predicate();
        }
        self.deeper()?;
        self.advance()?;
        let condition = self.condition(Parser::not)?;
        self.depth -= 1;
        Ok(Operand::Condition(Box::new(Expression::Not(Box::new(condition)))))
    }

    fn predicate(&mut self) -> Result<Operand, SqlError> {
        let at = self.ahead.at;
        let value = self.operand()?;
        if let Some(comparison) = self.take_comparison()? {
            let right = self.operand()?;
            self.check_comparable(at, &value, comparison, &right)?;
            if let TokenKind::Symbol("=" | "<>" | "<" | "<=" | ">" | ">=") = self.ahead.kind {
                return Err(self.unexpected("AND, OR, ) or the end: comparisons are not chained"));
            }
            return Ok(condition(Expression::Compare { left: value, comparison, right }));
        }
        if self.take_word("IS")? {
            let is_negated = self.take_word("NOT")?;
            if !self.take_word("NULL")? {
                return Err(self.unexpected(if is_negated { "NULL" } else { "NULL or NOT NULL" }));
            }
            return Ok(condition(Expression::IsNull { value, is_negated }));
        }
        let is_negated = self.take_word("NOT")?;
        if self.take_word("BETWEEN")? {
            return self.between(at, value, is_negated);
        }
        if self.is_word("IN") {
            let property = self.as_property(value, at)?;
            self.advance()?;
            let list = self.list()?;
            return Ok(condition(Expression::In { property, is_negated, list }));
        }
        for (word, test) in [
            ("CONTAINS", TextTest::Contains as fn(Box<str>) -> TextTest),
            ("STARTSWITH", TextTest::StartsWith),
            ("ENDSWITH", TextTest::EndsWith),
        ] {
            if self.is_word(word) {
                let property = self.as_property(value, at)?;
                self.advance()?;
                let test = test(self.searched()?);
                return Ok(condition(Expression::Test { property, is_negated, test }));
            }
        }
        if self.is_word("LIKE") {
            let property = self.as_property(value, at)?;
            self.advance()?;
            let test = TextTest::Like(self.pattern()?);
            return Ok(condition(Expression::Test { property, is_negated, test }));
        }
        if is_negated {
            return Err(self.unexpected("BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH after NOT"));
        }
        Ok(value)
    }

    fn between(&mut self, at: usize, value: Operand, is_negated: bool) -> Result<Operand, SqlError> {
        let low_at = self.ahead.at;
        let low = self.operand()?;
        self.check_comparable(at, &value, Comparison::AtLeast, &low)?;
        if !self.take_word("AND")? {
            return Err(self.unexpected("AND and the upper bound of BETWEEN"));
        }
        let high = self.operand()?;
        self.check_comparable(at, &value, Comparison::AtMost, &high)?;
        if let (Operand::Number(low), Operand::Number(high), false) = (&low, &high, is_negated)
            && low.compare(*high).is_gt()
        {
            let at = self.lexer.position(low_at);
            return Err(SqlError::BoundsReversed { at, low: low.to_string(), high: high.to_string() });
        }
        Ok(condition(Expression::Between { value, is_negated, low, high }))
    }

    // --- Operands and what stands behind an operator.

    fn operand(&mut self) -> Result<Operand, SqlError> {
        let at = self.ahead.at;
        match &self.ahead.kind {
            TokenKind::Number(_) => self.number(false).map(Operand::Number),
            TokenKind::Symbol(sign @ ("+" | "-")) => {
                let is_negative = *sign == "-";
                self.advance()?;
                self.number(is_negative).map(Operand::Number)
            }
            TokenKind::Text(text) => {
                let text = Box::from(&**text);
                self.advance()?;
                Ok(Operand::Text(text))
            }
            TokenKind::Symbol("(") => {
                self.deeper()?;
                self.advance()?;
                let inner = self.any()?;
                if self.ahead.kind != TokenKind::Symbol(")") {
                    return Err(self.unexpected("an operator or )"));
                }
                self.advance()?;
                self.depth -= 1;
                Ok(inner)
            }
            TokenKind::Name(name) => {
                let name = name.clone();
                self.property(&name, at).map(Operand::Property)
            }
            TokenKind::Word(word) => {
                let word = *word;
                if word.eq_ignore_ascii_case("TRUE") || word.eq_ignore_ascii_case("FALSE") {
                    self.advance()?;
                    return Ok(Operand::Boolean(word.eq_ignore_ascii_case("TRUE")));
                }
                if word.eq_ignore_ascii_case("NULL") {
                    return Err(self.unexpected("a value: nothing equals NULL, IS NULL and IS NOT NULL ask for it"));
                }
                if KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word)) {
                    return Err(self.unexpected(OPERAND));
                }
                self.property(word, at).map(Operand::Property)
            }
            TokenKind::Symbol(_) | TokenKind::End => Err(self.unexpected(OPERAND)),
        }
    }

    fn number(&mut self, is_negative: bool) -> Result<Number, SqlError> {
        let TokenKind::Number(digits) = self.ahead.kind else {
            return Err(self.unexpected("a number after its sign: there is no arithmetic"));
        };
        let Some(number) = Number::literal(digits, is_negative) else {
            return Err(SqlError::NumberOutOfRange { at: self.lexer.position(self.ahead.at), found: shown(digits) });
        };
        self.advance()?;
        Ok(number)
    }

    /// Takes the token ahead as this property.
    fn property(&mut self, name: &str, at: usize) -> Result<Property, SqlError> {
        let is_kept = [TAG, KEYS, MESSAGE_ID].contains(&name);
        if !is_kept && RESERVED_PROPERTY_KEYS.binary_search(&name).is_ok() {
            return Err(SqlError::Reserved { at: self.lexer.position(at), name: name.to_owned() });
        }
        let property = match self.properties.get_key_value(name) {
            Some((name, slot)) => Property { name: name.clone(), slot: *slot },
            None => {
                let slot = self.properties.len();
                if slot == PROPERTIES_MAX {
                    return Err(SqlError::TooManyProperties { at: self.lexer.position(at) });
                }
                let name: Arc<str> = name.into();
                self.properties.insert(name.clone(), slot);
                Property { name, slot }
            }
        };
        self.advance()?;
        Ok(property)
    }

    fn list(&mut self) -> Result<List, SqlError> {
        if self.ahead.kind != TokenKind::Symbol("(") {
            return Err(self.unexpected("( and the values of IN"));
        }
        self.advance()?;
        let mut list = List { texts: Vec::new(), numbers: Vec::new() };
        loop {
            if list.texts.len() + list.numbers.len() == LIST_VALUES_MAX {
                return Err(SqlError::ListTooLong { at: self.lexer.position(self.ahead.at) });
            }
            match self.ahead.kind {
                TokenKind::Text(_) | TokenKind::Number(_) | TokenKind::Symbol("+" | "-") => match self.operand()? {
                    Operand::Text(text) => list.texts.push(text),
                    Operand::Number(number) => list.numbers.push(number),
                    other => unreachable!("the token ahead begins a text or a number, not {}", other.noun()),
                },
                _ => return Err(self.unexpected("a text or a number")),
            }
            match self.ahead.kind {
                TokenKind::Symbol(",") => self.advance()?,
                TokenKind::Symbol(")") => break,
                _ => return Err(self.unexpected(", or )")),
            }
        }
        self.advance()?;
        list.texts.sort();
        list.texts.dedup();
        list.numbers.sort_by(|left, right| left.compare(*right));
        Ok(list)
    }

    /// The text that CONTAINS and its like look for.
    fn searched(&mut self) -> Result<Box<str>, SqlError> {
        let text = match &self.ahead.kind {
            TokenKind::Text(text) if !text.is_empty() => Box::from(&**text),
            TokenKind::Text(_) => return Err(self.unexpected("a text of at least one character")),
            _ => return Err(self.unexpected(TEXT)),
        };
        self.advance()?;
        Ok(text)
    }

    fn pattern(&mut self) -> Result<LikePattern, SqlError> {
        let TokenKind::Text(text) = self.ahead.kind.clone() else { return Err(self.unexpected(TEXT)) };
        let token = self.ahead.clone();
        if text.len() > PATTERN_BYTES_MAX {
            return Err(SqlError::PatternTooLong { at: self.lexer.position(token.at), bytes: text.len() });
        }
        self.advance()?;
        let mut escape = None;
        if self.take_word("ESCAPE")? {
            let mut characters = match &self.ahead.kind {
                TokenKind::Text(text) => text.chars(),
                _ => "".chars(),
            };
            escape = characters.next();
            if escape.is_none() || characters.next().is_some() {
                return Err(self.unexpected("one character in single quotes"));
            }
            self.advance()?;
        }
        LikePattern::new(&text, escape)
            .map_err(|_| self.unexpected_at(&token, "%, _ or itself behind each escape character"))
    }

    // --- Types.

    fn condition(&mut self, part: fn(&mut Self) -> Result<Operand, SqlError>) -> Result<Expression, SqlError> {
        let at = self.ahead.at;
        let operand = part(self)?;
        self.as_condition(operand, at)
    }

    fn as_condition(&self, operand: Operand, at: usize) -> Result<Expression, SqlError> {
        match operand {
            Operand::Condition(condition) => Ok(*condition),
            Operand::Boolean(_) | Operand::Property(_) => Ok(Expression::Is(operand)),
            Operand::Number(_) | Operand::Text(_) => {
                let found = shown(&operand.to_string());
                Err(SqlError::Unexpected { at: self.lexer.position(at), found, expected: CONDITION })
            }
        }
    }

    fn as_property(&self, operand: Operand, at: usize) -> Result<Property, SqlError> {
        match operand {
            Operand::Property(property) => Ok(property),
            Operand::Number(_) | Operand::Text(_) | Operand::Boolean(_) | Operand::Condition(_) => {
                let found = shown(&operand.to_string());
                Err(SqlError::Unexpected {
                    at: self.lexer.position(at),
                    found,
                    expected: "a property before this operator",
                })
            }
        }
    }

    fn check_comparable(
        &self,
        at: usize,
        left: &Operand,
        comparison: Comparison,
        right: &Operand,
    ) -> Result<(), SqlError> {
        let is_truth = |operand: &Operand| matches!(operand, Operand::Boolean(_) | Operand::Condition(_));
        let is_ordered = |operand: &Operand| matches!(operand, Operand::Number(_) | Operand::Property(_));
        let is_comparable = if comparison.is_equality() {
            let is_free = |operand: &Operand| matches!(operand, Operand::Property(_));
            is_free(left) || is_free(right) || is_truth(left) == is_truth(right)
        } else {
            is_ordered(left) && is_ordered(right)
        };
        if is_comparable {
            return Ok(());
        }
        Err(SqlError::NotComparable {
            at: self.lexer.position(at),
            left: left.noun(),
            right: right.noun(),
            comparison: comparison.symbol(),
            expected: if comparison.is_equality() { "sides of the same kind" } else { "numbers or properties" },
        })
    }

    // --- Tokens.

    fn advance(&mut self) -> Result<(), SqlError> {
        self.ahead = self.lexer.token()?;
        Ok(())
    }

    fn is_word(&self, keyword: &str) -> bool {
        matches!(self.ahead.kind, TokenKind::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    fn take_word(&mut self, keyword: &str) -> Result<bool, SqlError> {
        let is_there = self.is_word(keyword);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn take_comparison(&mut self) -> Result<Option<Comparison>, SqlError> {
        let TokenKind::Symbol(symbol) = self.ahead.kind else { return Ok(None) };
        let comparison = Comparison::ALL.into_iter().find(|comparison| comparison.symbol() == symbol);
        if comparison.is_some() {
            self.advance()?;
        }
        Ok(comparison)
    }

    fn deeper(&mut self) -> Result<(), SqlError> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return Err(SqlError::TooDeep { at: self.lexer.position(self.ahead.at) });
        }
        Ok(())
    }

    fn unexpected(&self, expected: &'static str) -> SqlError {
        self.unexpected_at(&self.ahead, expected)
    }

    fn unexpected_at(&self, token: &Token<'_>, expected: &'static str) -> SqlError {
        let found = match &token.kind {
            TokenKind::Word(word) | TokenKind::Number(word) => shown(word),
            TokenKind::Name(name) => format!("\"{}\"", shown(name)),
            TokenKind::Text(text) => format!("'{}'", shown(text)),
            TokenKind::Symbol(symbol) => (*symbol).to_owned(),
            TokenKind::End => "the end".to_owned(),
        };
        SqlError::Unexpected { at: self.lexer.position(token.at), found, expected }
    }
}

fn condition(expression: Expression) -> Operand {
    Operand::Condition(Box::new(expression))
}
