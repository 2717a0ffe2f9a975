//! Faults of a cluster before its Services move to another range.

use crate::demo::breaking::{Case, Change, DEFAULT_CASE};

/// A foreign range beside the default one.
const RANGE: &str = "
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: { name: foreign-range }
spec: { cidrs: [172.31.64.0/20] }
";

/// An admission policy that clusters have against CVE-2020-8554 and similar attacks.
const NO_NAMES: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: no-external-names }
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{ apiGroups: [''], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [services] }]
  validations: [{ expression: object.spec.type != 'ExternalName', message: names must not point outside of the cluster }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: no-external-names }
spec: { policyName: no-external-names, validationActions: [Deny] }
";

/// A quota that platform teams set in their namespaces.
const NO_LOAD_BALANCERS: &str = "
apiVersion: v1
kind: ResourceQuota
metadata: { name: no-load-balancers, namespace: traffic }
spec: { hard: { services.loadbalancers: '0' } }
";

const AGENTS: &str = "daemonset/replumb-agent";
const ROLLED_OUT: Change = Change::Kubectl(&[
    "-n",
    "replumb-system",
    "rollout",
    "status",
    AGENTS,
    "--timeout=120s",
]);

/// Makes the remains of kube-proxy in mode nftables, with empty maps.
const REMAINS: &str = "nft add table ip kube-proxy && for map in service-ips no-endpoint-services; do \
    nft add map ip kube-proxy $map '{ type ipv4_addr . inet_proto . inet_service : verdict ; }' || exit 1; done";

/// Every case, in the order in which `--break list` prints them.
pub const CASES: &[Case] = &[
    Case {
        name: "overlap-nodes",
        about: "the new range contains addresses of nodes",
        check: "Ranges",
        says: &["lab-control", "{{ lab-control }}", "172.30.0.0/16"],
        spec: r#"{"serviceCidr":{"to":["172.30.0.0/16"]}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-pods",
        about: "the new range is a part of the pods' range",
        check: "Ranges",
        says: &["spec.serviceCidr.to[0]", "10.244."],
        spec: r#"{"serviceCidr":{"to":["10.244.0.0/16"]}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-old",
        about: "the new range is a part of the old one",
        check: "Ranges",
        says: &["10.96.128.0/17", "10.96.0.0/16", "create a second ServiceCIDR"],
        spec: r#"{"serviceCidr":{"to":["10.96.128.0/17"]}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-range",
        about: "a foreign ServiceCIDR is in the new range",
        check: "Ranges",
        says: &["foreign-range", "172.31.64.0/20"],
        breaks: &[Change::Apply(RANGE)],
        repair: &[Change::Delete(RANGE)],
        ..DEFAULT_CASE
    },
    Case {
        name: "overlap-route",
        about: "a node has a foreign route into the new range",
        check: "Ranges",
        says: &["lab-worker-1", "172.31.7.0/24"],
        breaks: &[Change::Node(
            "lab-worker-1",
            "ip route add 172.31.7.0/24 via {{ lab-worker-1 }}",
        )],
        repair: &[Change::Node("lab-worker-1", "ip route delete 172.31.7.0/24")],
        ..DEFAULT_CASE
    },
    Case {
        name: "no-room",
        about: "the new range has too few addresses",
        check: "InsufficientAddresses",
        says: &["172.31.0.0/28", "14 addresses"],
        spec: r#"{"serviceCidr":{"to":["172.31.0.0/28"]}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "external-name",
        about: "an admission policy denies Services of type ExternalName",
        check: "Services",
        says: &[
            "traffic/echo",
            "no-external-names",
            "names must not point outside of the cluster",
        ],
        breaks: &[
            Change::Apply(NO_NAMES),
            Change::UntilRefused(
                &[
                    "patch",
                    "service",
                    "echo",
                    "-n",
                    "traffic",
                    "--type=merge",
                    "--dry-run=server",
                    "-p",
                    r#"{"spec":{"type":"ExternalName","externalName":"echo.example.org"}}"#,
                ],
                "names must not point outside of the cluster",
            ),
        ],
        repair: &[Change::Delete(NO_NAMES)],
        ..DEFAULT_CASE
    },
    Case {
        name: "quota",
        about: "a quota denies Services of type LoadBalancer in a namespace",
        check: "Quotas",
        says: &["traffic/no-load-balancers", "services.loadbalancers", "0 of 0"],
        breaks: &[Change::Apply(NO_LOAD_BALANCERS)],
        repair: &[Change::Delete(NO_LOAD_BALANCERS)],
        ..DEFAULT_CASE
    },
    Case {
        name: "own-path",
        about: "the agents use the address of a Service to reach the API server",
        check: "OwnPath",
        says: &["lab-worker-1", "10.96.0.1", "KUBERNETES_SERVICE_HOST"],
        breaks: &[
            Change::Kubectl(&[
                "-n",
                "replumb-system",
                "set",
                "env",
                AGENTS,
                "KUBERNETES_SERVICE_HOST-",
                "KUBERNETES_SERVICE_PORT-",
            ]),
            ROLLED_OUT,
        ],
        repair: &[
            Change::Kubectl(&[
                "-n",
                "replumb-system",
                "set",
                "env",
                AGENTS,
                "KUBERNETES_SERVICE_HOST={{ control-plane }}",
                "KUBERNETES_SERVICE_PORT=6443",
            ]),
            ROLLED_OUT,
        ],
        ..DEFAULT_CASE
    },
    Case {
        name: "two-modes",
        about: "rules of another mode of kube-proxy remain on a node",
        check: "KubeProxy",
        says: &["lab-worker-1", "at once", "kube-proxy --cleanup"],
        breaks: &[Change::Node("lab-worker-1", REMAINS)],
        repair: &[Change::Node("lab-worker-1", "nft delete table ip kube-proxy")],
        ..DEFAULT_CASE
    },
    Case {
        name: "order",
        about: "the Service that is first in spec.serviceCidr.order does not exist",
        check: "Services",
        says: &["spec.serviceCidr.order[0]", "traffic/ehco"],
        spec: r#"{"serviceCidr":{"order":["traffic/ehco"]}}"#,
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
