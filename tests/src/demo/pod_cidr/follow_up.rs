//! The demo's user: takes the manual steps that the migration requests. The migration itself does not change the configuration of
//! other programs.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;

use super::Request;
use crate::cluster::Cluster;
use crate::demo::report::ManualStep;
use crate::demo::scene::Scene;
use crate::demo::{LIMIT, status};

/// The reason in `status.reason` while the migration waits for a manual step.
const REASON: &str = "ConfigurationFollowUp";
/// Fragment of the message at the end of a rollback that names a manual step.
const CHANGE_BACK: &str = "must be changed back";
/// What the migration waits for while kube-proxy restarts node by node.
const RULES: &str = "rules of kube-proxy on node";
/// How long the user reads a message before acting.
const READING: Duration = Duration::from_secs(4);
/// Time between two reads of the Migration.
const PACE: Duration = Duration::from_millis(500);
const KUBE_SYSTEM: [&str; 2] = ["-n", "kube-system"];
const POOL_VARIABLE: &str = "CALICO_IPV4POOL_CIDR";
/// Without this flag kubectl also sets the variable in the init containers.
const CONTAINER: &str = "--containers=calico-node";

/// Takes each requested step once, until dropped, and adds it to `all`.
pub async fn play(scene: &Scene<'_>, request: &Request, all: &mut Vec<ManualStep>) -> Result<Infallible> {
    let mut reader = Reader::default();
    loop {
        let requested = reader.next_step(scene.cluster, all).await;
        scene.say(format_args!("manual step requested: {requested}"));
        let done = take_step(scene.cluster, &requested, request).await?;
        scene.say(format_args!("manual step taken: {done}"));
        all.push(ManualStep { requested, done });
    }
}

/// Takes the requested steps until the migration requests the step that follows the move of the last pod. That step is not taken.
pub async fn play_until_all_have_moved(
    scene: &Scene<'_>,
    request: &Request,
    all: &mut Vec<ManualStep>,
) -> Result<()> {
    let mut reader = Reader::default();
    loop {
        let next = tokio::time::timeout(LIMIT, reader.next_step(scene.cluster, all)).await;
        let requested = next.with_context(|| {
            format!("the migration did not request {POOL_VARIABLE} within {LIMIT:?}: not every pod has moved")
        })?;
        if requested.contains(POOL_VARIABLE) {
            scene.say(format_args!(
                "manual step requested, and not taken because a rollback follows: {requested}"
            ));
            return Ok(());
        }
        scene.say(format_args!("manual step requested: {requested}"));
        let done = take_step(scene.cluster, &requested, request).await?;
        scene.say(format_args!("manual step taken: {done}"));
        all.push(ManualStep { requested, done });
    }
}

/// The user at the screen: reads a message before the step.
#[derive(Default)]
struct Reader {
    message: Option<(String, Instant)>,
}

impl Reader {
    /// The next requested step that is not in `taken`, once its message has stood for as long as a person reads it.
    async fn next_step(&mut self, cluster: &Cluster, taken: &[ManualStep]) -> String {
        loop {
            tokio::time::sleep(PACE).await;
            // The API server may be unavailable for a moment.
            let requested = requested_step(cluster).await.ok().flatten().filter(|requested| {
                // The restart of the step before is under way.
                let is_under_way = requested.contains(RULES);
                !is_under_way && !taken.iter().any(|step| step.requested == *requested)
            });
            self.message = requested.map(|requested| {
                let since = self.message.take().filter(|(known, _)| *known == requested);
                (requested, since.map_or_else(Instant::now, |(_, since)| since))
            });
            if let Some((requested, since)) = &self.message
                && since.elapsed() >= READING
            {
                return requested.clone();
            }
        }
    }
}

/// Takes the manual step that the message names after a rollback: an object still contains the abandoned range.
pub async fn change_back(scene: &Scene<'_>, request: &Request) -> Result<()> {
    let message = status(scene.cluster).await?["message"].to_string();
    if !message.contains(CHANGE_BACK) {
        return Ok(());
    }
    let done = take_step(scene.cluster, &message, request).await?;
    scene.say(format_args!("manual step after the rollback: {done}"));
    let api = scene.cluster.api();
    api.rolled_out("daemonset/calico-node", KUBE_SYSTEM[1], LIMIT)
        .await?;
    scene.cluster.kube_proxy_runs(LIMIT).await
}

/// The Migration's message while it waits for a manual step.
async fn requested_step(cluster: &Cluster) -> Result<Option<String>> {
    let status = status(cluster).await?;
    let waits = status["reason"] == REASON;
    Ok(waits.then(|| status["message"].as_str().unwrap_or_default().to_owned()))
}

