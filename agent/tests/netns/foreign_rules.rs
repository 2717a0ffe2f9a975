//! Rules of other programs that name the links of flannel, in every backend.

use agent::host::firewall::foreign::{self, Foreign};
use flannel_to_calico::foreign_rules::{ForeignRules, TwinOf};

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

async fn read() -> Foreign {
    foreign::read(std::path::Path::new("/proc")).await
}

/// Rules in every backend: of firewalld, of iptables with both backends, and of people.
fn create_rules() {
    std::fs::write("/run/foreign.nft", RULES).unwrap();
    run("nft -f /run/foreign.nft");
    for (program, rule) in [
        ("iptables-legacy", "FORWARD -i cni0 -j ACCEPT"),
        ("iptables-legacy", "FORWARD -o flannel.1 -j ACCEPT"),
        ("iptables-legacy", "FORWARD -i cali+ -j ACCEPT"),
        ("iptables-legacy", "FORWARD -j DROP"),
        (
            "iptables-nft",
            "INPUT -i flannel.1 -p tcp -m multiport --dports 80,443 -j DROP",
        ),
        (
            "ip6tables-nft",
            "INPUT -i flannel-v6.1 -m comment --comment tunnel -j DROP",
        ),
        ("iptables-nft", "INPUT -i eth0 -j DROP"),
    ] {
        run(&format!("{program} -A {rule}"));
    }
}

fn rulesets() -> Vec<String> {
    let programs = ["iptables-legacy-save", "iptables-nft-save", "ip6tables-nft-save"];
    let saved = programs.map(|program| {
        let text = run(program);
        let lines = text.lines().filter(|line| line.starts_with("-A "));
        lines.collect::<Vec<_>>().join("\n")
    });
    [run("nft -s list table inet firewalld")]
        .into_iter()
        .chain(saved)
        .collect()
}

#[test]
#[ignore = "needs root"]
fn rules_of_others_are_named_until_they_have_a_twin() {
    in_namespace(|| async {
        assert_eq!(
            read().await.report,
            ForeignRules::default(),
            "a kernel without rules"
        );
        create_rules();
        let found = read().await.report;
        assert_eq!(found.problem, None);
        let named: Vec<(&str, &str)> = found
            .rules
            .iter()
            .map(|rule| (rule.chain.as_str(), rule.twin.as_str()))
            .collect();
        for expected in [
            (
                "nft inet firewalld filter_FORWARD",
                r#"iifname "cali*" counter accept"#,
            ),
            (
                "iptables-nft filter",
                "-A INPUT -i vxlan.calico -p tcp -m multiport --dports 80,443 -j DROP",
            ),
            (
                "ip6tables-nft filter",
                "-A INPUT -i vxlan-v6.calico -m comment --comment tunnel -j DROP",
            ),
            ("iptables-legacy filter", "-A FORWARD -o vxlan.calico -j ACCEPT"),
        ] {
            assert!(named.contains(&expected), "{named:#?}");
        }
        assert_eq!(named.len(), 5, "{named:#?}");
        assert!(
            found.rules.iter().all(|rule| rule.refused.is_none()),
            "{found:#?}"
        );
        assert_eq!(
            (found.twins, found.written),
            (1, 0),
            "the rule of iptables-legacy for cali+"
        );
        // The twins that the report names make it silent.
        for rule in &found.rules {
            if let Some(chain) = rule.chain.strip_prefix("nft ") {
                std::fs::write("/run/twin.nft", format!("add rule {chain} {}\n", rule.twin)).unwrap();
                run("nft -f /run/twin.nft");
            } else {
                let program = rule.chain.split(' ').next().unwrap();
                run(&format!("{program} {}", rule.twin));
            }
        }
        let found = read().await;
        assert_eq!(
            (found.report.rules.len(), found.report.twins),
            (0, 6),
            "{found:#?}"
        );
        assert!(!found.differs(&[TwinOf::Calico]), "a person has written them");
        assert!(found.differs(&[TwinOf::Calico, TwinOf::Passage]));
        assert_eq!(found.report.written, 0);
    });
}

#[test]
#[ignore = "needs root"]
fn twins_are_written_beside_their_rules_and_taken_back() {
    in_namespace(|| async {
        create_rules();
        let before = rulesets();
        assert_eq!(read().await.keep(&[TwinOf::Calico]).await, [""; 0]);
        let found = read().await;
        assert_eq!(
            (found.report.rules.len(), found.report.written),
            (0, 5),
            "{found:#?}"
        );
        let lines = |program: &str, chain: &str| -> Vec<String> {
            let text = run(&format!("{program} -S {chain}"));
            text.lines()
                .filter(|line| line.starts_with("-A"))
                .map(str::to_owned)
                .collect()
        };
        // Directly after its rule: behind a rule that drops, a twin would have no effect.
        assert_eq!(
            lines("iptables-legacy", "FORWARD"),
            [
                "-A FORWARD -i cni0 -j ACCEPT",
                "-A FORWARD -o flannel.1 -j ACCEPT",
                "-A FORWARD -o vxlan.calico -m comment --comment replumb-twin -j ACCEPT",
                "-A FORWARD -i cali+ -j ACCEPT",
                "-A FORWARD -j DROP",
            ]
        );
        assert_eq!(
            lines("iptables-nft", "INPUT"),
            [
                "-A INPUT -i flannel.1 -p tcp -m multiport --dports 80,443 -j DROP",
                "-A INPUT -i vxlan.calico -p tcp -m multiport --dports 80,443 -m comment --comment replumb-twin -j DROP",
                "-A INPUT -i eth0 -j DROP",
            ]
        );
        let firewalld = run("nft -s list table inet firewalld");
        assert!(
            firewalld.contains(
                "iifname \"cni0\" counter accept\n\t\tiifname \"cali*\" counter accept comment \"replumb-twin\""
            ),
            "{firewalld}"
        );
        // Once more: nothing is written twice.
        assert!(!found.differs(&[TwinOf::Calico]));
        // While pods are adopted, and again without these.
        let both = [TwinOf::Calico, TwinOf::Passage];
        assert_eq!(found.keep(&both).await, [""; 0]);
        let found = read().await;
        assert!(!found.differs(&both), "{found:#?}");
        assert_eq!(found.report.written, 8, "{found:#?}");
        assert_eq!(found.keep(&[TwinOf::Calico]).await, [""; 0]);
        let found = read().await;
        assert_eq!(found.report.written, 5, "{found:#?}");
        assert_eq!(found.keep(&[]).await, [""; 0]);
        assert_eq!(rulesets(), before);
        assert!(!read().await.differs(&[]));
    });
}

/// A rule that nft prints and does not read: the report says so before anything changes.
#[test]
#[ignore = "needs root"]
fn a_twin_that_its_program_refuses_is_reported() {
    in_namespace(|| async {
        let long = "x".repeat(124);
        let rules = format!(
            "table inet odd {{\nchain c {{\ntype filter hook forward priority 0\niifname \"cni0\" accept comment \"{long}\"\n\
             oifname \"cni0\" accept\n}}\n}}\n"
        );
        std::fs::write("/run/odd.nft", rules).unwrap();
        run("nft -f /run/odd.nft");
        let found = read().await;
        let refused: Vec<bool> = found
            .report
            .rules
            .iter()
            .map(|rule| rule.refused.is_some())
            .collect();
        assert_eq!(refused, [true, false], "{found:#?}");
        assert_eq!(found.report.refused, 1);
        // The other rule has its twin all the same.
        let problems = found.keep(&[TwinOf::Calico]).await;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(read().await.report.written, 1);
    });
}
