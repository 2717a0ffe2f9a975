//! Faults of a cluster before its pods move to another range.

use crate::demo::breaking::{Case, Change, DEFAULT_CASE};

const POOL: &str = "
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: { name: foreign-pool }
spec: { cidr: 10.200.128.0/20, blockSize: 26, ipipMode: Never, vxlanMode: Always, natOutgoing: true, nodeSelector: '!all()' }
";

const OTHER_ENCAPSULATION: &str = "
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: { name: already-there }
spec: { cidr: 10.200.0.0/16, blockSize: 26, ipipMode: Always, vxlanMode: Never, natOutgoing: true, nodeSelector: '!all()' }
";

/// A controller manager as kubeadm runs it, in the state in which it would exit at the next start: its range was changed before
/// the allocation of ranges was switched off.
const CONTROLLER_MANAGER: &str = "
apiVersion: v1
kind: Pod
metadata: { name: kube-controller-manager-somewhere, namespace: kube-system, labels: { component: kube-controller-manager } }
spec:
  hostNetwork: true
  nodeName: lab-control
  tolerations: [{ operator: Exists }]
  containers:
    - name: kube-controller-manager
      image: 'lab/nothing'
      imagePullPolicy: Never
      command: [kube-controller-manager, --allocate-node-cidrs=true, --cluster-cidr=10.200.0.0/16]
";

/// kubectl arguments that write one annotation of Namespace sample.
macro_rules! annotate_namespace {
    ($annotation:literal) => {
        Change::Kubectl(&["annotate", "namespace", "sample", $annotation])
    };
}

/// Changes the CNI configuration of a node with sed.
macro_rules! conflist {
    ($script:literal) => {
        Change::Node(
            "lab-worker-1",
            concat!("sed -i '", $script, "' /etc/cni/net.d/10-calico.conflist"),
        )
    };
}

const POOL_OBJECT: &str = "ippools.crd.projectcalico.org/default-ipv4-ippool";

