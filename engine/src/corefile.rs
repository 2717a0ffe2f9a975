//! What `CoreDNS` is told by its Corefile, as far as it matters when its pods end.

use jiff::SignedDuration;

/// So long a name server has to go on answering when it was told to end: kube-proxy learns of its end, waits for its next turn (a
/// second), and writes its rules on every node. With 2 s names were lost in 3 of 6 rollouts, with 5 s in none of 10
/// (docs/limits.md); kubeadm and kops write 5 s.
pub const LAMEDUCK: SignedDuration = SignedDuration::from_secs(5);

/// How long a name server of this Corefile goes on answering when it was told to end; none that is not said or not understood.
pub fn lameduck(corefile: &str) -> SignedDuration {
    let lines = corefile
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let mut words = lines.flat_map(str::split_whitespace);
    let said = words
        .by_ref()
        .find(|word| *word == "lameduck")
        .and_then(|_| words.next());
    said.and_then(|said| said.parse().ok()).unwrap_or_default()
}

/// The domain of the cluster's names: the zone of plugin `kubernetes` that is not for reverse names. `None` where none is said.
pub fn domain(corefile: &str) -> Option<&str> {
    let lines = corefile
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let zones = lines.filter_map(|line| {
        let (word, rest) = line.split_once(char::is_whitespace)?;
        (word == "kubernetes").then_some(rest)
    });
    let mut zones = zones.flat_map(|rest| rest.split('{').next().unwrap_or_default().split_whitespace());
    // Names for addresses have a zone of their own.
    let is_reverse = |zone: &str| zone.rsplit('.').next() == Some("arpa");
    zones
        .by_ref()
        .map(|zone| zone.trim_end_matches('.'))
        .find(|zone| !is_reverse(zone))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        ".:53 {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n pods insecure\n }\n}",
        Some("cluster.local")
    )]
    #[case(
        ".:53 {\n    kubernetes in-addr.arpa k8s.example.org. {\n }\n}",
        Some("k8s.example.org")
    )]
    #[case(
        ".:53 {\n    # kubernetes cluster.local\n forward . /etc/resolv.conf\n}",
        None
    )]
    #[case(".:53 {\n    kubernetes {\n }\n}", None)]
    fn which_domain_it_answers_for(#[case] corefile: &str, #[case] expected: Option<&str>) {
        assert_eq!(domain(corefile), expected);
    }

    #[rstest]
    #[case(".:53 {\n    errors\n    health {\n       lameduck 5s\n    }\n}", 5_000)]
    #[case(".:53 {\n    health :8080 { # as kubeadm\n lameduck 1500ms }\n}", 1_500)]
    #[case("health {\n    lameduck 1m\n}", 60_000)]
    #[case(".:53 {\n    health\n}", 0)]
    #[case("health {\n    # lameduck 5s\n}", 0)]
    #[case("health {\n    lameduck soon\n}", 0)]
    #[case("health {\n    lameduck", 0)]
    fn how_long_it_goes_on(#[case] corefile: &str, #[case] milliseconds: i64) {
        assert_eq!(lameduck(corefile), SignedDuration::from_millis(milliseconds));
    }
}
