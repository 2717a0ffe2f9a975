//! Reads a file with exactly one Migration, in which every field is known.

use std::io::Read as _;
use std::path::Path;

use api::Migration;
use kube::CustomResourceExt as _;
use serde::Deserialize as _;
use serde_json::Value;

use crate::error::CliError;

/// Reads a file with one Migration; `-` is standard input.
pub fn read(path: &Path) -> Result<Migration, CliError> {
    parse(&text(path)?).map_err(|why| CliError::File {
        file: path.display().to_string(),
        why,
    })
}

/// The text of a file; `-` is standard input.
pub fn text(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(|_| ())
    } else {
        std::fs::read_to_string(path).map(|found| text = found)
    };
    let text = read.map(|()| text);
    text.map_err(|error| CliError::File {
        file: path.display().to_string(),
        why: format!("cannot be read: {error}"),
    })
}

/// The documents of a text in YAML or JSON, without empty ones.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let mut documents = Vec::new();
    for document in yaml_serde::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| format!("is not YAML: {error}"))?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(documents)
}

/// Parses one Migration. Unknown fields are an error.
fn parse(text: &str) -> Result<Migration, String> {
    let documents = documents(text)?;
    let [document] = documents.as_slice() else {
        return Err(not_one(&documents));
    };
    let of = |field: &str| {
        document
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let version = format!("{}/{}", api::names::GROUP, api::names::VERSION);
    if (of("apiVersion"), of("kind")) != (version.clone(), "Migration".to_owned()) {
        return Err(format!(
            "found kind {:?} of apiVersion {:?}, needed kind Migration of apiVersion {version}",
            of("kind"),
            of("apiVersion")
        ));
    }
    let spec = document.get("spec").ok_or("found no spec, needed one")?;
    let unknown = unknown_fields(spec);
    if !unknown.is_empty() {
        return Err(format!(
            "found unknown fields {}, see `kubectl explain migration.spec`",
            unknown.join(", ")
        ));
    }
    serde_json::from_value(document.clone()).map_err(|error| format!("is not a Migration: {error}"))
}

/// The error for none or several documents, with the commands that accept several.
fn not_one(documents: &[Value]) -> String {
    let found = format!("found {} documents, needed one Migration", documents.len());
    let names: Vec<&str> = documents
        .iter()
        .filter(|document| document["kind"] == "Migration")
        .filter_map(|document| document["metadata"]["name"].as_str())
        .collect();
    match names.as_slice() {
        [first, _, ..] if names.len() == documents.len() => format!(
            "{found}; the file has {}: `kubectl apply -f` creates all and starts none, then name one, such as \
             `kubectl replumb plan {first}`",
            names.join(", ")
        ),
        _ => found,
    }
}

/// Fields that are not in the schema: the API server would drop them without an error.
fn unknown_fields(spec: &Value) -> Vec<String> {
    let definition = serde_json::to_value(Migration::crd()).unwrap_or_default();
    let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    let mut unknown = Vec::new();
    walk(spec, schema.unwrap_or(&Value::Null), "spec", &mut unknown);
    unknown
}

fn walk(value: &Value, schema: &Value, path: &str, unknown: &mut Vec<String>) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        match schema
            .get("properties")
            .and_then(|properties| properties.get(name))
        {
            Some(schema) => walk(value, schema, &path, unknown),
            None => unknown.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;

    #[test]
    fn a_file_with_one_migration_and_known_fields_is_accepted_only() {
        let good = "apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: x}\n\
                    spec: {flannelToCalico: {options: {flannelVni: 1}}, rollout: {maxUnavailable: 25%}}\n";
        let read = parse(good).unwrap();
        assert_eq!(read.metadata.name.as_deref(), Some("x"));
        assert_eq!(
            read.spec.rollout.max_unavailable,
            Some(IntOrString::String("25%".to_owned()))
        );
        for (text, needed) in [
            ("", "found 0 documents"),
            (
                &format!("{good}---\n{}", good.replace("name: x", "name: y")),
                "found 2 documents, needed one Migration; the file has x, y: `kubectl apply -f` creates all",
            ),
            (&format!("{good}---\nkind: Pod\n"), "found 2 documents"),
            ("a: [", "is not YAML"),
            ("kind: Pod\napiVersion: v1\n", "needed kind Migration"),
            (
                "kind: Migration\napiVersion: replumb.dev/v1alpha1\n",
                "found no spec",
            ),
            (&good.replace("rollout", "rolout"), "spec.rolout"),
            (
                &good.replace("flannelVni", "flannelVNI"),
                "spec.flannelToCalico.options.flannelVNI",
            ),
            (&good.replace("25%", "[1]"), "is not a Migration"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(needed), "{text:?}: {error}");
        }
    }
}
