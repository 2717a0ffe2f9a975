use std::collections::{BTreeMap, BTreeSet};

use rstest::rstest;
use serde_json::json;

use super::fixture::{facts, settings};
use super::*;
use crate::cluster::detect::{Options, detect};
use crate::cluster::document::document;
use crate::cluster::facts::NotConverted;
use crate::cluster::manifest;
use crate::controller_objects::{ControllerObjects, PolicyName};
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use crate::sources::{Flaw, Origin};
use ::calico::etcd_access::StoreProblem;
use engine::owner::Owner;

/// A change of the facts.
type Change = fn(&mut ClusterFacts);

fn policy() -> CheckPolicy {
    CheckPolicy {
        max_unavailable: 1,
        ..CheckPolicy::default()
    }
}

fn judged(facts: &ClusterFacts) -> Vec<Check> {
    check(&settings(facts), facts, &policy())
}

fn stores(facts: &mut ClusterFacts) -> &mut crate::cluster::facts::StoreFacts {
    facts.stores.as_mut().unwrap().as_mut().unwrap()
}

#[test]
fn a_good_cluster_passes_every_check() {
    let checks = judged(&facts());
    for check in &checks {
        assert_eq!(check.verdict, Verdict::Pass, "{}", check.line());
    }
    let found: BTreeSet<&str> = checks.iter().map(|check| check.name.as_str()).collect();
    let all: BTreeSet<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    assert_eq!(found, all);
}

#[rstest]
#[case(CheckName::NodesReady, |facts: &mut ClusterFacts| facts.nodes.get_mut("a").unwrap().ready = false, "NotReady")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| facts.pods[0].ready = false, "not Ready")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| facts.pods[1].image = "calico/node:v2.6.2".to_owned(), "v2.6.2 on b")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| { facts.pods.pop(); }, "number of pods: found 1")]
#[case(CheckName::KubeControllers, |facts: &mut ClusterFacts| facts.controllers = None, "only in the manifest")]
#[case(CheckName::KubeControllers, |facts: &mut ClusterFacts| facts.other_controllers.push(("ReplicaSet kube-system/calico-policy-controller".to_owned(), Owner::Cluster)), "writes to etcd v2")]
#[case(CheckName::ManifestObjects, |facts: &mut ClusterFacts| facts.differing.push(("ClusterRole calico-node".to_owned(), "not there".to_owned())), "not there")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| { facts.nodes.insert("c".to_owned(), engine::cluster::Node { name: "c".to_owned(), ready: true, ..engine::cluster::Node::default() }); }, "Node c: found no pod of calico-node")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| facts.other_daemon_sets.push("DaemonSet kube-system/calico-node-arm".to_owned()), "calico-node-arm")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).phase = Some(Phase::Completed), "--after-completion")]
#[case(CheckName::ManifestObjects, |facts: &mut ClusterFacts| facts.refused.push(("DaemonSet kube-system/calico-node".to_owned(), "no".to_owned())), "refused by the API server: no")]
#[case(CheckName::ManifestObjects, |facts: &mut ClusterFacts| facts.unreadable.push("ClusterRole calico-node".to_owned()), "deploy/calico-datastore")]
#[case(CheckName::Manifest, |facts: &mut ClusterFacts| facts.daemon_set.as_mut().unwrap().selector = json!({"matchLabels": {"a": "b"}}), "selector")]
#[case(CheckName::DatastoreAccess, |facts: &mut ClusterFacts| facts.stores = Some(Err(StoreProblem { message: "etcd: refused".to_owned(), hint: "check etcd".to_owned() })), "etcd: refused")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).ready_v2 = ReadyV2::Missing, "no such key")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).ready_v2 = ReadyV2::Paused("false".to_owned()), "datastore abort")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).ready_v3 = ReadyV3::Open, "works with etcd v3")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).keys_v3 = 7, "keys: 7")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).phase = Some(Phase::Written), "phase Written")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).lock_holder = Some("another process".to_owned()), "held by another process")]
#[case(CheckName::DatastoreConversion, |facts: &mut ClusterFacts| stores(facts).conversion = Err(NotConverted { message: "2 values".to_owned(), hint: "correct them".to_owned(), lines: vec!["p: not JSON".to_owned()] }), "p: not JSON")]
#[case(CheckName::DatastoreConversion, |facts: &mut ClusterFacts| stores(facts).conversion = Err(NotConverted { message: "too old".to_owned(), hint: "upgrade".to_owned(), lines: Vec::new() }), "too old")]
#[case(CheckName::Permissions, |facts: &mut ClusterFacts| { facts.permissions.insert("create secrets".to_owned(), false); }, "denied")]
#[case(CheckName::DatastoreOwners, |facts: &mut ClusterFacts| { facts.daemon_set.as_mut().unwrap().object.managers.push("argocd-controller (Apply)".to_owned()); }, "Argo CD")]
fn a_spoiled_fact_refuses_with_its_check(
    #[case] name: CheckName,
    #[case] change: Change,
    #[case] words: &str,
) {
    let mut facts = facts();
    change(&mut facts);
    let checks = judged(&facts);
    let refusals: Vec<String> = checks
        .iter()
        .filter(|check| !check.verdict.allows())
        .map(Check::line)
        .collect();
    assert!(
        refusals
            .iter()
            .any(|line| line.starts_with(name.as_str()) && line.contains(words)),
        "{refusals:?}"
    );
    for line in &refusals {
        assert!(line.starts_with(name.as_str()), "another check refuses: {line}");
    }
}

