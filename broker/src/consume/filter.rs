//! Which messages a receive call wants: the tag expressions of RocketMQ, checked by hash first and then exactly.

use flotilla_message::tag_hash;

/// A compiled filter expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Every message.
    All,
    /// Messages with one of these tags (sorted by hash).
    Tags(Vec<(u32, String)>),
}

/// An expression that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A tag between `||` is empty.
    #[error("filter expression {0:?} has an empty tag, \"*\" or tags separated by \"||\" are needed")]
    EmptyTag(String),
    /// More tags than one call may name.
    #[error("filter expression has {count} tags, at most {TAGS_MAX} are allowed")]
    TooManyTags {
        /// Its tags.
        count: usize,
    },
}

/// Tags that one expression may name.
pub const TAGS_MAX: usize = 256;

impl Filter {
    /// Compiles `*` (or nothing) or `TagA || TagB`.
    pub fn tags(expression: &str) -> Result<Filter, FilterError> {
        let expression = expression.trim();
        if expression.is_empty() || expression == "*" {
            return Ok(Filter::All);
        }
        let mut tags = Vec::new();
        for tag in expression.split("||").map(str::trim) {
            if tag.is_empty() {
                return Err(FilterError::EmptyTag(expression.to_owned()));
            }
            if tag == "*" {
                return Ok(Filter::All);
            }
            tags.push((tag_hash(tag), tag.to_owned()));
        }
        if tags.len() > TAGS_MAX {
            return Err(FilterError::TooManyTags { count: tags.len() });
        }
        tags.sort();
        tags.dedup();
        Ok(Filter::Tags(tags))
    }

    /// Whether a message with this hash of its tag may be wanted: false is certain, true is not.
    pub fn may_want(&self, hash: u32) -> bool {
        match self {
            Filter::All => true,
            Filter::Tags(tags) => tags.binary_search_by_key(&hash, |(hash, _)| *hash).is_ok(),
        }
    }

    /// Whether a message with this tag is wanted.
    pub fn wants(&self, tag: Option<&str>) -> bool {
        match self {
            Filter::All => true,
            Filter::Tags(tags) => tag.is_some_and(|tag| tags.iter().any(|(_, wanted)| wanted == tag)),
        }
    }

    /// Whether the tag itself has to be looked at after its hash.
    pub fn is_exact_by_hash(&self) -> bool {
        matches!(self, Filter::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_and_nothing_want_all() {
        for expression in ["", "*", "  * ", "a || *"] {
            assert_eq!(Filter::tags(expression), Ok(Filter::All), "{expression:?}");
        }
        assert!(Filter::All.wants(None) && Filter::All.may_want(0));
    }

    #[test]
    fn tags_are_wanted_exactly() {
        let filter = Filter::tags("TagA||TagB || TagA").expect("two tags");
        assert!(filter.wants(Some("TagA")) && filter.wants(Some("TagB")));
        assert!(!filter.wants(Some("Tag")) && !filter.wants(Some("taga")) && !filter.wants(None));
        assert!(filter.may_want(tag_hash("TagA")) && filter.may_want(tag_hash("TagB")));
        assert!(!filter.may_want(0), "a message without a tag");
    }

    #[test]
    fn a_hole_between_tags_is_an_error() {
        for expression in ["a ||", "|| a", "a || || b", "||"] {
            assert!(matches!(Filter::tags(expression), Err(FilterError::EmptyTag(_))), "{expression:?}");
        }
        let many = (0..=TAGS_MAX).map(|tag| tag.to_string()).collect::<Vec<_>>().join("||");
        assert_eq!(Filter::tags(&many), Err(FilterError::TooManyTags { count: TAGS_MAX + 1 }));
    }
}
