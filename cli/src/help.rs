//! Texts below the options of a command's help: what it leaves as it is, and examples.

/// What every command shares, and the way through them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done: what was asked for is so
  1  error: it is not so, or nobody could find out; a halted migration is an error
  2  refused by a check; nothing has changed
  3  paused: no node is in work and no other starts

A first migration:
  kubectl replumb preflight          may it be done? every check, refusals first; changes nothing
  kubectl replumb plan               every action, node by node, and the hash of the plan; changes nothing
  kubectl replumb apply              shows the plan, asks, and starts it
  kubectl replumb status --watch     follows it to its end
  kubectl replumb pause | resume     start no other node | go on
  kubectl replumb abort              take the node in work back, start no other
  kubectl replumb rollback NODE      take one node back; --all: everything, until the point of no return

Without a word more it is flannel to Calico. Another range for the pods of a cluster with Calico:
  kubectl replumb plan --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb generate pod-cidr --kops FILE       the same as a manifest, by what kops says; asks no cluster

Another range for Services:
  kubectl replumb plan --service-cidr-to 172.31.0.0/16

Calico's data from etcd v2 to etcd v3, by both etcds alone:
  kubectl replumb datastore dry-run | start | complete | abort | status | export";

/// Of `preflight`.
pub const PREFLIGHT_EXAMPLES: &str = "\
It creates a Migration with `desired: Plan` when there is none, so that the coordinator and the agents look at
the cluster and the hosts. Nothing else is written until `kubectl replumb apply`.

Examples:
  kubectl replumb preflight
  kubectl replumb preflight --calico-daemonset-namespace calico-system
  kubectl replumb preflight --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb preflight --service-cidr-to 172.31.0.0/16
  kubectl replumb preflight -o json | jq '.checks[] | select(.verdict == \"Fail\")'
  kubectl delete migration flannel-to-calico      forget it: nothing has changed";

/// Of `plan`.
pub const PLAN_EXAMPLES: &str = "\
Examples:
  kubectl replumb plan
  kubectl replumb plan -f migration.yaml
  kubectl replumb plan --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16
  kubectl replumb plan --service-cidr-to 172.31.0.0/16 --service-cidr-order shop/web,shop/till
  kubectl replumb plan -o json | jq -r .hash      for `apply --plan-hash`";

/// Of `apply`.
pub const APPLY_EXAMPLES: &str = "\
The plan that was shown is the plan that runs: when something changes in between, the coordinator refuses.

Examples:
  kubectl replumb apply                            shows the plan and asks
  kubectl replumb apply --yes --watch              does not ask, and follows it to the end
  kubectl replumb apply --max-unavailable 25% --canary 1 --canary-soak 10m
  kubectl replumb apply -f migration.yaml --plan-hash 4be1… --yes
  kubectl replumb apply --pod-cidr-from 10.244.0.0/16 --pod-cidr-to 10.200.0.0/16 --pod-cidr-soak 1h
  kubectl replumb apply --service-cidr-to 172.31.0.0/16 --service-cidr-soak 1h
  FLANNEL_DAEMONSET_NAME=kube-flannel-ds CNI_CONFIG_DIR=/etc/cni/net.d kubectl replumb apply --from-env";

/// Of `status`.
pub const STATUS_EXAMPLES: &str = "\
Without --watch: exit code 2 when refused, 3 when paused, 1 when halted, else 0, also on the way.
With --watch: it ends when the migration is completed, halted, refused or paused, with that exit code.

Examples:
  kubectl replumb status
  kubectl replumb status --watch
  kubectl replumb status --watch -o json           one JSON object for each change";

/// Of `pause`.
pub const PAUSE_EXAMPLES: &str = "\
Examples:
  kubectl replumb pause
  kubectl replumb pause --wait                     returns when no node is in work (exit code 3)
  kubectl replumb resume";

/// Of `resume`.
pub const RESUME_EXAMPLES: &str = "\
Examples:
  kubectl replumb resume
  kubectl replumb resume --wait                    follows it to its end";

/// Of `abort`.
pub const ABORT_EXAMPLES: &str = "\
A node that is half-way goes back and keeps what it had: living pods, their addresses, its cordon if somebody else had
set it. Pause instead finishes it first. A change of the pods' or of the Services' range has no node that is half-way: abort
stops it where it is, as pause does.

Examples:
  kubectl replumb abort
  kubectl replumb abort --wait                     returns when no node is in work (exit code 3)
  kubectl replumb resume                           goes on; rollback --all takes the others back, too";

/// Of `rollback`.
pub const ROLLBACK_EXAMPLES: &str = "\
Pods of the old network live on. Pods that got an address of the new one are evicted under their budgets, since they
cannot keep it. One node after the other goes (rollout.maxUnavailable), the last one first; each is compared with what it
was before. With --all, everything that was written for the cluster is taken back after the last node, and the Migration
ends as RolledBack. It is possible until the old network's DaemonSet is deleted: `kubectl replumb plan` shows that moment.

