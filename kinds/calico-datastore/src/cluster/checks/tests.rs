use std::collections::{BTreeMap, BTreeSet};

use rstest::rstest;
use serde_json::json;

use super::fixture::{facts, settings};
use super::*;
use crate::cluster::detect::{Wishes, detect};
use crate::cluster::document::document;
use crate::cluster::facts::NotConverted;
use crate::cluster::manifest;
use crate::left::{Left, PolicyName};
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use crate::sources::{Flaw, Origin};
use ::calico::etcd_access::StoreProblem;
use engine::owner::Owner;

/// Changes something of the facts.
type Change = fn(&mut ClusterFacts);

fn policy() -> CheckPolicy {
    CheckPolicy {
        at_once: 1,
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
fn a_good_cluster_passes_every_check_by_name() {
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
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| { facts.pods.pop(); }, "1 pods")]
#[case(CheckName::KubeControllers, |facts: &mut ClusterFacts| facts.controllers = None, "not in the cluster")]
#[case(CheckName::KubeControllers, |facts: &mut ClusterFacts| facts.other_controllers.push(("ReplicaSet kube-system/calico-policy-controller".to_owned(), Owner::Cluster)), "writes to etcd v2")]
#[case(CheckName::ManifestObjects, |facts: &mut ClusterFacts| facts.not_applied.push(("ClusterRole calico-node".to_owned(), "not there".to_owned())), "not there")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| { facts.nodes.insert("c".to_owned(), engine::cluster::Node { name: "c".to_owned(), ready: true, ..engine::cluster::Node::default() }); }, "Node c: found no pod of it")]
#[case(CheckName::CalicoNode, |facts: &mut ClusterFacts| facts.other_daemon_sets.push("DaemonSet kube-system/calico-node-arm".to_owned()), "calico-node-arm")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).phase = Some(Phase::Completed), "--after-completion")]
#[case(CheckName::ManifestObjects, |facts: &mut ClusterFacts| facts.refused.push(("DaemonSet kube-system/calico-node".to_owned(), "no".to_owned())), "would not take it: no")]
#[case(CheckName::ManifestObjects, |facts: &mut ClusterFacts| facts.unseen.push("ClusterRole calico-node".to_owned()), "deploy/calico-datastore")]
#[case(CheckName::Manifest, |facts: &mut ClusterFacts| facts.daemon_set.as_mut().unwrap().selector = json!({"matchLabels": {"a": "b"}}), "selector")]
#[case(CheckName::DatastoreAccess, |facts: &mut ClusterFacts| facts.stores = Some(Err(StoreProblem { message: "etcd: refused".to_owned(), hint: "look".to_owned() })), "etcd: refused")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).ready_v2 = ReadyV2::Missing, "no such key")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).ready_v2 = ReadyV2::Paused("false".to_owned()), "datastore abort")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).ready_v3 = ReadyV3::Open, "works with it")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).keys_v3 = 7, "7 keys")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).phase = Some(Phase::Written), "phase Written")]
#[case(CheckName::DatastoreState, |facts: &mut ClusterFacts| stores(facts).at_work = Some("somebody".to_owned()), "somebody is at work")]
#[case(CheckName::DatastoreConversion, |facts: &mut ClusterFacts| stores(facts).conversion = Err(NotConverted { message: "2 values".to_owned(), hint: "mend".to_owned(), lines: vec!["p: no JSON".to_owned()] }), "p: no JSON")]
#[case(CheckName::DatastoreConversion, |facts: &mut ClusterFacts| stores(facts).conversion = Err(NotConverted { message: "too old".to_owned(), hint: "mend".to_owned(), lines: Vec::new() }), "too old")]
#[case(CheckName::Permissions, |facts: &mut ClusterFacts| { facts.permissions.insert("create secrets".to_owned(), false); }, "denied")]
#[case(CheckName::DatastoreOwners, |facts: &mut ClusterFacts| { facts.daemon_set.as_mut().unwrap().object.managers.push("argocd-controller (Apply)".to_owned()); }, "Argo CD")]
fn what_refuses(#[case] name: CheckName, #[case] change: Change, #[case] words: &str) {
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
        assert!(line.starts_with(name.as_str()), "and nothing else: {line}");
    }
}

/// A tenant may call an image whatever it wants: that is named, and refuses nothing.
#[test]
fn a_tenants_image_that_is_called_like_a_controller_warns() {
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

/// The cluster, with what the conversion leaves, and these controllers in the manifest.
fn with_left(controllers: Option<serde_json::Value>) -> Vec<String> {
    let mut facts = facts();
    let Ok(converted) = &mut stores(&mut facts).conversion else {
        panic!()
    };
    converted.left = Left {
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
fn what_the_conversion_leaves_somebody_writes() {
    let lines = with_left(None);
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
        with_left(Some(deployment))
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

/// The cluster, with these objects of which v3 cannot have anything.
fn with_flawed(flawed: Vec<(Origin, Flaw)>) -> Vec<Check> {
    let mut facts = facts();
    let Ok(converted) = &mut stores(&mut facts).conversion else {
        panic!()
    };
    converted.left.profiles = ["kns.shop".to_owned()].into();
    converted.flawed = flawed;
    let checks = judged(&facts).into_iter();
    checks.filter(|check| check.verdict > Verdict::Pass).collect()
}

/// Nobody would write its profile.
#[test]
fn a_label_that_v3_refuses_is_shortened_before() {
    let flaw = Flaw::Labels("a".repeat(59));
    let checks = with_flawed(vec![(Origin::Namespace("shop".to_owned()), flaw)]);
    let lines: Vec<String> = checks.iter().map(Check::line).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(checks[0].verdict, Verdict::Fail);
    assert!(
        lines[0].starts_with("KubeControllers: Namespace shop") && lines[0].contains("58 letters at most"),
        "{lines:?}"
    );
}

/// Nobody would write that policy, and it would hold nothing back. Where that is not known, an operator knows it before.
#[test]
fn a_policy_that_v3_cannot_have_is_named_before() {
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
            "metadata.name: found 242 letters, needed 241 letters at most",
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
fn what_is_missing_altogether_is_said_before_there_are_settings() {
    let refused = |change: Change| {
        let mut facts = facts();
        change(&mut facts);
        detect(&Wishes::default(), &facts)
            .unwrap_err()
            .iter()
            .map(Check::line)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert!(refused(|facts: &mut ClusterFacts| facts.manifest = None).contains("no YAML"));
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
fn the_plan_says_every_object_and_the_point_of_no_return() {
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
    // What comes and goes in the stores is no other plan.
    stores(&mut facts).conversion = Ok(crate::cluster::facts::Converted::default());
    assert_eq!(document(&settings, &facts, &order).hash(), of_kops.hash());
}

#[test]
fn more_nodes_than_the_pause_has_time_for_are_refused_before_it_begins() {
    let facts = facts();
    let mut settings = settings(&facts);
    settings.pause_limit_seconds.value = 60;
    let lines = |at_once: usize| -> Vec<String> {
        let policy = CheckPolicy {
            at_once,
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
        refused.len() == 1 && refused[0].contains("about 95 s for 2 nodes, 1 at a time"),
        "{refused:?}"
    );
    assert_eq!(lines(2), Vec::<String>::new());
}

#[test]
fn two_etcds_and_one_config_map_are_refused() {
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
        lines.iter().any(|line| line.contains("their etcds differ")),
        "{lines:?}"
    );
}

#[test]
fn whoever_keeps_pods_from_being_made_is_told_of() {
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
            .any(|line| line.contains("calico/kube-controllers:v3.8.9 is not seen on Nodes b")),
        "{warned:?}"
    );
}
