//! Expressions against messages, limits, and that no text makes the parser panic.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_message::{BodyEncoding, FrameView, Message, MessageId, MessageType, TopicName};
use proptest::prelude::*;

use super::truth::Truth::{self, False, True, Unknown};
use super::*;

/// A message to filter.
pub fn message(tag: Option<&str>, keys: &[&str], properties: &[(&str, &str)]) -> FrameView {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let message = Message {
        topic: TopicName::try_from("orders").expect("a name"),
        message_type: MessageType::Normal,
        id: MessageId::try_from("id-1").expect("an id"),
        tag: tag.map(str::to_owned),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        group: None,
        properties: properties.iter().map(owned).collect::<BTreeMap<_, _>>(),
        body: Bytes::from_static(b"body"),
        body_encoding: BodyEncoding::Identity,
        born_at_ms: 1,
        born_host: String::new(),
        trace_context: None,
        delivery_at_ms: None,
    };
    message.encode().expect("a legal message").view()
}

fn compiled(expression: &str) -> SqlFilter {
    SqlFilter::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

/// Asks all expressions of a message: what they come to, before and after they are printed and read again.
fn ask(message: &FrameView, table: &[(&str, Truth)]) {
    for (expression, expected) in table {
        let filter = compiled(expression);
        assert_eq!(filter.truth(message), *expected, "{expression}");
        assert_eq!(filter.wants(message), *expected == True, "{expression}");
        let printed = filter.expression().to_string();
        let again = compiled(&printed);
        assert_eq!(again.expression(), filter.expression(), "{expression} printed as {printed}");
        assert_eq!(again.truth(message), *expected, "{printed}");
    }
}

fn error(expression: &str) -> String {
    SqlFilter::compile(expression).expect_err(expression).to_string()
}

#[test]
fn numbers_are_compared_as_numbers() {
    let message =
        message(None, &[], &[("a", "5"), ("b", "10"), ("d", "3.50"), ("n", "-2"), ("text", "abc"), ("e", "")]);
    ask(
        &message,
        &[
            ("a = 5", True),
            ("a = 5.0", True),
            ("5 = a", True),
            ("a <> 5", False),
            ("a < b", True), // as texts it were false
            ("a > b", False),
            ("a >= 5 and a <= 5", True),
            ("a > 5 OR a < 5", False),
            ("a > 4.999", True),
            ("d = 3.5", True),
            ("d > 3", True),
            ("d = '3.5'", False),
            ("d = '3.50'", True),
            ("n = -2", True),
            ("n < -1.5", True),
            ("n > - 3", True),
            ("a = +5", True),
            ("a < 5e1 AND a > .5 AND a < 6. AND a = 5L", True),
            ("1 < 2", True),
            ("a BETWEEN 5 AND 5", True),
            ("a BETWEEN 6 AND 9", False),
            ("a NOT BETWEEN 6 AND 9", True),
            ("a BETWEEN n AND b", True),
            ("7 BETWEEN a AND b", True),
            ("a NOT BETWEEN 9 AND 6", True),
            // No number: nobody can say, and NOT does not help.
            ("text > 3", Unknown),
            ("text = 3", Unknown),
            ("text <> 3", Unknown),
            ("NOT text > 3", Unknown),
            ("text BETWEEN 1 AND 3", Unknown),
            ("text NOT BETWEEN 1 AND 3", Unknown),
            ("text > a", Unknown),
            ("e = 0", Unknown),
            // One side of BETWEEN decides.
            ("a BETWEEN 6 AND text", False),
            ("a BETWEEN 1 AND text", Unknown),
            ("text > 3 OR a = 5", True),
        ],
    );
}

#[test]
fn texts_are_equal_or_not_and_are_searched() {
    let message =
        message(None, &[], &[("region", "it's hz"), ("same", "it's hz"), ("a", "5"), ("pct", "50%"), ("like", "x")]);
    ask(
        &message,
        &[
            ("region = 'it''s hz'", True),
            ("region = 'IT''S HZ'", False),
            ("region <> ''", True),
            ("region = same", True),
            ("region <> same", False),
            ("region = a", False),
            ("'x' = 'x'", True),
            ("a = '5'", True),
            ("a = '5.0'", False),
            ("region IN ('x', 'it''s hz')", True),
            ("region IN ('x')", False),
            ("region NOT IN ('x', 'y')", True),
            ("a IN (1, 5.0)", True),
            ("a IN ('x', 6)", False),
            ("region IN (1, 'it''s hz')", True),
            ("region IN (1, 'x')", Unknown),
            ("region NOT IN (1, 'x')", Unknown),
            ("region CONTAINS '''s'", True),
            ("region CONTAINS 'S'", False),
            ("region NOT CONTAINS 'x'", True),
            ("region STARTSWITH 'it'", True),
            ("region NOT STARTSWITH 'it'", False),
            ("region EndsWith 'hz'", True),
            ("region not endswith 'sh'", True),
            ("region LIKE 'it%h_'", True),
            ("region LIKE 'it'", False),
            ("region NOT LIKE '%x%'", True),
            ("pct LIKE '__!%' ESCAPE '!'", True),
            ("a LIKE '_!%' ESCAPE '!'", False),
            ("like LIKE 'x'", True),
            ("(region) = ('it''s hz')", True),
        ],
    );
}

#[test]
fn absent_properties_are_unknown_whatever_is_asked_of_them() {
    let message = message(None, &[], &[("a", "5"), ("text", "abc")]);
    ask(
        &message,
        &[
            ("x IS NULL", True),
            ("x IS NOT NULL", False),
            ("a IS NULL", False),
            ("a IS NOT NULL", True),
            ("a IS NULL OR a = 5", True),
            ("(x = 1) IS NULL", True),
            ("(text = 1) IS NULL", True),
            ("(a = 1) IS NULL", False),
            ("x = 1", Unknown),
            ("x <> 1", Unknown),
            ("1 <> x", Unknown),
            ("x = 'a'", Unknown),
            ("x = x", Unknown),
            ("a = x", Unknown),
            ("a <> x", Unknown),
            ("x > 1", Unknown),
            ("x BETWEEN 1 AND 2", Unknown),
            ("x NOT BETWEEN 1 AND 2", Unknown),
            ("x IN ('a')", Unknown),
            ("x NOT IN ('a')", Unknown),
            ("x LIKE '%'", Unknown),
            ("x NOT LIKE '%'", Unknown),
            ("x CONTAINS 'a'", Unknown),
            ("x NOT CONTAINS 'a'", Unknown),
            ("NOT x STARTSWITH 'a'", Unknown),
            ("x", Unknown),
            ("NOT x", Unknown),
            ("x = TRUE", Unknown),
            ("x = 1 AND a = 5", Unknown),
            ("x = 1 AND a = 6", False),
            ("x = 1 OR a = 5", True),
            ("x = 1 OR a = 6", Unknown),
        ],
    );
}

#[test]
fn conditions_have_sql_s_precedence_and_can_be_compared() {
    let message = message(None, &[], &[("t", "true"), ("f", "False"), ("a", "5"), ("w", "yes")]);
    ask(
        &message,
        &[
            ("TRUE", True),
            ("false", False),
            ("t = TRUE", True),
            ("TRUE = t", True),
            ("f = FALSE", True),
            ("f <> TRUE", True),
            // As Java reads them: all but "true" is false.
            ("w = TRUE", False),
            ("w = FALSE", True),
            ("t", True),
            ("NOT f", True),
            ("t AND NOT f", True),
            // AND before OR, NOT before AND, comparisons before NOT.
            ("t OR t AND f", True),
            ("(t OR t) AND f", False),
            ("NOT f AND f", False),
            ("NOT (f AND f)", True),
            ("NOT a = 6", True),
            ("NOT NOT a = 5", True),
            ("NOT a IN ('6') AND t", True),
            ("a BETWEEN 1 AND 6 AND f", False),
            ("(a > 3) = TRUE", True),
            ("(a > 3) = (a < 3)", False),
            ("(a > 3) <> f", True),
            ("((((a > 3))))", True),
            ("NOT (NOT (a = 5) OR f)", True),
        ],
    );
}

#[test]
fn three_valued_truth_tables_hold_in_expressions() {
    let message = message(None, &[], &[("t", "true"), ("f", "false")]);
    let values = [("t", True), ("f", False), ("u", Unknown)];
    for (left_name, left) in values {
        assert_eq!(compiled(&format!("NOT {left_name}")).truth(&message), left.not());
        for (right_name, right) in values {
            let and = compiled(&format!("{left_name} AND {right_name}")).truth(&message);
            let or = compiled(&format!("{left_name} OR {right_name}")).truth(&message);
            assert_eq!(and, Truth::all([left, right].into_iter()), "{left_name} AND {right_name}");
            assert_eq!(or, Truth::any([left, right].into_iter()), "{left_name} OR {right_name}");
            // De Morgan.
            let nor = compiled(&format!("NOT {left_name} AND NOT {right_name}")).truth(&message);
            assert_eq!(or.not(), nor, "NOT ({left_name} OR {right_name})");
        }
    }
}

#[test]
fn tag_keys_and_id_are_properties_and_names_may_be_quoted() {
    let properties = [("order-id", "7"), ("Not", "x"), ("zz", "last"), ("A", "first")];
    let full = message(Some("TagA"), &["k1", "k2"], &properties);
    ask(
        &full,
        &[
            ("TAGS = 'TagA'", True),
            ("TAGS IS NOT NULL AND TAGS IN ('TagA', 'TagB')", True),
            ("TAGS STARTSWITH 'Tag' AND A = 'first' AND zz = 'last' AND mm IS NULL", True),
            ("tags IS NULL", True), // names have a case, keywords have none
            ("KEYS = 'k1 k2'", True),
            ("UNIQ_KEY = 'id-1'", True),
            ("\"order-id\" = 7", True),
            ("\"Not\" = 'x'", True),
            ("a IS NULL -- another name than A\n AND /* so */ A IS NOT NULL", True),
        ],
    );
    let bare = message(None, &["k"], &[]);
    ask(&bare, &[("TAGS IS NULL", True), ("TAGS <> 'TagA'", Unknown), ("KEYS = 'k'", True)]);
}

#[test]
fn errors_say_where_what_was_found_and_what_was_expected() {
    for (expression, expected) in [
        ("", "SQL filter at character 1: found the end, expected a property, a number, a text, TRUE, FALSE, NOT or ("),
        ("*", "SQL filter at character 1: found *, expected a property, a value, an operator or a parenthesis"),
        (
            "a >",
            "SQL filter at character 4: found the end, expected a property, a number, a text, TRUE, FALSE, NOT or (",
        ),
        ("a > 3 b", "SQL filter at character 7: found b, expected AND, OR or the end of the expression"),
        ("a == 3", "SQL filter at character 4: found =, expected a property, a number, a text, TRUE, FALSE, NOT or ("),
        ("a != 3", "SQL filter at character 3: found !=, expected <>"),
        ("(a > 3", "SQL filter at character 7: found the end, expected an operator or )"),
        ("a > 3)", "SQL filter at character 6: found ), expected AND, OR or the end of the expression"),
        ("3", "SQL filter at character 1: found 3, expected a condition"),
        ("a = 1 AND 'x'", "SQL filter at character 11: found 'x', expected a condition"),
        ("3 OR a", "SQL filter at character 1: found 3, expected a condition"),
        ("'ü' = a AND NOT (5)", "SQL filter at character 17: found 5, expected a condition"),
        (
            "a > 3 > 2",
            "SQL filter at character 7: found >, expected AND, OR, ) or the end: comparisons are not chained",
        ),
        (
            "a > 'x'",
            "SQL filter at character 1: a property and a text cannot be compared by >, expected numbers or properties",
        ),
        (
            "a BETWEEN 'a' AND 'b'",
            "SQL filter at character 1: a property and a text cannot be compared by >=, expected numbers or properties",
        ),
        (
            "TRUE = 1",
            "SQL filter at character 1: TRUE or FALSE and a number cannot be compared by =, expected sides of the same kind",
        ),
        (
            "(a > 1) = 'x'",
            "SQL filter at character 1: a condition and a text cannot be compared by =, expected sides of the same kind",
        ),
        (
            "(a > 1) < 2",
            "SQL filter at character 1: a condition and a number cannot be compared by <, expected numbers or properties",
        ),
        (
            "a = NULL",
            "SQL filter at character 5: found NULL, expected a value: nothing equals NULL, IS NULL and IS NOT NULL ask for it",
        ),
        ("a IS 3", "SQL filter at character 6: found 3, expected NULL or NOT NULL"),
        ("a IS NOT 3", "SQL filter at character 10: found 3, expected NULL"),
        (
            "a NOT 3",
            "SQL filter at character 7: found 3, expected BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH after NOT",
        ),
        ("a BETWEEN 1 OR 2", "SQL filter at character 13: found OR, expected AND and the upper bound of BETWEEN"),
        (
            "a BETWEEN 3 AND 2.5",
            "SQL filter at character 11: found BETWEEN 3 AND 2.5, expected the smaller number first",
        ),
        ("a IN 'x'", "SQL filter at character 6: found 'x', expected ( and the values of IN"),
        ("a IN ()", "SQL filter at character 7: found ), expected a text or a number"),
        ("a IN ('x' 'y')", "SQL filter at character 11: found 'y', expected , or )"),
        ("a IN ('x', b)", "SQL filter at character 12: found b, expected a text or a number"),
        ("3 IN ('x')", "SQL filter at character 1: found 3, expected a property before this operator"),
        ("'x' LIKE 'x'", "SQL filter at character 1: found 'x', expected a property before this operator"),
        ("a CONTAINS 3", "SQL filter at character 12: found 3, expected a text in single quotes"),
        ("a CONTAINS ''", "SQL filter at character 12: found '', expected a text of at least one character"),
        ("a LIKE b", "SQL filter at character 8: found b, expected a text in single quotes"),
        ("a LIKE 'x' ESCAPE 'ab'", "SQL filter at character 19: found 'ab', expected one character in single quotes"),
        (
            "a LIKE 'x!' ESCAPE '!'",
            "SQL filter at character 8: found 'x!', expected %, _ or itself behind each escape character",
        ),
        ("-a > 3", "SQL filter at character 2: found a, expected a number after its sign: there is no arithmetic"),
        ("a + 1 > 3", "SQL filter at character 3: found +, expected AND, OR or the end of the expression"),
        (
            "a > 9223372036854775808",
            "SQL filter at character 5: found number 9223372036854775808, expected an integer of 64 bits with sign or a decimal below 1.8e308",
        ),
        ("a = 'x", "SQL filter at character 5: text begins here and does not end, expected a closing '"),
        ("AND", "SQL filter at character 1: found AND, expected a property, a number, a text, TRUE, FALSE, NOT or ("),
        (
            "MSG_REGION = 'x'",
            "SQL filter at character 1: found property MSG_REGION, which is reserved and never set, expected a property of the producer, TAGS, KEYS or UNIQ_KEY",
        ),
    ] {
        assert_eq!(error(expression), expected, "{expression}");
    }
    let long = error(&format!("a {}", "x".repeat(5000)));
    assert!(long.len() < 300 && long.contains('…'), "{long}");
}

#[test]
fn each_limit_holds_at_its_value_and_not_one_above() {
    let nested = |depth: usize| format!("{}a = 1{}", "(".repeat(depth), ")".repeat(depth));
    compiled(&nested(NESTING_MAX));
    assert_eq!(
        error(&nested(NESTING_MAX + 1)),
        "SQL filter at character 65: parentheses and NOT are nested more than 64 deep"
    );
    compiled(&format!("{}a", "NOT ".repeat(NESTING_MAX)));
    assert!(error(&format!("{}a", "NOT ".repeat(NESTING_MAX + 1))).contains("nested more than 64 deep"));

    let list = |count: usize| format!("a IN ({})", vec!["'x'"; count].join(","));
    compiled(&list(LIST_VALUES_MAX));
    assert!(error(&list(LIST_VALUES_MAX + 1)).ends_with("IN list has more than 1024 values"));

    let properties = |count: usize| (0..count).map(|number| format!("p{number} = 1")).collect::<Vec<_>>().join(" AND ");
    let filter = compiled(&format!("{} AND p0 = 1", properties(PROPERTIES_MAX)));
    let all: Vec<String> = (0..PROPERTIES_MAX).map(|number| format!("p{number}")).collect();
    let all: Vec<(&str, &str)> = all.iter().map(|name| (name.as_str(), "1")).collect();
    assert!(filter.wants(&message(None, &[], &all)));
    assert!(error(&properties(PROPERTIES_MAX + 1)).ends_with("more than 64 different properties are named"));

    let pattern = |bytes: usize| format!("a LIKE '{}'", "x".repeat(bytes));
    compiled(&pattern(PATTERN_BYTES_MAX));
    assert!(error(&pattern(PATTERN_BYTES_MAX + 1)).ends_with("LIKE pattern has 257 bytes; at most 256 are allowed"));

    let padded = |bytes: usize| format!("{:bytes$}", "a = 1");
    compiled(&padded(EXPRESSION_BYTES_MAX));
    assert_eq!(error(&padded(EXPRESSION_BYTES_MAX + 1)), "SQL filter has 16385 bytes; at most 16384 are allowed");
}

#[test]
fn a_long_flat_expression_is_no_deep_one() {
    let flat = vec!["a=1"; EXPRESSION_BYTES_MAX / 8].join(" OR ");
    let filter = compiled(&flat[..flat.len().min(EXPRESSION_BYTES_MAX)]);
    assert!(filter.wants(&message(None, &[], &[("a", "1")])));
    assert!(filter.weight() > 1000, "a look through many messages is cut short accordingly");
}

/// Pieces of expressions, in no order.
fn jumble() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "TAGS",
        "\"x-y\"",
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "IS",
        "NULL",
        "TRUE",
        "FALSE",
        "LIKE",
        "ESCAPE",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
        "(",
        ")",
        ",",
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "+",
        "-",
        "3",
        "2.5",
        "1e3",
        "'x'",
        "''",
        "'it''s'",
        "'%'",
        "'",
        "\"",
        "--",
        "/*",
        "*/",
        "\n",
        "!",
        "ü",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.join(" "))
}

