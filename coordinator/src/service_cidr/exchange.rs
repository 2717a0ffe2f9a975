//! One Service and its helpers in the API: they are read as one view, and a step is made write by write. Each write carries the version
//! that was read, so that whoever writes in between is not overwritten; the next look goes on from what is there then.

use std::net::IpAddr;

use crash_point::Edge;
use kube::Client;
use plan::decision::{Wait, WaitReason};
use plan::service_cidr::endpoints::{self, Copy};
use plan::service_cidr::objects::{self, Objects, Request, helper_name};
use plan::service_cidr::swap::{Endpoints, Helper, Own, Side, Step, Taken, View};
use serde_json::Value;

use super::objects::{
    all_services, create_service, delete_service, delete_slice, holder, patch_service, service, slices_of,
    write_slice,
};
use crate::write::WriteError;

/// One Service that has, or is to have, another address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses that change, as they were before.
    pub old: Vec<IpAddr>,
    /// The same in the new range.
    pub new: Vec<IpAddr>,
    /// Which of both it is to have.
    pub goal: Side,
    /// Whether somebody may still use the other one.
    pub left_is_used: bool,
}

impl Subject {
    fn addresses(&self, side: Side) -> &[IpAddr] {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    fn families(&self) -> Vec<&'static str> {
        let family = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        self.old.iter().map(family).collect()
    }
}

/// A Service and its helpers as they were read.
#[derive(Clone, Debug)]
pub struct Seen {
    service: Value,
    old: Option<Value>,
    new: Option<Value>,
    /// What is decided by.
    pub view: View,
}

impl Seen {
    fn helper(&mut self, side: Side) -> &mut Option<Value> {
        match side {
            Side::Old => &mut self.old,
            Side::New => &mut self.new,
        }
    }

    /// The Service as it was read.
    pub fn service(&self) -> &Value {
        &self.service
    }
}

/// Reads and writes one Service after the other.
pub struct Exchange<'pass> {
    /// A client.
    pub client: &'pass Client,
    /// The domain of the cluster: `cluster.local`.
    pub domain: &'pass str,
}

