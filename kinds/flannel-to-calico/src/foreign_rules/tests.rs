use rstest::rstest;

use super::*;

#[rstest]
#[case(r#"iifname "cni0" accept"#, Notation::Nft, Some(r#"iifname "cali*" accept"#))]
#[case(
    r#"iifname { "cni0", "docker0" } accept"#,
    Notation::Nft,
    Some(r#"iifname { "cali*", "docker0" } accept"#)
)]
#[case(
    r#"oifname "flannel.1" counter accept"#,
    Notation::Nft,
    Some(r#"oifname "vxlan.calico" counter accept"#)
)]
#[case(
    r#"oifname "flannel-v6.1" accept"#,
    Notation::Nft,
    Some(r#"oifname "vxlan-v6.calico" accept"#)
)]
#[case(
    "-A FORWARD -i cni0 -j ACCEPT",
    Notation::Iptables,
    Some("-A FORWARD -i cali+ -j ACCEPT")
)]
#[case("-A FORWARD -i cni01 -j ACCEPT", Notation::Iptables, None)]
#[case(r#"iifname "eth0" accept"#, Notation::Nft, None)]
#[case(r#"ip saddr 10.244.0.0/16 accept comment "of flannel.""#, Notation::Nft, None)]
#[case(r#"iifname "eth0" accept comment "cni0""#, Notation::Nft, None)]
#[case(
    r#"iifname "cni0" accept comment "cni0""#,
    Notation::Nft,
    Some(r#"iifname "cali*" accept comment "cni0""#)
)]
#[case(
    "-A INPUT -i eth0 -m comment --comment cni0 -j DROP",
    Notation::Iptables,
    None
)]
#[case(
    r#"-A INPUT -i eth0 -m comment --comment "no cni0 here" -j DROP"#,
    Notation::Iptables,
    None
)]
#[case(
    "-A FORWARD -o flannel.+ -j ACCEPT",
    Notation::Iptables,
    Some("-A FORWARD -o vxlan.calico -j ACCEPT")
)]
fn the_twin_of_a_rule(#[case] rule: &str, #[case] notation: Notation, #[case] expected: Option<&str>) {
    let expected: Vec<String> = expected.map(str::to_owned).into_iter().collect();
    assert_eq!(twins(rule, TwinOf::Calico, notation), Twins::Of(expected));
}

#[rstest]
#[case(r#"iifname "cni0" accept"#, Notation::Nft, &[r#"iifname "veth*" accept"#])]
#[case(
    "-A FORWARD -i cni0 -o flannel.1 -j ACCEPT",
    Notation::Iptables,
    &["-A FORWARD -i veth+ -o vxlan.calico -j ACCEPT"]
)]
#[case(
    "-A FORWARD -i cni0 -o cni0 -j ACCEPT",
    Notation::Iptables,
    &[
        "-A FORWARD -i cni0 -o veth+ -j ACCEPT",
        "-A FORWARD -i cali+ -o veth+ -j ACCEPT",
        "-A FORWARD -i veth+ -o cni0 -j ACCEPT",
        "-A FORWARD -i veth+ -o cali+ -j ACCEPT",
        "-A FORWARD -i veth+ -o veth+ -j ACCEPT",
    ]
)]
#[case("-A FORWARD -i flannel.1 -j ACCEPT", Notation::Iptables, &[])]
#[case(r#"iifname "eth0" accept comment "cni0""#, Notation::Nft, &[])]
fn pods_have_other_links_while_they_are_adopted(
    #[case] rule: &str,
    #[case] notation: Notation,
    #[case] expected: &[&str],
) {
    assert_eq!(
        twins(rule, TwinOf::Passage, notation),
        Twins::Of(expected.iter().map(|text| (*text).to_owned()).collect())
    );
}

/// While a node changes, pods of both networks run on it, and the tunnel has its new name already.
#[test]
fn a_rule_with_two_links_has_a_twin_for_each_combination() {
    let calico = |rule: &str, notation| match twins(rule, TwinOf::Calico, notation) {
        Twins::Of(texts) => texts,
        Twins::Excluded(needed) => panic!("{needed}"),
    };
    assert_eq!(
        calico("-A FORWARD -i cni0 -o flannel.1 -j ACCEPT", Notation::Iptables),
        [
            "-A FORWARD -i cni0 -o vxlan.calico -j ACCEPT",
            "-A FORWARD -i cali+ -o vxlan.calico -j ACCEPT",
        ]
    );
    assert_eq!(
        calico(r#"iifname "cni0" oifname "cni0" accept"#, Notation::Nft),
        [
            r#"iifname "cni0" oifname "cali*" accept"#,
            r#"iifname "cali*" oifname "cni0" accept"#,
            r#"iifname "cali*" oifname "cali*" accept"#,
        ]
    );
}

/// Beside `! -i cni0 -j DROP`, a rule `! -i cali+ -j DROP` would drop all packets of `cni0`.
#[rstest]
#[case("-A FORWARD -s 10.244.0.0/16 ! -i cni0 -j DROP", Notation::Iptables, true)]
#[case(
    "-A POSTROUTING -s 10.244.0.0/16 ! -o cni0 -j MASQUERADE",
    Notation::Iptables,
    true
)]
#[case("-A FORWARD ! -s 10.244.0.0/16 -i cni0 -j DROP", Notation::Iptables, false)]
#[case(r#"oifname != "cni0" ip saddr 10.244.0.0/16 masquerade"#, Notation::Nft, true)]
#[case(r#"iifname != { "cni0", "docker0" } drop"#, Notation::Nft, true)]
#[case(r#"iifname != { "cni0", "docker0", "cali*" } drop"#, Notation::Nft, false)]
#[case(r#"iifname != "eth0" oifname "cni0" drop"#, Notation::Nft, false)]
#[case(r#"tcp dport != { 80, 443 } iifname "cni0" drop"#, Notation::Nft, false)]
fn a_rule_that_excludes_a_link_has_no_twin(
    #[case] rule: &str,
    #[case] notation: Notation,
    #[case] expected: bool,
) {
    let found = twins(rule, TwinOf::Calico, notation);
    assert_eq!(matches!(found, Twins::Excluded(_)), expected, "{found:?}");
    let mut report = ForeignRules::default();
    report.add("c", &ChainTwins::of(&[rule.to_owned()], notation));
    assert_eq!(report.refused > 0, expected, "{report:?}");
    if expected {
        assert!(
            report.rules[0].refused.is_some() && report.rules[0].twin.contains("cali"),
            "{report:?}"
        );
    }
}

