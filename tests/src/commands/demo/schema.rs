//! Compares `docs/report.schema.json` with the types of the reports, and reports with the schema.

use std::collections::BTreeMap;
use std::path::Path;

use api::migration::{LegacyPods, MigrationPhase, Strategy};
use api::traffic::ClassCount;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::{Value, json};
use traffic::report::{Report as ProberReport, Summary};

use crate::demo::calico_datastore::late::PodsInPause;
use crate::demo::calico_datastore::report::CalicoDatastore;
use crate::demo::calico_datastore::stores::Flags;
use crate::demo::flannel_to_calico::rehearsed;
use crate::demo::flannel_to_calico::report::{FlannelToCalico, Held, PolicyTrial, Trial};
use crate::demo::pod_cidr::report::{Counts, PodCidr};
use crate::demo::report::{
    Foreign, ManualStep, Measurements, MigrationReport, NodeReport, NodeStep, OwnPart, Pods, Report,
};
use crate::demo::same::{Allowed, Comparison};
use crate::demo::service_cidr::report::{Recreation, ServiceCidr, Services};
use crate::demo::watch::Peak;

/// The schema of every kind's report.
fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let kinds = [
        generator.subschema_for::<Report<FlannelToCalico>>(),
        generator.subschema_for::<Report<PodCidr>>(),
        generator.subschema_for::<Report<ServiceCidr>>(),
        generator.subschema_for::<Report<CalicoDatastore>>(),
    ];
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of cargo lab demo --report",
        "oneOf": kinds,
        "$defs": generator.take_definitions(true),
    })
}

#[test]
fn the_schema_in_the_documentation_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report.schema.json");
    if std::env::var_os("UPDATE_REPORT_SCHEMA").is_some() {
        let text = serde_json::to_string_pretty(&schema()).unwrap();
        std::fs::write(&path, text + "\n").unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert!(
        written == schema(),
        "docs/report.schema.json is stale; run: UPDATE_REPORT_SCHEMA=1 cargo test -p lab --lib schema"
    );
}

/// Differences between a value and a schema, each with its path. Knows the keywords that the schema of the reports has. A field
/// that the schema does not name is a difference.
fn differences(root: &Value, schema: &Value, value: &Value, path: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = root.pointer(reference.trim_start_matches('#')).unwrap();
        return differences(root, schema, value, path);
    }
    for keyword in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[keyword].as_array() {
            let tried = choices
                .iter()
                .map(|choice| differences(root, choice, value, path));
            return tried.min_by_key(Vec::len).unwrap();
        }
    }
    let mut found = Vec::new();
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    };
    let is_named = |of: &Value| of == name || (of == "number" && name == "integer");
    if !types.is_empty() && !types.iter().any(is_named) {
        found.push(format!("{path}: found {name}, needed {types:?}"));
    }
    let choices = schema["enum"].as_array();
    let is_choice = choices.is_none_or(|choices| choices.contains(value));
    if !is_choice || (!schema["const"].is_null() && schema["const"] != *value) {
        found.push(format!("{path}: {value} is not possible"));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        let path = format!("{path}[{index}]");
        found.extend(differences(root, &schema["items"], item, &path));
    }
    let Some(fields) = value.as_object() else {
        return found;
    };
    let required = schema["required"].as_array().into_iter().flatten();
    for field in required.filter_map(Value::as_str) {
        if !fields.contains_key(field) {
            found.push(format!("{path}.{field}: missing"));
        }
    }
    for (field, value) in fields {
        let path = format!("{path}.{field}");
        match (&schema["properties"][field], &schema["additionalProperties"]) {
            (Value::Null, Value::Null | Value::Bool(_)) => found.push(format!("{path}: not in the schema")),
            (Value::Null, schema) | (schema, _) => found.extend(differences(root, schema, value, &path)),
        }
    }
    found
}

/// Measurements with a value in each field.
fn measurements<Own: OwnPart>() -> Measurements {
    let status = json!({
        "phase": "Completed", "plan": { "hash": "abc" },
        "startedAt": "2026-11-22T16:00:00Z", "completedAt": "2026-11-22T16:01:30Z",
        Own::KIND: { "history": [{
            "name": "Move", "direction": "Rollback",
            "startedAt": "2026-11-22T16:00:10Z", "finishedAt": "2026-11-22T16:00:12.5Z",
        }] },
    });
    let migration = json!({ "metadata": { "name": "demo" }, "status": status });
    let prober: ProberReport = serde_json::from_value(json!({
        "prober": "traffic-1", "node": "n1", "started": "2026-11-22T16:00:00Z", "updated": "2026-11-22T16:00:00Z",
        "finished": false, "intervalMs": 10, "timeoutMs": 4000, "longestPauseMs": 0,
        "flows": [{
            "class": "pod-to-pod", "target": "echo", "address": "10.0.0.1:7000", "node": "n2", "lastError": "timeout",
            "sent": 9, "answered": 8, "lost": 1, "pending": 0, "late": 0, "duplicates": 0, "strays": 0, "longestGapMs": 20,
            "outages": [{ "since": "2026-11-22T16:00:00Z", "lost": 1, "gapMs": 20 }],
        }],
    }))
    .unwrap();
    let foreign = Foreign {
        gone: vec!["a route".to_owned()],
        new: vec!["a rule".to_owned()],
    };
    let node = NodeReport {
        phase: Some("Calico".to_owned()),
        seconds: Some(6.5),
        swap_seconds: Some(0.5),
        steps: Some(vec![NodeStep {
            name: "Swap".to_owned(),
            seconds: 0.5,
        }]),
        leftovers: Some(vec!["link cni0".to_owned()]),
        comparison: Some(Comparison {
            same: 7,
            different: vec!["gone: a link".to_owned()],
            allowed: vec![Allowed {
                line: "new: a chain".to_owned(),
                reason: "a listing creates it",
            }],
        }),
        ..NodeReport::with_foreign("n1".to_owned(), foreign)
    };
    Measurements {
        migration: MigrationReport::of::<Own>(&migration, Some(&Peak::default())),
        nodes: [vec![node], NodeReport::named(vec!["n2".to_owned()])].concat(),
        probes: Summary::of(&[prober]),
        pods: Pods::default(),
        calico: Some("a stand-in".to_owned()),
    }
}

