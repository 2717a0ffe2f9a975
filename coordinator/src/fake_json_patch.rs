//! What a test demands of a JSON patch beside the API server.

use serde_json::Value;

/// Panics if a patch could overwrite a write of another program: if it tests neither the UID of the object nor, for each field
/// that it writes, the value that was read.
pub fn refuse_blind(operations: &[Value]) {
    let (tests, writes): (Vec<&Value>, Vec<&Value>) =
        operations.iter().partition(|operation| operation["op"] == "test");
    let tests: Vec<&str> = tests.iter().filter_map(|test| test["path"].as_str()).collect();
    let is_tested = |path: &str| tests.contains(&path);
    assert!(
        is_tested("/metadata/uid"),
        "the patch does not test the UID: {operations:?}"
    );
    for write in writes {
        let path = write["path"].as_str().expect("a path");
        let itself = |test: &&str| {
            path.strip_prefix(*test)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let by_version = is_tested("/metadata/resourceVersion")
            || path.starts_with("/spec") && is_tested("/metadata/generation");
        assert!(
            by_version || tests.iter().any(itself),
            "{path} may have changed: {operations:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn test(path: &str, value: &Value) -> Value {
        json!({ "op": "test", "path": path, "value": value })
    }

    #[rstest]
    #[case("the patch does not test the UID", &[test("/spec/goal", &json!("Hold"))])]
    #[case("/spec/goal may have changed", &[test("/metadata/uid", &json!("u")), test("/spec/go", &Value::Null)])]
    fn a_patch_without_tests_of_what_was_read_panics(#[case] words: &str, #[case] tests: &[Value]) {
        let write = json!({ "op": "add", "path": "/spec/goal", "value": "Held" });
        let operations: Vec<Value> = tests.iter().chain([&write]).cloned().collect();
        let panic = std::panic::catch_unwind(move || refuse_blind(&operations)).unwrap_err();
        let panic = panic.downcast::<String>().unwrap();
        assert!(panic.starts_with(words), "{panic}");
    }
}
