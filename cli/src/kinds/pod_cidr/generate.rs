//! `generate pod-cidr`: the manifest of a podCidr migration, from a kops cluster spec or from two ranges. Needs no cluster.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use api::migration::PodCidr;
use clap::{ArgGroup, Args};
use ipnet::IpNet;
use pod_cidr::kops;

use super::flags::{EtcdFlags, Mode, PodFlags, between};
use super::manifest::{self, Hop, Origin};
use super::route::{End, RangeChange};
use crate::error::CliError;
use crate::kinds::Kind;
use crate::value;

/// `generate pod-cidr`.
#[derive(Clone, Debug, Args)]
#[command(
    group(ArgGroup::new("source").required(true).args(["kops", "from"])),
    override_usage = "kubectl replumb generate pod-cidr --kops FILE [OPTIONS]\n       \
                      kubectl replumb generate pod-cidr --from RANGE --to RANGE [OPTIONS]"
)]
pub struct PodCidrArguments {
    /// Output of `kops get cluster NAME -o json --full`; `-` is standard input. Pods move from spec.nonMasqueradeCIDR, which was
    /// the range of the IPPool before kops 1.7, to spec.kubeControllerManager.clusterCIDR.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    kops: Option<PathBuf>,
    /// Range of the IPPool that pods move from.
    #[arg(long, value_name = "RANGE", value_parser = value::range, requires = "to")]
    from: Option<IpNet>,
    /// Range of the IPPool that pods move to.
    #[arg(long, value_name = "RANGE", value_parser = value::range, requires = "from")]
    to: Option<IpNet>,
    /// Temporary range, if one range is within the other: two Migrations are printed, one into it and one out of it. The range
    /// must be unused in your networks.
    #[arg(long, value_name = "RANGE", value_parser = value::range)]
    via: Option<IpNet>,
    /// Print only the first or the second of two Migrations, for `kubectl replumb plan -f` and `apply -f`, which accept one.
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2), requires = "via")]
    hop: Option<u8>,
    /// Name of the Migration; two Migrations get the suffixes -hop-1 and -hop-2.
    #[arg(long, value_name = "NAME", value_parser = value::object_name, default_value = Kind::PodCidr.default_name())]
    name: String,
    /// Prefix length of the blocks of the new IPPool: 20 to 32, or 116 to 128 for IPv6. Default: as in the old IPPool.
    #[arg(long, value_name = "LENGTH", value_parser = value::pool_block_size)]
    block_size: Option<u8>,
    /// Order in which pods move. Default by-workload.
    #[arg(long, value_enum, ignore_case = true)]
    mode: Option<Mode>,
    /// How long the empty old IPPool is kept; a rollback is possible until then. Default 24h.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
    /// Options of pods.
    #[command(flatten)]
    pods: PodFlags,
    /// The connection to Calico's etcd.
    #[command(flatten)]
    etcd: EtcdFlags,
}

impl PodCidrArguments {
    /// The manifests.
    pub fn text(&self) -> Result<String, CliError> {
        let (journey, cluster) = self.journey()?;
        let hops = journey.hops()?;
        let mut ranges = vec![("from", journey.from.clone())];
        ranges.extend(journey.via.map(|range| {
            let name = "--via".to_owned();
            ("via", End { name, range })
        }));
        ranges.push(("to", journey.to.clone()));
        let origin = Origin {
            note: cluster.is_some().then(|| {
                "The old IPPool is that of kops before 1.7, with the range spec.nonMasqueradeCIDR. Without an IPPool of this \
                 range, the checks refuse the migration."
                    .to_owned()
            }),
            cluster: cluster.filter(|name| !name.is_empty()),
            ranges,
        };
        match hops.as_slice() {
            [(first, between), (_, second)] => {
                let hops = [
                    self.hop("-hop-1", *first, *between),
                    self.hop("-hop-2", *between, *second),
                ];
                value::object_name(&hops[1].name).map_err(|needed| CliError::Ranges {
                    errors: vec![format!(
                        "--name: found {:?} for the second hop, {needed}",
                        hops[1].name
                    )],
                    hint: None,
                })?;
                manifest::two(&origin, &hops, self.hop.map(|hop| usize::from(hop) - 1))
            }
            _ => manifest::one(&origin, &self.hop("", journey.from.range, journey.to.range)),
        }
    }