fn manual_steps() -> Vec<ManualStep> {
    vec![ManualStep {
        requested: "set it".to_owned(),
        done: "set".to_owned(),
    }]
}

/// The report with this part in JSON; checks what every report has.
fn report<Own: OwnPart + Clone>(own: &Own) -> Value {
    fn json<Own: OwnPart>(measurements: Measurements, own: Own) -> Value {
        let report = Report::new(measurements, own, MigrationPhase::Completed);
        serde_json::to_value(&report).unwrap()
    }
    let full = json(measurements::<Own>(), own.clone());
    assert_eq!(full["migration"]["kind"], Own::KIND);
    assert_eq!(
        full["migration"]["stages"],
        json!([{ "name": "Move", "direction": "Rollback", "seconds": 2.5 }])
    );
    let mut shared: Vec<&str> = full.as_object().unwrap().keys().map(String::as_str).collect();
    shared.retain(|name| *name != Own::KIND);
    shared.sort_unstable();
    assert_eq!(
        shared,
        ["calico", "migration", "nodes", "pods", "probes", "problems"]
    );
    let mut few = measurements::<Own>();
    (few.calico, few.migration.observations) = (None, None);
    let schema = schema();
    for report in [&full, &json(few, own.clone())] {
        assert_eq!(differences(&schema, &schema, report, ""), [""; 0]);
    }
    full
}

fn object(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn a_report_of_each_kind_has_the_shared_fields_and_the_part_of_its_kind() {
    let tried = PolicyTrial::Tried(Trial::default());
    for policy in [tried, PolicyTrial::NotTried("a stand-in".to_owned())] {
        let own = FlannelToCalico {
            strategy: Strategy::InPlace,
            legacy_pods: LegacyPods::Keep,
            held: Some(Held::default()),
            policy: Some(policy),
            rehearsal: Some(rehearsed::Comparison {
                seconds: [60.0, 40.0, 200.0],
                differences: Vec::new(),
            }),
        };
        assert_eq!(report(&own)["flannelToCalico"], object(&own));
    }

    let traffic: ClassCount = serde_json::from_value(
        json!({ "class": "PodToDns", "sent": 5, "lost": 0, "late": 0, "longestGapMilliseconds": 0 }),
    )
    .unwrap();
    let own = PodCidr {
        before: Counts {
            routes_in_old_range: BTreeMap::from([("n1".to_owned(), 2)]),
            ..Counts::default()
        },
        after: Counts::default(),
        pods_in_new_range: 7,
        manual_steps: manual_steps(),
        traffic: vec![traffic],
        pods_created: 3,
    };
    assert_eq!(report(&own)["podCidr"], object(&own));

    let own = ServiceCidr {
        services: Services::default(),
        ready_ranges: BTreeMap::from([("kubernetes".to_owned(), vec!["172.31.0.0/16".to_owned()])]),
        wrong_events: vec!["an event".to_owned()],
        manual_steps: manual_steps(),
        recreation: Some(Recreation::default()),
    };
    assert_eq!(report(&own)["serviceCidr"], object(&own));

    let own = CalicoDatastore {
        flags: Flags {
            paused_since: Some(jiff::Timestamp::UNIX_EPOCH),
            incomplete_at_opening: Some(vec!["a policy".to_owned()]),
            ..Flags::default()
        },
        max_pods_without_network: 3,
        pods_in_pause: PodsInPause::default(),
        other_address: Vec::new(),
        v2_changed: vec!["/calico/a".to_owned()],
        v3_keys: 106,
        images: vec!["calico/node:v3.8.9".to_owned()],
        objects_changed: Vec::new(),
    };
    assert_eq!(report(&own)["calicoDatastore"], object(&own));
}

#[test]
fn a_value_that_does_not_fit_the_schema_is_found_with_its_path() {
    let schema = json!({
        "type": "object", "required": ["a", "b"],
        "properties": { "a": { "type": "array", "items": { "$ref": "#/$defs/A" } }, "b": { "type": ["string", "null"] } },
        "$defs": { "A": { "oneOf": [{ "type": "string", "enum": ["x"] }, { "const": "y" }] } },
    });
    let found = |value: Value| differences(&schema, &schema, &value, "");
    assert_eq!(found(json!({ "a": ["x", "y"], "b": null })), [""; 0]);
    assert_eq!(found(json!({ "a": ["z"], "b": "" })).len(), 1);
    assert_eq!(found(json!({ "a": 1 })).len(), 2);
    assert_eq!(
        found(json!({ "a": [], "b": "", "c": 1 })),
        [".c: not in the schema"]
    );
}
