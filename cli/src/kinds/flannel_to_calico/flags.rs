//! Flags of flannelToCalico: how a node changes its network, and the options of Calico's migration controller.

#![expect(
    clippy::doc_markdown,
    reason = "these are help texts: a terminal shows the backticks"
)]

use api::MigrationSpec;
use api::migration::{FirewallTwins, FlannelToCalico};
use clap::{Args, ValueEnum};
use flannel_to_calico::api::PolicyPreview;
use flannel_to_calico::settings::Options;
use ipnet::Ipv4Net;

use super::environment::{self, EnvironmentErrors};
use crate::error::CliError;
use crate::kinds::kind::KindFlags;
use crate::value;

/// Flags of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct Flags {
    /// Read the environment variables of Calico's migration controller: FLANNEL_NETWORK, FLANNEL_DAEMONSET_NAME,
    /// CALICO_DAEMONSET_NAME, CNI_CONFIG_DIR and others.
    #[arg(long)]
    from_env: bool,
    /// The options from these variables.
    #[arg(skip)]
    variables: Options,
    #[command(flatten)]
    how: HowFlags,
    #[command(flatten)]
    preview: PreviewFlags,
    #[command(flatten)]
    options: OptionFlags,
}

impl KindFlags for Flags {
    fn set_flags(&self) -> Vec<&'static str> {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
            from_env,
            variables: _,
            how,
            preview,
            options,
        } = self;
        let HowFlags {
            strategy,
            legacy_pods,
            write_firewall_twins,
            allow_single_node,
            soak,
        } = how;
        let PreviewFlags {
            policy_preview_seconds,
            accept_policy_denials,
        } = preview;
        let OptionFlags {
            flannel_network,
            flannel_daemonset_name,
            flannel_daemonset_namespace,
            flannel_mtu,
            flannel_ip_masq,
            flannel_subnet_len,
            flannel_annotation_prefix,
            flannel_vni,
            flannel_port,
            calico_daemonset_name,
            calico_daemonset_namespace,
            ippool_block_size,
            cni_config_dir,
        } = options;
        [
            ("--from-env", *from_env),
            ("--strategy", strategy.is_some()),
            ("--legacy-pods", legacy_pods.is_some()),
            ("--write-firewall-twins", write_firewall_twins.is_some()),
            ("--allow-single-node", allow_single_node.is_some()),
            ("--flannel-soak", soak.is_some()),
            ("--policy-preview-seconds", policy_preview_seconds.is_some()),
            ("--accept-policy-denials", !accept_policy_denials.is_empty()),
            ("--flannel-network", flannel_network.is_some()),
            ("--flannel-daemonset-name", flannel_daemonset_name.is_some()),
            (
                "--flannel-daemonset-namespace",
                flannel_daemonset_namespace.is_some(),
            ),
            ("--flannel-mtu", flannel_mtu.is_some()),
            ("--flannel-ip-masq", flannel_ip_masq.is_some()),
            ("--flannel-subnet-len", flannel_subnet_len.is_some()),
            ("--flannel-annotation-prefix", flannel_annotation_prefix.is_some()),
            ("--flannel-vni", flannel_vni.is_some()),
            ("--flannel-port", flannel_port.is_some()),
            ("--calico-daemonset-name", calico_daemonset_name.is_some()),
            (
                "--calico-daemonset-namespace",
                calico_daemonset_namespace.is_some(),
            ),
            ("--ippool-block-size", ippool_block_size.is_some()),
            ("--cni-config-dir", cni_config_dir.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, is_set)| is_set.then_some(flag))
        .collect()
    }

    fn read_environment(&mut self, variables: &[(String, String)]) -> Result<Vec<String>, CliError> {
        if !self.from_env {
            return Ok(Vec::new());
        }
        let read = environment::read(variables.iter().cloned()).map_err(EnvironmentErrors)?;
        self.variables = read.options;
        Ok(read.warnings)
    }

    /// Overrides the spec of the kind by Calico's variables, and both by the flags.
    fn merge(&self, spec: &mut MigrationSpec) -> Result<(), CliError> {
        let kind = spec
            .flannel_to_calico
            .get_or_insert_with(FlannelToCalico::default);
        let HowFlags {
            strategy,
            legacy_pods,
            write_firewall_twins,
            allow_single_node,
            soak,
        } = self.how;
        kind.options = merge(
            kind.options.clone(),
            merge(self.variables.clone(), self.options.options()),
        );
        kind.strategy = strategy.map_or(kind.strategy, Strategy::wire);
        kind.legacy_pods = legacy_pods.map_or(kind.legacy_pods, LegacyPods::wire);
        kind.firewall_twins = match write_firewall_twins {
            Some(true) => FirewallTwins::Write,
            Some(false) => FirewallTwins::Refuse,
            None => kind.firewall_twins,
        };
        kind.allow_single_node = allow_single_node.unwrap_or(kind.allow_single_node);
        kind.soak_seconds = soak.or(kind.soak_seconds);
        self.preview.merge(&mut kind.policy_preview);
        Ok(())
    }
}

