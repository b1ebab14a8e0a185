//! Filters in SQL92's conditions over the properties of a message: read once, asked of every message a poll looks at.
//!
//! ```text
//! text ── Lexer ──▶ tokens ── Parser ──▶ Expression ── Evaluation ──▶ Truth: only TRUE is wanted
//! ```
//!
//! `docs/filters.md` is the language for those who write it.

mod cache;
mod error;
mod evaluation;
mod expression;
mod lexer;
mod like;
mod number;
mod parser;
mod sql_filter;
mod truth;

pub use cache::SqlCache;
pub use error::SqlError;
pub use sql_filter::SqlFilter;

#[cfg(test)]
pub(super) mod sql_test;

/// Longest expression, bytes.
pub const EXPRESSION_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of parentheses and NOT.
pub const NESTING_MAX: usize = 64;
/// Most values of one IN list.
pub const LIST_VALUES_MAX: usize = 1024;
/// Most different properties in one expression.
pub const PROPERTIES_MAX: usize = 64;
/// Longest LIKE pattern, bytes.
pub const PATTERN_BYTES_MAX: usize = 256;
