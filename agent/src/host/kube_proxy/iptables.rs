//! Parses kube-proxy's rules in iptables mode, as printed by `iptables -S` and `iptables-save`. Pure.

use std::net::IpAddr;

use engine::local_traffic::LocalTraffic;
use ipnet::IpNet;
use service_cidr::host::ServicePort;

use super::{CHAIN, Rule, RuleTarget};

/// Start of the chains of a Service: to all its endpoints, or to those of this node.
const CHAINS: [&str; 2] = ["KUBE-SVC-", "KUBE-SVL-"];
/// Start of the chains for external traffic.
const EXTERNAL: [&str; 2] = ["KUBE-EXT-", "KUBE-FW-"];
/// Chain that marks packets for masquerading.
const MARK: &str = "KUBE-MARK-MASQ";
/// The set of all addresses of Services, in ipvs mode.
const SET: [&str; 2] = ["--match-set", "KUBE-CLUSTER-IP"];
/// Targets of rules without endpoints, or without endpoints on this node.
const ENDS: [&str; 2] = ["REJECT", "DROP"];

/// Whether the output of `iptables-save` for a table declares kube-proxy's chain.
pub(super) fn has_chain(lines: &[String]) -> bool {
    let declaration = format!(":{CHAIN} ");
    lines.iter().any(|line| line.starts_with(&declaration))
}

/// Whether the other functions need this line of `iptables-save`. Rules of endpoints, which are the majority, are not needed.
pub(super) fn is_needed(line: &str) -> bool {
    let starts = |rest: &str| CHAINS.iter().any(|chain| rest.starts_with(chain));
    if let Some(declared) = line.strip_prefix(':') {
        return declared.split(' ').next() == Some(CHAIN);
    }
    line.strip_prefix("-A ").is_some_and(|rule| {
        let of_services = rule.strip_prefix(CHAIN).is_some_and(|rest| rest.starts_with(' '));
        of_services || (starts(rule) && words(rule).last() == Some(MARK))
    })
}

/// All rules of the chain for ports of Services.
pub(super) fn rules(lines: &[String]) -> impl Iterator<Item = Rule> {
    lines.iter().filter_map(|line| rule(line))
}

/// How the one rule for all Services in ipvs mode recognizes local pods; `None` without such a rule.
pub(super) fn sources_of_sets(lines: &[String]) -> Option<LocalTraffic> {
    let rule = format!("-A {CHAIN} ");
    let mut of_services = lines.iter().filter(|line| line.starts_with(&rule));
    let has_set = |line: &String| words(line).collect::<Vec<_>>().windows(2).any(|pair| pair == SET);
    of_services.any(has_set).then(|| sources(lines, CHAIN))
}

/// How the chain of a Service recognizes local pods: all other traffic is marked for masquerading.
pub(super) fn sources(lines: &[String], chain: &str) -> LocalTraffic {
    let mut found = LocalTraffic::default();
    for line in lines {
        let rule = line
            .strip_prefix("-A ")
            .and_then(|rule| rule.strip_prefix(chain)?.strip_prefix(' '));
        let words: Vec<&str> = rule.map(words).into_iter().flatten().collect();
        if !words.ends_with(&["-j", MARK]) {
            continue;
        }
        for but in words.windows(3) {
            match but {
                ["!", "-s", range] => found.ranges.extend(range.parse::<IpNet>().ok()),
                ["!", "-i", link] => found.links.push((*link).to_owned()),
                _ => {}
            }
        }
    }
    found
}

/// Words of a rule without quoted comments, which may contain any text.
fn words(rule: &str) -> impl Iterator<Item = &str> {
    rule.split('"').step_by(2).flat_map(str::split_ascii_whitespace)
}

