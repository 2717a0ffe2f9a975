//! Strangers in an exchange of the range of Services: one tenant makes twenty thousand of them, edits one without pause and turns another
//! into a name. Everything goes there and back, and the edits stay.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use service_cidr::step::Stage;

use super::super::{Looker, Tally};
use super::crowd::{self, MANY};
use super::named::named;
use super::objects::{self, NAMESPACE};
use super::put;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::breaking::delete_migration;
use crate::demo::service_cidr::{Run, Size, Turn, Wanted};
use crate::demo::{End, Tools};

const STEP: Duration = Duration::from_mins(10);
/// How long each way may take: the API server of the lab gives out some 12 addresses a second among so many (docs/limits.md).
const LIMIT: Duration = Duration::from_hours(2);
/// The Service that is edited without pause, and how often.
const EDITED: &str = "edited";
const EDIT_INTERVAL: Duration = Duration::from_millis(200);
/// The Service that becomes a name.
const TURNED: &str = "turned";
/// One with labels of replumb's own helpers.
const LABELLED: &str = "labelled";

/// The whole way to another range, and back.
pub async fn cases(cluster: &Cluster, tools: &Tools, tally: &mut Tally) {
    let ended = Box::pin(there_and_back(cluster, tools, tally)).await;
    tally.count(
        format!(
            "strangers: Services go there and back although a tenant makes {MANY} of them, and edits two"
        ),
        ended,
    );
}

async fn there_and_back(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    delete_migration(cluster).await?;
    before(cluster).await?;
    let wanted = Wanted {
        size: Size::Small,
        // So that those of the stranger have still to go when the exchange has begun.
        spec: json!({ "serviceCidr": { "order": ["services/plain-0"], "servicesAtOnce": 3 } }),
        limit: LIMIT,
        // The API server needs half an hour until the last of the crowd has left, and the crowd holds up nothing but the soak.
        turn: Turn::EveryPodWasTold,
        ..Wanted::new(End::RolledBack, false)?
    };
    let to = wanted.to;
    let run = Run::begin(cluster, tools, wanted).await?;
    let before = addresses(cluster).await?;
    let look = Looker::new(cluster);
    let disturbed = async {
        look.until_migration("Services exchange their addresses", STEP, |migration| {
            let status = migration.status.as_ref();
            let known = status.and_then(|status| status.service_cidr.as_ref());
            known.is_some_and(|known| {
                known.stage.as_ref().map(|stage| stage.name) == Some(Stage::Exchange)
                    && known.services_in_new_range >= 1
            })
        })
        .await?;
        turn_into_a_name(cluster).await?;
        tally.count(
            "strangers: named: a Service that is turned into a name in mid-exchange",
            named(&run.scene.operator, &[&format!("{NAMESPACE}/{TURNED}")]).await,
        );
        let made = async {
            crowd::make(cluster).await?;
            run.scene
                .say(format_args!("the stranger has made {MANY} Services"));
            anyhow::Ok(())
        };
        tokio::try_join!(made, is_in(cluster, LABELLED, to)).map(drop)
    };
    let work = async { tokio::try_join!(run.migrate(), disturbed) };
    let (followed, ()) = tokio::select! {
        ended = work => ended?,
        ended = edit_without_pause(cluster) => {
            ended?;
            bail!("the stranger does not edit any more")
        }
    };
    let after = addresses(cluster).await?;
    for (name, address) in before.iter().filter(|(name, _)| !name.ends_with(TURNED)) {
        ensure!(
            after.get(name) == Some(address),
            "Service {name} had {address} before, and has {:?}",
            after.get(name)
        );
    }
    let report = run.report(followed).await?;
    println!("{}", report.text());
    let of_others: Vec<&String> = report
        .problems
        .iter()
        .filter(|problem| !problem.contains(NAMESPACE) && !problem.contains("lost"))
        .collect();
    ensure!(of_others.is_empty(), "{of_others:?}");
    Ok(())
}

/// The stranger's Services that are there before.
async fn before(cluster: &Cluster) -> Result<()> {
    let service = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": { "ports": [{ "port": 80 }] },
        })
    };
    for object in [
        objects::namespace(),
        objects::labelled(),
        service(EDITED),
        service(TURNED),
    ] {
        put(cluster, &object).await?;
    }
    Ok(())
}

fn services(cluster: &Cluster) -> Api<Service> {
    Api::namespaced(cluster.api().client(), NAMESPACE)
}

/// Addresses of every Service by namespace and name, but for those that the stranger makes meanwhile and replumb's own.
async fn addresses(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let all: Api<Service> = Api::all(cluster.api().client());
    let list = all.list(&ListParams::default()).await.context("list Services")?;
    Ok(list
        .into_iter()
        .filter(|service| {
            !crowd::is_of(&service.name_any())
                && service.namespace().as_deref() != Some(api::names::NAMESPACE)
        })
        .filter_map(|service| {
            let name = format!(
                "{}/{}",
                service.namespace().unwrap_or_default(),
                service.name_any()
            );
            Some((name, service.spec?.cluster_ip?))
        })
        .collect())
}

async fn change(cluster: &Cluster, name: &str, patch: Value) -> Result<()> {
    services(cluster)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("change Service {NAMESPACE}/{name}"))
        .map(drop)
}

async fn turn_into_a_name(cluster: &Cluster) -> Result<()> {
    let name = json!({ "spec": { "type": "ExternalName", "externalName": "stranger.example", "clusterIP": null, "clusterIPs": null } });
    change(cluster, TURNED, name).await
}

/// Changes a label and a port of one Service for ever.
async fn edit_without_pause(cluster: &Cluster) -> Result<()> {
    let mut tick = tokio::time::interval(EDIT_INTERVAL);
    for number in 0_u32.. {
        tick.tick().await;
        let patch = json!({
            "metadata": { "labels": { "stranger.example/number": number.to_string() } },
            "spec": { "ports": [{ "port": 1000 + number % 1000 }] },
        });
        // A write of replumb's may come first; the next edit comes soon.
        let _ = change(cluster, EDITED, patch).await;
    }
    Ok(())
}

/// Waits until a Service of the stranger's has an address in this range.
async fn is_in(cluster: &Cluster, name: &str, range: Ipv4Net) -> Result<()> {
    let what = format!("Service {NAMESPACE}/{name} has an address of {range}");
    until(&what, STEP, &cluster.directory().logs(), async || {
        let service = services(cluster).get(name).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default();
        let is_there = address
            .parse()
            .is_ok_and(|address| range.contains::<&std::net::Ipv4Addr>(&address));
        Ok(if is_there {
            Observation::Done(())
        } else {
            Observation::NotYet(address)
        })
    })
    .await
}
