//! The text below the options in the help of `generate pod-cidr`.

/// Help of `generate pod-cidr`.
pub const GENERATE_POD_CIDR_EXAMPLES: &str = "\
No cluster is needed: the options that select one have no effect. Applying the manifest starts nothing:
`kubectl replumb apply` shows the plan, asks for confirmation, and starts the migration.

If one range is within the other, as in kops before 1.7, the pods move in two hops, through a temporary range (--via):
Calico has no two IPPools that share addresses. Each hop is one Migration; the second starts once the first is Completed.
The coordinator runs one Migration at a time: if both are applied, the second is Refused (AnotherMigration) until then.

Examples:
  kops get cluster NAME -o yaml --full > cluster.yaml
  kubectl replumb generate pod-cidr --kops cluster.yaml > migration.yaml
  kubectl replumb plan -f migration.yaml
  kubectl replumb apply -f migration.yaml

  kubectl replumb generate pod-cidr --kops cluster.yaml --via 10.200.0.0/16 > hops.yaml
  kubectl apply -f hops.yaml                                   Create both, start none.
  kubectl replumb apply pod-cidr-hop-1 --watch
  kubectl replumb apply pod-cidr-hop-2 --watch                 Once the first is Completed.

  kubectl replumb generate pod-cidr --kops cluster.yaml --via 10.200.0.0/16 --hop 1 > hop-1.yaml
  kubectl replumb apply -f hop-1.yaml                          One at a time, with a file for each.";
