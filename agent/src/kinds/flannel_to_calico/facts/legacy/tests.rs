use std::collections::BTreeMap;

use rstest::rstest;

use super::*;
use crate::host::snapshot::Link;

const BRIDGE_INDEX: u32 = 4;
const OTHER_BRIDGE: u32 = 5;
const POD_MAC: &str = "02:00:00:00:00:05";
const RECORDED: &str = "veth1234";

fn link(index: u32, name: &str, kind: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mtu: 1450,
        mac: POD_MAC.to_owned(),
        up: true,
        loopback: false,
        controller: None,
        kind: kind.to_owned(),
        vxlan: None,
        hairpin: None,
    }
}

fn attachment(links: &[&str]) -> Attachment {
    Attachment {
        network: "cbr0".to_owned(),
        sandbox: "0123".to_owned(),
        interface: "eth0".to_owned(),
        namespace: "shop".to_owned(),
        pod: "web-0".to_owned(),
        links: links.iter().map(|link| (*link).to_owned()).collect(),
        link_macs: BTreeMap::from([(RECORDED.to_owned(), POD_MAC.to_owned())]),
        mac: "02:00:00:00:00:15".to_owned(),
        addresses: vec!["10.244.1.9".parse().unwrap()],
        plugins: vec!["flannel".to_owned(), "bridge".to_owned()],
    }
}

/// The host with both bridges and this link.
fn host(link_of_pod: Option<Link>) -> Snapshot {
    let bridges = [
        link(BRIDGE_INDEX, "cni0", "bridge"),
        link(OTHER_BRIDGE, "br0", "bridge"),
    ];
    Snapshot {
        links: bridges.into_iter().chain(link_of_pod).collect(),
        ..Snapshot::default()
    }
}

#[rstest]
#[case(&["cni0", "veth1234"], Some("veth1234"))]
#[case(&["veth1234", "cni0"], Some("veth1234"))]
// The plugin bandwidth adds an ifb link, in front or behind.
#[case(&["cni0", "bwp0123", "veth1234"], Some("veth1234"))]
#[case(&["br0", "veth1234"], Some("veth1234"))]
#[case(&["cni0", "hostpod0"], Some("hostpod0"))]
#[case(&["cni0"], None)]
#[case(&[], None)]
fn the_link_of_a_record_is_that_of_the_pod(#[case] links: &[&str], #[case] expected: Option<&str>) {
    let attachment = attachment(links);
    assert_eq!(link_names(&attachment).map(|(name, _)| name), expected);
}

fn with(change: impl FnOnce(&mut Link)) -> Link {
    let mut changed = link(9, RECORDED, "veth");
    change(&mut changed);
    changed
}

#[rstest]
#[case::on_cni0(Some(with(|link| link.controller = Some(BRIDGE_INDEX))), true, None)]
#[case::on_another_bridge(
    Some(with(|link| link.controller = Some(OTHER_BRIDGE))), false, Some("link veth1234 on br0")
)]
#[case::under_a_link_without_a_name(
    Some(with(|link| link.controller = Some(77))), false, Some("link veth1234 on another link")
)]
#[case::detached_and_known(Some(with(|_| {})), false, None)]
#[case::detached_with_another_mac(
    Some(with(|link| link.mac = "02:00:00:00:00:99".to_owned())),
    false,
    Some("link veth1234, whose MAC address its record does not have")
)]
#[case::adopted(Some(with(|link| link.name = pod_link("shop", "web-0"))), false, None)]
#[case::a_later_pod_of_calico_with_this_name(
    Some(with(|link| {
        link.name = pod_link("shop", "web-0");
        link.mac = "ee:ee:ee:ee:ee:ee".to_owned();
    })),
    false,
    None
)]
#[case::no_veth(Some(with(|link| link.kind = "ifb".to_owned())), false, None)]
#[case::gone(None, false, None)]
fn a_link_that_is_elsewhere_is_reported(
    #[case] link_of_pod: Option<Link>,
    #[case] attached: bool,
    #[case] other_link: Option<&str>,
) {
    let attachments = [(PathBuf::from("record"), Ok(attachment(&["cni0", RECORDED])))];
    let pods = legacy_pods(&host(link_of_pod), &attachments, &LinkParameters::default());
    assert_eq!(pods.len(), 1);
    assert_eq!(
        (pods[0].attached, pods[0].other_link.as_deref()),
        (attached, other_link)
    );
}
