//! Rules of kube-proxy in mode iptables, in the words of `iptables -S` and `iptables-save`. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use plan::service_cidr::host::ServicePort;

use super::CHAIN;

/// Where a rule leads that knows the address of a Service: to its endpoints, to those of this node, to whoever may come from outside.
const CHAINS: [&str; 4] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"];
/// What is done where there is no endpoint, or none on this node.
const ENDS: [&str; 2] = ["REJECT", "DROP"];

/// Whether what `iptables-save` says of a table has kube-proxy's chain.
pub(super) fn has_chain(lines: &[String]) -> bool {
    let declaration = format!(":{CHAIN} ");
    lines.iter().any(|line| line.starts_with(&declaration))
}

/// Every port of a Service that the chain has a rule for.
pub(super) fn ports(lines: &[String]) -> impl Iterator<Item = ServicePort> {
    lines.iter().filter_map(|line| port(line))
}

/// `-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "…" -m udp --dport 53 -j KUBE-SVC-…`, or `… -j REJECT …`.
fn port(line: &str) -> Option<ServicePort> {
    let rule = line.strip_prefix("-A ")?.strip_prefix(CHAIN)?.strip_prefix(' ')?;
    // What is between quotes is a comment, and may say anything.
    let mut words = rule.split('"').step_by(2).flat_map(str::split_ascii_whitespace);
    let (mut address, mut protocol, mut port, mut target) = (None, None, None, None);
    while let Some(word) = words.next() {
        match word {
            // kube-proxy leads everybody to an address, but for one whom it marks first.
            "!" => return None,
            "-d" => address = words.next().and_then(single),
            "-p" => protocol = words.next(),
            "--dport" => port = words.next().and_then(|text| text.parse().ok()),
            "-j" | "-g" => target = words.next(),
            _ => {}
        }
    }
    let target = target?;
    let is_known = ENDS.contains(&target) || CHAINS.iter().any(|chain| target.starts_with(chain));
    is_known.then_some(ServicePort {
        address: address?,
        protocol: protocol?.to_ascii_uppercase(),
        port: port?,
    })
}

/// A single address, which iptables writes as a network.
fn single(text: &str) -> Option<IpAddr> {
    let network: IpNet = text.parse().ok()?;
    (network.prefix_len() == network.max_prefix_len()).then(|| network.addr())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::endpoints(
        r#"-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU"#,
        Some("10.96.0.10:53/UDP")
    )]
    #[case::endpoints_of_this_node(
        r#"-A KUBE-SERVICES -d 10.96.7.6/32 -p sctp -m comment --comment "shop/web:x cluster IP" -m sctp --dport 7 -j KUBE-SVL-AAAAAAAAAAAAAAAA"#,
        Some("10.96.7.6:7/SCTP")
    )]
    #[case::a_load_balancer(
        r#"-A KUBE-SERVICES -d 203.0.113.7/32 -p tcp -m comment --comment "shop/web loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-AAAAAAAAAAAAAAAA"#,
        Some("203.0.113.7:80/TCP")
    )]
    #[case::no_endpoint(
        r#"-A KUBE-SERVICES -d 10.96.7.7/32 -p tcp -m comment --comment "shop/web has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable"#,
        Some("10.96.7.7:80/TCP")
    )]
    #[case::no_endpoint_of_this_node(
        r#"-A KUBE-SERVICES -d fd00:96::7/128 -p tcp -m comment --comment "shop/web has no local endpoints" -m tcp --dport 80 -j DROP"#,
        Some("[fd00:96::7]:80/TCP")
    )]
    #[case::who_is_marked_only(
        "-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-MARK-MASQ",
        None
    )]
    #[case::anybody_but_this_address(
        "-A KUBE-SERVICES ! -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU",
        None
    )]
    #[case::node_ports(
        r#"-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#,
        None
    )]
    #[case::a_whole_network(
        "-A KUBE-SERVICES -d 10.96.0.0/12 -p tcp -m tcp --dport 80 -j KUBE-SVC-TCOU7JCQXEZGVUNU",
        None
    )]
    #[case::a_comment_that_says_so(
        r#"-A KUBE-SERVICES -m comment --comment "-d 10.96.0.10/32 -p tcp --dport 80 -j REJECT" -j RETURN"#,
        None
    )]
    #[case::another_chain(
        "-A KUBE-SVC-TCOU7JCQXEZGVUNU -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-X",
        None
    )]
    #[case::mode_ipvs(
        r#"-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip" -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT"#,
        None
    )]
    #[case::a_declaration("-N KUBE-SERVICES", None)]
    fn a_rule(#[case] line: &str, #[case] expected: Option<&str>) {
        let found = port(line).map(|port| port.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn only_a_chain_that_is_declared_is_there() {
        let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        assert!(has_chain(&lines("*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT")));
        assert!(!has_chain(&lines(
            "*filter\n:KUBE-SERVICES-OF-OURS - [0:0]\n:KUBE-FIREWALL - [0:0]"
        )));
    }
}
