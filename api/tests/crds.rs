//! The definitions in `deploy/crds` match the types. With a stale file, the API server would drop fields without an error.

use std::fs;
use std::path::Path;
use std::process::Command;

use kube::CustomResourceExt;
use serde_json::Value;

#[test]
fn definitions_in_deploy_are_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds/replumb.dev.yaml");
    let committed =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));

    let output = Command::new(env!("CARGO_BIN_EXE_crds"))
        .output()
        .expect("crds must start");
    assert!(
        output.status.success(),
        "crds failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let generated = String::from_utf8(output.stdout).expect("crds must print UTF-8");

    let first = committed
        .lines()
        .zip(generated.lines())
        .enumerate()
        .find(|(_, (old, new))| old != new)
        .map_or_else(
            || {
                format!(
                    "{} lines committed, {} generated",
                    committed.lines().count(),
                    generated.lines().count()
                )
            },
            |(index, (old, new))| format!("line {}: {old:?} committed, {new:?} generated", index + 1),
        );
    assert!(
        committed == generated,
        "{} is stale ({first}); run: cargo run -p api --bin crds > deploy/crds/replumb.dev.yaml",
        path.display()
    );
}

/// Words that YAML 1.1 does not read as text. `kubectl apply -f` reads YAML 1.1.
const NON_TEXT_WORDS: [&str; 8] = ["y", "n", "yes", "no", "on", "off", "null", "~"];

fn is_not_text(word: &str) -> bool {
    NON_TEXT_WORDS.contains(&word.to_lowercase().as_str())
}

/// Values of enums, defaults and names of fields of this schema that YAML 1.1 does not read as text.
fn find_non_text_words(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.extend(is_not_text(name).then(|| name.clone()));
                find_non_text_words(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| find_non_text_words(value, found)),
        Value::String(text) => found.extend(is_not_text(text).then(|| text.clone())),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn kubectl_reads_all_field_names_and_enum_values_as_text() {
    for definition in [
        api::Migration::crd(),
        api::NodeMigration::crd(),
        api::MigrationRecord::crd(),
    ] {
        let mut found = Vec::new();
        find_non_text_words(
            &serde_json::to_value(&definition).expect("a definition"),
            &mut found,
        );
        assert_eq!(found, [""; 0], "{:?}", definition.spec.names.kind);
    }
    let mut found = Vec::new();
    let invalid = serde_json::json!({ "enum": ["Watch", "Off"], "properties": { "y": { "default": "NO" } } });
    find_non_text_words(&invalid, &mut found);
    assert_eq!(found, ["Off", "y", "NO"]);
}
