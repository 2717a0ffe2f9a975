//! The settings of a Corefile that a migration depends on: how long a terminating `CoreDNS` pod answers, and its domain.

use jiff::SignedDuration;

/// The time for which a terminating name server has to answer: kube-proxy learns of the termination, waits for its next sync (1
/// s) and writes its rules on every node. With 2 s, queries were lost in 3 of 6 rollouts; with 5 s, in none of 10
/// (docs/limits.md). kubeadm and kops write 5 s.
pub const LAMEDUCK: SignedDuration = SignedDuration::from_secs(5);

/// The time for which a terminating name server with this Corefile answers; zero when unset or not understood.
pub fn lameduck(corefile: &str) -> SignedDuration {
    let lines = corefile
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let mut words = lines.flat_map(str::split_whitespace);
    let value = words
        .by_ref()
        .find(|word| *word == "lameduck")
        .and_then(|_| words.next());
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// The cluster domain: the zone of plugin `kubernetes` that is not for reverse lookups. `None` when unset.
pub fn domain(corefile: &str) -> Option<&str> {
    let lines = corefile
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let zones = lines.filter_map(|line| {
        let (word, rest) = line.split_once(char::is_whitespace)?;
        (word == "kubernetes").then_some(rest)
    });
    let mut zones = zones.flat_map(|rest| rest.split('{').next().unwrap_or_default().split_whitespace());
    // Reverse lookups have their own zone.
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
    fn the_domain_is_the_forward_zone_of_plugin_kubernetes(
        #[case] corefile: &str,
        #[case] expected: Option<&str>,
    ) {
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
    fn lameduck_is_read_in_all_spellings(#[case] corefile: &str, #[case] milliseconds: i64) {
        assert_eq!(lameduck(corefile), SignedDuration::from_millis(milliseconds));
    }
}
