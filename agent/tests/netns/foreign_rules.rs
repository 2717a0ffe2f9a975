//! Rules of other programs that name the links of flannel, in every backend.

use agent::host::firewall::foreign;
use flannel_to_calico::foreign_rules::ForeignRules;

use crate::host::{in_namespace, run};

/// Rules as firewalld, ufw and people write them; those of the cluster itself do not count.
const RULES: &str = r#"
table inet firewalld {
  chain filter_FORWARD {
    type filter hook forward priority 10;
    iifname "cni0" counter accept
    iifname { "cni0", "docker0" } tcp dport 80 accept
    oifname "eth0" accept
  }
}
table ip filter {
  chain KUBE-FORWARD { iifname "cni0" accept; }
}
table ip flannel-ipv4 {
  chain filter { iifname "cni0" accept; }
}
"#;

async fn read() -> ForeignRules {
    foreign::read(std::path::Path::new("/proc")).await
}

#[test]
#[ignore = "needs root"]
fn rules_of_others_are_named_until_they_have_a_twin() {
    in_namespace(|| async {
        assert_eq!(read().await, ForeignRules::default(), "a kernel without rules");
        std::fs::write("/run/foreign.nft", RULES).unwrap();
        run("nft -f /run/foreign.nft");
        run("iptables-legacy -A FORWARD -i cni0 -j ACCEPT");
        run("iptables-legacy -A FORWARD -o flannel.1 -j ACCEPT");
        run("iptables-legacy -A FORWARD -i cali+ -j ACCEPT");
        run("iptables-nft -A INPUT -i flannel.1 -j DROP");
        let found = read().await;
        assert_eq!(found.problem, None);
        let named: Vec<(&str, &str)> = found
            .rules
            .iter()
            .map(|rule| (rule.chain.as_str(), rule.twin.as_str()))
            .collect();
        assert_eq!(named.len(), 4, "{found:#?}");
        assert!(
            named.contains(&(
                "nft inet firewalld filter_FORWARD",
                r#"iifname "cali*" counter accept"#
            )),
            "{named:?}"
        );
        assert!(
            named
                .iter()
                .any(|(chain, twin)| *chain == "nft ip filter INPUT" && twin.contains(r#""vxlan.calico""#)),
            "{named:?}"
        );
        assert!(
            named.contains(&("iptables-legacy filter", "-A FORWARD -o vxlan.calico -j ACCEPT")),
            "{named:?}"
        );
        assert_eq!(found.twins, 1, "the rule of iptables-legacy for cali+");
        // The twins that the report names make it silent.
        for rule in &found.rules {
            if let Some(chain) = rule.chain.strip_prefix("nft ") {
                std::fs::write("/run/twin.nft", format!("add rule {chain} {}\n", rule.twin)).unwrap();
                run("nft -f /run/twin.nft");
            } else {
                run(&format!("iptables-legacy {}", rule.twin));
            }
        }
        let found = read().await;
        assert_eq!((found.rules.len(), found.twins), (0, 5), "{found:#?}");
    });
}
