use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;
use engine::check::Verdict::{Fail, Pass, Unknown, Warn};

fn judge(change: impl FnOnce(&mut DaemonSet)) -> Vec<Check> {
    let mut facts = fixture::cluster();
    let mut set = fixture::flannel();
    change(&mut set);
    facts
        .daemon_sets
        .insert((set.namespace.clone(), set.name.clone()), set.clone());
    check(&fixture::settings(), &facts, Some(&set))
}

fn with_configuration(text: &str) -> Vec<Check> {
    let mut facts = fixture::cluster();
    facts
        .config_maps
        .get_mut(&("kube-flannel".to_owned(), "kube-flannel-cfg".to_owned()))
        .unwrap()
        .insert("net-conf.json".to_owned(), text.to_owned());
    check(&fixture::settings(), &facts, Some(&fixture::flannel()))
}

fn of<'checks>(checks: &'checks [Check], name: &str) -> Vec<&'checks Check> {
    checks.iter().filter(|check| check.name == name).collect()
}

fn verdict_of(checks: &[Check], name: &str) -> Vec<Verdict> {
    of(checks, name).iter().map(|check| check.verdict).collect()
}

#[test]
fn a_healthy_flannel_passes() {
    assert_eq!(
        verdicts(&judge(|_| {})),
        [
            ("NetworkConfiguration", Pass),
            ("FlannelDaemonSet", Pass),
            ("Canal", Pass),
            ("FlannelVersion", Pass),
            ("FlannelSubnetManager", Pass),
            ("FlannelBackend", Pass),
        ]
    );
}

#[test]
fn a_deleted_daemon_set_fails() {
    let checks = check(&fixture::settings(), &fixture::cluster(), None);
    assert_eq!(verdicts(&checks), [("FlannelDaemonSet", Fail)]);
    assert_eq!(checks[0].object, "DaemonSet kube-flannel/kube-flannel-ds");
}

#[rstest]
#[case::no_pods(|set: &mut DaemonSet| set.desired = 0, "0 desired pods")]
#[case::not_ready(|set: &mut DaemonSet| set.ready = 2, "2 of 3 pods Ready")]
#[case::rolling(|set: &mut DaemonSet| set.rolled_out = false, "rollout in progress")]
#[case::on_delete(|set: &mut DaemonSet| set.on_delete = true, "updateStrategy OnDelete")]
fn a_daemon_set_that_cannot_be_changed_fails(#[case] change: fn(&mut DaemonSet), #[case] found: &str) {
    let checks = judge(change);
    let [check] = of(&checks, "FlannelDaemonSet")[..] else {
        panic!("{checks:?}")
    };
    assert_eq!((check.verdict, check.found.as_str()), (Fail, found));
    assert_eq!(check.object, "DaemonSet kube-flannel/kube-flannel-ds");
}

#[test]
fn a_daemon_set_without_flanneld_fails() {
    let checks = judge(|set| {
        set.containers[0].name = "log".to_owned();
        set.containers[0].image = "log:1".to_owned();
        set.containers[0].arguments.clear();
    });
    assert_eq!(verdict_of(&checks, "FlannelDaemonSet"), [Fail]);
    assert_eq!(verdict_of(&checks, "FlannelSubnetManager"), [Unknown]);
    assert_eq!(
        of(&checks, "FlannelDaemonSet")[0].found,
        "no container that runs flanneld (images: log:1)"
    );
}

#[rstest]
#[case::in_use(2, vec![Fail])]
#[case::for_another_architecture(0, vec![Pass])]
fn a_second_flannel_daemon_set_fails_only_in_use(#[case] desired: i32, #[case] expected: Vec<Verdict>) {
    let mut facts = fixture::cluster();
    let second = DaemonSet {
        host_network: true,
        name: "kube-flannel-ds-arm64".to_owned(),
        desired,
        ..fixture::flannel()
    };
    facts
        .daemon_sets
        .insert((second.namespace.clone(), second.name.clone()), second);
    let checks = check(&fixture::settings(), &facts, Some(&fixture::flannel()));
    assert_eq!(verdict_of(&checks, "FlannelDaemonSet"), expected);
}

#[test]
fn canal_fails_with_its_name() {
    let mut facts = fixture::cluster();
    let mut set = DaemonSet {
        host_network: true,
        name: "canal".to_owned(),
        ..fixture::calico()
    };
    set.containers.extend(fixture::flannel().containers);
    facts
        .daemon_sets
        .insert((set.namespace.clone(), set.name.clone()), set);
    let checks = check(&fixture::settings(), &facts, Some(&fixture::flannel()));
    assert_eq!(verdict_of(&checks, "Canal"), [Fail]);
    assert_eq!(of(&checks, "Canal")[0].object, "DaemonSet kube-system/canal");
}