/// Expressions of every kind.
fn expressions() -> impl Strategy<Value = String> {
    let operand = || prop::sample::select(vec!["a", "b", "f", "x", "3", "-2.5", "\"x-y\""]);
    let text = || prop::sample::select(vec!["'abc'", "'it''s'", "'5'", "'b'"]);
    let not = || prop::sample::select(vec!["", "NOT "]);
    let pattern = prop::sample::select(vec!["'a%'", "'_b_'", "'%!%%' ESCAPE '!'"]);
    let comparison = prop::sample::select(vec!["=", "<>", "<", "<=", ">", ">="]);
    let search = prop::sample::select(vec!["CONTAINS", "STARTSWITH", "ENDSWITH"]);
    let name = || prop::sample::select(vec!["a", "b", "x", "\"x-y\"", "TAGS"]);
    let leaf = prop_oneof![
        (operand(), comparison, operand()).prop_map(|(left, is, right)| format!("{left} {is} {right}")),
        (name(), prop::sample::select(vec!["=", "<>"]), text())
            .prop_map(|(left, is, right)| format!("{left} {is} {right}")),
        (operand(), not(), operand(), name())
            .prop_map(|(value, not, low, high)| { format!("{value} {not}BETWEEN {low} AND {high}") }),
        (name(), not(), text(), operand().prop_filter("a number", |text| text.parse::<f64>().is_ok()))
            .prop_map(|(value, not, first, second)| format!("{value} {not}IN ({first}, {second})")),
        (operand(), not()).prop_map(|(value, not)| format!("{value} IS {not}NULL")),
        (name(), not(), search, text()).prop_map(|(value, not, test, text)| format!("{value} {not}{test} {text}")),
        (name(), not(), pattern).prop_map(|(value, not, pattern)| format!("{value} {not}LIKE {pattern}")),
        prop::sample::select(vec!["TRUE", "FALSE", "a", "x", "f"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(5, 32, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(") AND ("))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| parts.join(" OR ")),
            inner.clone().prop_map(|part| format!("NOT ({part})")),
            inner.clone().prop_map(|part| format!("({part}) IS NULL")),
            (inner.clone(), inner).prop_map(|(left, right)| format!("({left} OR FALSE) = ({right} AND TRUE)")),
        ]
    })
}