    /// The requested change of the range, and the name of the cluster from kops.
    fn journey(&self) -> Result<(RangeChange, Option<String>), CliError> {
        let end = |name: String, range: IpNet| End { name, range };
        let journey = |from: End, to: End, others: Vec<End>| RangeChange {
            from,
            to,
            via: self.via,
            others,
            block_size: self.block_size,
        };
        if let (Some(from), Some(to)) = (self.from, self.to) {
            let (from, to) = (end("--from".to_owned(), from), end("--to".to_owned(), to));
            return Ok((journey(from, to, Vec::new()), None));
        }
        // Without both ranges, the parser accepts only a file.
        let path = self.kops.as_deref().unwrap_or(Path::new("-"));
        let file = path.display().to_string();
        let failed = |errors: Vec<String>| CliError::File {
            file: file.clone(),
            why: errors.join(&format!("\n       file {file}: ")),
        };
        let text = read(path).map_err(|error| failed(vec![format!("cannot be read: {error}")]))?;
        let found = kops::read(&text).map_err(failed)?;
        let source = if path == Path::new("-") {
            "standard input"
        } else {
            &file
        };
        let named = |field: &str| format!("{field} of {source}");
        let others = found
            .others
            .into_iter()
            .map(|(field, range)| end(named(field), range))
            .collect();
        let (from, to) = (end(named(kops::FROM), found.from), end(named(kops::TO), found.to));
        Ok((journey(from, to, others), Some(found.name)))
    }

