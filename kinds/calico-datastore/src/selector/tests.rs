use proptest::prelude::*;
use rstest::rstest;

use super::*;

#[rstest]
#[case("")]
#[case(" \t ")]
#[case("all()")]
#[case("all( )")]
#[case("has(a)")]
#[case("has( a.b/c_d-e )")]
#[case("a == 'b'")]
#[case("a==\"it's\"")]
#[case("a != ''")]
#[case("a in {}")]
#[case("a in {'x',}")]
#[case("a in{'x', \"y\"}")]
#[case("a not in {'x'}")]
#[case("a notin {'x'}")]
#[case("a contains'x'")]
#[case("a starts  with 'x'")]
#[case("a endswith 'x'")]
#[case("!!has(a) && !(b == 'c' || all())")]
#[case("in in {'in'}")]
#[case("has == 'x'")]
#[case("all != 'all()'")]
#[case("a == 'b' || c == 'd' && e == 'f'")]
#[case("role == 'database' && !has(demo)")]
fn a_valid_selector_is_accepted(#[case] selector: &str) {
    assert_eq!(parse(selector), Ok(()));
}

#[rstest]
#[case("role = bad", 5)]
#[case("role = 'bad'", 5)]
#[case("a", 1)]
#[case("a == b", 5)]
#[case("a == 'b", 5)]
#[case("a == 'b' & c == 'd'", 9)]
#[case("a == 'b' c == 'd'", 9)]
#[case("a == 'b' &&", 11)]
#[case("(a == 'b'", 9)]
#[case("a == 'b')", 8)]
#[case("a in 'b'", 5)]
#[case("a in {'b'", 9)]
#[case("a in {'b' 'c'}", 10)]
#[case("a in {,}", 6)]
#[case("a inside {'b'}", 2)]
#[case("a not 'b'", 2)]
#[case("has()", 3)]
#[case("has (a)", 4)]
#[case("all", 3)]
#[case("has(a) has(b)", 7)]
#[case("a\n== 'b'", 1)]
#[case("a == 'b'\n", 8)]
#[case("ä == 'b'", 0)]
#[case("!", 1)]
#[case("()", 1)]
fn an_invalid_selector_is_refused_at_its_byte(#[case] selector: &str, #[case] place: usize) {
    assert_eq!(parse(selector).unwrap_err().place, place);
}

#[test]
fn a_label_of_more_than_512_characters_is_refused() {
    let label = "a".repeat(512);
    assert!(parse(&format!("{label} == 'x'")).is_ok());
    assert!(parse(&format!("{label}a == 'x'")).is_err());
    assert!(parse(&format!("has({label}a)")).is_err());
}

#[test]
fn a_million_open_parentheses_are_refused() {
    assert!(parse(&"(".repeat(1_000_000)).is_err());
    let deep = format!("{}all(){}", "(".repeat(100), ")".repeat(100));
    assert!(parse(&deep).is_ok());
}

#[rstest]
#[case("calico/k8s_ns == 'a'", "projectcalico.org/namespace == 'a'", false)]
#[case("has(calico/k8s_ns)", "has(projectcalico.org/namespace)", false)]
#[case("a == 'calico/k8s_ns'", "a == 'projectcalico.org/namespace'", true)]
#[case("calico/k8s_ns_x == 'a'", "projectcalico.org/namespace_x == 'a'", true)]
#[case("has(my.calico/k8s_ns)", "has(my.projectcalico.org/namespace)", true)]
#[case(
    "a in {'b', 'x calico/k8s_ns'}",
    "a in {'b', 'x projectcalico.org/namespace'}",
    true
)]
#[case("pcns.name == 'a'", "pcns.name == 'a'", false)]
fn the_namespace_label_is_replaced(#[case] old: &str, #[case] new: &str, #[case] elsewhere: bool) {
    assert_eq!(rewritten(old), new);
    assert_eq!(is_rewritten_inside_words(old), elsewhere);
}

#[rstest]
#[case("", "", "")]
#[case("a == 'b'", "", "a == 'b'")]
#[case("", "tag1", "tag1 == ''")]
#[case("a || b", "tag1", "(a || b) && tag1 == ''")]
fn a_tag_becomes_a_label_without_a_value(#[case] selector: &str, #[case] tag: &str, #[case] merged: &str) {
    assert_eq!(with_tag(selector, tag), merged);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["'[^']{0,8}'", "\"[^\"]{0,8}\""]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z0-9_./-]{1,12}", Just(OLD_NAMESPACE.to_owned())]
}

/// Any selector of the grammar.
fn selector() -> impl Strategy<Value = String> {
    let operator = prop::sample::select(vec!["==", "!=", "contains", "starts with", "endswith"]);
    let condition = prop_oneof![
        (name(), operator, text()).prop_map(|(name, operator, text)| format!("{name} {operator} {text}")),
        (
            name(),
            prop::sample::select(vec!["in", "not in", "notin"]),
            prop::collection::vec(text(), 0..4)
        )
            .prop_map(|(name, operator, texts)| format!("{name} {operator} {{{}}}", texts.join(", "))),
        name().prop_map(|name| format!("has({name})")),
        Just("all()".to_owned()),
    ];
    condition.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| format!("!{inner}")),
            inner.clone().prop_map(|inner| format!("( {inner} )")),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("{one} && {other}")),
            (inner.clone(), inner).prop_map(|(one, other)| format!("{one} || {other}")),
        ]
    })
}

proptest! {
    #[test]
    fn every_selector_of_the_grammar_is_accepted(selector in selector()) {
        prop_assert_eq!(parse(&selector), Ok(()), "{}", selector);
    }

    #[test]
    fn a_rewritten_selector_is_valid(selector in selector(), tag in "[a-z][a-z0-9-]{0,8}") {
        let rewritten = rewritten(&selector);
        prop_assert_eq!(parse(&rewritten), Ok(()), "{}", rewritten);
        prop_assert!(!rewritten.contains(OLD_NAMESPACE));
        let merged = with_tag(&rewritten, &tag);
        prop_assert_eq!(parse(&merged), Ok(()), "{}", merged);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in "\\PC{0,40}") {
        let _ = parse(&text);
        let _ = is_rewritten_inside_words(&text);
    }
}
