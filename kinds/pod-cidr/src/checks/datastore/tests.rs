use rstest::rstest;
use serde_json::json;

use super::super::fixture::{self, OLD, judge, only};
use super::*;
use crate::calico_node::CalicoNode;
use crate::datastore::{DatastoreFacts, Unclear};
use crate::detect::detect;
use calico::etcd_access::Etcd;
use calico::etcd_access::StoreProblem;
use engine::check::Verdict::{self, Fail, Pass, Unknown, Warn};
use engine::sourced::{Source, Sourced};

/// The good cluster with Calico's objects in etcd.
fn etcd(facts: &mut ClusterFacts) {
    let etcd = Etcd {
        endpoints: vec!["https://a:2379".to_owned()],
        namespace: "kube-system".to_owned(),
        ..Etcd::default()
    };
    facts.datastore = DatastoreFacts {
        detected: Ok(Sourced {
            value: Datastore { etcd: Some(etcd) },
            source: Source::Detected("DaemonSet kube-system/calico-node".to_owned()),
        }),
        etcd: Some(Ok(EtcdFacts {
            version: "3.4.23".to_owned(),
            ready: ReadyV3::Open,
            calico: Some("v3.8.9".to_owned()),
        })),
    };
    facts.calico_nodes = facts
        .nodes
        .keys()
        .map(|name| (name.clone(), CalicoNode::default()))
        .collect();
    facts.calico_resources.clear();
    facts
        .permissions
        .retain(|key, _| !key.contains("crd.projectcalico.org"));
    let pool = facts.pools.get_mut(OLD).unwrap();
    pool.spec = json!({ "cidr": "10.244.0.0/16", "blockSize": 26, "ipipMode": "Never", "natOutgoing": true });
    pool.managers.clear();
}

fn found(facts: &mut ClusterFacts) -> &mut EtcdFacts {
    facts.datastore.etcd.as_mut().unwrap().as_mut().unwrap()
}

#[test]
fn with_etcd_no_custom_resources_and_no_permissions_on_them_are_needed() {
    let checks = judge(etcd);
    let of_datastore: Vec<&Check> = checks
        .iter()
        .filter(|check| check.name == "DatastoreAccess")
        .collect();
    let wrong: Vec<&str> = checks
        .iter()
        .filter(|check| check.verdict != Pass)
        .map(|check| check.name.as_str())
        .collect();
    // The pool of this cluster has no tunnel.
    assert_eq!(wrong, ["Encapsulation"]);
    assert_eq!(
        of_datastore[0].found,
        "in etcd at https://a:2379, version 3.4.23, in use by Calico v3.8.9"
    );
}

#[rstest]
#[case::missing(ReadyV3::Missing, Fail, "calicoDatastore")]
#[case::paused(ReadyV3::Paused, Fail, "datastore status")]
fn an_etcd_that_calico_does_not_use_fails(
    #[case] ready: ReadyV3,
    #[case] verdict: Verdict,
    #[case] fix: &str,
) {
    let mut facts = fixture::cluster();
    etcd(&mut facts);
    found(&mut facts).ready = ready;
    // This comes before the check of the pools, of which there are none.
    facts.pools.clear();
    let checks = detect(&fixture::options(), &facts).unwrap_err();
    let check = only(&checks, CheckName::DatastoreAccess);
    assert_eq!(check.verdict, verdict);
    assert!(check.fix.contains(fix), "{}", check.fix);
}

#[rstest]
#[case::before_the_conversion(Some("v2.6.12"), Fail)]
#[case::too_early(Some("v3.5.8"), Fail)]
#[case::unreleased(Some("master"), Warn)]
#[case::unknown(None, Warn)]
fn an_old_or_unknown_version_of_calico_does_not_pass(
    #[case] version: Option<&str>,
    #[case] verdict: Verdict,
) {
    let mut facts = fixture::cluster();
    etcd(&mut facts);
    found(&mut facts).calico = version.map(str::to_owned);
    let checks = reach(&facts);
    let check = only(&checks, CheckName::DatastoreAccess);
    assert_eq!((check.verdict, check.needed.as_str()), (verdict, "v3.6 or later"));
}

#[test]
fn an_unreachable_etcd_is_unknown_and_refuses() {
    let mut facts = fixture::cluster();
    etcd(&mut facts);
    facts.datastore.etcd = Some(Err(StoreProblem {
        message: "no route".to_owned(),
        hint: "look".to_owned(),
    }));
    let checks = detect(&fixture::options(), &facts).unwrap_err();
    let check = only(&checks, CheckName::DatastoreAccess);
    assert_eq!((check.verdict, check.found.as_str()), (Unknown, "no route"));
    facts.datastore.etcd = None;
    let check = only(&reach(&facts), CheckName::DatastoreAccess);
    assert_eq!(check.verdict, Unknown);
}

#[test]
fn an_unclear_configuration_is_refused_with_its_object() {
    let mut facts = fixture::cluster();
    facts.datastore.detected = Err(Unclear {
        object: "DaemonSet kube-system/calico-node".to_owned(),
        found: "DATASTORE_TYPE etcdv2".to_owned(),
        needed: "etcdv3".to_owned(),
        fix: "convert it".to_owned(),
    });
    let checks = detect(&fixture::options(), &facts).unwrap_err();
    let check = only(&checks, CheckName::DatastoreAccess);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Fail, "DaemonSet kube-system/calico-node", "DATASTORE_TYPE etcdv2")
    );
}

#[rstest]
#[case("ipipMode", "CrossSubnet")]
#[case("vxlanMode", "Always")]
fn with_tunnels_each_node_needs_a_calico_node_in_etcd(#[case] field: &str, #[case] mode: &str) {
    let checks = |mode: &str, is_known: bool| {
        judge(|facts| {
            etcd(facts);
            facts.pools.get_mut(OLD).unwrap().spec[field] = json!(mode);
            if !is_known {
                facts.calico_nodes.remove("a");
            }
        })
    };
    for (mode, is_known) in [(mode, true), ("Never", false)] {
        let wrong: Vec<String> = checks(mode, is_known)
            .iter()
            .filter(|check| check.name == "DatastoreAccess" && check.verdict != Pass)
            .map(Check::line)
            .collect();
        assert_eq!(wrong, [""; 0]);
    }
    let failed: Vec<String> = checks(mode, false)
        .iter()
        .filter(|check| check.name == "DatastoreAccess" && check.verdict != Pass)
        .map(|check| check.object.clone())
        .collect();
    assert_eq!(failed, ["Node a: Calico's Node in etcd"]);
}
