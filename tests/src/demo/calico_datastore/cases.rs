//! Faults of a cluster before the conversion of Calico's datastore.

use crate::demo::breaking::{Case, Change, DEFAULT_CASE};

/// The folder with the coordinator's permissions.
const RIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/calico-datastore");

/// The policy controller from before Calico v2.6.
const POLICY_CONTROLLER: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: { name: calico-policy-controller, namespace: kube-system }
spec:
  replicas: 1
  selector: { matchLabels: { app: calico-policy-controller } }
  template:
    metadata: { labels: { app: calico-policy-controller } }
    spec: { hostNetwork: true, containers: [{ name: main, image: 'calico/kube-policy-controller:v0.7.0', imagePullPolicy: Never }] }
";

const READY: &str = "/v2/keys/calico/v1/Ready";
const BROKEN: &str = "/v2/keys/calico/v1/policy/tier/default/policy/broken";
const PAUSE: Change = Change::Etcd("PUT", READY, "value=false");
const OPEN: Change = Change::Etcd("PUT", READY, "value=true");
const BREAK: Change = Change::Etcd("PUT", BROKEN, "value=nothing");
const REPAIR: Change = Change::Etcd("DELETE", BROKEN, "");
// `/calico/x` with the value `x`, in base 64.
const FILL: Change = Change::Etcd("POST", "/v3/kv/put", r#"{"key":"L2NhbGljby94","value":"eA=="}"#);
const EMPTY: Change = Change::Etcd("POST", "/v3/kv/deleterange", r#"{"key":"L2NhbGljby94"}"#);

/// Every case, in the order in which `--break list` prints them.
pub const CASES: &[Case] = &[
    Case {
        name: "rights",
        about: "the coordinator lacks the permissions for this kind",
        check: "Permissions",
        says: &[
            "create secrets",
            "deploy/calico-datastore",
            "Deployment kube-system/calico-kube-controllers",
        ],
        breaks: &[Change::Kubectl(&["delete", "-k", RIGHTS, "--wait"])],
        repair: &[Change::Kubectl(&["apply", "--server-side", "-k", RIGHTS])],
        ..DEFAULT_CASE
    },
    Case {
        name: "manifest-v2",
        about: "the manifest is one of Calico v2",
        check: "Manifest",
        says: &["calico/node:v2.6.12", "an image of v3"],
        spec: r#"{"calicoDatastore":{"manifest":"{kind: DaemonSet, apiVersion: apps/v1, metadata: {name: calico-node, namespace: kube-system}, spec: {selector: {matchLabels: {k8s-app: calico-node}}, template: {metadata: {labels: {k8s-app: calico-node}}, spec: {containers: [{name: calico-node, image: 'calico/node:v2.6.12', env: [{name: ETCD_ENDPOINTS, value: 'http://127.0.0.1:2479'}]}]}}}}"}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "endpoint",
        about: "nothing answers at the endpoint of etcd v2",
        check: "DatastoreAccess",
        says: &["etcd of Calico v2", "127.0.0.1:9"],
        spec: r#"{"calicoDatastore":{"etcdV2":{"endpoints":["http://127.0.0.1:9"]}}}"#,
        ..DEFAULT_CASE
    },
    Case {
        name: "paused",
        about: "Calico is paused already",
        check: "DatastoreState",
        says: &["/calico/v1/Ready", "datastore abort"],
        breaks: &[PAUSE],
        repair: &[OPEN],
        ..DEFAULT_CASE
    },
    Case {
        name: "v3-not-empty",
        about: "etcd v3 already has a key of Calico",
        check: "DatastoreState",
        says: &["keys: 1", "ignoreV3Data"],
        breaks: &[FILL],
        repair: &[EMPTY],
        ..DEFAULT_CASE
    },
    Case {
        name: "unconvertible",
        about: "a policy in etcd v2 is not JSON",
        check: "DatastoreConversion",
        says: &["broken", "not JSON"],
        breaks: &[BREAK],
        repair: &[REPAIR],
        ..DEFAULT_CASE
    },
    Case {
        name: "policy-controller",
        about: "the policy controller from before Calico v2.6 runs",
        check: "KubeControllers",
        says: &["calico-policy-controller", "replicas=0"],
        breaks: &[Change::Apply(POLICY_CONTROLLER)],
        repair: &[Change::Delete(POLICY_CONTROLLER)],
        ..DEFAULT_CASE
    },
    Case {
        name: "gitops",
        about: "Argo CD owns calico-node",
        check: "DatastoreOwners",
        says: &["Argo CD", "DaemonSet kube-system/calico-node"],
        breaks: &[Change::Kubectl(&[
            "-n",
            "kube-system",
            "annotate",
            "daemonset",
            "calico-node",
            "argocd.argoproj.io/tracking-id=x",
        ])],
        repair: &[Change::Kubectl(&[
            "-n",
            "kube-system",
            "annotate",
            "daemonset",
            "calico-node",
            "argocd.argoproj.io/tracking-id-",
        ])],
        ..DEFAULT_CASE
    },
    Case {
        name: "role",
        about: "a ClusterRole of the manifest differs from the one in the cluster",
        check: "ManifestObjects",
        says: &["ClusterRole calico-node", "generate calico-v3-objects"],
        breaks: &[Change::Kubectl(&[
            "patch",
            "clusterrole",
            "calico-node",
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/rules/0/verbs/-","value":"deletecollection"}]"#,
        ])],
        repair: &[Change::Kubectl(&[
            "patch",
            "clusterrole",
            "calico-node",
            "--type=json",
            "-p",
            r#"[{"op":"remove","path":"/rules/0/verbs/1"}]"#,
        ])],
        ..DEFAULT_CASE
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::breaking::assert_complete;

    #[test]
    fn every_case_is_complete() {
        assert_complete(CASES);
    }
}
