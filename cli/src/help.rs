//! Texts below the options in the help of each command: notes and examples.

/// Exit codes, and the commands of a first migration.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  error, or the result is unknown; a halted migration is an error
  2  refused by a check; nothing has changed
  3  paused; no node is in progress

A first migration:
  kubectl replumb preflight          Check prerequisites. Failures first. Changes nothing.
  kubectl replumb plan               Print every action, node by node, and the hash of the plan. Changes nothing.
  kubectl replumb bundle FILE        Write what the checks read to a file, to judge it elsewhere. Changes nothing.
  kubectl replumb apply              Show the plan, ask for confirmation, and start.
  kubectl replumb status --watch     Watch the migration until it ends.
  kubectl replumb pause | resume     Start no other node | resume.
  kubectl replumb abort              Roll back the nodes in progress, and start no other node.
  kubectl replumb rollback NODE      Roll back one node; --all: everything, until the point of no return.

Default: flannel → Calico. Move pods to a new range (Calico):
  kubectl replumb plan --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb generate pod-cidr --kops FILE       Print the manifest, from a kops cluster spec. Needs no cluster.

Move Services to a new range:
  kubectl replumb plan --service-cidr-to 172.31.0.0/16

Convert Calico's data from etcd v2 to etcd v3, using only both etcds:
  kubectl replumb datastore dry-run | start | complete | abort | status | export";

/// Help of `preflight`.
pub const PREFLIGHT_EXAMPLES: &str = "\
If there is no Migration, preflight creates one with `desired: Plan`, so that the coordinator and the agents check
the cluster and the hosts. Nothing else is written until `kubectl replumb apply`.

Examples:
  kubectl replumb preflight
  kubectl replumb preflight --strategy in-place
  kubectl replumb preflight --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb preflight --service-cidr-to 172.31.0.0/16
  kubectl replumb preflight -o json | jq '.checks[] | select(.verdict == \"Fail\")'
  kubectl delete migration flannel-to-calico      Discard the Migration: nothing has changed.";

/// Help of `plan`.
pub const PLAN_EXAMPLES: &str = "\
Examples:
  kubectl replumb plan
  kubectl replumb plan -f migration.yaml
  kubectl replumb plan --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb plan --service-cidr-to 172.31.0.0/16 --service-cidr-order shop/web,shop/till
  kubectl replumb plan --simulate                 What would happen, and when.
  kubectl replumb plan -o json | jq -r .hash      The hash for `apply --plan-hash`.";

/// Help of `bundle`.
pub const BUNDLE_EXAMPLES: &str = "\
The command reads with your rights what the coordinator reads with its own, and judges the file before it ends. Addresses
stay in the file, also with --redact: the checks are about addresses.

Examples:
  kubectl replumb bundle shop.yaml
  kubectl replumb bundle shop.yaml --redact --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb plan --snapshot shop.yaml        Judge the file. Needs no cluster.";

/// Help of `apply`.
pub const APPLY_EXAMPLES: &str = "\
The plan that is shown is the plan that runs: if it changes before the start, the coordinator refuses the migration.

Examples:
  kubectl replumb apply                            Show the plan and ask for confirmation.
  kubectl replumb apply --yes --watch              Do not ask, and watch until the end.
  kubectl replumb apply --max-unavailable 25% --canary 1 --canary-soak 10m
  kubectl replumb apply -f migration.yaml --plan-hash 4be1… --yes
  kubectl replumb apply --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16 --pod-cidr-soak 1h
  kubectl replumb apply --service-cidr-to 172.31.0.0/16 --service-cidr-soak 1h
  FLANNEL_DAEMONSET_NAME=kube-flannel-ds CNI_CONFIG_DIR=/etc/cni/net.d kubectl replumb apply --from-env";

/// Help of `status`.
pub const STATUS_EXAMPLES: &str = "\
Without --watch: exit code 2 if refused, 3 if paused, 1 if halted, otherwise 0.
With --watch: the command ends when the migration is completed, halted, refused or paused, with that exit code.

Examples:
  kubectl replumb status
  kubectl replumb status --watch
  kubectl replumb status --watch -o json           One JSON object for each change.";

/// Help of `pause`.
pub const PAUSE_EXAMPLES: &str = "\
Examples:
  kubectl replumb pause
  kubectl replumb pause --wait                     Return when no node is in progress (exit code 3).
  kubectl replumb resume";

/// Help of `resume`.
pub const RESUME_EXAMPLES: &str = "\
Examples:
  kubectl replumb resume
  kubectl replumb resume --wait                    Watch the migration until it ends.";

/// Help of `abort`.
pub const ABORT_EXAMPLES: &str = "\
A node in progress is rolled back and keeps its running pods, their addresses, and a cordon that was not set by replumb.
`pause` finishes such a node instead. podCidr and serviceCidr have no node in progress: abort stops these migrations as
pause does.

Examples:
  kubectl replumb abort
  kubectl replumb abort --wait                     Return when no node is in progress (exit code 3).
  kubectl replumb resume                           Resume. `rollback --all` rolls back the other nodes, too.";

/// Help of `rollback`.
pub const ROLLBACK_EXAMPLES: &str = "\
flannelToCalico: pods of the old network keep running. Pods with an address of the new network are evicted within their
PodDisruptionBudgets, because they cannot keep it. Nodes are rolled back one after the other (rollout.maxUnavailable), the
last one first; each node is compared with its state before the migration. With --all, cluster-wide objects are restored
after the last node, and the Migration ends as RolledBack. Rollback is possible until the DaemonSet of the old network is
deleted, after the soak time: `kubectl replumb plan` shows that step.

podCidr is rolled back only with --all: the old IPPool is opened again, and pods with an address of the new range are
evicted within their PodDisruptionBudgets. Rollback is possible until the old IPPool is deleted, after its soak time.

serviceCidr is rolled back with --all or Service by Service: each Service gets its old address back, and pods that started
with new addresses are restarted within their PodDisruptionBudgets. Rollback is possible until the old addresses are
released, after the soak time.

Examples:
  kubectl replumb rollback worker-3                Show the effect and ask for confirmation; the rollout is paused.
  kubectl replumb rollback worker-3 worker-4 --yes --wait
  kubectl replumb rollback --all --yes --wait
  kubectl replumb rollback --service shop/web      serviceCidr: only this Service, until stage Close.
  kubectl replumb resume                           Migrate forward again.";

/// Help of `generate`.
pub const GENERATE_EXAMPLES: &str = "\
The manifest is written to standard output. No cluster is needed: the options that select one have no effect.

Examples:
  kubectl replumb generate pod-cidr --from 10.244.0.0/16 --to 10.200.0.0/16 | kubectl apply -f -
  kubectl replumb generate pod-cidr --help";