/// A setting that the demo's user can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The range of the pool that calico-node creates.
    Calico,
    /// The range by which kube-proxy recognizes pods.
    KubeProxy,
}

impl Place {
    const ALL: [Self; 2] = [Self::Calico, Self::KubeProxy];

    /// The object and the setting, as messages name them.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Calico => ["kube-system/calico-node", POOL_VARIABLE],
            Self::KubeProxy => ["kube-system/kube-proxy", "clusterCIDR"],
        }
    }

    /// The setting that the message names. The message must contain the object, the setting and both ranges.
    fn named(requested: &str, request: &Request) -> Result<Self> {
        let is_named = |place: &Self| requested.contains(place.names()[1]);
        let Some(place) = Self::ALL.into_iter().find(is_named) else {
            bail!("the demo's user does not know the requested step: {requested:?}");
        };
        let words = [
            place.names()[0].to_owned(),
            request.from.to_string(),
            request.to.to_string(),
        ];
        let missing: Vec<_> = words
            .into_iter()
            .filter(|word| !requested.contains(word))
            .collect();
        if !missing.is_empty() {
            bail!(
                "the message does not contain {}: {requested:?}",
                missing.join(", ")
            );
        }
        Ok(place)
    }
}

async fn take_step(cluster: &Cluster, requested: &str, request: &Request) -> Result<String> {
    match Place::named(requested, request)? {
        Place::Calico => {
            let needed = needed(requested, request)?;
            let setting = format!("{POOL_VARIABLE}={needed}");
            let workload = ["set", "env", "daemonset/calico-node"];
            let suggested = [&workload[..], &["-n", "kube-system", CONTAINER]]
                .concat()
                .join(" ");
            let command = [&workload[..], &[CONTAINER, &setting]].concat();
            if !requested.contains(&suggested) {
                bail!("the message does not contain the command {suggested:?}: {requested:?}");
            }
            kubectl(cluster, &command).await?;
            Ok(format!("kubectl {}", command.join(" ")))
        }
        Place::KubeProxy => {
            let both = common_range(request.from, request.to).context("find a range that contains both")?;
            cluster.set_range_of_kube_proxy(both).await
        }
    }
}

/// The range that the message needs: after a rollback the one from before.
fn needed(requested: &str, request: &Request) -> Result<Ipv4Net> {
    let after = requested
        .split("needed ")
        .nth(1)
        .and_then(|text| text.split_whitespace().next());
    let range = after.and_then(|text| text.trim_end_matches(['.', ',']).parse().ok());
    range
        .filter(|range| [request.from, request.to].contains(range))
        .with_context(|| format!("the message does not contain the needed range: {requested:?}"))
}

async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.api().kubectl(&[&KUBE_SYSTEM, arguments].concat()).await
}

/// The smallest range that contains both.
fn common_range(one: Ipv4Net, other: Ipv4Net) -> Option<Ipv4Net> {
    std::iter::successors(Some(one), Ipv4Net::supernet).find(|range| range.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_must_name_object_setting_and_both_ranges() {
        let request = Request::new("1").unwrap();
        let named = |requested: &str| Place::named(requested, &request).map_err(|error| error.to_string());
        let full = "DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR: found 10.244.0.0/16, needed 10.200.0.0/16";
        assert_eq!(named(full), Ok(Place::Calico));
        assert_eq!(needed(full, &request).unwrap(), request.to);
        assert!(needed("CALICO_IPV4POOL_CIDR: found 10.200.0.0/16", &request).is_err());
        let full = "ConfigMap kube-system/kube-proxy: clusterCIDR: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16";
        assert_eq!(named(full), Ok(Place::KubeProxy));
        let back = "DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR: found 10.200.0.0/16, needed 10.244.0.0/16. Fix: ...";
        assert_eq!(needed(back, &request).unwrap(), request.from);
        let half = "set CALICO_IPV4POOL_CIDR of kube-system/calico-node to 10.200.0.0/16";
        assert!(
            named(half)
                .unwrap_err()
                .contains("does not contain 10.244.0.0/16")
        );
        assert!(named("do something").unwrap_err().contains("does not know"));
    }

    #[test]
    fn the_smallest_common_range_contains_both() {
        let common_range =
            |one: &str, other: &str| common_range(range(one), range(other)).unwrap().to_string();
        assert_eq!(common_range("10.244.0.0/16", "10.200.0.0/16"), "10.192.0.0/10");
        assert_eq!(common_range("10.200.0.0/16", "10.200.3.0/24"), "10.200.0.0/16");
        assert_eq!(common_range("10.0.0.0/8", "192.168.0.0/16"), "0.0.0.0/0");
    }
}