#[test]
fn a_user_name_is_refused_with_the_command_that_supports_it() {
    let mut facts = facts();
    let template = &mut facts.daemon_set.as_mut().unwrap().template;
    let containers = template["spec"]["containers"].as_array_mut().unwrap();
    let environment = containers
        .iter_mut()
        .find(|container| container["name"] == "calico-node")
        .unwrap();
    let user = json!({ "name": "ETCD_USERNAME", "value": "root" });
    environment["env"].as_array_mut().unwrap().push(user);
    let refused = detect(&Options::default(), &facts).unwrap_err();
    let lines: Vec<String> = refused.iter().map(Check::line).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains(
            "ETCD_USERNAME is set: this kind supports only client certificates; `kubectl replumb datastore` supports user names"
        ),
        "{lines:?}"
    );
}

/// A tenant can choose any name for an image, so such an image does not refuse the migration.
#[test]
fn a_tenants_image_with_the_name_of_a_controller_warns() {
    let mut facts = facts();
    let of_a_tenant = Owner::Tenant("shop".to_owned());
    facts
        .other_controllers
        .push(("Deployment shop/mine".to_owned(), of_a_tenant));
    let checks = judged(&facts);
    assert!(checks.iter().all(|check| check.verdict.allows()));
    let lines: Vec<String> = checks.iter().map(Check::line).collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("Deployment shop/mine") && line.contains("ask its owner")),
        "{lines:?}"
    );
}

/// Refusals of the cluster with objects that the controllers have to write, and with these controllers in the manifest.
fn refusals_with_controllers(controllers: Option<serde_json::Value>) -> Vec<String> {
    let mut facts = facts();
    let Ok(converted) = &mut stores(&mut facts).conversion else {
        panic!()
    };
    converted.remaining = ControllerObjects {
        profiles: ["kns.default".to_owned()].into(),
        policies: [PolicyName {
            namespace: "team".to_owned(),
            name: "deny".to_owned(),
        }]
        .into(),
    };
    let Some(Ok(manifest)) = &mut facts.manifest else {
        panic!()
    };
    if controllers.is_none() {
        facts.controllers = None;
    }
    manifest.controllers = controllers;
    judged(&facts)
        .iter()
        .filter(|check| !check.verdict.allows())
        .map(Check::line)
        .collect()
}

