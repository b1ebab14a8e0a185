//! Cuts an expression into tokens.

use std::borrow::Cow;

use super::error::SqlError;

/// Characters of a token that an error shows.
const SHOWN_CHARACTERS_MAX: usize = 40;

/// A token and where it begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Token<'t> {
    /// Byte offset in the expression.
    pub at: usize,
    /// What it is.
    pub kind: TokenKind<'t>,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenKind<'t> {
    /// A keyword or a property's name.
    Word(&'t str),
    /// A property's name in double quotes, without them.
    Name(Cow<'t, str>),
    /// A text in single quotes, without them.
    Text(Cow<'t, str>),
    /// A number without its sign, as written.
    Number(&'t str),
    /// An operator, bracket or comma.
    Symbol(&'static str),
    /// Behind the last one.
    End,
}

/// Longer ones before those that they begin with.
const SYMBOLS: [&str; 11] = ["<>", "<=", ">=", "=", "<", ">", "(", ")", ",", "+", "-"];

/// Reads one token after the other.
#[derive(Debug)]
pub struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Lexer<'t> {
    /// At the beginning of `text`.
    pub fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, at: 0 }
    }

    /// The next token; [`TokenKind::End`] again and again behind the last one.
    pub fn token(&mut self) -> Result<Token<'t>, SqlError> {
        self.skip_blanks()?;
        let at = self.at;
        let rest = &self.text[at..];
        let Some(first) = rest.chars().next() else { return Ok(Token { at, kind: TokenKind::End }) };
        let kind = match first {
            '\'' => TokenKind::Text(self.quoted('\'', "text", "a closing '")?),
            '"' => TokenKind::Name(self.quoted('"', "property name", "a closing \"")?),
            _ if first.is_ascii_digit() || is_point_and_digit(rest) => TokenKind::Number(self.number()?),
            _ if is_word_start(first) => {
                let length = rest.find(|character| !is_word(character)).unwrap_or(rest.len());
                self.at += length;
                TokenKind::Word(&rest[..length])
            }
            _ => match SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
                Some(symbol) => {
                    self.at += symbol.len();
                    TokenKind::Symbol(symbol)
                }
                None if rest.starts_with("!=") => return Err(self.unexpected(at, "!=", "<>")),
                None => {
                    return Err(self.unexpected(
                        at,
                        first.encode_utf8(&mut [0; 4]),
                        "a property, a value, an operator or a parenthesis",
                    ));
                }
            },
        };
        Ok(Token { at, kind })
    }

    /// The position, in characters from 1, of a byte offset.
    pub fn position(&self, at: usize) -> usize {
        1 + self.text[..at].chars().count()
    }

    fn unexpected(&self, at: usize, found: &str, expected: &'static str) -> SqlError {
        SqlError::Unexpected { at: self.position(at), found: shown(found), expected }
    }

    /// Blanks and comments: from `--` to the end of its line, and from `/*` to `*/`.
    fn skip_blanks(&mut self) -> Result<(), SqlError> {
        loop {
            let rest = &self.text[self.at..];
            let bare = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
            self.at += rest.len() - bare.len();
            if bare.starts_with("--") {
                self.at += bare.find(['\n', '\r']).unwrap_or(bare.len());
            } else if let Some(comment) = bare.strip_prefix("/*") {
                let Some(length) = comment.find("*/") else {
                    let at = self.position(self.at);
                    return Err(SqlError::NotClosed { at, what: "comment", expected: "*/" });
                };
                self.at += length + 4;
            } else {
                return Ok(());
            }
        }
    }

    /// Something in quotes; a doubled quote stands for one.
    fn quoted(&mut self, quote: char, what: &'static str, expected: &'static str) -> Result<Cow<'t, str>, SqlError> {
        let content = &self.text[self.at + 1..];
        let mut is_doubled = false;
        let mut end = 0;
        loop {
            let Some(length) = content[end..].find(quote) else {
                return Err(SqlError::NotClosed { at: self.position(self.at), what, expected });
            };
            end += length;
            if !content[end + 1..].starts_with(quote) {
                break;
            }
            is_doubled = true;
            end += 2;
        }
        self.at += end + 2;
        let content = &content[..end];
        Ok(if is_doubled {
            let one = quote.encode_utf8(&mut [0; 4]).to_owned();
            Cow::Owned(content.replace(&one.repeat(2), &one))
        } else {
            Cow::Borrowed(content)
        })
    }

    /// `5`, `5L`, `5.`, `5.5`, `.5`, `5e10`, `5.5E-10`.
    fn number(&mut self) -> Result<&'t str, SqlError> {
        let at = self.at;
        let rest = &self.text[at..];
        let digits = |from: usize| rest[from..].bytes().take_while(u8::is_ascii_digit).count();
        let mut length = digits(0);
        let mut is_integer = true;
        if rest[length..].starts_with('.') {
            is_integer = false;
            length += 1;
            length += digits(length);
        }
        if rest[length..].starts_with(['e', 'E']) {
            is_integer = false;
            length += 1;
            if rest[length..].starts_with(['+', '-']) {
                length += 1;
            }
            let exponent = digits(length);
            if exponent == 0 {
                return Err(self.unexpected(at, &rest[..length], "digits after the exponent's E"));
            }
            length += exponent;
        }
        if is_integer && rest[length..].starts_with(['l', 'L']) {
            length += 1;
        }
        if rest[length..].starts_with(|character| is_word(character) || character == '.') {
            let end = rest.find(|character| !is_word(character) && character != '.').unwrap_or(rest.len());
            return Err(self.unexpected(at, &rest[..end], "a number, and a blank or an operator after it"));
        }
        self.at += length;
        Ok(&rest[..length])
    }
}

