//! In place, against a real kernel: the tunnel is renamed with its routes, and pods are added and deleted.

use std::fs;
use std::process::{Command, Stdio};

use agent::host::netlink::Renamed;
use agent::kinds::flannel_to_calico::journal::{Before, Journal};
use api::FailureCategory;
use base64::Engine as _;
use flannel_to_calico::host::{HostStep, phase};
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::drive;
use crate::host::{Host, in_namespace, json as ip, run};

/// All objects of the tunnel, without the values that a new name or index changes.
fn tunnel(name: &str) -> Value {
    let mut link = ip(&format!("ip -j -d link show dev {name}"));
    for key in ["ifname", "ifindex", "stats64", "altnames"] {
        link[0].as_object_mut().unwrap().remove(key);
    }
    let sorted = |line: String| {
        let mut rows = ip(&line).as_array().unwrap().clone();
        for row in &mut rows {
            row.as_object_mut()
                .unwrap()
                .retain(|key, _| !["dev", "ifname", "ifindex"].contains(&key.as_str()));
        }
        // Routes of Felix are checked separately.
        rows.retain(|row| row["protocol"] != "80");
        rows.sort_by_key(Value::to_string);
        rows
    };
    json!({
        "link": link,
        "addresses": ip(&format!("ip -j -4 address show dev {name}"))[0]["addr_info"].as_array().unwrap().iter()
            .map(|row| (row["local"].clone(), row["prefixlen"].clone(), row["scope"].clone())).collect::<Vec<_>>(),
        "routes": sorted(format!("ip -j route show dev {name}")),
        "neighbours": sorted(format!("ip -j neighbour show dev {name} nud permanent")),
        "forwarding": sorted(format!("bridge -j fdb show dev {name}")),
    })
}

/// Checks Felix' routes to two other nodes: the tunnel end and four blocks of each, with the next hop of flannel's route.
fn assert_block_routes() {
    let rows = ip("ip -j route show dev vxlan.calico proto 80");
    let found: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["dst"].as_str().unwrap())
        .collect();
    assert_eq!(
        found,
        [
            "10.244.2.0",
            "10.244.2.0/26",
            "10.244.2.64/26",
            "10.244.2.128/26",
            "10.244.2.192/26",
            "10.244.3.0",
            "10.244.3.0/26",
            "10.244.3.64/26",
            "10.244.3.128/26",
            "10.244.3.192/26"
        ]
    );
    let block = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["dst"] == "10.244.2.64/26")
        .unwrap();
    assert_eq!(
        (&block["gateway"], &block["flags"]),
        (&json!("10.244.2.0"), &json!(["onlink"]))
    );
}

/// libcni's record of the pod that [`Host::new`] has on `cni0`, attached by these plugins.
pub fn record(host: &Host, plugins: &Value) {
    let ipv4 = json!({ "address": "10.244.1.2/24", "gateway": "10.244.1.1", "interface": 2, "version": "4" });
    record_of(host, plugins, &[ipv4]);
}