/// Flags for how a node changes its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "flannel to Calico")]
#[group(skip)]
struct HowFlags {
    /// How a node changes its network. Default drain.
    #[arg(long, value_enum, ignore_case = true)]
    strategy: Option<Strategy>,
    /// In place: what happens to pods that existed before. Default adopt.
    #[arg(long, value_enum, ignore_case = true)]
    legacy_pods: Option<LegacyPods>,
    /// Write a twin for Calico's links beside each rule of another program (firewalld, ufw) that names a link of flannel, and
    /// remove it in a rollback.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    write_firewall_twins: Option<bool>,
    /// Allow a cluster with one schedulable node: all its pods are down while it changes.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    allow_single_node: Option<bool>,
    /// How long flannel's DaemonSet is kept after the last node; a rollback is possible until then. Default 24h.
    #[arg(id = "flannel-soak", long = "flannel-soak", value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
}

/// Flags for the preview of network policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "flannel to Calico")]
#[group(skip)]
struct PreviewFlags {
    /// How long connections are observed before the start, if network policies begin to hold. Default 10m; 0: not at all.
    #[arg(long, value_name = "SECONDS", value_parser = value::observation)]
    policy_preview_seconds: Option<u32>,
    /// Network policies that may refuse connections that were seen, separated by commas.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = value::policy_name, value_delimiter = ',')]
    accept_policy_denials: Vec<String>,
}

impl PreviewFlags {
    /// Overrides the spec by the flags.
    fn merge(&self, preview: &mut PolicyPreview) {
        preview.observe_seconds = self.policy_preview_seconds.unwrap_or(preview.observe_seconds);
        if !self.accept_policy_denials.is_empty() {
            preview.accepted_denials.clone_from(&self.accept_policy_denials);
        }
    }
}

/// How a node changes its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Strategy {
    /// Evict the pods of a node before its network changes.
    Drain,
    /// Change the network of a node while its pods keep running, with their addresses.
    InPlace,
}

impl Strategy {
    /// The strategy as the Migration has it.
    fn wire(self) -> api::migration::Strategy {
        match self {
            Self::Drain => api::migration::Strategy::Drain,
            Self::InPlace => api::migration::Strategy::InPlace,
        }
    }
}

/// What happens to pods that existed before, with strategy in-place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LegacyPods {
    /// The pods keep running until their owners replace them.
    Keep,
    /// The pods are evicted within their PodDisruptionBudgets, once every node is on Calico.
    Restart,
    /// The pods become pods of Calico without a restart, on each node once it is on Calico.
    Adopt,
}

impl LegacyPods {
    /// The choice as the Migration has it.
    fn wire(self) -> api::migration::LegacyPods {
        match self {
            Self::Keep => api::migration::LegacyPods::Keep,
            Self::Restart => api::migration::LegacyPods::Restart,
            Self::Adopt => api::migration::LegacyPods::Adopt,
        }
    }
}

/// Flags for the options. Unset options are detected, or have the default of Calico's controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "flannel to Calico (detected if not set)")]
#[group(skip)]
struct OptionFlags {
    /// IPv4 network of flannel, such as 10.244.0.0/16.
    #[arg(long, value_name = "CIDR", value_parser = value::network)]
    flannel_network: Option<Ipv4Net>,
    /// Name of flannel's DaemonSet.
    #[arg(long, value_name = "NAME", value_parser = value::object_name)]
    flannel_daemonset_name: Option<String>,
    /// Namespace of flannel's DaemonSet.
    #[arg(long, value_name = "NAMESPACE", value_parser = value::namespace)]
    flannel_daemonset_namespace: Option<String>,
    /// MTU of flannel's VXLAN device.
    #[arg(long, value_name = "BYTES", value_parser = value::mtu)]
    flannel_mtu: Option<u32>,
    /// Whether traffic that leaves the cluster is masqueraded.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, action = clap::ArgAction::Set)]
    flannel_ip_masq: Option<bool>,
    /// Prefix length of a node's subnet.
    #[arg(long, value_name = "LENGTH", value_parser = value::subnet_length)]
    flannel_subnet_len: Option<u8>,
    /// flannel's --kube-annotation-prefix.
    #[arg(long, value_name = "PREFIX", value_parser = value::annotation_prefix)]
    flannel_annotation_prefix: Option<String>,
    /// VXLAN network identifier.
    #[arg(long, value_name = "VNI", value_parser = value::vni)]
    flannel_vni: Option<u32>,
    /// UDP port of VXLAN.
    #[arg(long, value_name = "PORT", value_parser = value::port)]
    flannel_port: Option<u16>,
    /// Name of Calico's DaemonSet.
    #[arg(long, value_name = "NAME", value_parser = value::object_name)]
    calico_daemonset_name: Option<String>,
    /// Namespace of Calico's DaemonSet.
    #[arg(long, value_name = "NAMESPACE", value_parser = value::namespace)]
    calico_daemonset_namespace: Option<String>,
    /// Prefix length of a block of the new IPPool.
    #[arg(long, value_name = "LENGTH", value_parser = value::block_size)]
    ippool_block_size: Option<u8>,
    /// Directory of the CNI configuration on every host.
    #[arg(long, value_name = "FOLDER", value_parser = value::folder)]
    cni_config_dir: Option<String>,
}