/// `-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "…" -m udp --dport 53 -j KUBE-SVC-…`, or `… -j REJECT …`.
fn rule(line: &str) -> Option<Rule> {
    let rule = line.strip_prefix("-A ")?.strip_prefix(CHAIN)?.strip_prefix(' ')?;
    let mut words = words(rule);
    let (mut address, mut protocol, mut port, mut target) = (None, None, None, None);
    while let Some(word) = words.next() {
        match word {
            // kube-proxy negates only in rules that mark for masquerading.
            "!" => return None,
            "-d" => address = words.next().and_then(single),
            "-p" => protocol = words.next(),
            "--dport" => port = words.next().and_then(|text| text.parse().ok()),
            "-j" | "-g" => target = words.next(),
            _ => {}
        }
    }
    let target = target?;
    let starts = |chains: &[&str]| chains.iter().any(|chain| target.starts_with(chain));
    let rule_target = if ENDS.contains(&target) {
        RuleTarget::NoEndpoints
    } else if starts(&EXTERNAL) {
        RuleTarget::External
    } else if starts(&CHAINS) {
        RuleTarget::Endpoints(target.to_owned())
    } else {
        return None;
    };
    let port = ServicePort {
        address: address?,
        protocol: protocol?.to_ascii_uppercase(),
        port: port?,
    };
    Some((port, rule_target))
}

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
    #[case::marked_for_masquerading(
        "-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-MARK-MASQ",
        None
    )]
    #[case::all_other_addresses(
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
    fn only_a_rule_for_a_service_port_is_parsed(#[case] line: &str, #[case] expected: Option<&str>) {
        let found = rule(line).map(|(port, _)| port.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[rstest]
    #[case("KUBE-SVC-TCOU7JCQXEZGVUNU", RuleTarget::Endpoints("KUBE-SVC-TCOU7JCQXEZGVUNU".to_owned()))]
    #[case("KUBE-SVL-TCOU7JCQXEZGVUNU", RuleTarget::Endpoints("KUBE-SVL-TCOU7JCQXEZGVUNU".to_owned()))]
    #[case("KUBE-EXT-TCOU7JCQXEZGVUNU", RuleTarget::External)]
    #[case("KUBE-FW-TCOU7JCQXEZGVUNU", RuleTarget::External)]
    #[case("REJECT --reject-with icmp-port-unreachable", RuleTarget::NoEndpoints)]
    fn the_target_of_a_rule_is_recognized(#[case] target: &str, #[case] expected: RuleTarget) {
        let line = format!("-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j {target}");
        let (_, rule_target) = rule(&line).unwrap();
        assert_eq!(rule_target, expected);
    }

    #[test]
    fn local_pods_are_the_exceptions_from_masquerading() {
        let lines: Vec<String> = [
            "-N KUBE-SVC-A",
            r#"-A KUBE-SVC-A ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j KUBE-MARK-MASQ"#,
            "-A KUBE-SVC-A ! -i cali+ -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ",
            r#"-A KUBE-SVC-A -m comment --comment "default/kubernetes:https -> 192.0.2.2:6443" -j KUBE-SEP-A"#,
            // A rule without a condition, and a rule of another chain.
            "-A KUBE-SVC-A -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ",
            "-A KUBE-SVC-AB ! -s 10.9.0.0/16 -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ",
        ]
        .map(str::to_owned)
        .to_vec();
        let found = sources(&lines, "KUBE-SVC-A");
        assert_eq!(found.ranges, ["10.244.0.0/16".parse::<IpNet>().unwrap()]);
        assert_eq!(found.links, ["cali+"]);
        assert_eq!(sources(&lines[3..5], "KUBE-SVC-A"), LocalTraffic::default());
        let asked: Vec<String> = lines.iter().filter(|line| is_needed(line)).cloned().collect();
        assert_eq!(sources(&asked, "KUBE-SVC-A"), found);
    }

    #[rstest]
    #[case::by_a_range(
        r#"-A KUBE-SERVICES ! -s 10.244.0.0/16 -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ"#,
        Some(vec!["10.244.0.0/16"])
    )]
    #[case::not_at_all(
        r#"-A KUBE-SERVICES -m comment --comment "x" -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ"#,
        Some(Vec::new())
    )]
    #[case::another_mode(
        "-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU",
        None
    )]
    #[case::remains("-N KUBE-SERVICES", None)]
    #[case::another_chain(
        "-A KUBE-LOAD-BALANCER ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ",
        None
    )]
    fn in_ipvs_mode_one_rule_excepts_local_pods(#[case] line: &str, #[case] expected: Option<Vec<&str>>) {
        let lines = [line.to_owned(), "-A KUBE-SERVICES -j ACCEPT".to_owned()];
        let found = sources_of_sets(&lines);
        let ranges =
            |texts: Vec<&str>| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert_eq!(found.map(|found| found.ranges), expected.map(ranges));
        let asked: Vec<String> = lines.iter().filter(|line| is_needed(line)).cloned().collect();
        assert_eq!(
            sources_of_sets(&asked),
            sources_of_sets(&lines),
            "by iptables-save"
        );
    }

    #[test]
    fn only_a_declared_chain_exists() {
        let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        assert!(has_chain(&lines("*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT")));
        assert!(!has_chain(&lines(
            "*filter\n:KUBE-SERVICES-OF-OURS - [0:0]\n:KUBE-FIREWALL - [0:0]"
        )));
    }

    #[rstest]
    #[case(":KUBE-SERVICES - [0:0]", true)]
    #[case(":KUBE-SERVICES-OLD - [0:0]", false)]
    #[case(":KUBE-SVC-A - [0:0]", false)]
    #[case(
        "-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-A",
        true
    )]
    #[case("-A KUBE-SERVICES-OLD -j KUBE-SVC-A", false)]
    #[case("-A KUBE-SVL-A ! -i cali+ -d 10.96.0.1/32 -j KUBE-MARK-MASQ", true)]
    #[case(
        r#"-A KUBE-SVC-A -m comment --comment "a -j KUBE-MARK-MASQ" -j KUBE-SEP-A"#,
        false
    )]
    #[case("-A KUBE-SEP-A -s 10.244.1.2/32 -j KUBE-MARK-MASQ", false)]
    #[case("-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:80", false)]
    #[case("*nat", false)]
    fn rules_of_endpoints_are_not_needed(#[case] line: &str, #[case] expected: bool) {
        assert_eq!(is_needed(line), expected, "{line}");
    }
}
