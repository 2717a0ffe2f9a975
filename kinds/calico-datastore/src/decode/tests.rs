use rstest::rstest;

use super::*;

#[derive(Debug, Default, PartialEq)]
struct Port {
    name: String,
    number: u16,
    labels: BTreeMap<String, String>,
    order: Option<f64>,
}

impl Decode for Port {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            name: fields.get("name")?,
            number: fields.get("port")?,
            labels: fields.get("labels")?,
            order: fields.get("order")?,
        })
    }
}

#[test]
fn keys_match_in_any_case_and_the_last_is_used() {
    let port: Port = read(r#"{"NAME": "a", "Name": "b", "port": 1, "other": [{}]}"#).unwrap();
    assert_eq!((port.name.as_str(), port.number), ("b", 1));
}

#[rstest]
#[case("null")]
#[case("{}")]
#[case(r#"{"name": null, "port": null, "labels": null, "order": null}"#)]
fn null_is_the_same_as_a_missing_field(#[case] text: &str) {
    assert_eq!(read::<Port>(text), Ok(Port::default()));
}

#[test]
fn a_repeated_field_is_read_as_go_reads_it() {
    let port: Port = read(
        r#"{"name": "a", "Name": null, "port": 1, "PORT": null, "order": 1, "Order": null,
            "labels": {"a": "1"}, "LABELS": {"b": "2"}}"#,
    )
    .unwrap();
    assert_eq!((port.name.as_str(), port.number, port.order), ("a", 1, None));
    assert_eq!(port.labels.len(), 2);
}

#[test]
fn null_in_a_list_or_a_map_is_an_empty_value() {
    assert_eq!(
        read::<Vec<String>>(r#"["a", null]"#),
        Ok(vec!["a".to_owned(), String::new()])
    );
    let labels = read::<Port>(r#"{"labels": {"a": null}}"#).unwrap().labels;
    assert_eq!(labels["a"], "");
}

#[rstest]
#[case(r#"{"port": 80.0}"#, r"port: found 80.0, needed an integer from 0 to 65535")]
#[case(r#"{"port": "80"}"#, "port: found \"80\", needed an integer from 0 to 65535")]
#[case(r#"{"port": 65536}"#, "port: found 65536, needed an integer from 0 to 65535")]
#[case(r#"{"name": 1, "name": "b"}"#, "name: found 1, needed a string")]
#[case(r#"{"labels": {"a": {}}}"#, "labels[\"a\"]: found an object, needed a string")]
#[case("[]", "the value: found a list, needed an object")]
fn a_wrong_type_is_reported_with_its_field(#[case] text: &str, #[case] message: &str) {
    let Err(Cause::Mismatch(mismatch)) = read::<Port>(text) else {
        panic!("{text} was read");
    };
    assert_eq!(mismatch.to_string(), message);
}

#[test]
fn the_path_of_a_mismatch_has_the_index_in_a_list() {
    let Err(Cause::Mismatch(mismatch)) = read::<Vec<Port>>(r#"[{}, {"port": []}]"#) else {
        panic!("the value was read");
    };
    assert_eq!(mismatch.path, "[1].port");
}

#[test]
fn invalid_json_is_another_cause() {
    assert!(matches!(read::<Port>("{not json"), Err(Cause::NotJson { .. })));
    assert!(matches!(read::<Port>(""), Err(Cause::NotJson { .. })));
}