impl OptionFlags {
    /// The flags as options.
    fn options(&self) -> Options {
        let Self {
            flannel_network,
            flannel_daemonset_name,
            flannel_daemonset_namespace,
            flannel_mtu,
            flannel_ip_masq,
            flannel_subnet_len,
            flannel_annotation_prefix,
            flannel_vni,
            flannel_port,
            calico_daemonset_name,
            calico_daemonset_namespace,
            ippool_block_size,
            cni_config_dir,
        } = self.clone();
        Options {
            flannel_network,
            flannel_daemon_set_name: flannel_daemonset_name,
            flannel_daemon_set_namespace: flannel_daemonset_namespace,
            flannel_mtu,
            flannel_ip_masquerade: flannel_ip_masq,
            flannel_subnet_length: flannel_subnet_len,
            flannel_annotation_prefix,
            flannel_vni,
            flannel_port,
            calico_daemon_set_name: calico_daemonset_name,
            calico_daemon_set_namespace: calico_daemonset_namespace,
            ip_pool_block_size: ippool_block_size,
            cni_configuration_directory: cni_config_dir,
        }
    }
}

/// Set options of `over` win.
fn merge(under: Options, over: Options) -> Options {
    let Options {
        flannel_network,
        flannel_daemon_set_name,
        flannel_daemon_set_namespace,
        flannel_mtu,
        flannel_ip_masquerade,
        flannel_subnet_length,
        flannel_annotation_prefix,
        flannel_vni,
        flannel_port,
        calico_daemon_set_name,
        calico_daemon_set_namespace,
        ip_pool_block_size,
        cni_configuration_directory,
    } = over;
    Options {
        flannel_network: flannel_network.or(under.flannel_network),
        flannel_daemon_set_name: flannel_daemon_set_name.or(under.flannel_daemon_set_name),
        flannel_daemon_set_namespace: flannel_daemon_set_namespace.or(under.flannel_daemon_set_namespace),
        flannel_mtu: flannel_mtu.or(under.flannel_mtu),
        flannel_ip_masquerade: flannel_ip_masquerade.or(under.flannel_ip_masquerade),
        flannel_subnet_length: flannel_subnet_length.or(under.flannel_subnet_length),
        flannel_annotation_prefix: flannel_annotation_prefix.or(under.flannel_annotation_prefix),
        flannel_vni: flannel_vni.or(under.flannel_vni),
        flannel_port: flannel_port.or(under.flannel_port),
        calico_daemon_set_name: calico_daemon_set_name.or(under.calico_daemon_set_name),
        calico_daemon_set_namespace: calico_daemon_set_namespace.or(under.calico_daemon_set_namespace),
        ip_pool_block_size: ip_pool_block_size.or(under.ip_pool_block_size),
        cni_configuration_directory: cni_configuration_directory.or(under.cni_configuration_directory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_preview_override_the_spec() {
        let mut preview = PolicyPreview {
            observe_seconds: 60,
            accepted_denials: vec!["shop/web".to_owned()],
        };
        PreviewFlags::default().merge(&mut preview);
        assert_eq!((preview.observe_seconds, preview.accepted_denials.len()), (60, 1));
        let flags = PreviewFlags {
            policy_preview_seconds: Some(0),
            accept_policy_denials: vec!["shop/db".to_owned()],
        };
        flags.merge(&mut preview);
        assert_eq!(
            (preview.observe_seconds, preview.accepted_denials),
            (0, vec!["shop/db".to_owned()])
        );
    }

    #[test]
    fn set_options_win_and_unset_options_change_nothing() {
        let under = Options {
            flannel_vni: Some(1),
            flannel_port: Some(8472),
            ..Options::default()
        };
        let over = Options {
            flannel_vni: Some(4096),
            ..Options::default()
        };
        let merged = merge(under.clone(), over);
        assert_eq!(
            merged,
            Options {
                flannel_vni: Some(4096),
                flannel_port: Some(8472),
                ..Options::default()
            }
        );
        assert_eq!(merge(under.clone(), Options::default()), under);
    }
}