#[test]
fn controllers_that_do_not_write_the_remaining_objects_are_refused() {
    let lines = refusals_with_controllers(None);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("KubeControllers") && lines[0].contains("1 profile (kns.default)"),
        "{lines:?}"
    );
    let enabled = |names: Option<&str>| {
        let mut deployment = manifest::fixture::documents()
            .into_iter()
            .find(|document| document["kind"] == "Deployment")
            .unwrap();
        let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
        container["env"] = names.map_or(
            json!([]),
            |names| json!([{ "name": "ENABLED_CONTROLLERS", "value": names }]),
        );
        deployment["spec"]["template"]["spec"]["initContainers"] = json!([]);
        refusals_with_controllers(Some(deployment))
    };
    for all in [
        None,
        Some("policy,namespace,serviceaccount,workloadendpoint,node"),
        Some("policy,profile"),
    ] {
        assert_eq!(enabled(all), Vec::<String>::new(), "{all:?}");
    }
    for (names, words) in [
        ("node,policy", "add profile"),
        ("namespace", "add policy"),
        ("policy, namespace", "add profile"),
    ] {
        let lines = enabled(Some(names));
        assert!(
            lines.len() == 1 && lines[0].starts_with("KubeControllers") && lines[0].contains(words),
            "{lines:?}"
        );
    }
}

/// Results for the cluster with these objects that v3 cannot have.
fn with_flawed(flawed: Vec<(Origin, Flaw)>) -> Vec<Check> {
    let mut facts = facts();
    let Ok(converted) = &mut stores(&mut facts).conversion else {
        panic!()
    };
    converted.remaining.profiles = ["kns.shop".to_owned()].into();
    converted.flawed = flawed;
    let checks = judged(&facts).into_iter();
    checks.filter(|check| check.verdict > Verdict::Pass).collect()
}

/// The controllers could not write the profile of such a namespace.
#[test]
fn a_namespace_with_a_label_too_long_for_v3_is_refused() {
    let flaw = Flaw::Labels("a".repeat(59));
    let checks = with_flawed(vec![(Origin::Namespace("shop".to_owned()), flaw)]);
    let lines: Vec<String> = checks.iter().map(Check::line).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(checks[0].verdict, Verdict::Fail);
    assert!(
        lines[0].starts_with("KubeControllers: Namespace shop") && lines[0].contains("at most 58 characters"),
        "{lines:?}"
    );
}

/// The controllers could not write such a policy, and it would restrict nothing. A policy that may be too large only warns.
#[test]
fn a_policy_that_v3_cannot_have_is_refused_by_name() {
    let policy = || {
        Origin::Policy(PolicyName {
            namespace: "shop".to_owned(),
            name: "long".to_owned(),
        })
    };
    for (flaw, verdict, words) in [
        (
            Flaw::Name(242),
            Verdict::Fail,
            "metadata.name: found 242 characters, needed at most 241 characters",
        ),
        (
            Flaw::Selector("a == 'b'c'".to_owned()),
            Verdict::Fail,
            "no quotation mark",
        ),
        (Flaw::Size(2_000_000), Verdict::Warn, "up to 2000000 bytes in v3"),
    ] {
        let checks = with_flawed(vec![(policy(), flaw)]);
        let lines: Vec<String> = checks.iter().map(Check::line).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(checks[0].verdict, verdict);
        assert!(
            lines[0].starts_with("KubeControllers: NetworkPolicy shop/long") && lines[0].contains(words),
            "{lines:?}"
        );
    }
}

#[test]
fn a_manifest_of_another_calico_is_refused() {
    let mut facts = facts();
    let Some(Ok(manifest)) = &mut facts.manifest else {
        panic!()
    };
    manifest.daemon_set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("calico/node:v2.6.12");
    let lines: Vec<String> = judged(&facts)
        .iter()
        .filter(|check| !check.verdict.allows())
        .map(Check::line)
        .collect();
    assert!(lines.iter().any(|line| line.contains("of v2.6")), "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("the same as in the cluster")),
        "{lines:?}"
    );
}

