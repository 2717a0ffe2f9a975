//! A host on flannel in a separate network namespace, created with `ip`, `iptables` and `nft`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::health::Health;
use agent::host::folders::FolderWatch;
use agent::host::netlink::Netlink;
use agent::host::paths::Paths;
use agent::host::processes::Processes;
use agent::kinds::HostParts;
use agent::kinds::flannel_to_calico::apply::{ApplyError, apply};
use agent::kinds::flannel_to_calico::journal::Journal;
use agent::kinds::flannel_to_calico::observe::{Observation, observe};
use agent::metrics::Metrics;
use flannel_to_calico::host::{
    AdoptionSettings, HostDecision, HostSettings, HostStep, Ipv6HostSettings, decide,
};
use flannel_to_calico::phase::Goal;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use tempfile::TempDir;

const FLANNEL_CONFLIST: &str =
    r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;
pub const CALICO_CONFLIST: &str =
    r#"{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico"},{"type":"portmap"}]}"#;

/// Runs a test on a separate thread with new network and mount namespaces, which end with the thread.
pub fn in_namespace<F, T>(test: F)
where
    F: FnOnce() -> T + Send + 'static,
    T: Future<Output = ()>,
{
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("new namespaces: run the test as root with CAP_SYS_ADMIN");
        mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            None::<&str>,
        )
        .expect("private mounts");
        // A separate lock file: iptables of the machine does not wait.
        mount(
            Some("tmpfs"),
            "/run",
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .expect("a separate /run");
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits for the kernel's route to an own address: a kernel thread adds it later than the address.
fn until_local(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !run("ip -6 route show table local").contains(address) {
        assert!(Instant::now() < deadline, "no local route: {address}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a program, checks its success, and returns its output.
#[track_caller]
pub fn run(line: &str) -> String {
    let words: Vec<String> = split(line);
    let output = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{line}: {error}; install iproute2, iptables and nftables"));
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Splits a line into words; double quotes enclose a word with spaces.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// `ip -j …`, parsed.
#[track_caller]
pub fn json(line: &str) -> Value {
    let text = run(line);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
}

/// The host, with its folders below a temporary folder.
pub struct Host {
    pub folder: TempDir,
    pub paths: Paths,
    pub netlink: Netlink,
    pub processes: Processes,
    pub ipv6: Option<Ipv6HostSettings>,
    pub adopt_pods: bool,
    /// `HostSettings::write_firewall_twins`.
    pub write_firewall_twins: bool,
    pub adoption: AdoptionSettings,
}

impl Host {
    /// Only folders: no link and no file.
    pub fn empty() -> Self {
        let folder = TempDir::new().unwrap();
        let below = |name: &str| -> PathBuf {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let paths = Paths {
            proc: "/proc".into(),
            flannel: below("run/flannel"),
            cni_state: below("var/lib/cni"),
            cni_configuration: below("etc/cni/net.d"),
            cni_plugins: "/usr/lib/cni".into(),
            crio: folder.path().join("etc/crio"),
            sysctl: "/proc/sys/net".into(),
        };
        Self {
            folder,
            paths,
            netlink: Netlink::connect().unwrap(),
            processes: Processes::default(),
            ipv6: None,
            adopt_pods: false,
            write_firewall_twins: false,
            adoption: AdoptionSettings::default(),
        }
    }

    /// Links, addresses, routes, neighbours and forwarding entries like those of flannel, and others of other programs.
    pub fn new() -> Self {
        run("ip link set lo up");
        run("ip link add eth0 type veth peer name wire0");
        run("ip link set wire0 up");
        run("ip link set eth0 up");
        run("ip address add 192.0.2.11/24 dev eth0");
        run("ip route add default via 192.0.2.1 dev eth0");
        run(
            "ip link add flannel.1 address 02:00:00:00:00:01 type vxlan id 1 dev eth0 local 192.0.2.11 dstport 8472 nolearning",
        );
        run("ip link set flannel.1 mtu 1450 up");
        run("ip address add 10.244.1.0/32 dev flannel.1");
        for (number, peer) in [(2, "192.0.2.12"), (3, "192.0.2.13")] {
            run(&format!(
                "ip neighbour add 10.244.{number}.0 lladdr 02:00:00:00:00:0{number} dev flannel.1 nud permanent"
            ));
            run(&format!(
                "bridge fdb add 02:00:00:00:00:0{number} dev flannel.1 dst {peer} self permanent"
            ));
            run(&format!(
                "ip route add 10.244.{number}.0/24 via 10.244.{number}.0 dev flannel.1 onlink"
            ));
        }
        run("ip link add cni0 type bridge");
        run("ip link set cni0 mtu 1450 up");
        run("ip address add 10.244.1.1/24 dev cni0");
        run("ip link add vethpod1 type veth peer name podside1");
        run("ip link set vethpod1 master cni0 up");
        // Objects of other programs.
        run("ip link add docker0 type bridge");
        run("ip address add 172.30.0.1/24 dev docker0");
        run("ip link set docker0 up");
        run("ip link add vxlan9 type vxlan id 99 dev eth0 local 192.0.2.11 dstport 4789");
        run("ip link set vxlan9 up");
        run("ip route add 172.31.0.0/16 via 172.30.0.9 dev docker0 onlink");
        run("ip route add blackhole 198.51.100.0/24");
        let host = Self::empty();
        let paths = &host.paths;
        fs::write(
            paths.subnet_environment(),
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
        )
        .unwrap();
        fs::write(
            paths.cni_configuration.join("10-flannel.conflist"),
            FLANNEL_CONFLIST,
        )
        .unwrap();
        let below = |name: &str| host.below(name);
        let leases = below("var/lib/cni/networks/cbr0");
        fs::write(leases.join("10.244.1.2"), "sandbox\r\neth0").unwrap();
        fs::write(leases.join("last_reserved_ip.0"), "10.244.1.2").unwrap();
        fs::write(leases.join("lock"), "").unwrap();
        fs::write(
            below("var/lib/cni/flannel").join("sandbox"),
            r#"{"type":"bridge"}"#,
        )
        .unwrap();
        fs::write(below("var/lib/cni/networks/other").join("172.30.0.2"), "not ours").unwrap();
        host
    }

    /// A folder of the host, created if it is missing.
    fn below(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// The same host with pods of both families, with flannel's IPv6 objects.
    pub fn dual_stack() -> Self {
        let mut host = Self::new();
        host.ipv6 = Some(Ipv6HostSettings {
            mtu: 1430,
            block_size: 122,
            node_range_length: 64,
            flannel_pods: true,
        });
        run("ip address add 2001:db8::11/64 dev eth0 nodad");
        run(
            "ip link add flannel-v6.1 address 02:00:00:00:06:01 type vxlan id 1 dev eth0 local 2001:db8::11 dstport 8472 nolearning",
        );
        run("ip link set flannel-v6.1 mtu 1430 up");
        run("ip address add fd00:10:244:1::/128 dev flannel-v6.1 nodad");
        for number in [2, 3] {
            let end = format!("fd00:10:244:{number}::");
            let mac = format!("02:00:00:00:06:0{number}");
            run(&format!(
                "ip neighbour add {end} lladdr {mac} dev flannel-v6.1 nud permanent"
            ));
            run(&format!(
                "bridge fdb add {mac} dev flannel-v6.1 dst 2001:db8::1{number} self permanent"
            ));
            run(&format!(
                "ip route add {end}/64 via {end} dev flannel-v6.1 onlink"
            ));
        }
        run("ip address add fd00:10:244:1::1/64 dev cni0 nodad");
        for address in ["fd00:10:244:1:: dev flannel-v6.1", "fd00:10:244:1::1 dev cni0"] {
            until_local(address);
        }
        fs::write(
            host.paths.subnet_environment(),
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:244::/48\n\
             FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
        )
        .unwrap();
        host
    }

    /// Folder of the journal.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("var/lib/replumb")
    }

    /// What the kinds share on this host.
    pub fn parts(&self) -> HostParts {
        HostParts {
            node: "a".to_owned(),
            paths: self.paths.clone(),
            state: self.state(),
            pod_uid: String::new(),
            config: kube::Config::new("http://192.0.2.1".parse().unwrap()),
            folders: Arc::new(FolderWatch::start(Arc::default())),
            metrics: Arc::new(Metrics::new().unwrap()),
            health: Arc::new(Health::starting()),
        }
    }

    pub fn settings(&self) -> HostSettings {
        HostSettings {
            vni: 1,
            port: 8472,
            mtu: 1450,
            cni_configuration_directory: self.paths.cni_configuration.to_string_lossy().into_owned(),
            block_size: 26,
            node_range_length: 24,
            ipv6: self.ipv6.clone(),
            adopt_pods: self.adopt_pods,
            write_firewall_twins: self.write_firewall_twins,
            adoption: self.adoption.clone(),
        }
    }

    /// Whether flannel's link and its subnet.env exist again.
    pub fn is_rolled_back(&self) -> bool {
        run("ip link").contains("flannel.1:") && self.paths.subnet_environment().exists()
    }

    pub async fn observe(&self) -> Observation {
        observe(&self.paths, &self.netlink, &self.processes)
            .await
            .unwrap()
    }

    /// The next decision. Like a new process each time: only the journal and the host keep state.
    pub fn decide(&self, seen: &Observation, goal: Goal) -> HostDecision {
        let journal = Journal::open(&self.state()).unwrap();
        decide(&seen.facts, &self.settings(), goal, &journal.remembered())
    }

    /// Performs a step, as a new process.
    pub async fn apply(&self, step: &HostStep, seen: &Observation) -> Result<Observation, ApplyError> {
        let mut journal = Journal::open(&self.state()).unwrap();
        apply(
            step,
            seen,
            &self.paths,
            &self.netlink,
            &self.processes,
            &mut journal,
        )
        .await
    }

    /// flannel's chains with their jumps, among rules of other programs, in one iptables backend.
    pub fn firewall(iptables: &str) {
        let loopback = if iptables.starts_with("ip6") {
            "::1/128"
        } else {
            "127.0.0.0/8"
        };
        let network = if iptables.starts_with("ip6") {
            "fd00:10::/56"
        } else {
            "10.244.0.0/16"
        };
        for rule in [
            "-t nat -N KUBE-POSTROUTING".to_owned(),
            "-t nat -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING"
                .to_owned(),
            "-t nat -N FLANNEL-POSTRTG".to_owned(),
            "-t nat -A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG".to_owned(),
            format!(
                "-t nat -A FLANNEL-POSTRTG -s {network} -m comment --comment \"flanneld masq\" -j RETURN"
            ),
            "-t nat -A FLANNEL-POSTRTG -m comment --comment \"flanneld masq\" -j MASQUERADE".to_owned(),
            format!("-t nat -A POSTROUTING -s {loopback} -j RETURN"),
            "-t filter -A FORWARD -m comment --comment \"before flanneld\" -j ACCEPT".to_owned(),
            "-t filter -N FLANNEL-FWD".to_owned(),
            "-t filter -A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD".to_owned(),
            format!(
                "-t filter -A FLANNEL-FWD -s {network} -m comment --comment \"flanneld forward\" -j ACCEPT"
            ),
            // A rule of an old flannel, in the built-in chain.
            format!("-t filter -A FORWARD -d {network} -m comment --comment \"flanneld forward\" -j ACCEPT"),
            format!("-t filter -A FORWARD -d {network} -j ACCEPT"),
        ] {
            run(&format!("{iptables} {rule}"));
        }
    }

    /// flannel's tables in its nftables mode, and tables of other programs.
    pub fn nftables() {
        for line in [
            "nft add table ip flannel-ipv4",
            "nft add chain ip flannel-ipv4 postrtg \"{ type nat hook postrouting priority 100 ; }\"",
            "nft add rule ip flannel-ipv4 postrtg ip saddr 10.244.0.0/16 counter masquerade",
            "nft add table ip6 flannel-ipv6",
            "nft add table ip kube-proxy",
            "nft add chain ip kube-proxy services",
            "nft add rule ip kube-proxy services ip daddr 10.96.0.1 counter accept",
            // flannel's name in another family.
            "nft add table inet flannel-ipv4",
        ] {
            run(line);
        }
    }

    /// Deletes the last pod of the old network.
    pub fn delete_last_pod() {
        run("ip link delete vethpod1");
    }

    /// Creates the link and the conflist of calico-node.
    pub fn install_calico(&self) {
        // Felix takes over flannel's tunnel, or makes one.
        if !json("ip -j link").to_string().contains("vxlan.calico") {
            run("ip link add vxlan.calico type vxlan id 1 dev eth0 local 192.0.2.11 dstport 8472 nolearning");
        }
        run("ip link set vxlan.calico mtu 1450 up");
        run("ip address replace 10.244.1.0/32 dev vxlan.calico");
        fs::write(
            self.paths.cni_configuration.join("10-calico.conflist"),
            CALICO_CONFLIST,
        )
        .unwrap();
    }

    /// All objects of other programs, as printed by other tools: firewall, links, routes, files.
    pub fn objects_of_other_programs(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for save in [
            "iptables-nft-save",
            "ip6tables-nft-save",
            "iptables-legacy-save",
            "ip6tables-legacy-save",
        ] {
            lines.extend(
                run(save)
                    .lines()
                    // Counters and dates change all the time.
                    .filter(|line| line.starts_with('-') || (line.starts_with(':') && line.contains("KUBE")))
                    .filter(|line| !line.contains("FLANNEL-") && !line.contains("\"flanneld forward\""))
                    .map(|line| format!("{save} {}", line.split(" [").next().unwrap_or_default())),
            );
        }
        for table in ["ip kube-proxy", "inet flannel-ipv4"] {
            if run("nft list tables")
                .lines()
                .any(|line| line == format!("table {table}"))
            {
                lines.push(run(&format!("nft list table {table}")));
            }
        }
        let mut links: Vec<String> = json("ip -j link")
            .as_array()
            .unwrap()
            .iter()
            .map(|link| format!("{} {} {}", link["ifname"], link["mtu"], link["operstate"]))
            .filter(|link| {
                !["flannel", "vxlan.calico", "cni0", "vethpod1", "podside1"]
                    .iter()
                    .any(|name| link.contains(name))
            })
            .collect();
        links.sort();
        lines.extend(links);
        for route in json("ip -j route show table all").as_array().unwrap() {
            let device = route["dev"].as_str().unwrap_or_default();
            // Link-local addresses appear after duplicate address detection.
            let own = route["dst"].as_str().is_some_and(|to| to.starts_with("fe80::"));
            if !own && !["flannel.1", "vxlan.calico", "cni0"].contains(&device) {
                lines.push(route.to_string());
            }
        }
        lines.push(fs::read_to_string(self.paths.cni_state.join("networks/other/172.30.0.2")).unwrap());
        lines
    }
}
