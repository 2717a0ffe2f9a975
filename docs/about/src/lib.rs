//! replumb changes a live Kubernetes cluster's pod network, node by node, while it carries traffic.
//!
//! This page is the front page of `cargo doc --no-deps --open`. The crate has no code. `docs/architecture.md` has the loop, the
//! writers of each object, the stages of each kind, and the files for common questions. `docs/design.md` explains how each
//! migration works.
//!
//! # Where to start
//!
//! 1. [`engine::decision`]: the reasons to wait, to halt and to refuse. [`engine::rollout`] admits nodes, [`engine::evict`] chooses
//!    the next pods to evict.
//! 2. [`api::MigrationSpec`]: the fields that the user writes. [`api::MigrationSpec::kind`] tells the kinds of migration apart.
//! 3. [`pod_cidr::decide`]: the stages of one kind as a pure function from facts to the next step.
//! 4. The program `coordinator`: [`pass`](../coordinator/pass/index.html) is its loop over the cluster.
//! 5. The program `agent`: [`turn`](../agent/turn/index.html) is its loop over one node.
//!
//! # Pure crates
//!
//! Facts come in as values, steps go out as values. These crates read no clock, file, socket or environment; Clippy holds them to
//! that.
//!
//! | crate | folder | holds |
//! |---|---|---|
//! | [`engine`] | `engine` | decisions that all kinds share: checks, order, rollout, eviction, traffic gates, plan |
//! | [`calico`] | `calico` | Calico's objects in the Kubernetes API and in etcd, and the changes to them |
//! | [`policy`] | `policy` | Kubernetes' `NetworkPolicy` as Calico enforces it: verdicts on connections, for the policy preview |
//! | [`flannel_to_calico`] | `kinds/flannel-to-calico` | flannel (VXLAN) to Calico (VXLAN), by drain or in place |
//! | [`pod_cidr`] | `kinds/pod-cidr` | another range for the pods of a cluster with Calico |
//! | [`service_cidr`] | `kinds/service-cidr` | another range for Services |
//! | [`calico_datastore`] | `kinds/calico-datastore` | Calico v2 with etcd v2 to Calico v3 with etcd v3 |
//!
//! A kind imports `engine` and `calico`, `flannel_to_calico` also `policy`, and never another kind. `docs/adding-a-kind.md` walks through one more, `kinds/example`.
//!
//! # Shared crates
//!
//! | crate | folder | holds |
//! |---|---|---|
//! | [`api`] | `api` | custom resources ([`api::Migration`], [`api::NodeMigration`]) and every name on the wire ([`api::names`]) |
//! | [`datastore`] | `datastore` | clients of etcd v2 and v3, and the steps of a conversion of Calico's data |
//! | [`runtime`] | `runtime` | client of the API server, admin server, metrics and logs of the programs |
//! | [`memory_api`] | `memory-api` | an API server in memory: for judgements of a snapshot, and for tests |
//! | [`offline`](../offline/index.html) | `offline` | a snapshot of a cluster, judged without the cluster by the coordinator's own passes |
//! | [`listening`] | `listening` | an HTTP server with limits on connections |
//! | [`crash_point`] | `crash-point` | steps at which a test build stops |
//!
//! # Programs
//!
//! The programs never import each other; they meet in the Kubernetes API. `offline` lets the coordinator's passes run in the command
//! line, on a cluster in memory.
//!
//! | crate | folder | program |
//! |---|---|---|
//! | [`agent`](../agent/index.html) | `agent` | `replumb-agent`, a `DaemonSet`: observes, checks and changes its own node |
//! | [`coordinator`](../coordinator/index.html) | `coordinator` | `replumb-coordinator`, a Deployment with one leader: sets the order |
//! | [`cli`](../kubectl_replumb/index.html) | `cli` | `kubectl replumb`, for the user |
//!
//! # Tests
//!
//! `tests/README.md` says what each layer of tests proves. No program imports these crates.
//!
//! | crate | folder | holds |
//! |---|---|---|
//! | [`lab`](../lab/index.html) | `tests` | `cargo lab`: a real cluster on one machine, its demos and end-to-end cases |
//! | [`standin`](../standin/index.html) | `tests/standin` | a program in the place of Calico, for labs without the real one |
//! | [`traffic`](../traffic/index.html) | `tests/traffic` | traffic generator, echo server and pause process of the lab |
//! | [`explore`](../explore/index.html) | `tests/explore` | harness of the walks: every state, and a crash after each write |
