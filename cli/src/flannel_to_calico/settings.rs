//! What the migration works with, for people.

use plan::flannel_to_calico::settings::{Ipv6Settings, Settings};
use plan::sourced::Source;

/// Every setting with its value and its source.
pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
    let Settings {
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
    } = settings;
    let mut rows = vec![
        row(
            "flannel network",
            flannel_network.value.to_string(),
            &flannel_network.source,
        ),
        row(
            "flannel DaemonSet",
            flannel_daemon_set_name.value.clone(),
            &flannel_daemon_set_name.source,
        ),
        row(
            "  its namespace",
            flannel_daemon_set_namespace.value.clone(),
            &flannel_daemon_set_namespace.source,
        ),
        row("flannel MTU", flannel_mtu.value.to_string(), &flannel_mtu.source),
        row(
            "flannel masquerades",
            flannel_ip_masquerade.value.to_string(),
            &flannel_ip_masquerade.source,
        ),
        row(
            "flannel subnet length",
            flannel_subnet_length.value.to_string(),
            &flannel_subnet_length.source,
        ),
        row(
            "flannel annotations",
            flannel_annotation_prefix.value.clone(),
            &flannel_annotation_prefix.source,
        ),
        row("flannel VNI", flannel_vni.value.to_string(), &flannel_vni.source),
        row(
            "flannel port",
            flannel_port.value.to_string(),
            &flannel_port.source,
        ),
        row(
            "Calico DaemonSet",
            calico_daemon_set_name.value.clone(),
            &calico_daemon_set_name.source,
        ),
        row(
            "  its namespace",
            calico_daemon_set_namespace.value.clone(),
            &calico_daemon_set_namespace.source,
        ),
        row(
            "IPPool block size",
            ip_pool_block_size.value.to_string(),
            &ip_pool_block_size.source,
        ),
        row(
            "CNI folder",
            cni_configuration_directory.value.clone(),
            &cni_configuration_directory.source,
        ),
    ];
    rows.extend(ipv6.iter().flat_map(ipv6_rows));
    rows
}

fn ipv6_rows(settings: &Ipv6Settings) -> [Vec<String>; 3] {
    let Ipv6Settings {
        flannel_network,
        flannel_subnet_length,
        ip_pool_block_size,
    } = settings;
    [
        row(
            "IPv6: flannel network",
            flannel_network.value.to_string(),
            &flannel_network.source,
        ),
        row(
            "  its subnet length",
            flannel_subnet_length.value.to_string(),
            &flannel_subnet_length.source,
        ),
        row(
            "  its pool's block size",
            ip_pool_block_size.value.to_string(),
            &ip_pool_block_size.source,
        ),
    ]
}

fn row(name: &str, value: String, source: &Source) -> Vec<String> {
    vec![name.to_owned(), value, format!("({source})")]
}
