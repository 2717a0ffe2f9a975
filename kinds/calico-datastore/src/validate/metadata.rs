//! Validates names, labels and annotations of an object.

use std::collections::BTreeMap;

use super::super::go_values::lower;
use super::Findings;
use super::text::{LONGEST_NAME, is_label_value, is_qualified_name, is_subdomain};

/// Calico's limit for all annotations of an object together.
const ANNOTATIONS: usize = 256 * 1024;
/// Valid keys in Kubernetes.
const KEY: &str = "of at most 63 letters, digits, '-', '_' or '.', a letter or a digit at each end, optionally after a domain and '/'";
/// Valid names.
pub const NAME: &str =
    "lower-case letters, digits, '-' and single dots between them, no '-' beside a dot or at an end";

/// Validates the name of an object.
pub fn name(name: &str, findings: &mut Findings) {
    if name.len() > LONGEST_NAME {
        findings.add(
            "metadata.name",
            format_args!("{name:?}, {} bytes", name.len()),
            format!("at most {LONGEST_NAME} bytes: shorten the name in v2"),
        );
    }
    findings.text(is_subdomain(name), "metadata.name", name, NAME);
}

/// Validates the labels of an object.
pub fn labels(field: &str, labels: &BTreeMap<String, String>, findings: &mut Findings) {
    for (key, value) in labels {
        if !is_qualified_name(key) {
            findings.add(
                field,
                format_args!("{{{key:?}: {value:?}}}"),
                format!("a key {KEY}"),
            );
        }
        if !is_label_value(value) {
            findings.add(
                format!("{field}[{key:?}]"),
                format_args!("{value:?}"),
                "at most 63 letters, digits, '-', '_' or '.', a letter or a digit at each end, or an empty value",
            );
        }
    }
}

/// Validates the annotations of an object.
pub fn annotations(annotations: &BTreeMap<String, String>, findings: &mut Findings) {
    for key in annotations.keys() {
        if !is_qualified_name(&lower(key)) {
            findings.add(
                "metadata.annotations",
                format_args!("{{{key:?}: …}}"),
                format!("a key {KEY}"),
            );
        }
    }
    let size: usize = annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if size > ANNOTATIONS {
        findings.add(
            "metadata.annotations",
            format_args!("{size} bytes long"),
            format!("at most {ANNOTATIONS} bytes"),
        );
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn lines(check: impl FnOnce(&mut Findings)) -> Vec<String> {
        let mut findings = Findings::default();
        check(&mut findings);
        findings.0.iter().map(ToString::to_string).collect()
    }

    fn map(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_name_of_more_than_253_bytes_is_refused() {
        assert_eq!(lines(|findings| name(&"a".repeat(253), findings)), [""; 0]);
        let long = lines(|findings| name(&"a".repeat(254), findings));
        assert_eq!(long.len(), 1);
        assert!(
            long[0].contains("254 bytes, needed at most 253 bytes"),
            "{long:?}"
        );
    }

    #[rstest]
    #[case("")]
    #[case("A")]
    #[case("a..b")]
    fn an_invalid_name_is_refused(#[case] text: &str) {
        assert_eq!(lines(|findings| name(text, findings)).len(), 1);
    }

    #[rstest]
    #[case("bad key!", "v", "metadata.labels is {\"bad key!\": \"v\"}")]
    #[case("a", "bad value", "metadata.labels[\"a\"] is \"bad value\"")]
    fn an_invalid_label_is_named(#[case] key: &str, #[case] value: &str, #[case] start: &str) {
        let report = lines(|findings| labels("metadata.labels", &map(key, value), findings));
        assert_eq!(report.len(), 1);
        assert!(report[0].starts_with(start), "{report:?}");
    }

    #[test]
    fn annotations_are_limited_by_key_and_total_size() {
        assert_eq!(
            lines(|findings| annotations(&map("A.B/c", ""), findings)),
            [""; 0]
        );
        assert_eq!(lines(|findings| annotations(&map("a b", ""), findings)).len(), 1);
        let largest = "x".repeat(ANNOTATIONS - 1);
        assert_eq!(
            lines(|findings| annotations(&map("a", &largest), findings)),
            [""; 0]
        );
        let larger = format!("{largest}x");
        assert_eq!(
            lines(|findings| annotations(&map("a", &larger), findings)).len(),
            1
        );
    }
}