fn messages() -> impl Strategy<Value = FrameView> {
    let value = || prop::option::of(prop::sample::select(vec!["abc", "5", "3", "-2.5", "it's", "true", "", "b%"]));
    (value(), value(), value(), value(), value()).prop_map(|(tag, a, b, f, quoted)| {
        let properties = [("a", a), ("b", b), ("f", f), ("x-y", quoted)];
        let properties: Vec<_> = properties.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        message(tag.filter(|tag| !tag.is_empty()), &[], &properties)
    })
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = SqlFilter::compile(&text);
    }

    #[test]
    fn no_jumble_of_pieces_makes_parser_or_evaluation_panic(text in jumble(), message in messages()) {
        match SqlFilter::compile(&text) {
            Ok(filter) => {
                let printed = filter.expression().to_string();
                prop_assert_eq!(compiled(&printed).truth(&message), filter.truth(&message), "{} as {}", text, printed);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("SQL filter")),
        }
    }

    #[test]
    fn a_printed_expression_reads_and_answers_the_same(text in expressions(), message in messages()) {
        let filter = compiled(&text);
        let printed = filter.expression().to_string();
        let again = compiled(&printed);
        prop_assert_eq!(again.expression(), filter.expression(), "{} as {}", text, printed);
        prop_assert_eq!(again.truth(&message), filter.truth(&message));
        prop_assert_eq!(compiled(&format!("NOT ({text})")).truth(&message), filter.truth(&message).not());
    }
}
