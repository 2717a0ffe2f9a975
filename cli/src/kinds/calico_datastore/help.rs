//! Texts below the options in the help of `datastore` and of `generate calico-v3-objects`.

/// Help of `generate calico-v3-objects`.
pub const GENERATE_CALICO_OBJECTS_EXAMPLES: &str = "\
No cluster is needed: the options that select one have no effect.

Examples:
  kubectl replumb generate calico-v3-objects --calico-v3-manifest calico-etcd.yaml | kubectl apply -f -
  kubectl replumb plan calico-v3 --calico-v3-manifest calico-etcd.yaml";

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