/// nft may print the names of a set in another order than they were written.
#[test]
fn a_written_twin_behind_its_rule_counts_in_any_form() {
    let rules = [
        r#"iifname { "eth0", "cni0" } accept"#,
        r#"iifname { "cali*", "eth0" } accept comment "replumb-twin""#,
        r#"iifname { "veth*", "eth0" } accept comment "replumb-passage""#,
    ]
    .map(str::to_owned);
    let found = ChainTwins::of(&rules, Notation::Nft);
    assert_eq!(found.missing, []);
    assert_eq!(found.written, [(1, TwinOf::Calico), (2, TwinOf::Passage)]);
    // Not behind another rule.
    let moved = [rules[0].clone(), "drop".to_owned(), rules[1].clone()];
    assert_eq!(ChainTwins::of(&moved, Notation::Nft).missing.len(), 2);
}

#[test]
fn a_rule_with_its_twin_is_no_finding_whatever_the_counters_say() {
    let mut found = ForeignRules::default();
    let rules = [
        r#"iifname "cni0" counter packets 7 bytes 420 accept"#,
        r#"iifname "cali*" counter packets 0 bytes 0 accept"#,
        r#"oifname "flannel.1" accept"#,
    ]
    .map(str::to_owned);
    found.add("nft inet host FORWARD", &ChainTwins::of(&rules, Notation::Nft));
    assert_eq!((found.twins, found.rules.len(), found.passage.len()), (1, 1, 1));
    assert_eq!(found.rules[0].twin, r#"oifname "vxlan.calico" accept"#);
    assert_eq!(found.passage[0].twin, r#"iifname "veth*" counter accept"#);
}

#[test]
fn many_rules_are_counted() {
    let rules: Vec<String> = (0..20)
        .map(|number| format!("-A INPUT -i cni0 --dport {number} -j ACCEPT"))
        .collect();
    let mut found = ForeignRules::default();
    found.add(
        "iptables filter INPUT",
        &ChainTwins::of(&rules, Notation::Iptables),
    );
    assert_eq!((found.rules.len(), found.more, found.passage.len()), (16, 4, 16));
}

#[test]
fn chains_of_the_cluster_are_known() {
    assert!(is_known("ip", "nat", "KUBE-SERVICES") && is_known("ip", "flannel-ipv4", "postrtg"));
    assert!(is_known("inet", "replumb_frames", "x") && is_known("ip", "filter", "cali-FORWARD"));
    assert!(!is_known("ip", "filter", "FORWARD") && !is_known("inet", "firewalld", "filter_FORWARD"));
}

#[rstest]
#[case(r#"iifname "cni0" counter accept"#, Notation::Nft)]
#[case(
    r#"iifname "cni0" counter accept comment "pods of the cluster""#,
    Notation::Nft
)]
#[case("-A FORWARD -i cni0 -j ACCEPT", Notation::Iptables)]
#[case(
    r#"-A FORWARD -i cni0 -m comment --comment "of pods" -j ACCEPT"#,
    Notation::Iptables
)]
fn a_written_twin_is_recognized_by_its_mark(#[case] rule: &str, #[case] notation: Notation) {
    let found = ChainTwins::of(&[rule.to_owned()], notation);
    let [(0, calico), (0, passage)] = found.missing.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!((calico.of, passage.of), (TwinOf::Calico, TwinOf::Passage));
    assert!(!calico.twin.contains("replumb"));
    let marked = |twin: &MissingTwin| twin.marked.clone().unwrap();
    let all = [rule.to_owned(), marked(calico), marked(passage)];
    let found = ChainTwins::of(&all, notation);
    assert_eq!((found.missing.as_slice(), found.present), ([].as_slice(), 2));
    assert_eq!(found.written, [(1, TwinOf::Calico), (2, TwinOf::Passage)]);
    // The twins of a person have no mark, and are not the agent's to remove.
    let all = all.map(|rule| without_mark(&rule, notation).0);
    let found = ChainTwins::of(&all, notation);
    assert_eq!(
        (found.missing.as_slice(), found.written.as_slice()),
        ([].as_slice(), [].as_slice())
    );
}

/// iptables prints a comment before the target, wherever it was written.
#[test]
fn a_mark_is_found_where_iptables_prints_it() {
    let rules = [
        "-A FORWARD -i cni0 -j ACCEPT",
        "-A FORWARD -i cali+ -m comment --comment replumb-twin -j ACCEPT",
    ]
    .map(str::to_owned);
    let found = ChainTwins::of(&rules, Notation::Iptables);
    assert_eq!(
        (found.present, found.written.as_slice()),
        (1, [(1, TwinOf::Calico)].as_slice())
    );
}