/// The same with these addresses.
pub fn record_of(host: &Host, plugins: &Value, addresses: &[Value]) {
    let list = json!({ "name": "cbr0", "cniVersion": "0.4.0", "plugins": plugins });
    let record = json!({
        "kind": "cniCacheV1",
        "containerId": "sandbox",
        "config": base64::prelude::BASE64_STANDARD.encode(list.to_string()),
        "ifName": "eth0",
        "networkName": "cbr0",
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "sample"], ["K8S_POD_NAME", "web-0"]],
        "capabilityArgs": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] },
        "result": {
            "cniVersion": "0.4.0",
            "interfaces": [{ "name": "cni0" }, { "name": "vethpod1" }, { "name": "eth0", "sandbox": "/run/netns/x" }],
            "ips": addresses,
        },
    });
    let folder = host.paths.cni_state.join("results");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cbr0-sandbox-eth0"), record.to_string()).unwrap();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_renamed_tunnel_is_unchanged_and_running_pods_have_routes() {
    in_namespace(|| async {
        let host = Host::new();
        record(&host, &json!([{ "type": "bridge" }]));
        let before = tunnel("flannel.1");
        let others = || -> Vec<String> {
            let all = host.objects_of_other_programs();
            all.into_iter()
                .filter(|line| !line.contains("vxlan.calico"))
                .collect()
        };
        let before_others = others();
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert_eq!(tunnel("vxlan.calico"), before);
        assert!(!run("ip link").contains("flannel.1"));
        assert_block_routes();

        let routes = ip("ip -j route show dev cni0 proto 82");
        assert_eq!(routes.as_array().unwrap().len(), 1, "{routes}");
        assert_eq!(
            (&routes[0]["dst"], &routes[0]["scope"]),
            (&json!("10.244.1.2"), &json!("link"))
        );
        assert_eq!(run("sysctl -n net.ipv4.conf.cni0.proxy_arp").trim(), "1");
        assert_eq!(run("sysctl -n net.ipv4.neigh.cni0.proxy_delay").trim(), "0");
        assert_eq!(
            phase(&host.observe().await.facts, &host.settings()),
            Phase::Swapped
        );

        let waits = drive(&host, Goal::Mixed)
            .await
            .expect("Calico's conflist is missing");
        assert!(waits.contains("10-flannel.conflist is in use"), "{waits}");
        fs::write(
            host.paths.cni_configuration.join("10-calico.conflist"),
            crate::host::CALICO_CONFLIST,
        )
        .unwrap();
        assert_eq!(drive(&host, Goal::Mixed).await, None);
        assert_eq!(phase(&host.observe().await.facts, &host.settings()), Phase::Mixed);
        assert_eq!(tunnel("vxlan.calico"), before);
        assert_eq!(
            others(),
            before_others,
            "rules, routes, links and files of other programs are unchanged"
        );
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_recreated_link_is_unchanged_also_after_a_crash() {
    in_namespace(|| async {
        let host = Host::new();
        record(&host, &json!([{ "type": "bridge" }]));
        let before = tunnel("flannel.1");
        assert_eq!(drive(&host, Goal::Held).await, None);
        let seen = host.observe().await;
        let link = seen.snapshot.link("flannel.1").unwrap();
        let saved = seen.snapshot.of_link(link.index);
        host.netlink.delete_link(link.index, "flannel.1").await.unwrap();
        host.netlink.restore_vxlan(&saved, "vxlan.calico").await.unwrap();
        assert_eq!(tunnel("vxlan.calico"), before);
        // A repeated call changes nothing.
        host.netlink.restore_vxlan(&saved, "vxlan.calico").await.unwrap();
        assert_eq!(tunnel("vxlan.calico"), before);

        // The agent is killed after the link was created and before its routes were; and after the link was deleted.
        for half in [true, false] {
            run("ip link delete vxlan.calico");
            if half {
                run(
                    "ip link add vxlan.calico address 02:00:00:00:00:01 type vxlan id 1 dev eth0 local 192.0.2.11 dstport 8472 nolearning",
                );
                run("ip link set vxlan.calico mtu 1450 up");
            }
            let step = HostStep::RenameVxlanDevice {
                from: "flannel.1".to_owned(),
                to: "vxlan.calico".to_owned(),
                block_size: 26,
            };
            let begun = Before {
                network: Some(saved.clone()),
                ..Before::default()
            };
            Journal::open(&host.state())
                .unwrap()
                .begin(&step, begun, Timestamp::now())
                .unwrap();
            assert_eq!(drive(&host, Goal::Swapped).await, None);
            assert_eq!(tunnel("vxlan.calico"), before, "link without routes: {half}");
            assert_block_routes();
            assert_eq!(Journal::open(&host.state()).unwrap().open_step(), None);
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_refused_rename_is_not_an_error() {
    in_namespace(|| async {
        let host = Host::new();
        let seen = host.observe().await;
        let link = seen.snapshot.link("flannel.1").unwrap();
        // The result depends on the kernel; the agent continues in both cases.
        let renamed = host.netlink.rename_link(link, "vxlan.calico").await.unwrap();
        let has_new_name = run("ip link").contains("vxlan.calico");
        assert_eq!(has_new_name, renamed == Renamed::Yes);
    });
}

/// Runs a CNI plugin like a container runtime.
fn plugin(name: &str, command: &str, input: &Value) {
    use std::io::Write as _;
    let mut child = Command::new(format!("/usr/lib/cni/{name}"))
        .envs([
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "sandbox"),
            ("CNI_NETNS", "/proc/self/ns/net"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/usr/lib/cni"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}; install containernetworking-plugins"));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{name} {command}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_ended_pod_leaves_no_route_no_lease_and_no_host_port() {
    in_namespace(|| async {
        let host = Host::new();
        let leases = host.paths.cni_state.join("networks");
        let bridge = json!({
            "type": "bridge", "bridge": "cni0",
            "ipam": { "type": "host-local", "dataDir": leases, "ranges": [[{ "subnet": "10.244.1.0/24" }]] },
        });
        let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        record(&host, &json!([bridge, portmap]));
        plugin(
            "portmap",
            "ADD",
            &json!({
                "name": "cbr0", "cniVersion": "0.4.0", "type": "portmap",
                "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] },
                "prevResult": {
                    "cniVersion": "0.4.0",
                    "interfaces": [{ "name": "cni0" }, { "name": "vethpod1" }, { "name": "eth0", "sandbox": "/proc/self/ns/net" }],
                    "ips": [{ "address": "10.244.1.2/24", "interface": 2, "version": "4" }],
                },
            }),
        );
        assert!(run("iptables-save -t nat").contains("10.244.1.2:80"));
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert!(host.paths.cni_state.join("networks/cbr0/10.244.1.2").exists());

        Host::delete_last_pod();
        // The kernel keeps a route to a bridge without ports: the agent has to delete it.
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        assert_eq!(run("ip route show proto 82"), "");
        assert!(!host.paths.cni_state.join("results/cbr0-sandbox-eth0").exists());
        assert!(
            !host.paths.cni_state.join("networks/cbr0/10.244.1.2").exists(),
            "the lease of the pod"
        );
        let rules = run("iptables-save -t nat");
        assert!(!rules.contains("10.244.1.2"), "the host port of the pod: {rules}");

        // The last pod has ended: all objects of flannel are removed.
        fs::write(
            host.paths.cni_configuration.join("10-calico.conflist"),
            crate::host::CALICO_CONFLIST,
        )
        .unwrap();
        assert_eq!(drive(&host, Goal::Mixed).await, None);
        assert_eq!(drive(&host, Goal::Calico).await, None);
        assert_eq!(
            phase(&host.observe().await.facts, &host.settings()),
            Phase::Calico
        );
        assert!(!run("ip link").contains("cni0"));
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_missing_plugin_is_an_error_and_keeps_the_record() {
    in_namespace(|| async {
        let host = Host::new();
        record(&host, &json!([{ "type": "not-installed" }]));
        assert_eq!(drive(&host, Goal::Swapped).await, None);
        Host::delete_last_pod();
        let seen = host.observe().await;
        let step = HostStep::ForgetLegacyPod("sandbox".to_owned());
        let error = host.apply(&step, &seen).await.unwrap_err();
        assert_eq!(error.category(), FailureCategory::ProgramMissing);
        assert!(host.paths.cni_state.join("results/cbr0-sandbox-eth0").exists());
    });
}
