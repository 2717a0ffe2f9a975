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
  kubectl replumb plan -o json | jq -r .hash      The hash for `apply --plan-hash`.";

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
deleted: `kubectl replumb plan` shows that step.

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

/// Help of `generate calico-v3-objects`.
pub const GENERATE_CALICO_OBJECTS_EXAMPLES: &str = "\
No cluster is needed: the options that select one have no effect.

Examples:
  kubectl replumb generate calico-v3-objects --calico-v3-manifest calico-etcd.yaml | kubectl apply -f -
  kubectl replumb plan calico-v3 --calico-v3-manifest calico-etcd.yaml";

/// Help of `generate pod-cidr`.
pub const GENERATE_POD_CIDR_EXAMPLES: &str = "\
No cluster is needed: the options that select one have no effect. Applying the manifest starts nothing:
`kubectl replumb apply` shows the plan, asks for confirmation, and starts the migration.

If one range is within the other, as in kops before 1.7, the pods move in two hops, through a temporary range (--via):
Calico has no two IPPools that share addresses. Each hop is one Migration; the second starts once the first is Completed.
The coordinator runs one Migration at a time: if both are applied, the second is Refused (AnotherMigration) until then.

Examples:
  kops get cluster NAME -o json --full > cluster.json
  kubectl replumb generate pod-cidr --kops cluster.json > migration.yaml
  kubectl replumb plan -f migration.yaml
  kubectl replumb apply -f migration.yaml

  kubectl replumb generate pod-cidr --kops cluster.json --via 10.200.0.0/16 > hops.yaml
  kubectl apply -f hops.yaml                                   Create both, start none.
  kubectl replumb apply pod-cidr-hop-1 --watch
  kubectl replumb apply pod-cidr-hop-2 --watch                 Once the first is Completed.

  kubectl replumb generate pod-cidr --kops cluster.json --via 10.200.0.0/16 --hop 1 > hop-1.yaml
  kubectl replumb apply -f hop-1.yaml                          One at a time, with a file for each.";

/// Help of `datastore dry-run`.
pub const DATASTORE_DRY_RUN_EXAMPLES: &str = "\
Each value that cannot be converted is a line of a report, with the fix. The reports are files in --output-dir:
conversionerrors, validationerrors, nameclashes, convertednames, notes.

Examples:
  APIV1_ETCD_ENDPOINTS=https://10.0.0.1:2379 ETCD_ENDPOINTS=https://10.0.0.1:2379 kubectl replumb datastore dry-run
  kubectl replumb datastore dry-run --apiconfigv1 /etc/calico/apiconfigv1.cfg --apiconfigv3 /etc/calico/apiconfigv3.cfg
  kubectl replumb datastore dry-run --v2-endpoints http://10.0.0.1:2379 --v3-endpoints http://10.0.0.2:2379 -o json";

/// Help of `datastore start`.
pub const DATASTORE_START_EXAMPLES: &str = "\
First, a backup of both stores is written, with a checksum. Then Calico is paused (/calico/v1/Ready is set to false; no other
value of etcd v2 is changed), all data is written to etcd v3, and every key is read back. Only one process works on the
stores: another one names it and ends. A killed conversion is continued by another `start`, or rolled back by `abort`.

Examples:
  kubectl replumb datastore start                  Show the result of a dry-run, ask for confirmation, convert, and keep running:
                                                   after --pause-limit, everything is rolled back. Run `complete` or `abort`
                                                   in another terminal.
  kubectl replumb datastore abort";

/// Help of `datastore status`.
pub const DATASTORE_STATUS_EXAMPLES: &str = "\
Exit code 0 if Calico uses one store, 3 if Calico is paused, 1 if it uses both or none.

Examples:
  kubectl replumb datastore status
  kubectl replumb datastore status -o json | jq '{worksWith, needed, phase: .record.phase}'";
