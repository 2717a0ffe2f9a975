use super::*;

const NAT: &Place = &PLACES[0];

#[test]
fn a_jump_belongs_to_its_chain_and_a_tagged_rule_does_not() {
    let jump = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#;
    let tagged = r#"-A POSTROUTING -s 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN"#;
    let foreign = r#"-A POSTROUTING -m comment --comment "not flanneld masq" -j MASQUERADE"#;
    let elsewhere = r#"-A OUTPUT -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#;
    assert!(jumps_to(jump, NAT) && !is_tagged(jump, NAT));
    assert!(is_tagged(tagged, NAT) && !jumps_to(tagged, NAT));
    assert!(!is_tagged(foreign, NAT) && !jumps_to(foreign, NAT));
    assert!(!is_tagged(elsewhere, NAT) && !jumps_to(elsewhere, NAT));
}

#[test]
fn a_declaration_of_flannels_chain_differs_from_chains_with_the_same_start() {
    assert!(declares(":FLANNEL-POSTRTG - [0:0]", NAT));
    for other in [
        ":FLANNEL-POSTRTG-OLD - [0:0]",
        ":FLANNEL-FWD - [0:0]",
        "-A FLANNEL-POSTRTG -j RETURN",
        "FLANNEL-POSTRTG - [0:0]",
    ] {
        assert!(!declares(other, NAT), "{other}");
    }
    let other = r#"-A POSTROUTING-OLD -m comment --comment "flanneld masq" -j RETURN"#;
    assert!(!is_tagged(other, NAT));
}

#[test]
fn a_deletion_contains_only_the_chain_and_its_jumps() {
    let jump = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#.to_owned();
    assert_eq!(
        deletion(NAT, NAT.own, &[jump]),
        "*nat\n-D POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
         -F FLANNEL-POSTRTG\n-X FLANNEL-POSTRTG\nCOMMIT\n"
    );
    assert_eq!(
        deletion(NAT, NAT.base, &["-A POSTROUTING -j RETURN".to_owned()]),
        "*nat\n-D POSTROUTING -j RETURN\nCOMMIT\n"
    );
}

#[test]
fn a_restoration_adds_the_chain_before_its_jumps() {
    let jump = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#.to_owned();
    let saved = [
        jump.clone(),
        "-N FLANNEL-POSTRTG".to_owned(),
        "-A FLANNEL-POSTRTG -j RETURN".to_owned(),
    ];
    assert_eq!(
        restoration(NAT, NAT.own, &saved),
        format!("*nat\n:FLANNEL-POSTRTG - [0:0]\n-A FLANNEL-POSTRTG -j RETURN\n{jump}\nCOMMIT\n")
    );
    assert_eq!(
        restoration(NAT, NAT.base, &["-A POSTROUTING -j RETURN".to_owned()]),
        "*nat\n-A POSTROUTING -j RETURN\nCOMMIT\n"
    );
}

#[test]
fn only_objects_of_flannel_are_deleted() {
    let foreign = FirewallObject {
        backend: FirewallBackend::Nftables,
        table: "ip kube-proxy".to_owned(),
        chain: String::new(),
    };
    assert!(native_table(&foreign).is_err());
    let foreign = FirewallObject {
        backend: FirewallBackend::IptablesNft,
        table: "nat".to_owned(),
        chain: "KUBE-POSTROUTING".to_owned(),
    };
    assert!(place(&foreign).is_err());
}
