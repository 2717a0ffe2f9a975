//! Pods that start and end: short runs of a Job, placed by the scheduler.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, Client, ResourceExt};

use super::load::create;
use super::migration::is_away;
use super::shape;

const JOB: &str = "scale-run";
/// Lifetime of a pod.
const LIFE: Duration = Duration::from_secs(20);

/// Creates this number of pods each second, and deletes as many, until dropped.
pub async fn churn(client: Client, pods_a_second: u32) -> Result<()> {
    if pods_a_second == 0 {
        return std::future::pending().await;
    }
    let namespace = shape::namespace(0);
    let job: Job = create(&client, Some(namespace.clone()), shape::job(JOB)).await?;
    let owner = job.uid().context("read the UID of the created Job")?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let living = usize::try_from(LIFE.as_secs())? * usize::try_from(pods_a_second)?;
    let mut names: VecDeque<String> = VecDeque::new();
    let mut beat = tokio::time::interval(Duration::from_secs(1) / pods_a_second);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut requests = futures::stream::FuturesUnordered::new();
    for number in 0.. {
        beat.tick().await;
        while requests.len() >= usize::try_from(pods_a_second)?.max(8) {
            requests.next().await.transpose()?;
        }
        let pod = shape::run_of(JOB, &owner, number);
        names.push_back(pod["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        let ended = (names.len() > living).then(|| names.pop_front()).flatten();
        let (client, namespace, pods) = (&client, namespace.clone(), &pods);
        requests.push(async move {
            answered(create::<Pod>(client, Some(namespace), pod).await)?;
            if let Some(name) = ended {
                let deleted = pods.delete(&name, &DeleteParams::default()).await;
                answered(deleted.with_context(|| format!("delete pod {name}")))?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    Ok(())
}

/// An error if the API server has refused the request. A drain may have ended the pod before, and without an API
/// server the exact number of pods does not matter.
fn answered<T>(result: Result<T>) -> Result<()> {
    let Err(error) = result else {
        return Ok(());
    };
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Some(cause) if is_away(cause) => Ok(()),
        Some(_) | None => Err(error),
    }
}
