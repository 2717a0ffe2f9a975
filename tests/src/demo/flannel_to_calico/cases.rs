//! Faults of a cluster before a migration: one case for each prerequisite. Each breaks a real cluster, names the check that must
//! refuse and the words of its refusal, and repairs the cluster afterwards.

use std::time::Duration;

use crate::demo::breaking::{Case, Change, DEFAULT_CASE};

const CONFIGURATION: [&str; 5] = ["-n", "kube-flannel", "patch", "configmap", "kube-flannel-cfg"];

/// kubectl arguments that write `net-conf.json`.
macro_rules! network {
    ($text:literal) => {
        Change::Kubectl(&[
            CONFIGURATION[0],
            CONFIGURATION[1],
            CONFIGURATION[2],
            CONFIGURATION[3],
            CONFIGURATION[4],
            "--type=merge",
            "-p",
            concat!(r#"{"data":{"net-conf.json":""#, $text, r#""}}"#),
        ])
    };
}

const GOOD_NETWORK: Change = network!(
    r#"{ \"Network\": \"10.244.0.0/16\", \"EnableNFTables\": false, \"Backend\": { \"Type\": \"vxlan\" } }"#
);

macro_rules! flannel {
    ($kind:literal, $patch:literal) => {
        Change::Kubectl(&[
            "-n",
            "kube-flannel",
            "patch",
            "daemonset",
            "kube-flannel-ds",
            concat!("--type=", $kind),
            "-p",
            $patch,
        ])
    };
}

const ON_DELETE: Change = flannel!(
    "merge",
    r#"{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}"#
);
const ROLLING_UPDATE: Change = flannel!("merge", r#"{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}"#);

/// No pod of Calico runs before the migration: the change restarts no pod.
macro_rules! calico_image {
    ($image:literal) => {
        Change::Kubectl(&[
            "-n",
            "kube-system",
            "set",
            "image",
            "daemonset/calico-node",
            concat!("calico-node=", $image),
        ])
    };
}

/// Another bridge in flannel's conflist.
const OTHER_BRIDGE: Change = Change::Node(
    "lab-worker-1",
    "cp /etc/cni/net.d/10-flannel.conflist /run/conflist.good && \
     sed -i 's/\"delegate\": *{/\"delegate\": { \"bridge\": \"docker0\",/' /etc/cni/net.d/10-flannel.conflist && \
     grep -q docker0 /etc/cni/net.d/10-flannel.conflist",
);
const RESTORE_CONFLIST: &str = "mv /run/conflist.good /etc/cni/net.d/10-flannel.conflist";

const POOL: &str = "
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: { name: foreign-pool }
spec: { cidr: 10.244.0.0/16, blockSize: 26, ipipMode: Always, vxlanMode: Never, natOutgoing: true, nodeSelector: all() }
";

const BLOCK: &str = "
apiVersion: crd.projectcalico.org/v1
kind: IPAMBlock
metadata: { name: 10-244-1-0-26 }
spec: { cidr: 10.244.1.0/26, affinity: 'host:another-owner', allocations: [], unallocated: [], attributes: [], deleted: false, strictAffinity: false }
";

const BUDGET: &str = "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: never, namespace: sample }
spec: { minAvailable: 100%, selector: { matchLabels: { app: web } } }
";

const BARE: &str = "
apiVersion: v1
kind: Pod
metadata: { name: lonesome, namespace: sample }
spec: { nodeName: lab-worker-1, containers: [{ name: sleep, image: 'lab/nothing', imagePullPolicy: Never }] }
";

const SCRATCH: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: { name: scratch, namespace: sample }
spec:
  replicas: 1
  selector: { matchLabels: { app: scratch } }
  template:
    metadata: { labels: { app: scratch } }
    spec:
      volumes: [{ name: data, emptyDir: {} }]
      containers: [{ name: sleep, image: 'lab/nothing', imagePullPolicy: Never, volumeMounts: [{ name: data, mountPath: /data }] }]
";

const LARGE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: { name: large, namespace: sample }
spec:
  replicas: 3
  selector: { matchLabels: { app: large } }
  template:
    metadata: { labels: { app: large } }
    spec:
      tolerations: [{ operator: Exists, effect: NoSchedule }]
      topologySpreadConstraints:
        - { maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: { matchLabels: { app: large } } }
      containers: [{ name: sleep, image: 'lab/nothing', imagePullPolicy: Never, resources: { requests: { memory: 16Gi } } }]
";

const WEBHOOK: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: { name: gatekeeper }
webhooks:
  - name: gatekeeper.example.org
    failurePolicy: Fail
    sideEffects: None
    admissionReviewVersions: [v1]
    clientConfig: { service: { namespace: sample, name: web, path: /, port: 80 } }
    namespaceSelector: { matchLabels: { no-match: has-this } }
    rules: [{ apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods] }]
";

/// As a chart brings it: flannel does not enforce it, and the clients of the traffic have no such label.
const DORMANT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: only-labelled-clients, namespace: traffic }
spec:
  podSelector: { matchLabels: { app: echo } }
  policyTypes: [Ingress]
  ingress: [{ from: [{ podSelector: { matchLabels: { echo-client: 'true' } } }] }]
