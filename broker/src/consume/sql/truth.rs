//! SQL's three truth values.

/// What a condition comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can say: a property is absent or is no number.
    Unknown,
}

impl Truth {
    /// NOT: unknown stays unknown.
    pub fn not(self) -> Truth {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }

    /// NOT if `is_negated`.
    pub fn not_if(self, is_negated: bool) -> Truth {
        if is_negated { self.not() } else { self }
    }

    /// AND of all; what comes after the first FALSE is not asked.
    pub fn all(conditions: impl Iterator<Item = Truth>) -> Truth {
        let mut all = Truth::True;
        for truth in conditions {
            match truth {
                Truth::True => {}
                Truth::False => return Truth::False,
                Truth::Unknown => all = Truth::Unknown,
            }
        }
        all
    }

    /// OR of all; what comes after the first TRUE is not asked.
    pub fn any(conditions: impl Iterator<Item = Truth>) -> Truth {
        Truth::all(conditions.map(Truth::not)).not()
    }
}

impl From<bool> for Truth {
    fn from(is_true: bool) -> Truth {
        if is_true { Truth::True } else { Truth::False }
    }
}

#[cfg(test)]
mod tests {
    use super::Truth::{False, True, Unknown};
    use super::*;

    #[test]
    fn and_or_and_not_follow_the_tables_of_sql() {
        let table = [
            // left, right, AND, OR
            (True, True, True, True),
            (True, False, False, True),
            (True, Unknown, Unknown, True),
            (False, True, False, True),
            (False, False, False, False),
            (False, Unknown, False, Unknown),
            (Unknown, True, Unknown, True),
            (Unknown, False, False, Unknown),
            (Unknown, Unknown, Unknown, Unknown),
        ];
        for (left, right, and, or) in table {
            assert_eq!(Truth::all([left, right].into_iter()), and, "{left:?} AND {right:?}");
            assert_eq!(Truth::any([left, right].into_iter()), or, "{left:?} OR {right:?}");
        }
        assert_eq!([True.not(), False.not(), Unknown.not()], [False, True, Unknown]);
        assert_eq!((True.not_if(true), True.not_if(false)), (False, True));
        assert_eq!((Truth::from(true), Truth::from(false)), (True, False));
    }
}
