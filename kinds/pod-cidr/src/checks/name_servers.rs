//! Name servers end while pods move: whoever asks them meanwhile has to get an answer.

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
                    format!("{LAMEDUCK:#} at least"),
                    "`health { lameduck 5s }`, then `kubectl rollout restart` of its Deployment: a name server that ends at once is asked \
                     until kube-proxy has told every node, and those questions get no answer",
                ),
            );
        }
    }
    let found = match facts.corefiles.len() {
        0 => "no Corefile behind the cluster's name service: nobody knows how long a name server answers when it ends".to_owned(),
        _ => format!("go on answering for {LAMEDUCK:#} or more when they are told to end"),
    };
    report.finish("name servers", found)
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use engine::check::{Verdict, worst};

    #[test]
    fn a_name_server_that_ends_at_once_is_named() {
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
