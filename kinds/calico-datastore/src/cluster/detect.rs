//! Detects the settings of the migration from the cluster and the manifest.

use super::facts::ClusterFacts;
use super::manifest::{self, Name};
use super::settings::{PAUSE_LIMIT_SECONDS, SETTLE_SECONDS, Settings};
use calico::etcd_access::{self, Etcd, NoConnection};
use engine::check::{Check, Verdict};
use engine::sourced::{Source, Sourced};

use super::checks::CheckName;

/// Settings of the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The connection to etcd v2.
    pub etcd_v2: Option<Etcd>,
    /// The connection to etcd v3.
    pub etcd_v3: Option<Etcd>,
    /// Longest pause of Calico, in seconds.
    pub pause_limit_seconds: Option<u32>,
    /// Time between the pause and the conversion, in seconds.
    pub settle_seconds: Option<u32>,
    /// Whether v3 may have data before the conversion.
    pub ignore_v3_data: bool,
}

/// Detects the settings. An error has a check for each missing one.
///
/// # Errors
///
/// The manifest is missing or invalid, its `DaemonSet` is not in the cluster, or the connection to etcd v2 is unknown.
pub fn detect(options: &Options, facts: &ClusterFacts) -> Result<Settings, Vec<Check>> {
    let manifest = match &facts.manifest {
        Some(Ok(manifest)) => manifest,
        Some(Err(problems)) => return Err(problems.iter().map(|problem| wrong_manifest(problem)).collect()),
        None => return Err(vec![wrong_manifest("not valid YAML")]),
    };
    let name = Name::of(&manifest.daemon_set);
    let object = name.display();
    let key = format!("{}/{}", name.namespace, name.name);
    let Some(found) = &facts.daemon_set else {
        return Err(vec![CheckName::CalicoNode.not_pass(
            Verdict::Fail,
            object,
            "not in the cluster",
            "the DaemonSet of Calico v2, with the same name as in the manifest of v3",
            "check that Calico runs as a DaemonSet: `kubectl get daemonsets -A`",
        )]);
    };
    let etcd_v2 = match (
        &options.etcd_v2,
        etcd_access::of_template(&found.template, &name.namespace, &facts.config_maps),
    ) {
        (Some(etcd), _) => from_spec(etcd.clone()),
        (None, Ok(etcd)) => detected(etcd, &object),
        (None, Err(problem)) => {
            let alternative = match problem {
                NoConnection::UserName(_) => "; `kubectl replumb datastore` supports user names",
                NoConnection::Settings(_) => "",
            };
            return Err(vec![CheckName::DatastoreAccess.not_pass(
                Verdict::Fail,
                object,
                format!("{problem}{alternative}"),
                "endpoints of etcd, and its certificates in a Secret",
                "set them in spec.calicoDatastore.etcdV2 (endpoints, and secret: with the keys etcd-ca, etcd-cert and etcd-key)",
            )]);
        }
    };
    let in_manifest = format!("{object} of the manifest");
    let etcd_v3 = match &options.etcd_v3 {
        Some(etcd) => from_spec(etcd.clone()),
        None => detected(manifest.etcd.clone(), &in_manifest),
    };
    let written = |object: Option<&serde_json::Value>| {
        let name = object.map(Name::of);
        let key = name
            .as_ref()
            .map(|name| format!("{}/{}", name.namespace, name.name));
        detected(key.unwrap_or_default(), "the manifest")
    };
    Ok(Settings {
        daemon_set: detected(key, "the manifest"),
        controllers: written(manifest.controllers.as_ref()),
        configuration: written(manifest.configuration.as_ref()),
        from_image: detected(manifest::image(&found.template), &object),
        to_image: detected(manifest.image(), &in_manifest),
        etcd_v2,
        etcd_v3,
        pause_limit_seconds: Sourced::choose(options.pause_limit_seconds, None, PAUSE_LIMIT_SECONDS),
        settle_seconds: Sourced::choose(options.settle_seconds, None, SETTLE_SECONDS),
        ignore_v3_data: Sourced::choose(options.ignore_v3_data.then_some(true), None, false),
    })
}

fn wrong_manifest(problem: &str) -> Check {
    CheckName::Manifest.not_pass(
        Verdict::Fail,
        "spec.calicoDatastore.manifest",
        problem,
        "Calico's manifest for v3 with etcd: one DaemonSet of calico-node, its ConfigMap and calico-kube-controllers",
        "pass the file to `kubectl replumb plan --calico-v3-manifest FILE`",
    )
}

fn from_spec<T>(value: T) -> Sourced<T> {
    Sourced {
        value,
        source: Source::Spec,
    }
}

fn detected<T>(value: T, object: &str) -> Sourced<T> {
    Sourced {
        value,
        source: Source::Detected(object.to_owned()),
    }
}
