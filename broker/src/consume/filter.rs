//! Which messages a receive call wants: the tag expressions of RocketMQ, checked by hash first and then exactly, and its
//! SQL conditions over properties.

use std::sync::Arc;

use flotilla_message::{FrameView, tag_hash};

use super::sql::{SqlCache, SqlError, SqlFilter};

/// A compiled filter expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Every message.
    All,
    /// Messages with one of these tags (sorted by hash).
    Tags(Vec<(u32, String)>),
    /// Messages in which a condition is TRUE.
    Sql(Arc<SqlFilter>),
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
    /// No condition.
    #[error(transparent)]
    Sql(#[from] SqlError),
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

    /// Compiles a condition such as `a > 3 AND region = 'north'`, or finds it among the compiled.
    pub fn sql(expression: &str, compiled: &SqlCache) -> Result<Filter, FilterError> {
        Ok(Filter::Sql(compiled.filter(expression)?))
    }

    /// Whether a message with this hash of its tag may be wanted: false is certain, true is not.
    pub fn may_want(&self, hash: u32) -> bool {
        match self {
            Filter::All | Filter::Sql(_) => true,
            Filter::Tags(tags) => tags.binary_search_by_key(&hash, |(hash, _)| *hash).is_ok(),
        }
    }

    /// Whether this message is wanted.
    pub fn wants(&self, message: &FrameView) -> bool {
        match self {
            Filter::All => true,
            Filter::Tags(tags) => message.tag().is_some_and(|tag| tags.iter().any(|(_, wanted)| wanted == tag)),
            Filter::Sql(filter) => filter.wants(message),
        }
    }

    /// How often, about, [`Filter::wants`] reads the tag and properties of a message.
    pub fn weight(&self) -> usize {
        match self {
            Filter::All => 0,
            Filter::Tags(_) => 1,
            Filter::Sql(filter) => filter.weight(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sql::sql_test;
    use super::*;

    fn message(tag: Option<&str>) -> FrameView {
        sql_test::message(tag, &[], &[])
    }

    #[test]
    fn star_and_nothing_want_all() {
        for expression in ["", "*", "  * ", "a || *"] {
            assert_eq!(Filter::tags(expression), Ok(Filter::All), "{expression:?}");
        }
        assert!(Filter::All.wants(&message(None)) && Filter::All.may_want(0));
    }

    #[test]
    fn tags_are_wanted_exactly() {
        let filter = Filter::tags("TagA||TagB || TagA").expect("two tags");
        for (tag, is_wanted) in
            [(Some("TagA"), true), (Some("TagB"), true), (Some("Tag"), false), (Some("taga"), false), (None, false)]
        {
            assert_eq!(filter.wants(&message(tag)), is_wanted, "{tag:?}");
        }
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

    #[test]
    fn a_condition_wants_whatever_the_hash_and_only_what_is_true() {
        let compiled = SqlCache::default();
        let filter = Filter::sql("a > 3", &compiled).expect("a condition");
        assert!(filter.may_want(0) && filter.may_want(7));
        assert!(filter.wants(&sql_test::message(None, &[], &[("a", "4")])));
        assert!(!filter.wants(&sql_test::message(None, &[], &[("a", "3")])) && !filter.wants(&message(None)));
        assert_eq!(filter, Filter::sql("a > 3", &compiled).expect("the same"));
        assert_ne!(filter, Filter::sql("a > 4", &compiled).expect("another"));
        assert!(matches!(Filter::sql("a >", &compiled), Err(FilterError::Sql(_))));
    }
}