impl Exchange<'_> {
    /// Reads a Service and its helpers. `unknown` says which node does not know the addresses of a side yet, `unquiet` why rules
    /// would be written in the middle of an exchange. `None` when the Service is gone: its helpers go with it.
    pub async fn look(
        &self,
        subject: &Subject,
        unknown: impl Fn(Side) -> Option<Wait>,
        unquiet: Option<Wait>,
    ) -> Result<Option<Seen>, WriteError> {
        let (namespace, name) = (subject.namespace.as_str(), subject.name.as_str());
        let names = [Side::Old, Side::New].map(|side| helper_name(name, side));
        let (found, old, new) = tokio::try_join!(
            service(self.client, namespace, name),
            service(self.client, namespace, &names[0]),
            service(self.client, namespace, &names[1]),
        )?;
        let Some(found) = found else {
            return Ok(None);
        };
        let (slices, of_old, of_new) = tokio::try_join!(
            slices_of(self.client, namespace, name),
            slices_of(self.client, namespace, &names[0]),
            slices_of(self.client, namespace, &names[1]),
        )?;
        let is_selected = found["spec"]["selector"]
            .as_object()
            .is_some_and(|selector| !selector.is_empty());
        let families = subject.families();
        let state = |side: Side, helper: Option<&Value>, of_helper: &[Value]| {
            let Some(helper) = helper else {
                return Helper::Absent;
            };
            let difference = if is_selected {
                endpoints::difference(&slices, of_helper, &families).map(|(missing, other)| {
                    Endpoints::Missing(not_yet(namespace, name, side, missing, other))
                })
            } else {
                let changes = endpoints::copies(&slices, helper, of_helper);
                (!changes.is_empty()).then_some(Endpoints::ToCopy)
            };
            match objects::own(helper, &subject.old, &subject.new) {
                Own::At(found) if found == side => {
                    let endpoints = difference.or_else(|| unknown(side).map(Endpoints::Missing));
                    Helper::Home(endpoints.unwrap_or(Endpoints::Same))
                }
                _ if helper["spec"]["type"] == "ExternalName" => {
                    Helper::Parked(difference.unwrap_or(Endpoints::Same))
                }
                Own::At(_) | Own::Away(_) | Own::Elsewhere(_) => {
                    Helper::Warming(difference.unwrap_or(Endpoints::Same))
                }
            }
        };
        let own = objects::own(&found, &subject.old, &subject.new);
        let view = View {
            name: format!("{namespace}/{name}"),
            goal: subject.goal,
            taken: self.taken(subject, &found, &own).await?,
            own,
            old: state(Side::Old, old.as_ref(), &of_old),
            new: state(Side::New, new.as_ref(), &of_new),
            is_marked: objects::before(&found).is_some(),
            left_is_used: subject.left_is_used,
            unquiet,
        };
        Ok(Some(Seen {
            service: found,
            old,
            new,
            view,
        }))
    }

    /// Who else has what this Service has to get.
    async fn taken(&self, subject: &Subject, service: &Value, own: &Own) -> Result<Taken, WriteError> {
        let name = &subject.name;
        let ours: Vec<String> = [
            name.clone(),
            helper_name(name, Side::Old),
            helper_name(name, Side::New),
        ]
        .iter()
        .map(|name| format!("{}/{name}", subject.namespace))
        .collect();
        let mut taken = Taken::default();
        for side in [Side::Old, Side::New] {
            for address in subject.addresses(side) {
                if let Some(holder) = holder(self.client, address).await?
                    && !ours.contains(&holder)
                {
                    let words = Some(format!("Service {holder} has address {address}"));
                    match side {
                        Side::Old => taken.old = words,
                        Side::New => taken.new = words,
                    }
                }
            }
        }
        if let (Own::Away(_), Some(before)) = (own, objects::before(service)) {
            let ports = node_ports(&before);
            if !ports.is_empty() {
                let others = all_services(self.client).await?;
                taken.node_port = others.iter().find_map(|other| has_one_of(other, &ports));
            }
        }
        Ok(taken)
    }

    /// Makes a step, write by write.
    pub async fn make(&self, subject: &Subject, mut seen: Seen, step: Step) -> Result<(), WriteError> {
        crash_point::reach(step.name(), Edge::Announced, None).await;
        for write in step.writes(subject.goal) {
            let objects = Objects {
                domain: self.domain,
                service: &seen.service,
                old: &subject.old,
                new: &subject.new,
            };
            let Some(request) = objects.request(write) else {
                // `objects::own` calls it away only where what was saved is there.
                return Ok(());
            };
            match request {
                Request::Create(helper) => {
                    create_service(self.client, &subject.namespace, &helper).await?;
                }
                Request::PatchService(change) => {
                    seen.service = patch_service(self.client, &seen.service, &change).await?;
                }
                Request::PatchHelper(side, change) => {
                    if let Some(helper) = seen.helper(side).take() {
                        *seen.helper(side) = Some(patch_service(self.client, &helper, &change).await?);
                    }
                }
                Request::CopyEndpoints(side) => {
                    if let Some(helper) = seen.helper(side).clone() {
                        self.copy(subject, &helper).await?;
                    }
                }
                Request::DeleteHelper(side) => {
                    if let Some(helper) = seen.helper(side).take() {
                        delete_service(self.client, &helper).await?;
                    }
                }
            }
            crash_point::reach(write.name(), Edge::Changed, None).await;
        }
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(())
    }

    async fn copy(&self, subject: &Subject, helper: &Value) -> Result<(), WriteError> {
        let namespace = &subject.namespace;
        let name = helper["metadata"]["name"].as_str().unwrap_or_default();
        let (slices, copies) = tokio::try_join!(
            slices_of(self.client, namespace, &subject.name),
            slices_of(self.client, namespace, name),
        )?;
        for change in endpoints::copies(&slices, helper, &copies) {
            match change {
                Copy::Write(slice) => write_slice(self.client, &slice).await?,
                Copy::Delete(name) => delete_slice(self.client, namespace, &name).await?,
            }
        }
        Ok(())
    }
}

fn not_yet(namespace: &str, name: &str, side: Side, missing: usize, other: usize) -> Wait {
    Wait {
        reason: WaitReason::MovedPodsNotReady,
        message: format!(
            "Service {namespace}/{} has {missing} endpoints less than {name}, and {other} that {name} has not",
            helper_name(name, side)
        ),
        until: None,
    }
}

fn node_ports(spec: &Value) -> Vec<(String, u64)> {
    let ports = spec["ports"].as_array().into_iter().flatten();
    ports
        .filter_map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            Some((protocol, port["nodePort"].as_u64()?))
        })
        .collect()
}

/// Which of these node ports this Service has.
fn has_one_of(service: &Value, ports: &[(String, u64)]) -> Option<String> {
    let has = node_ports(&service["spec"]);
    let (protocol, port) = ports.iter().find(|port| has.contains(port))?;
    let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default();
    Some(format!(
        "Service {}/{} has node port {port}/{protocol}",
        text("namespace"),
        text("name")
    ))
}
