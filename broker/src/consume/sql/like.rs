//! LIKE: a pattern in which `%` stands for any text and `_` for any one character.

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct LikePattern {
    /// As written.
    text: Box<str>,
    escape: Option<char>,
    /// What stands between the `%`; at least one.
    pieces: Vec<Piece>,
}

/// A pattern that escapes something else than a wildcard or itself; the place of the escape in the pattern, in characters.
#[derive(Debug, PartialEq, Eq)]
pub struct IllegalEscape;

/// A part of a pattern without `%`.
#[derive(Debug, Clone, PartialEq)]
enum Piece {
    /// Without `_`: found by the standard library's linear search.
    Text(String),
    /// `None` is any character.
    Characters(Vec<Option<char>>),
}

impl LikePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the escape character stands before something else than `%`, `_` or itself.
    pub fn new(text: &str, escape: Option<char>) -> Result<LikePattern, IllegalEscape> {
        let mut pieces = Vec::new();
        let mut piece = Vec::new();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            if Some(character) == escape {
                match characters.next() {
                    Some(escaped) if matches!(escaped, '%' | '_') || Some(escaped) == escape => {
                        piece.push(Some(escaped));
                    }
                    _ => return Err(IllegalEscape),
                }
            } else {
                match character {
                    '%' => pieces.push(Piece::new(std::mem::take(&mut piece))),
                    '_' => piece.push(None),
                    _ => piece.push(Some(character)),
                }
            }
        }
        pieces.push(Piece::new(piece));
        Ok(LikePattern { text: text.into(), escape, pieces })
    }

    /// The pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its escape character.
    pub fn escape(&self) -> Option<char> {
        self.escape
    }

    /// Whether all of `value` is as the pattern says.
    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &self.pieces[..] else {
            // No `%`: nothing may be left over.
            return self.pieces[0].after(value) == Some("");
        };
        let Some(mut rest) = first.after(value) else { return false };
        for piece in middle {
            // The leftmost place leaves the most for what comes after it.
            let Some(after) = piece.after_leftmost(rest) else { return false };
            rest = after;
        }
        last.ends(rest)
    }

    /// How many steps each character of a value may take.
    pub fn weight(&self) -> usize {
        let steps = self.pieces.iter().map(|piece| match piece {
            Piece::Text(_) => 0,
            Piece::Characters(characters) => characters.len(),
        });
        1 + steps.sum::<usize>()
    }
}

impl Piece {
    fn new(characters: Vec<Option<char>>) -> Piece {
        characters.iter().copied().collect::<Option<String>>().map_or(Piece::Characters(characters), Piece::Text)
    }

    /// What follows this at the beginning of `value`.
    fn after<'v>(&self, value: &'v str) -> Option<&'v str> {
        match self {
            Piece::Text(text) => value.strip_prefix(text.as_str()),
            Piece::Characters(characters) => {
                let mut rest = value.chars();
                let fits = characters.iter().all(|wanted| match (wanted, rest.next()) {
                    (_, None) => false,
                    (None, Some(_)) => true,
                    (Some(wanted), Some(met)) => *wanted == met,
                });
                fits.then_some(rest.as_str())
            }
        }
    }

    /// What follows the leftmost place of this in `value`.
    fn after_leftmost<'v>(&self, value: &'v str) -> Option<&'v str> {
        match self {
            Piece::Text(text) => value.find(text.as_str()).map(|at| &value[at + text.len()..]),
            Piece::Characters(_) => value.char_indices().find_map(|(at, _)| self.after(&value[at..])),
        }
    }

    fn ends(&self, value: &str) -> bool {
        match self {
            Piece::Text(text) => value.ends_with(text.as_str()),
            Piece::Characters(characters) => {
                let start = value.char_indices().rev().nth(characters.len() - 1);
                start.is_some_and(|(at, _)| self.after(&value[at..]) == Some(""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn like(value: &str, pattern: &str) -> bool {
        LikePattern::new(pattern, None).expect("a pattern").matches(value)
    }

    #[test]
    fn wildcards_stand_for_any_text_and_for_one_character() {
        for (value, pattern) in [
            ("", ""),
            ("", "%"),
            ("abc", "abc"),
            ("abc", "%"),
            ("abc", "a%"),
            ("abc", "%c"),
            ("abc", "%b%"),
            ("abc", "a_c"),
            ("abc", "___"),
            ("abc", "_%_"),
            ("aXbXc", "a%b%c"),
            ("abab", "%ab"),
            ("größe", "gr__e"),
            ("日本語", "_本%"),
            ("aab", "%a_"),
        ] {
            assert!(like(value, pattern), "{value:?} LIKE {pattern:?}");
        }
        for (value, pattern) in [
            ("a", ""),
            ("", "_"),
            ("abc", "ab"),
            ("abc", "a_"),
            ("abc", "____"),
            ("ab", "a%b%b"),
            ("aba", "ab%ba"),
            ("Abc", "a%"),
        ] {
            assert!(!like(value, pattern), "{value:?} NOT LIKE {pattern:?}");
        }
    }

    #[test]
    fn an_escaped_wildcard_is_itself() {
        let pattern = LikePattern::new("50!%%!!_", Some('!')).expect("a pattern");
        assert!(pattern.matches("50% off!?") && !pattern.matches("500 off!?") && !pattern.matches("50% off?"));
        for broken in ["a!", "!a"] {
            assert_eq!(LikePattern::new(broken, Some('!')), Err(IllegalEscape), "{broken:?}");
        }
    }

    /// The definition, slow.
    fn like_by_definition(value: &[char], pattern: &[char]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some(('%', rest)) => (0..=value.len()).any(|skipped| like_by_definition(&value[skipped..], rest)),
            Some((wanted, rest)) => value
                .split_first()
                .is_some_and(|(met, after)| (*wanted == '_' || wanted == met) && like_by_definition(after, rest)),
        }
    }

    proptest! {
        #[test]
        fn the_fast_way_answers_as_the_definition(value in "[abü]{0,10}", pattern in "[abü_%]{0,7}") {
            let (values, patterns): (Vec<char>, Vec<char>) = (value.chars().collect(), pattern.chars().collect());
            prop_assert_eq!(like(&value, &pattern), like_by_definition(&values, &patterns));
        }
    }
}