/// Every case, in the order in which `--break list` prints them.
pub const CASES: &[Case] = &[
    Case {
        name: "overlap-nodes",
        about: "the new range contains addresses of nodes",
        check: "Ranges",
        says: &["lab-control", "{{ lab-control }}", "172.30.0.0/16"],
        spec: r#"{"podCidr":{"to":"172.30.0.0/16"}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-services",
        about: "the new range is a part of the services' range",
        check: "Ranges",
        says: &["ServiceCIDR", "10.96."],
        spec: r#"{"podCidr":{"to":"10.96.0.0/16"}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-pool",
        about: "another IPPool of Calico is in the new range",
        check: "Ranges",
        says: &["foreign-pool", "10.200.128.0/20"],
        breaks: &[Change::Apply(POOL)],
        repair: &[Change::Delete(POOL)],
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-route",
        about: "a node has a foreign route into the new range",
        check: "Ranges",
        says: &["lab-worker-1", "10.200.7.0/24"],
        breaks: &[Change::Node(
            "lab-worker-1",
            "ip route add 10.200.7.0/24 via {{ lab-worker-1 }}",
        )],
        repair: &[Change::Node("lab-worker-1", "ip route delete 10.200.7.0/24")],
        ..DEFAULT_CASE
    },
    Case {
        name: "nested",
        about: "the new range is a part of the old one",
        check: "Ranges",
        says: &["spec.podCidr.to", "10.244.128.0/17", "10.244.0.0/16", "two hops"],
        spec: r#"{"podCidr":{"to":"10.244.128.0/17"}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "host-local",
        about: "a node's CNI configuration takes addresses from the host-local plugin",
        check: "Ipam",
        says: &["lab-worker-1", "host-local", "calico-ipam"],
        breaks: &[conflist!("s/calico-ipam/host-local/")],
        repair: &[conflist!("s/host-local/calico-ipam/")],
        ..DEFAULT_CASE
    },
    Case {
        name: "pin-pod",
        about: "a pod requests the old IPPool by an annotation",
        check: "Pins",
        says: &[
            "sample/store-0",
            "cni.projectcalico.org/ipv4pools",
            "default-ipv4-ippool",
        ],
        breaks: &[Change::Kubectl(&[
            "-n",
            "sample",
            "annotate",
            "pod",
            "store-0",
            r#"cni.projectcalico.org/ipv4pools=["default-ipv4-ippool"]"#,
        ])],
        repair: &[Change::Kubectl(&[
            "-n",
            "sample",
            "annotate",
            "pod",
            "store-0",
            "cni.projectcalico.org/ipv4pools-",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "pin-namespace",
        about: "a namespace requests the old IPPool for all its pods",
        check: "Pins",
        says: &[
            "Namespace sample",
            "cni.projectcalico.org/ipv4pools",
            "10.244.0.0/16",
        ],
        breaks: &[annotate_namespace!(
            r#"cni.projectcalico.org/ipv4pools=["10.244.0.0/16"]"#
        )],
        repair: &[annotate_namespace!("cni.projectcalico.org/ipv4pools-")],
        ..DEFAULT_CASE
    },
    Case {
        name: "pin-conflist",
        about: "a node's CNI configuration names the old IPPool",
        check: "Pins",
        says: &["lab-worker-1", "ipv4_pools", "10.244.0.0/16"],
        breaks: &[conflist!(
            r#"s|"type": *"calico-ipam"|"type": "calico-ipam", "ipv4_pools": ["10.244.0.0/16"]|"#
        )],
        repair: &[conflist!(r#"s|, "ipv4_pools": \["10.244.0.0/16"\]||"#)],
        ..DEFAULT_CASE
    },
    Case {
        name: "encapsulation",
        about: "an IPPool of the new range exists, with another encapsulation than the old one",
        check: "NewPool",
        says: &["already-there", "vxlanMode", "Never", "Always"],
        breaks: &[Change::Apply(OTHER_ENCAPSULATION)],
        repair: &[Change::Delete(OTHER_ENCAPSULATION)],
        ..DEFAULT_CASE
    },
    Case {
        name: "owner-gitops",
        about: "Argo CD reverts changes of the old IPPool",
        check: "PoolOwner",
        says: &["default-ipv4-ippool", "Argo CD"],
        breaks: &[Change::Kubectl(&[
            "label",
            POOL_OBJECT,
            "custom=here",
            "--field-manager=argocd-controller",
        ])],
        repair: &[Change::Kubectl(&[
            "label",
            POOL_OBJECT,
            "custom-",
            "--field-manager=argocd-controller",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "owner-operator",
        about: "the Tigera operator reverts changes of the old IPPool",
        check: "PoolOwner",
        says: &["default-ipv4-ippool", "Tigera operator"],
        breaks: &[Change::Kubectl(&[
            "label",
            POOL_OBJECT,
            "app.kubernetes.io/managed-by=tigera-operator",
        ])],
        repair: &[Change::Kubectl(&[
            "label",
            POOL_OBJECT,
            "app.kubernetes.io/managed-by-",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "controller-manager",
        about: "a controller manager would exit at its next start because of the podCIDRs of Nodes",
        check: "ControllerManager",
        says: &[
            "kube-controller-manager-somewhere",
            "--cluster-cidr=10.200.0.0/16",
            "--allocate-node-cidrs",
        ],
        breaks: &[Change::Apply(CONTROLLER_MANAGER)],
        repair: &[Change::Delete(CONTROLLER_MANAGER)],
        ..DEFAULT_CASE
    },
    Case {
        name: "no-room",
        about: "the new range has too few blocks for the pods",
        check: "InsufficientAddresses",
        says: &["10.200.0.0/28", "needs", "blocks, has 1"],
        spec: r#"{"podCidr":{"to":"10.200.0.0/28","blockSize":28}}"#,
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
