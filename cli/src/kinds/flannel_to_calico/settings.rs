//! The settings of flannelToCalico as rows of text.

use std::fmt::Display;

use api::MigrationStatus;
use engine::sourced::Sourced;
use flannel_to_calico::settings::{Ipv6Settings, Settings};

use crate::kinds::kind::KindSettings;

impl KindSettings for Settings {
    fn of(status: &MigrationStatus) -> Option<&Self> {
        status.flannel_to_calico.as_ref().map(|known| &known.settings)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let Self {
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
            ipv6,
        } = self;
        let mut rows = vec![
            row("flannel network", flannel_network),
            row("flannel DaemonSet", flannel_daemon_set_name),
            row("  namespace", flannel_daemon_set_namespace),
            row("flannel MTU", flannel_mtu),
            row("flannel masquerade", flannel_ip_masquerade),
            row("flannel subnet length", flannel_subnet_length),
            row("flannel annotations", flannel_annotation_prefix),
            row("flannel VNI", flannel_vni),
            row("flannel port", flannel_port),
            row("Calico DaemonSet", calico_daemon_set_name),
            row("  namespace", calico_daemon_set_namespace),
            row("IPPool block size", ip_pool_block_size),
            row("CNI directory", cni_configuration_directory),
        ];
        rows.extend(ipv6.iter().flat_map(ipv6_rows));
        rows
    }
}

fn ipv6_rows(settings: &Ipv6Settings) -> [Vec<String>; 3] {
    let Ipv6Settings {
        flannel_network,
        flannel_subnet_length,
        ip_pool_block_size,
    } = settings;
    [
        row("IPv6: flannel network", flannel_network),
        row("  subnet length", flannel_subnet_length),
        row("  pool block size", ip_pool_block_size),
    ]
}

fn row<T: Display>(name: &str, setting: &Sourced<T>) -> Vec<String> {
    vec![
        name.to_owned(),
        setting.value.to_string(),
        format!("({})", setting.source),
    ]
}
