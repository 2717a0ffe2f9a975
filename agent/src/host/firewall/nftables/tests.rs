use super::*;
use crate::host::firewall::{calico, flannel};

fn listed(text: &str) -> Option<Nftables> {
    let (mut found, mut table) = (Nftables::default(), None);
    let select = |chain: &str| flannel::of_flannel(chain).or_else(|| calico::common_name(chain));
    for line in text.lines() {
        found.take(line, &mut table, select)?;
    }
    Some(found)
}

/// kube-proxy has a chain for each port of a Service, and Felix some for each pod.
#[test]
fn only_selected_chains_are_kept() {
    let chains = |start: &str| -> String {
        let chain = |number: u32| format!("\tchain {start}{number} {{\n\t}}\n");
        (0..1_000).map(chain).collect()
    };
    let text = [
        "table ip nat {\n\tchain POSTROUTING {\n\t\tcomment \"x\"\n",
        "\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t}\n",
        &chains("KUBE-SVC-"),
        "}\ntable ip filter {\n",
        &chains("cali-pi-_"),
        "}\ntable ip6 calico {\n}\n",
    ]
    .concat();
    let found = listed(&text).unwrap();
    assert!(found.has_table("ip", "nat") && found.has_table("ip6", "calico"));
    assert!(!found.has_table("ip6", "nat"));
    assert!(found.has_chain("ip", "nat", "POSTROUTING") && found.has_chain("ip", "filter", "cali-"));
    assert!(!found.has_chain("ip", "nat", "cali-") && !found.has_chain("ip", "filter", "POSTROUTING"));
    assert_eq!(found.chains.len(), 2);
    assert!(
        listed("# Warning\ntable ip nat\ntable inet a_b\n")
            .unwrap()
            .has_table("inet", "a_b")
    );
}

#[test]
fn an_unknown_listing_is_an_error() {
    for text in [
        "{\"nftables\": []}",
        "\tchain POSTROUTING {",
        "table nat",
        "table ip nat {\n\tchain POSTROUTING",
    ] {
        assert!(listed(text).is_none(), "{text}");
    }
}

#[test]
fn a_comment_of_several_lines_is_no_chain_and_no_error() {
    let found = listed(
        "table ip odd {\n\tchain c {\n\t\tcomment \"b\n\tchain POSTROUTING {\ntable ip nat {\nx\"\n\t}\n\
         \tchain d {\n\t\tcomment \"one line\"\n\t\ttype filter hook ingress device \"lo\" priority filter; policy accept;\n\t}\n}\n\
         table ip other {\n\tchain POSTROUTING {\n\t}\n}\n",
    )
    .unwrap();
    assert!(found.has_table("ip", "odd") && !found.has_table("ip", "nat"));
    assert!(!found.has_chain("ip", "odd", "POSTROUTING") && found.has_chain("ip", "other", "POSTROUTING"));
}