#[test]
fn a_missing_manifest_or_daemon_set_is_refused_without_settings() {
    let refused = |change: Change| {
        let mut facts = facts();
        change(&mut facts);
        detect(&Options::default(), &facts)
            .unwrap_err()
            .iter()
            .map(Check::line)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert!(refused(|facts: &mut ClusterFacts| facts.manifest = None).contains("not valid YAML"));
    assert!(
        refused(|facts: &mut ClusterFacts| facts.manifest = Some(Err(vec!["found 2 of".to_owned()])))
            .contains("found 2 of")
    );
    assert!(refused(|facts: &mut ClusterFacts| facts.daemon_set = None).contains("not in the cluster"));
    assert!(
        refused(|facts: &mut ClusterFacts| facts.config_maps.clear()).contains("spec.calicoDatastore.etcdV2")
    );
}

#[test]
fn the_plan_names_every_object_and_the_point_of_no_return() {
    let mut facts = facts();
    let settings = settings(&facts);
    let order = ["a".to_owned(), "b".to_owned()];
    let plan = document(&settings, &facts, &order);
    let text = format!("{plan:?}");
    for words in [
        "Deployment kube-system/calico-kube-controllers",
        "/calico/v1/Ready",
        "NEW PODS GET NO NETWORK",
        "POINT OF NO RETURN",
        "calico/node:v3.8.9 in place of calico/node:v2.6.12",
        "ConfigMap kube-system/calico-config",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("kops"));
    assert_eq!(plan.nodes.len(), 2);
    let labels = &mut facts.daemon_set.as_mut().unwrap().object.labels;
    labels.insert("k8s-addon".to_owned(), "networking.projectcalico.org".to_owned());
    let of_kops = document(&settings, &facts, &order);
    assert!(format!("{of_kops:?}").contains("majorVersion: v3"));
    assert_ne!(of_kops.hash(), plan.hash());
    // A change of the data in the stores does not change the plan.
    stores(&mut facts).conversion = Ok(crate::cluster::facts::Converted::default());
    assert_eq!(document(&settings, &facts, &order).hash(), of_kops.hash());
}

#[test]
fn more_nodes_than_the_pause_has_time_for_are_refused() {
    let facts = facts();
    let mut settings = settings(&facts);
    settings.pause_limit_seconds.value = 60;
    let lines = |at_once: usize| -> Vec<String> {
        let policy = CheckPolicy {
            max_unavailable: at_once,
            ..CheckPolicy::default()
        };
        let checks = check(&settings, &facts, &policy);
        checks
            .iter()
            .filter(|check| !check.verdict.allows())
            .map(Check::line)
            .collect()
    };
    let refused = lines(1);
    assert!(
        refused.len() == 1 && refused[0].contains("about 95 s (nodes: 2, at a time: 1)"),
        "{refused:?}"
    );
    assert_eq!(lines(2), Vec::<String>::new());
}

#[test]
fn one_config_map_for_two_etcds_is_refused() {
    let mut facts = facts();
    let Some(Ok(manifest)) = &mut facts.manifest else {
        panic!()
    };
    manifest.etcd.endpoints = vec!["http://10.0.0.9:2379".to_owned()];
    let found = facts.daemon_set.as_mut().unwrap();
    found.object.config_maps.push("calico-config".to_owned());
    let lines: Vec<String> = judged(&facts)
        .iter()
        .filter(|check| !check.verdict.allows())
        .map(Check::line)
        .collect();
    assert!(
        lines.iter().any(|line| line.contains("whose etcds differ")),
        "{lines:?}"
    );
}

#[test]
fn a_fail_closed_webhook_and_a_missing_image_warn() {
    let mut facts = facts();
    facts.webhooks.push(engine::cluster::Webhook {
        object: "ValidatingWebhookConfiguration x, webhook y".to_owned(),
        service: ("policy".to_owned(), "gate".to_owned()),
        covers_pods_or_nodes: true,
        backends: vec![("policy".to_owned(), "gate-1".to_owned(), "a".to_owned(), true)],
    });
    let controllers = "calico/kube-controllers:v3.8.9".to_owned();
    facts.without_image = BTreeMap::from([(controllers, vec!["b".to_owned()])]);
    let warned: Vec<String> = judged(&facts)
        .iter()
        .filter(|check| check.verdict == Verdict::Warn)
        .map(Check::line)
        .collect();
    assert!(
        warned.iter().any(|line| line.contains("policy/gate")),
        "{warned:?}"
    );
    assert!(
        warned
            .iter()
            .any(|line| line.contains("calico/kube-controllers:v3.8.9 is not reported by Nodes b")),
        "{warned:?}"
    );
}