    fn hop(&self, suffix: &str, from: IpNet, to: IpNet) -> Hop {
        let mut pod_cidr = PodCidr {
            block_size: self.block_size,
            soak_seconds: self.soak,
            ..between(from, to)
        };
        pod_cidr.mode = self.mode.map_or(pod_cidr.mode, Mode::wire);
        self.pods.over(&mut pod_cidr);
        self.etcd.merged_with(&mut pod_cidr);
        Hop {
            name: format!("{}{suffix}", self.name),
            pod_cidr,
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    if path != Path::new("-") {
        return std::fs::read_to_string(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use api::MigrationSpec;
    use clap::Parser as _;
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::args::{Args, Command, GenerateKind};

    fn text(line: &[&str]) -> Result<String, CliError> {
        let args =
            Args::try_parse_from([&["kubectl-replumb", "generate", "pod-cidr"], line].concat()).unwrap();
        let Command::Generate(generate) = args.command else {
            panic!("not a generate")
        };
        let GenerateKind::PodCidr(arguments) = generate.kind else {
            panic!("not of a range")
        };
        arguments.text()
    }

    fn file(document: &Value) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(document.to_string().as_bytes()).unwrap();
        file
    }

    fn cluster(to: &str) -> Value {
        json!({
            "metadata": {"name": "k.example.com"},
            "spec": {
                "nonMasqueradeCIDR": "100.64.0.0/10", "serviceClusterIPRange": "100.64.0.0/13",
                "kubeControllerManager": {"clusterCIDR": to},
            },
        })
    }

    #[test]
    fn the_etcd_connection_is_in_every_hop() {
        let line = [
            "--from=10.0.0.0/16",
            "--to=10.1.0.0/16",
            "--calico-etcd=https://a:2379,https://b:2379",
            "--calico-etcd-secret=calico-etcd",
        ];
        let text = text(&line).unwrap();
        let (_, spec) = documents(&text).remove(0);
        let etcd = spec.pod_cidr.unwrap().etcd.unwrap();
        assert_eq!(etcd.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(etcd.secret.as_deref(), Some("calico-etcd"));
    }

    /// Each document's name and spec.
    fn documents(text: &str) -> Vec<(String, MigrationSpec)> {
        yaml_serde::Deserializer::from_str(text)
            .map(|document| {
                let value = Value::deserialize(document).unwrap();
                assert_eq!(value["apiVersion"], "replumb.dev/v1alpha1");
                assert_eq!(value["kind"], "Migration");
                let spec = serde_json::from_value(value["spec"].clone()).unwrap();
                (value["metadata"]["name"].as_str().unwrap().to_owned(), spec)
            })
            .collect()
    }

    #[test]
    fn disjoint_ranges_of_kops_are_one_migration() {
        let file = file(&cluster("172.16.0.0/13"));
        let path = file.path().to_str().unwrap();
        let text = text(&["--kops", path, "--soak", "1h", "--block-size", "27"]).unwrap();
        insta::assert_snapshot!(text.replace(path, "cluster.json"), @r"
        # New range for pods of cluster k.example.com, generated by `kubectl replumb generate pod-cidr`.
        #   from  100.64.0.0/10  spec.nonMasqueradeCIDR of cluster.json
        #   to    172.16.0.0/13  spec.kubeControllerManager.clusterCIDR of cluster.json
        # The old IPPool is that of kops before 1.7, with the range spec.nonMasqueradeCIDR. Without an IPPool of this
        # range, the checks refuse the migration.
        #
        # Applying this file starts nothing: the migration is checked and planned (`desired` defaults to Plan). To
        # show the plan and start the migration:
        #   kubectl replumb apply pod-cidr
        apiVersion: replumb.dev/v1alpha1
        kind: Migration
        metadata:
          name: pod-cidr
        spec:
          podCidr:
            from: 100.64.0.0/10
            to: 172.16.0.0/13
            blockSize: 27
            mode: ByWorkload
            soakSeconds: 3600
            deleteBarePods: false
        ");
        let [(_, spec)] = &documents(&text)[..] else {
            panic!("{text}")
        };
        assert_eq!(spec.desired, api::migration::Desired::Plan);
    }

    #[test]
    fn nested_ranges_of_kops_are_two_migrations_in_order() {
        let file = file(&cluster("100.96.0.0/11"));
        let path = file.path().to_str().unwrap();
        let nested = ["--kops", path, "--via", "10.200.0.0/16"];
        let both = text(&nested).unwrap();
        insta::assert_snapshot!(both.replace(path, "cluster.json"), @r"
        # New range for pods of cluster k.example.com, generated by `kubectl replumb generate pod-cidr`.
        #   from  100.64.0.0/10  spec.nonMasqueradeCIDR of cluster.json
        #   via   10.200.0.0/16  --via
        #   to    100.96.0.0/11  spec.kubeControllerManager.clusterCIDR of cluster.json
        # The old IPPool is that of kops before 1.7, with the range spec.nonMasqueradeCIDR. Without an IPPool of this
        # range, the checks refuse the migration.
        #
        # Calico has no two IPPools that share addresses: pods move in two hops, through a temporary range. Each hop
        # is one Migration, and the second starts once the first is Completed:
        #   1  pod-cidr-hop-1  100.64.0.0/10 → 10.200.0.0/16
        #   2  pod-cidr-hop-2  10.200.0.0/16 → 100.96.0.0/11
        # Applying this file starts nothing: each migration is checked and planned (`desired` defaults to Plan). The
        # coordinator runs one Migration at a time, the oldest that has not ended. Applied together, pod-cidr-hop-2 is
        # Refused (AnotherMigration) until pod-cidr-hop-1 is Completed, after its soak time (podCidr.soakSeconds, one
        # day by default), and is then checked and planned automatically. Start each by name, the second once the
        # first is Completed:
        #   kubectl replumb apply pod-cidr-hop-1 --watch
        #   kubectl replumb apply pod-cidr-hop-2 --watch
        #
        # Hop 1 of 2: pods move from 100.64.0.0/10 to 10.200.0.0/16, the temporary range. Apply this one first.
        apiVersion: replumb.dev/v1alpha1
        kind: Migration
        metadata:
          name: pod-cidr-hop-1
        spec:
          podCidr:
            from: 100.64.0.0/10
            to: 10.200.0.0/16
            mode: ByWorkload
            deleteBarePods: false
        ---
        # Hop 2 of 2: pods move from 10.200.0.0/16 to 100.96.0.0/11. Before pod-cidr-hop-1 is Completed there is no
        # IPPool of 10.200.0.0/16, and this Migration is refused. If it was applied before pod-cidr-hop-1, it blocks
        # that one, because it is older: run `kubectl delete migration pod-cidr-hop-2`.
        apiVersion: replumb.dev/v1alpha1
        kind: Migration
        metadata:
          name: pod-cidr-hop-2
        spec:
          podCidr:
            from: 10.200.0.0/16
            to: 100.96.0.0/11
            mode: ByWorkload
            deleteBarePods: false
        ");
        let all = documents(&both);
        let first = text(&[&nested[..], &["--hop", "1"]].concat()).unwrap();
        let second = text(&[&nested[..], &["--hop", "2"]].concat()).unwrap();
        assert_eq!(documents(&first), all[..1]);
        assert_eq!(documents(&second), all[1..]);
        assert!(
            second.contains("#   2  pod-cidr-hop-2")
                && second.contains("# Hop 2 of 2")
                && !second.contains("# Hop 1"),
            "{second}"
        );
    }

    #[test]
    fn nested_ranges_without_via_are_refused_with_an_example() {
        let file = file(&cluster("100.96.0.0/11"));
        let path = file.path().to_str().unwrap();
        let error = text(&["--kops", path]).unwrap_err();
        let said = format!("{error}\n{}", error.hint().unwrap());
        insta::assert_snapshot!(said.replace(path, "cluster.json"), @r"
        spec.kubeControllerManager.clusterCIDR of cluster.json: found 100.96.0.0/11, which is within spec.nonMasqueradeCIDR of cluster.json (100.64.0.0/10). Calico has no two IPPools that share addresses: pods move in two hops, through a temporary range
        set --via to a range that is unused in your networks, does not overlap with both ranges and has room for every pod, such as `--via 10.200.0.0/16`; two Migrations are then printed
        ");
        let error = text(&["--kops", path, "--via", "100.64.0.0/16"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("spec.serviceClusterIPRange"), "{error}");
    }

    #[test]
    fn every_invalid_field_is_named_with_the_file() {
        let file = file(&json!({"spec": {"nonMasqueradeCIDR": "many"}}));
        let path = file.path().to_str().unwrap();
        let error = text(&["--kops", path]).unwrap_err().to_string();
        for field in [
            "spec.nonMasqueradeCIDR: found",
            "spec.kubeControllerManager.clusterCIDR: missing",
        ] {
            assert!(error.contains(&format!("file {path}: {field}")), "{error}");
        }
        let error = text(&["--kops", "/nowhere/cluster.json"])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("file /nowhere/cluster.json: cannot be read"),
            "{error}"
        );
    }

    #[test]
    fn two_ranges_and_every_option_without_kops() {
        let line = [
            "--from",
            "fd00:10::/56",
            "--to",
            "fd00:11::/56",
            "--name",
            "mine",
            "--block-size",
            "120",
            "--mode",
            "by-node",
            "--soak",
            "0",
            "--pods-at-once",
            "2",
            "--delete-bare-pods",
        ];
        insta::assert_snapshot!(text(&line).unwrap(), @r"
        # New range for pods, generated by `kubectl replumb generate pod-cidr`.
        #   from  fd00:10::/56  --from
        #   to    fd00:11::/56  --to
        #
        # Applying this file starts nothing: the migration is checked and planned (`desired` defaults to Plan). To
        # show the plan and start the migration:
        #   kubectl replumb apply mine
        apiVersion: replumb.dev/v1alpha1
        kind: Migration
        metadata:
          name: mine
        spec:
          podCidr:
            from: fd00:10::/56
            to: fd00:11::/56
            blockSize: 120
            mode: ByNode
            soakSeconds: 0
            podsAtOnce: 2
            deleteBarePods: true
        ");
        let long = "a".repeat(250);
        let nested = [
            "--from",
            "10.0.0.0/8",
            "--to",
            "10.96.0.0/11",
            "--via",
            "172.28.0.0/16",
            "--name",
            &long,
        ];
        let error = text(&nested).unwrap_err().to_string();
        assert!(error.starts_with("--name: found"), "{error}");
    }

    #[test]
    fn text_of_a_file_cannot_end_a_comment() {
        let mut document = cluster("172.16.0.0/13");
        document["metadata"]["name"] = json!("a\nspec: {}\r---\u{85}kind: Pod\u{2028}x: \u{7}");
        let file = file(&document);
        let text = text(&["--kops", file.path().to_str().unwrap()]).unwrap();
        assert!(
            text.contains("# New range for pods of cluster a spec: {} --- kind: Pod x: ?,"),
            "{text}"
        );
        assert_eq!(documents(&text).len(), 1);
    }

    #[test]
    fn exactly_one_source_is_accepted() {
        for line in [
            &[][..],
            &["--from", "10.0.0.0/8"],
            &["--to", "10.0.0.0/8"],
            &["--kops", "a", "--from", "10.0.0.0/8", "--to", "11.0.0.0/8"],
            &["--kops", "a", "--to", "11.0.0.0/8"],
            &["--kops", "a", "--hop", "1"],
            &["--kops", "a", "--via", "10.0.0.0/8", "--hop", "3"],
            &["--from", "10.0.0.1/8", "--to", "11.0.0.0/8"],
        ] {
            let line = [&["kubectl-replumb", "generate", "pod-cidr"], line].concat();
            assert!(Args::try_parse_from(&line).is_err(), "{line:?}");
        }
    }
}
