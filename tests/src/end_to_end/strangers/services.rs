//! A tenant during a migration to another Service range: creates twenty thousand Services, edits one continuously and changes
//! another one to an `ExternalName`. The migration and its rollback succeed, and the edits remain.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use service_cidr::step::Stage;

use super::super::{MigrationReader, Tally};
use super::crowd::{self, MANY};
use super::named::named;
use super::objects::{self, NAMESPACE};
use super::put;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::breaking::delete_migration;
use crate::demo::service_cidr::{Request, RollbackAt, Run, Size};
use crate::demo::{End, Tools};

const STEP: Duration = Duration::from_mins(10);
/// Limit of the migration, and of the rollback: with so many Services the lab's API server allocates some 12 addresses a second
/// (docs/limits.md).
const LIMIT: Duration = Duration::from_hours(2);
/// The Service that is edited continuously, and the time between two edits.
const EDITED: &str = "edited";
const EDIT_INTERVAL: Duration = Duration::from_millis(200);
/// The Service that becomes an `ExternalName`.
const TURNED: &str = "turned";
/// A Service with the labels of replumb's helpers.
const LABELLED: &str = "labelled";

/// The migration to another range, and the rollback.
pub async fn cases(cluster: &Cluster, tools: &Tools, tally: &mut Tally) {
    let ended = Box::pin(there_and_back(cluster, tools, tally)).await;
    tally.count(
        format!(
            "strangers: Services are migrated and rolled back although a tenant creates {MANY} of them, and edits two"
        ),
        ended,
    );
}

async fn there_and_back(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    delete_migration(cluster).await?;
    create_services(cluster).await?;
    let request = Request {
        size: Size::Small,
        // The stranger's Services come later: they still have to move when the exchange has started.
        spec: json!({ "serviceCidr": { "order": ["services/plain-0"], "servicesAtOnce": 3 } }),
        limit: LIMIT,
        // The API server needs half an hour for the last Service of the crowd, and the crowd delays only the soak.
        rollback_at: RollbackAt::EveryPodRestarted,
        ..Request::new(End::RolledBack, false)?
    };
    let to = request.to;
    let run = Run::begin(cluster, tools, request).await?;
    let before = addresses(cluster).await?;
    let reader = MigrationReader::new(cluster);
    let disturbed = async {
        reader
            .until_migration("Services exchange their addresses", STEP, |migration| {
                let status = migration.status.as_ref();
                let known = status.and_then(|status| status.service_cidr.as_ref());
                known.is_some_and(|known| {
                    known.stage.as_ref().map(|stage| stage.name) == Some(Stage::Exchange)
                        && known.services_in_new_range >= 1
                })
            })
            .await?;
        change_to_external_name(cluster).await?;
        tally.count(
            "strangers: named: a Service that becomes an ExternalName during the exchange",
            named(&run.scene.operator, &[&format!("{NAMESPACE}/{TURNED}")]).await,
        );
        let created = async {
            crowd::make(cluster).await?;
            run.scene
                .say(format_args!("the stranger has created {MANY} Services"));
            anyhow::Ok(())
        };
        tokio::try_join!(created, until_in_range(cluster, LABELLED, to)).map(drop)
    };
    let work = async { tokio::try_join!(run.migrate(), disturbed) };
    let (manual_steps, ()) = tokio::select! {
        ended = work => ended?,
        ended = edit_continuously(cluster) => {
            ended?;
            bail!("the stranger has stopped editing")
        }
    };
    let after = addresses(cluster).await?;
    for (name, address) in before.iter().filter(|(name, _)| !name.ends_with(TURNED)) {
        ensure!(
            after.get(name) == Some(address),
            "address of Service {name}: needed {address} as before, found {:?}",
            after.get(name)
        );
    }
    let report = run.report(manual_steps).await?;
    println!("{}", report.text());
    let of_others: Vec<&String> = report
        .problems
        .iter()
        .filter(|problem| !problem.contains(NAMESPACE) && !problem.contains("lost"))
        .collect();
    ensure!(of_others.is_empty(), "{of_others:?}");
    Ok(())
}

/// Creates the stranger's Services that exist from the start.
async fn create_services(cluster: &Cluster) -> Result<()> {
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

/// The address of every Service by namespace and name, without the crowd and replumb's own Services.
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

async fn change_to_external_name(cluster: &Cluster) -> Result<()> {
    let name = json!({ "spec": {
        "type": "ExternalName", "externalName": "stranger.example", "clusterIP": null, "clusterIPs": null,
    } });
    change(cluster, TURNED, name).await
}

/// Changes a label and a port of one Service, until dropped.
async fn edit_continuously(cluster: &Cluster) -> Result<()> {
    let mut tick = tokio::time::interval(EDIT_INTERVAL);
    for number in 0_u32.. {
        tick.tick().await;
        let patch = json!({
            "metadata": { "labels": { "stranger.example/number": number.to_string() } },
            "spec": { "ports": [{ "port": 1000 + number % 1000 }] },
        });
        // A write of replumb may come first; the next edit follows soon.
        let _ = change(cluster, EDITED, patch).await;
    }
    Ok(())
}

/// Waits until a Service of the stranger has an address in this range.
async fn until_in_range(cluster: &Cluster, name: &str, range: Ipv4Net) -> Result<()> {
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