fn is_point_and_digit(text: &str) -> bool {
    text.strip_prefix('.').is_some_and(|rest| rest.starts_with(|character: char| character.is_ascii_digit()))
}

fn is_word_start(character: char) -> bool {
    character.is_ascii_alphabetic() || matches!(character, '_' | '$')
}

fn is_word(character: char) -> bool {
    is_word_start(character) || character.is_ascii_digit()
}

/// Whether a property of this name can be written without quotes, were it no keyword.
pub fn is_plain_name(name: &str) -> bool {
    name.starts_with(is_word_start) && name.chars().all(is_word)
}

/// A piece of the expression as an error shows it: not too long, and no control characters.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(SHOWN_CHARACTERS_MAX) {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(SHOWN_CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind<'_>> {
        let mut lexer = Lexer::new(text);
        let mut kinds = Vec::new();
        loop {
            match lexer.token().expect("tokens").kind {
                TokenKind::End => return kinds,
                kind => kinds.push(kind),
            }
        }
    }

    #[test]
    fn blanks_and_comments_separate_and_are_not_there() {
        use TokenKind::{Number, Symbol, Text, Word};
        assert_eq!(
            kinds("a>=3--rest\nAND/* ** */b<>'it''s'"),
            [Word("a"), Symbol(">="), Number("3"), Word("AND"), Word("b"), Symbol("<>"), Text("it's".into())]
        );
        assert_eq!(kinds(" -- only a comment"), []);
        assert_eq!(kinds("$x_1 .5 5. 1e-3 7L ''"), {
            [Word("$x_1"), Number(".5"), Number("5."), Number("1e-3"), Number("7L"), Text("".into())]
        });
        assert_eq!(kinds("\"order \"\"id\"\"\""), [TokenKind::Name("order \"id\"".into())]);
    }

    #[test]
    fn what_is_no_token_is_named_with_its_place() {
        for (text, expected) in [
            ("ü", "SQL filter at character 1: found ü, expected a property, a value, an operator or a parenthesis"),
            ("'ü' !", "SQL filter at character 5: found !, expected a property, a value, an operator or a parenthesis"),
            ("  !=", "SQL filter at character 3: found !=, expected <>"),
            (" 'abc''", "SQL filter at character 2: text begins here and does not end, expected a closing '"),
            ("\"a", "SQL filter at character 1: property name begins here and does not end, expected a closing \""),
            ("/* a *", "SQL filter at character 1: comment begins here and does not end, expected */"),
            ("3e", "SQL filter at character 1: found 3e, expected digits after the exponent's E"),
            ("3ab ", "SQL filter at character 1: found 3ab, expected a number, and a blank or an operator after it"),
            ("1.2.3", "SQL filter at character 1: found 1.2.3, expected a number, and a blank or an operator after it"),
        ] {
            let mut lexer = Lexer::new(text);
            let error = loop {
                match lexer.token() {
                    Ok(token) => assert_ne!(token.kind, TokenKind::End, "{text:?}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.to_string(), expected);
        }
    }
}