#[rstest]
#[case::oldest("flannel:v0.9.1", Pass, "v0.9.1")]
#[case::too_old("flannel:v0.9.0-amd64", Fail, "v0.9.0")]
#[case::by_annotations(
    "flannel:latest",
    Pass,
    "later than v0.9.1: backend-data of every Node contains a VNI"
)]
fn a_version_is_read_from_the_tag_or_the_annotations(
    #[case] image: &str,
    #[case] verdict: Verdict,
    #[case] found: &str,
) {
    let checks = judge(|set| image.clone_into(&mut set.containers[0].image));
    let [check] = of(&checks, "FlannelVersion")[..] else {
        panic!("{checks:?}")
    };
    assert_eq!((check.verdict, check.found.as_str()), (verdict, found));
    assert_eq!(
        check.object,
        format!("DaemonSet kube-flannel/kube-flannel-ds: image {image}")
    );
}

#[test]
fn a_version_in_neither_tag_nor_annotations_is_unknown() {
    let mut facts = fixture::cluster();
    facts.nodes.get_mut("b").unwrap().annotations.insert(
        "flannel.alpha.coreos.com/backend-data".to_owned(),
        r#"{"VtepMAC":"aa:bb:cc:00:00:02"}"#.to_owned(),
    );
    let mut set = fixture::flannel();
    "flannel@sha256:00".clone_into(&mut set.containers[0].image);
    let checks = check(&fixture::settings(), &facts, Some(&set));
    assert_eq!(verdict_of(&checks, "FlannelVersion"), [Unknown]);
}

#[test]
fn subnets_in_etcd_fail() {
    let checks = judge(|set| {
        set.containers[0]
            .arguments
            .retain(|argument| argument != "--kube-subnet-mgr");
    });
    assert_eq!(verdict_of(&checks, "FlannelSubnetManager"), [Fail]);
    let checks = judge(|set| {
        set.containers[0].arguments = vec![
            "flanneld".to_owned(),
            "--etcd-endpoints=http://10.0.0.1:2379".to_owned(),
        ];
    });
    assert_eq!(
        of(&checks, "FlannelSubnetManager")[0].found,
        "--etcd-endpoints http://10.0.0.1:2379"
    );
}

#[rstest]
#[case("host-gw")]
#[case("udp")]
#[case("wireguard")]
#[case("ipip")]
fn another_backend_than_vxlan_fails(#[case] backend: &str) {
    let checks = with_configuration(&format!(
        r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"{backend}"}}}}"#
    ));
    let [check] = of(&checks, "FlannelBackend")[..] else {
        panic!("{checks:?}")
    };
    assert_eq!(
        (check.verdict, check.found.as_str(), check.needed.as_str()),
        (Fail, backend, "vxlan")
    );
    assert_eq!(
        check.object,
        "ConfigMap kube-flannel/kube-flannel-cfg: net-conf.json: Backend.Type"
    );
}

#[test]
fn keys_and_backend_in_another_case_pass() {
    let checks = with_configuration(r#"{"network":"10.244.0.0/16","backend":{"type":"VXLAN"}}"#);
    assert_eq!(verdict_of(&checks, "FlannelBackend"), [Pass]);
}

#[test]
fn a_network_without_ipv4_fails() {
    let text = r#"{"Network":"10.244.0.0/16","EnableIPv4":false,"Backend":{"Type":"vxlan"}}"#;
    assert_eq!(verdict_of(&with_configuration(text), "FlannelBackend"), [Fail]);
}

#[test]
fn a_malformed_configuration_fails() {
    let checks = with_configuration(r#"{"Network":"#);
    assert_eq!(verdict_of(&checks, "NetworkConfiguration"), [Fail]);
}

#[test]
fn without_a_configuration_the_annotations_decide() {
    let mut facts = fixture::cluster();
    facts.config_maps.clear();
    let judge = |facts: &ClusterFacts| check(&fixture::settings(), facts, Some(&fixture::flannel()));
    let checks = judge(&facts);
    assert_eq!(verdict_of(&checks, "NetworkConfiguration"), [Warn]);
    assert_eq!(verdict_of(&checks, "FlannelBackend"), [Pass]);
    facts.nodes.get_mut("b").unwrap().annotations.insert(
        "flannel.alpha.coreos.com/backend-type".to_owned(),
        "host-gw".to_owned(),
    );
    let checks = judge(&facts);
    assert_eq!(verdict_of(&checks, "FlannelBackend"), [Fail]);
    assert_eq!(
        of(&checks, "FlannelBackend")[0].object,
        "Node b: annotation backend-type"
    );
    for node in facts.nodes.values_mut() {
        node.annotations.clear();
    }
    assert_eq!(verdict_of(&judge(&facts), "FlannelBackend"), [Unknown]);
}
