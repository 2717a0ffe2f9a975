//! Name servers terminate while pods move: clients must get answers until all nodes know.

use super::CheckName;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report};
use engine::corefile::{LAMEDUCK, lameduck};

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NameServers);
    for (object, corefile) in &facts.corefiles {
        let found = lameduck(corefile);
        if found < LAMEDUCK {
            report.warn(
                "",
                object,
                Finding::new(
                    "Corefile: health, lameduck",
                    format!("{found:#}"),
                    format!("at least {LAMEDUCK:#}"),
                    "set `health { lameduck 5s }` and run `kubectl rollout restart` of its Deployment: otherwise queries get no \
                     answer until kube-proxy on every node has removed the terminated pod",
                ),
            );
        }
    }
    let found = match facts.corefiles.len() {
        0 => "no Corefile found for the cluster DNS, so the lameduck time is unknown".to_owned(),
        _ => format!("lameduck time of {LAMEDUCK:#} or more"),
    };
    report.finish("name servers", found)
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use engine::check::{Verdict, worst};

    #[test]
    fn a_name_server_with_a_short_lameduck_time_is_a_warning() {
        let mut facts = fixture::cluster();
        let object = "ConfigMap kube-system/coredns".to_owned();
        facts.corefiles = vec![(object.clone(), ".:53 { health { lameduck 5s } }".to_owned())];
        assert_eq!(worst(&check(&facts)), Verdict::Pass);
        facts.corefiles = vec![(object, ".:53 {\n health {\n lameduck 2s\n }\n}".to_owned())];
        let found = check(&facts);
        assert_eq!(worst(&found), Verdict::Warn);
        let text = format!("{:?}", found[0]);
        assert!(
            text.contains("ConfigMap kube-system/coredns") && text.contains("2s"),
            "{text}"
        );
    }
}