A change of the pods' range goes back with --all alone: the old pool is opened again, and pods with an address of the new one
are evicted under their budgets. It is possible until the old pool is deleted, which is after its soak.

A change of the Services' range goes back with --all, or Service by Service: each takes its old address back, and pods that were told new
ones start again under their budgets. It is possible until old addresses are given up, which is after the soak.

Examples:
  kubectl replumb rollback worker-3                shows what would happen and asks; the rollout is paused
  kubectl replumb rollback worker-3 worker-4 --yes --wait
  kubectl replumb rollback --all --yes --wait
  kubectl replumb rollback --service shop/web      of a change of the Services' range: this one alone, until its stage Close
  kubectl replumb resume                           goes there again";

/// Of `generate`.
pub const GENERATE_EXAMPLES: &str = "\
It writes to the standard output alone. No cluster is asked: the options that say which one have no effect.

Examples:
  kubectl replumb generate pod-cidr --from 10.244.0.0/16 --to 10.200.0.0/16 | kubectl apply -f -
  kubectl replumb generate pod-cidr --help";

/// Of `generate calico-v3-objects`.
pub const GENERATE_CALICO_OBJECTS_EXAMPLES: &str = "\
No cluster is asked: the options that say which one have no effect.

Examples:
  kubectl replumb generate calico-v3-objects --calico-v3-manifest calico-etcd.yaml | kubectl apply -f -
  kubectl replumb plan calico-v3 --calico-v3-manifest calico-etcd.yaml";

/// Of `generate pod-cidr`.
pub const GENERATE_POD_CIDR_EXAMPLES: &str = "\
No cluster is asked: the options that say which one have no effect. The manifest starts nothing when it is applied:
`kubectl replumb apply` shows its plan, asks, and starts it.

Where one range lies within the other, as kops had it before 1.7, the pods go in two hops, by a temporary range (--via):
Calico keeps no two pools that share addresses. Each hop is a Migration of its own, the second once the first is Completed.
The coordinator works on one at a time: where both are applied, the second is Refused (AnotherMigration) until then.

Examples:
  kops get cluster NAME -o json --full > cluster.json
  kubectl replumb generate pod-cidr --kops cluster.json > migration.yaml
  kubectl replumb plan -f migration.yaml
  kubectl replumb apply -f migration.yaml

  kubectl replumb generate pod-cidr --kops cluster.json --via 10.200.0.0/16 > hops.yaml
  kubectl apply -f hops.yaml                                   both, and starts neither
  kubectl replumb apply pod-cidr-hop-1 --watch
  kubectl replumb apply pod-cidr-hop-2 --watch                 once the first is Completed

  kubectl replumb generate pod-cidr --kops cluster.json --via 10.200.0.0/16 --hop 1 > hop-1.yaml
  kubectl replumb apply -f hop-1.yaml                          one at a time: a file of its own for each";

/// Of `datastore dry-run`.
pub const DATASTORE_DRY_RUN_EXAMPLES: &str = "\
Each value that cannot be converted is a line of a report, with what to do about it; none is left out. The reports are files in
--output-dir: conversionerrors, validationerrors, nameclashes, convertednames, notes.

Examples:
  APIV1_ETCD_ENDPOINTS=https://10.0.0.1:2379 ETCD_ENDPOINTS=https://10.0.0.1:2379 kubectl replumb datastore dry-run
  kubectl replumb datastore dry-run --apiconfigv1 /etc/calico/apiconfigv1.cfg --apiconfigv3 /etc/calico/apiconfigv3.cfg
  kubectl replumb datastore dry-run --v2-endpoints http://10.0.0.1:2379 --v3-endpoints http://10.0.0.2:2379 -o json";

/// Of `datastore start`.
pub const DATASTORE_START_EXAMPLES: &str = "\
First a backup of both stores is written, with a checksum. Then Calico is paused (/calico/v1/Ready is set to false; no other value of
etcd v2 is ever changed), everything is written to etcd v3, and every key is read again. One at a time works on the stores: a second
one is told who does. Killed at any moment, it goes on when it is started again, or goes back by `abort`.

Examples:
  kubectl replumb datastore start                  shows what a dry-run finds, asks, begins, and stays: after --pause-limit it takes
                                                   everything back. `complete` and `abort` are said in another terminal
  kubectl replumb datastore abort";

/// Of `datastore status`.
pub const DATASTORE_STATUS_EXAMPLES: &str = "\
Exit code 0 when Calico works with one store, 3 when it is paused, 1 when it works with both or with none.

Examples:
  kubectl replumb datastore status
  kubectl replumb datastore status -o json | jq '{worksWith, needed, phase: .record.phase}'";