";

const CANAL: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: canal, namespace: kube-system }
spec:
  selector: { matchLabels: { k8s-app: canal } }
  template:
    metadata: { labels: { k8s-app: canal } }
    spec:
      # A network of the node runs in its host's network, as Canal does.
      hostNetwork: true
      nodeSelector: { no-match: has-this }
      containers:
        - { name: calico-node, image: 'docker.io/calico/node:v3.31.7' }
        - { name: kube-flannel, image: 'quay.io/coreos/flannel:v0.24.4', command: [/opt/bin/flanneld, --ip-masq, --kube-subnet-mgr] }
";

/// Every case, in the order in which `--break list` prints them.
pub const CASES: &[Case] = &[
    Case {
        name: "backend-host-gw",
        about: "flannel's backend is host-gw",
        check: "FlannelBackend",
        says: &["kube-flannel/kube-flannel-cfg", "host-gw", "vxlan"],
        breaks: &[network!(
            r#"{ \"Network\": \"10.244.0.0/16\", \"Backend\": { \"Type\": \"host-gw\" } }"#
        )],
        repair: &[GOOD_NETWORK],
        ..DEFAULT_CASE
    },
    Case {
        name: "direct-routing",
        about: "flannel's DirectRouting is on",
        check: "DirectRouting",
        says: &["kube-flannel/kube-flannel-cfg", "true", "false"],
        breaks: &[network!(
            r#"{ \"Network\": \"10.244.0.0/16\", \"Backend\": { \"Type\": \"vxlan\", \"DirectRouting\": true } }"#
        )],
        repair: &[GOOD_NETWORK],
        ..DEFAULT_CASE
    },
    Case {
        name: "vni-differs",
        about: "net-conf.json has another VNI than the live device",
        check: "NetworkConfigurationMatchesDevice",
        says: &["VNI", "7", "1"],
        breaks: &[network!(
            r#"{ \"Network\": \"10.244.0.0/16\", \"Backend\": { \"Type\": \"vxlan\", \"VNI\": 7 } }"#
        )],
        repair: &[GOOD_NETWORK],
        ..DEFAULT_CASE
    },
    Case {
        name: "port-differs",
        about: "net-conf.json has another port than the live device",
        check: "NetworkConfigurationMatchesDevice",
        says: &["port", "4789", "8472"],
        breaks: &[network!(
            r#"{ \"Network\": \"10.244.0.0/16\", \"Backend\": { \"Type\": \"vxlan\", \"Port\": 4789 } }"#
        )],
        repair: &[GOOD_NETWORK],
        ..DEFAULT_CASE
    },
    Case {
        name: "net-conf-malformed",
        about: "net-conf.json is not JSON",
        check: "NetworkConfiguration",
        says: &["kube-flannel/kube-flannel-cfg", "net-conf.json"],
        breaks: &[network!(r#"{ \"Network\": \"10.244.0.0/16\", "#)],
        repair: &[GOOD_NETWORK],
        ..DEFAULT_CASE
    },
    Case {
        name: "subnets-in-etcd",
        about: "flannel keeps its subnets in etcd, not in the Kubernetes API",
        check: "FlannelSubnetManager",
        says: &["kube-flannel/kube-flannel-ds", "--kube-subnet-mgr"],
        breaks: &[
            ON_DELETE,
            flannel!(
                "json",
                r#"[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["--ip-masq","--etcd-endpoints=http://192.0.2.1:2379"]}]"#
            ),
        ],
        repair: &[
            flannel!(
                "json",
                r#"[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["--ip-masq","--kube-subnet-mgr"]}]"#
            ),
            ROLLING_UPDATE,
        ],
        ..DEFAULT_CASE
    },
    Case {
        name: "flannel-too-old",
        about: "flannel is older than v0.9.1",
        check: "FlannelVersion",
        says: &["kube-flannel/kube-flannel-ds", "v0.8.0", "0.9.1"],
        breaks: &[
            ON_DELETE,
            flannel!(
                "json",
                r#"[{"op":"test","path":"/spec/template/spec/containers/0/name","value":"kube-flannel"},{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"ghcr.io/flannel-io/flannel:v0.8.0"}]"#
            ),
        ],
        repair: &[
            flannel!(
                "json",
                r#"[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"ghcr.io/flannel-io/flannel:v0.28.4"}]"#
            ),
            ROLLING_UPDATE,
        ],
        ..DEFAULT_CASE
    },
    Case {
        name: "wrong-name",
        about: "the spec names a DaemonSet that does not exist",
        check: "FlannelDaemonSet",
        says: &["kube-system/flannel", "kube-flannel/kube-flannel-ds"],
        spec: r#"{"flannelToCalico":{"options":{"flannelDaemonSetName":"flannel","flannelDaemonSetNamespace":"kube-system"}}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "addon-manager",
        about: "the add-on manager would revert flannel's DaemonSet",
        check: "AddonManager",
        says: &[
            "kube-flannel/kube-flannel-ds",
            "addonmanager.kubernetes.io/mode",
            "Reconcile",
        ],
        breaks: &[Change::Kubectl(&[
            "-n",
            "kube-flannel",
            "label",
            "daemonset",
            "kube-flannel-ds",
            "addonmanager.kubernetes.io/mode=Reconcile",
        ])],
        repair: &[Change::Kubectl(&[
            "-n",
            "kube-flannel",
            "label",
            "daemonset",
            "kube-flannel-ds",
            "addonmanager.kubernetes.io/mode-",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "canal",
        about: "flannel and Calico run in one pod (Canal)",
        check: "Canal",
        says: &["kube-system/canal"],
        breaks: &[Change::Apply(CANAL)],
        repair: &[Change::Delete(CANAL)],
        ..DEFAULT_CASE
    },
    Case {
        name: "public-ip",
        about: "flannel's public-ip is not the address that Calico would detect",
        check: "PublicAddress",
        says: &["lab-worker-1", "192.0.2.9"],
        breaks: &[Change::Kubectl(&[
            "annotate",
            "node",
            "lab-worker-1",
            "--overwrite",
            "flannel.alpha.coreos.com/public-ip=192.0.2.9",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "annotation-malformed",
        about: "flannel's annotation on a Node cannot be parsed",
        check: "NodeAnnotations",
        says: &["lab-worker-1", "backend-data"],
        breaks: &[Change::Kubectl(&[
            "annotate",
            "node",
            "lab-worker-1",
            "--overwrite",
            "flannel.alpha.coreos.com/backend-data={\"VtepMAC\":",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "subnet-env-malformed",
        about: "/run/flannel/subnet.env of a node cannot be parsed",
        check: "SubnetEnvironment",
        says: &["lab-worker-1", "subnet.env", "FLANNEL_MTU"],
        breaks: &[Change::Node(
            "lab-worker-1",
            "cp /run/flannel/subnet.env /run/subnet.env.good && sed -i 's/^FLANNEL_MTU=.*/FLANNEL_MTU=many/' /run/flannel/subnet.env",
        )],
        repair: &[Change::Node(
            "lab-worker-1",
            "mv /run/subnet.env.good /run/flannel/subnet.env",
        )],
        ..DEFAULT_CASE
    },
    Case {
        name: "conflist-malformed",
        about: "the conflist that the runtime uses on a node cannot be parsed",
        check: "ConflistMalformed",
        says: &["lab-worker-2", "10-flannel.conflist"],
        breaks: &[Change::Node(
            "lab-worker-2",
            "cp /etc/cni/net.d/10-flannel.conflist /run/conflist.good && echo '{ \"name\":' > /etc/cni/net.d/10-flannel.conflist",
        )],
        repair: &[Change::Node("lab-worker-2", RESTORE_CONFLIST)],
        ..DEFAULT_CASE
    },
    Case {
        name: "other-bridge",
        about: "flannel's conflist on a node names another bridge than cni0",
        check: "FlannelPlugin",
        says: &["lab-worker-1", "docker0", "cni0"],
        breaks: &[OTHER_BRIDGE],
        repair: &[Change::Node("lab-worker-1", RESTORE_CONFLIST)],
        ..DEFAULT_CASE
    },
    Case {
        name: "other-bridge-in-place",
        about: "the same, in place",
        check: "FlannelPlugin",
        says: &["lab-worker-1", "docker0", "cni0"],
        breaks: &[OTHER_BRIDGE],
        repair: &[Change::Node("lab-worker-1", RESTORE_CONFLIST)],
        spec: r#"{ "flannelToCalico": { "strategy": "InPlace" } }"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "firewall-of-others",
        about: "a firewall rule of another program names flannel's tunnel, and has no twin for Calico's",
        check: "HostFirewall",
        says: &["lab-worker-2", "flannel.1", "vxlan.calico"],
        breaks: &[Change::Node(
            "lab-worker-2",
            "iptables -w 5 -I FORWARD 1 -i flannel.1 -m comment --comment 'of an administrator' -j ACCEPT",
        )],
        repair: &[Change::Node(
            "lab-worker-2",
            "iptables -w 5 -D FORWARD -i flannel.1 -m comment --comment 'of an administrator' -j ACCEPT",
        )],
        ..DEFAULT_CASE
    },
    Case {
        name: "rp-filter",
        about: "rp_filter of a node is loose, and Calico before v3.12 refuses to run with it",
        check: "ReversePathFilter",
        says: &["lab-worker-1", "rp_filter"],
        breaks: &[
            calico_image!("docker.io/calico/node:v3.10.4"),
            Change::Node(
                "lab-worker-1",
                "sysctl -n net.ipv4.conf.all.rp_filter > /run/rp_filter.good && sysctl -qw net.ipv4.conf.all.rp_filter=2",
            ),
        ],
        repair: &[
            calico_image!("docker.io/calico/node:v3.31.7"),
            Change::Node(
                "lab-worker-1",
                "sysctl -qw net.ipv4.conf.all.rp_filter=$(cat /run/rp_filter.good)",
            ),
        ],
        ..DEFAULT_CASE
    },
    Case {
        name: "agent-missing",
        about: "no agent runs on a node",
        check: "AgentMissing",
        says: &["lab-worker-2"],
        breaks: &[Change::Kubectl(&[
            "-n",
            "replumb-system",
            "patch",
            "daemonset",
            "replumb-agent",
            "--type=merge",
            "-p",
            r#"{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"NotIn","values":["lab-worker-2"]}]}]}}}}}}}"#,
        ])],
        repair: &[Change::Kubectl(&[
            "-n",
            "replumb-system",
            "patch",
            "daemonset",
            "replumb-agent",
            "--type=merge",
            "-p",
            r#"{"spec":{"template":{"spec":{"affinity":null}}}}"#,
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "journal-broken",
        about: "the agent of a node cannot read its journal",
        check: "HostChecks",
        says: &["lab-worker-1", "Journal", "journal.jsonl, line 1"],
        breaks: &[
            Change::Node(
                "lab-worker-1",
                "cd /var/lib/replumb && if [ -e journal.jsonl ]; then mv journal.jsonl /run/journal.good; fi && \
                 printf 'no record\nno record\n' > journal.jsonl",
            ),
            // An agent reads its journal when it starts.
            Change::Kubectl(&[
                "-n",
                "replumb-system",
                "delete",
                "pod",
                "-l",
                "app.kubernetes.io/component=agent",
                "--field-selector=spec.nodeName=lab-worker-1",
            ]),
        ],
        repair: &[Change::Node(
            "lab-worker-1",
            "cd /var/lib/replumb && rm journal.jsonl && \
             if [ -e /run/journal.good ]; then mv /run/journal.good journal.jsonl; fi",
        )],
        ..DEFAULT_CASE
    },
    Case {
        name: "labels-forbidden",
        about: "the coordinator may not change Nodes",
        check: "Permissions",
        says: &["patch nodes"],
        breaks: &[Change::Kubectl(&[
            "patch",
            "clusterrole",
            "replumb-coordinator-flannel-to-calico",
            "replumb-coordinator-pod-cidr",
            "--type=json",
            "-p",
            r#"[{"op":"test","path":"/rules/0/resources/0","value":"nodes"},{"op":"replace","path":"/rules/0/verbs","value":["get"]}]"#,
        ])],
        repair: &[Change::Kubectl(&[
            "patch",
            "clusterrole",
            "replumb-coordinator-flannel-to-calico",
            "replumb-coordinator-pod-cidr",
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/rules/0/verbs","value":["patch"]}]"#,
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "policy-unbound",
        about: "an admission policy of replumb has no binding",
        check: "AdmissionPolicies",
        says: &["replumb-coordinator-bounds-daemonsets", "deploy/base"],
        breaks: &[Change::Kubectl(&[
            "patch",
            "validatingadmissionpolicybinding",
            "replumb-coordinator-bounds-daemonsets",
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/spec/validationActions","value":["Audit"]}]"#,
        ])],
        repair: &[Change::Kubectl(&[
            "patch",
            "validatingadmissionpolicybinding",
            "replumb-coordinator-bounds-daemonsets",
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/spec/validationActions","value":["Deny"]}]"#,
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "label-foreign",
        about: "a Node has a network label with a value that replumb does not write",
        check: "NodeLabels",
        says: &["lab-worker-1", "weave"],
        breaks: &[Change::Kubectl(&[
            "label",
            "node",
            "lab-worker-1",
            "projectcalico.org/node-network-during-migration=weave",
        ])],
        repair: &[Change::Kubectl(&[
            "label",
            "node",
            "lab-worker-1",
            "projectcalico.org/node-network-during-migration-",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "calico-missing",
        about: "Calico's DaemonSet is not installed",
        check: "CalicoManifests",
        says: &["kube-system/calico-node"],
        breaks: &[Change::Kubectl(&[
            "-n",
            "kube-system",
            "get",
            "daemonset",
            "calico-node",
        ])],
        spec: r#"{"flannelToCalico":{"options":{"calicoDaemonSetName":"calico-nodes"}}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "calico-not-waiting",
        about: "Calico's DaemonSet does not wait for the node label",
        check: "CalicoManifests",
        says: &[
            "kube-system/calico-node",
            "projectcalico.org/node-network-during-migration",
        ],
        breaks: &[Change::Kubectl(&[
            "-n",
            "kube-system",
            "patch",
            "daemonset",
            "calico-node",
            "--type=merge",
            "-p",
            r#"{"spec":{"template":{"spec":{"nodeSelector":{"projectcalico.org/node-network-during-migration":null,"no-match":"has-this"}}}}}"#,
        ])],
        repair: &[Change::Kubectl(&[
            "-n",
            "kube-system",
            "patch",
            "daemonset",
            "calico-node",
            "--type=merge",
            "-p",
            r#"{"spec":{"template":{"spec":{"nodeSelector":{"projectcalico.org/node-network-during-migration":"calico","no-match":null}}}}}"#,
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "pool-incompatible",
        about: "an IPPool of flannel's network has another encapsulation",
        check: "IpPool",
        says: &["foreign-pool", "Always"],
        breaks: &[Change::Apply(POOL)],
        repair: &[Change::Delete(POOL)],
        ..DEFAULT_CASE
    },
    Case {
        name: "block-taken",
        about: "a block of a node's range belongs to another node",
        check: "IpamBlocks",
        says: &["10.244.1.0/26", "another-owner"],
        breaks: &[Change::Apply(BLOCK)],
        repair: &[Change::Delete(BLOCK)],
        ..DEFAULT_CASE
    },
    Case {
        name: "one-node",
        about: "only one node can take pods",
        check: "SchedulableNodes",
        says: &["1", "2"],
        breaks: &[
            Change::Kubectl(&["cordon", "lab-worker-1"]),
            Change::Kubectl(&["cordon", "lab-worker-2"]),
        ],
        repair: &[
            Change::Kubectl(&["uncordon", "lab-worker-1"]),
            Change::Kubectl(&["uncordon", "lab-worker-2"]),
        ],
        ..DEFAULT_CASE
    },
    Case {
        name: "capacity",
        about: "the pods of a node do not fit on the others",
        check: "Capacity",
        says: &["memory"],
        breaks: &[
            Change::Apply(LARGE),
            // The check counts its pods once they are scheduled.
            Change::Kubectl(&[
                "-n",
                "sample",
                "wait",
                "--for=jsonpath={.status.replicas}=3",
                "deployment/large",
                "--timeout=60s",
            ]),
            Change::Kubectl(&[
                "-n",
                "sample",
                "wait",
                "--for=condition=PodScheduled",
                "pod",
                "-l",
                "app=large",
                "--timeout=60s",
            ]),
        ],
        repair: &[Change::Delete(LARGE)],
        ..DEFAULT_CASE
    },
    Case {
        name: "budget",
        about: "a PodDisruptionBudget allows no disruption",
        check: "DisruptionBudgets",
        says: &["sample/never", "0"],
        breaks: &[Change::Apply(BUDGET)],
        repair: &[Change::Delete(BUDGET)],
        ..DEFAULT_CASE
    },
    Case {
        name: "bare-pod",
        about: "a pod has no controller that would recreate it",
        check: "BarePods",
        says: &["sample/lonesome", "force"],
        breaks: &[Change::Apply(BARE)],
        repair: &[Change::Kubectl(&[
            "-n",
            "sample",
            "delete",
            "pod",
            "lonesome",
            "--force",
            "--grace-period=0",
        ])],
        spec: r#"{"drain":{"force":false}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "empty-dir",
        about: "a pod has data in an emptyDir",
        check: "EmptyDir",
        says: &["sample/scratch", "data", "deleteEmptyDirData"],
        breaks: &[
            Change::Apply(SCRATCH),
            Change::Kubectl(&[
                "-n",
                "sample",
                "wait",
                "--for=jsonpath={.status.replicas}=1",
                "deployment/scratch",
                "--timeout=60s",
            ]),
            Change::Kubectl(&[
                "-n",
                "sample",
                "wait",
                "--for=condition=PodScheduled",
                "pod",
                "-l",
                "app=scratch",
                "--timeout=60s",
            ]),
        ],
        repair: &[Change::Delete(SCRATCH)],
        ..DEFAULT_CASE
    },
    Case {
        name: "webhook",
        about: "a fail-closed webhook is served from the pod network",
        check: "Webhooks",
        says: &["gatekeeper.example.org", "sample/web"],
        breaks: &[Change::Apply(WEBHOOK)],
        repair: &[Change::Delete(WEBHOOK)],
        ..DEFAULT_CASE
    },
    Case {
        name: "dormant-policy",
        about: "a NetworkPolicy that flannel ignores would cut connections that live",
        check: "PolicyPreview",
        says: &[
            "would be refused: traffic/traffic → traffic/echo:7000 TCP",
            "would be refused: traffic/traffic → traffic/echo:7000 UDP",
            "policy traffic/only-labelled-clients",
        ],
        breaks: &[Change::Apply(DORMANT)],
        repair: &[Change::Delete(DORMANT)],
        spec: r#"{ "flannelToCalico": { "policyPreview": { "observeSeconds": 5 } } }"#,
        within: Duration::from_mins(3),
    },
    Case {
        name: "gitops",
        about: "a GitOps controller would revert flannel's DaemonSet",
        check: "Reconciler",
        says: &["kube-flannel/kube-flannel-ds", "argocd"],
        breaks: &[Change::Kubectl(&[
            "-n",
            "kube-flannel",
            "label",
            "daemonset",
            "kube-flannel-ds",
            "argocd.argoproj.io/instance=flannel",
            "--field-manager=argocd-controller",
        ])],
        repair: &[Change::Kubectl(&[
            "-n",
            "kube-flannel",
            "label",
            "daemonset",
            "kube-flannel-ds",
            "argocd.argoproj.io/instance-",
            "--field-manager=argocd-controller",
        ])],
        ..DEFAULT_CASE
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_complete() {
        crate::demo::breaking::assert_complete(CASES);
    }
}
