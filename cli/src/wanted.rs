//! The spec that is asked for: the object that is there, then the file, Calico's variables, flags.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use api::migration::{Canary, Drain, FlannelToCalico, OnBlocked as WireOnBlocked, Rollout};
use api::traffic::GateRules;
use api::{Migration, MigrationSpec};
use kube::CustomResourceExt as _;
use serde::Deserialize as _;
use serde_json::Value;

use crate::args::{OnBlocked, RolloutFlags, Wanted};
use crate::error::CliError;
use crate::flannel_to_calico::environment;

/// What was read before anything is asked of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The Migration of the file, if there is a file.
    pub file: Option<Migration>,
    /// Calico's variables, if they were asked for.
    environment: Option<environment::FromEnvironment>,
    /// Flags.
    flags: Wanted,
    /// What has no effect, one line each.
    pub warnings: Vec<String>,
}

impl Asked {
    /// Reads the file and the variables.
    pub fn read(
        wanted: &Wanted,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, CliError> {
        let file = wanted.file.as_deref().map(read_file).transpose()?;
        let environment = if wanted.from_env {
            Some(environment::read(variables).map_err(|errors| CliError::Environment { errors })?)
        } else {
            None
        };
        let warnings = environment
            .as_ref()
            .map(|read| read.warnings.clone())
            .unwrap_or_default();
        Ok(Self {
            file,
            environment,
            flags: wanted.clone(),
            warnings,
        })
    }

    /// The name that is meant: the argument's, else the file's.
    pub fn name(&self, argument: Option<&str>) -> Result<Option<String>, CliError> {
        let of_file = self.file.as_ref().and_then(|file| file.metadata.name.clone());
        match (argument, of_file) {
            (Some(argument), Some(of_file)) if argument != of_file => Err(CliError::File {
                file: self.file_name(),
                why: format!(
                    "metadata.name: found {of_file:?}, the command names {argument:?}: leave one of them away"
                ),
            }),
            (Some(argument), _) => Ok(Some(argument.to_owned())),
            (None, of_file) => Ok(of_file),
        }
    }

    /// Labels of the file's Migration.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.file
            .as_ref()
            .and_then(|file| file.metadata.labels.clone())
            .unwrap_or_default()
    }

    /// The spec that is asked for, over the one that is there. `desired`, `planHash` and `resumedAt` are those
    /// of the object that is there: the command sets them.
    pub fn spec(&self, there: Option<&MigrationSpec>) -> MigrationSpec {
        let mut spec = match (&self.file, there) {
            (Some(file), _) => file.spec.clone(),
            (None, Some(there)) => there.clone(),
            (None, None) => MigrationSpec {
                flannel_to_calico: Some(FlannelToCalico::default()),
                ..empty()
            },
        };
        let base = there.cloned().unwrap_or_else(empty);
        spec.desired = base.desired;
        spec.plan_hash = base.plan_hash;
        spec.resumed_at = base.resumed_at;
        if let Some(kind) = &mut spec.flannel_to_calico {
            let variables = self.environment.as_ref().map(|read| read.options.clone());
            self.flags
                .flannel_to_calico
                .over(kind, variables.unwrap_or_default());
        }
        overlay(&mut spec.rollout, &mut spec.drain, &self.flags.rollout);
        spec.gates = self.flags.gates.over(&spec.gates);
        spec
    }

    fn file_name(&self) -> String {
        self.flags
            .file
            .as_deref()
            .unwrap_or(Path::new("-"))
            .display()
            .to_string()
    }
}

fn empty() -> MigrationSpec {
    MigrationSpec {
        flannel_to_calico: None,
        pod_cidr: None,
        service_cidr: None,
        calico_datastore: None,
        desired: api::migration::Desired::default(),
        rollback_nodes: Vec::new(),
        rollout: Rollout::default(),
        drain: Drain::default(),
        gates: GateRules::default(),
        plan_hash: None,
        resumed_at: None,
    }
}

fn overlay(rollout: &mut Rollout, drain: &mut Drain, flags: &RolloutFlags) {
    let RolloutFlags {
        max_unavailable,
        canary,
        canary_soak,
        interval,
        step_timeout,
        drain_timeout,
        grace_period,
        on_blocked,
        delete_emptydir_data,
        force,
    } = flags.clone();
    rollout.max_unavailable = max_unavailable.or(rollout.max_unavailable.take());
    if let Some(nodes) = canary {
        let soak = rollout.canary.as_ref().map_or(0, |canary| canary.soak_seconds);
        rollout.canary = Some(Canary {
            nodes,
            soak_seconds: canary_soak.unwrap_or(soak),
        });
    }
    rollout.interval_seconds = interval.unwrap_or(rollout.interval_seconds);
    rollout.step_timeout_seconds = step_timeout.or(rollout.step_timeout_seconds);
    drain.timeout_seconds = drain_timeout.or(drain.timeout_seconds);
    drain.grace_period_seconds = grace_period.or(drain.grace_period_seconds);
    drain.on_blocked = on_blocked.map_or(drain.on_blocked, |policy| match policy {
        OnBlocked::Pause => WireOnBlocked::Pause,
        OnBlocked::Wait => WireOnBlocked::Wait,
        OnBlocked::Skip => WireOnBlocked::Skip,
    });
    drain.delete_empty_dir_data = delete_emptydir_data.unwrap_or(drain.delete_empty_dir_data);
    drain.force = force.unwrap_or(drain.force);
}

fn read_file(path: &Path) -> Result<Migration, CliError> {
    let file = path.display().to_string();
    let failed = |why: String| CliError::File {
        file: file.clone(),
        why,
    };
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(|_| ())
    } else {
        std::fs::read_to_string(path).map(|found| text = found)
    };
    read.map_err(|error| failed(format!("cannot be read: {error}")))?;
    parse(&text).map_err(failed)
}

/// One Migration out of a text; everything that it says is known.
fn parse(text: &str) -> Result<Migration, String> {
    let mut documents = Vec::new();
    for document in yaml_serde::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| format!("is not YAML: {error}"))?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    let [document] = documents.as_slice() else {
        return Err(format!(
            "found {} documents, needed one Migration",
            documents.len()
        ));
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

/// Fields that the schema does not know: the API server would leave them away without a word.
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

/// Where two kinds differ: field, value there, value asked for. Empty when they are the same.
pub fn differences(there: &MigrationSpec, asked: &MigrationSpec) -> Vec<String> {
    let value = |spec: &MigrationSpec| serde_json::to_value(&spec.flannel_to_calico).unwrap_or_default();
    let mut found = Vec::new();
    compare(&value(there), &value(asked), "flannelToCalico", &mut found);
    found
}

fn compare(there: &Value, asked: &Value, path: &str, found: &mut Vec<String>) {
    if there == asked {
        return;
    }
    let (Value::Object(left), Value::Object(right)) = (there, asked) else {
        let show = |value: &Value| {
            if value.is_null() {
                "nothing".to_owned()
            } else {
                value.to_string()
            }
        };
        found.push(format!(
            "{path}: there {}, asked for {}",
            show(there),
            show(asked)
        ));
        return;
    };
    let names: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    for name in names {
        let of = |side: &serde_json::Map<String, Value>| side.get(name).cloned().unwrap_or_default();
        compare(&of(left), &of(right), &format!("{path}.{name}"), found);
    }
}

#[cfg(test)]
mod tests {
    use api::migration::Desired;
    use clap::Parser as _;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::args::{Args, Command};

    fn asked(line: &[&str], variables: &[(&str, &str)]) -> Asked {
        let args = Args::try_parse_from([&["kubectl-replumb", "plan"], line].concat()).unwrap();
        let Command::Plan(look) = args.command else {
            panic!("not a plan")
        };
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Asked::read(&look.wanted, variables).unwrap()
    }

    #[test]
    fn nothing_said_is_the_default_kind_and_leaves_what_is_there() {
        let spec = asked(&[], &[]).spec(None);
        assert_eq!(spec.flannel_to_calico, Some(FlannelToCalico::default()));
        assert_eq!(spec.desired, Desired::Plan);
        let mut there = spec.clone();
        there.desired = Desired::Run;
        there.rollout.interval_seconds = 7;
        assert_eq!(asked(&[], &[]).spec(Some(&there)), there);
    }

    #[test]
    fn flags_win_over_variables_and_both_over_what_is_there() {
        let there = asked(
            &[
                "--flannel-vni",
                "1",
                "--flannel-mtu",
                "1450",
                "--max-unavailable",
                "2",
            ],
            &[],
        )
        .spec(None);
        let spec = asked(
            &[
                "--from-env",
                "--flannel-vni",
                "4096",
                "--canary",
                "1",
                "--canary-soak",
                "5m",
                "--on-blocked",
                "skip",
            ],
            &[("FLANNEL_VNI", "2"), ("FLANNEL_PORT", "8472")],
        )
        .spec(Some(&there));
        let options = spec.flannel_to_calico.unwrap().options;
        assert_eq!(
            (options.flannel_vni, options.flannel_port, options.flannel_mtu),
            (Some(4096), Some(8472), Some(1450))
        );
        assert_eq!(spec.rollout.max_unavailable, Some(IntOrString::Int(2)));
        assert_eq!(
            spec.rollout.canary,
            Some(Canary {
                nodes: 1,
                soak_seconds: 300
            })
        );
        assert_eq!(spec.drain.on_blocked, WireOnBlocked::Skip);
    }

    #[test]
    fn a_file_is_one_migration_and_every_field_is_known() {
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
            (&format!("{good}---\n{good}"), "found 2 documents"),
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

    #[test]
    fn what_is_immutable_is_named_field_by_field() {
        let there = asked(&["--flannel-vni", "1"], &[]).spec(None);
        let wanted = asked(&["--flannel-vni", "4096", "--allow-single-node"], &[]).spec(None);
        assert_eq!(
            differences(&there, &wanted),
            [
                "flannelToCalico.allowSingleNode: there false, asked for true",
                "flannelToCalico.options.flannelVni: there 1, asked for 4096"
            ]
        );
        assert!(differences(&there, &there).is_empty());
    }
}
