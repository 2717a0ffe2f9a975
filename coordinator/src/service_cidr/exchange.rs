//! One Service and its helpers in the API: they are read as one view, and a step is made write by write. Each write carries the version
//! that was read, so that whoever writes in between is not overwritten; the next look goes on from what is there then.

use std::net::IpAddr;

use crash_point::Edge;
use kube::Client;
use plan::service_cidr::endpoints::{self, Copy};
use plan::service_cidr::objects::{Objects, Request};
use plan::service_cidr::side::{Side, Sides};
use plan::service_cidr::swap::{Step, View};
use serde_json::Value;

use super::objects::{create_service, delete_service, delete_slice, patch_service, write_slice};
use crate::write::WriteError;

/// One Service that has, or is to have, another address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses that change: as they were before, and in the new range.
    pub addresses: Sides<Vec<IpAddr>>,
    /// Addresses that nobody has and nobody is to have, for a helper that is to have any: one of each family that changes.
    pub spare: Vec<IpAddr>,
    /// Which of both it is to have.
    pub goal: Side,
    /// Whether somebody may still use the other one.
    pub left_is_used: bool,
}

/// A Service and its helpers as they were read.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The Service.
    pub service: Value,
    /// Its helpers.
    pub helpers: Sides<Option<Value>>,
    /// Its slices.
    pub slices: Vec<Value>,
    /// Those of its helpers.
    pub of_helpers: Sides<Vec<Value>>,
    /// What is decided by.
    pub view: View,
}

/// Writes one Service after the other.
pub struct Exchange<'pass> {
    /// A client.
    pub client: &'pass Client,
    /// The domain of the cluster: `cluster.local`.
    pub domain: &'pass str,
}

impl Exchange<'_> {
    /// Makes a step, write by write.
    pub async fn make(&self, subject: &Subject, mut seen: Seen, step: Step) -> Result<(), WriteError> {
        crash_point::reach(step.name(), Edge::Announced, None).await;
        for write in step.writes(subject.goal) {
            let objects = Objects {
                domain: self.domain,
                service: &seen.service,
                addresses: &subject.addresses,
                spare: &subject.spare,
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
                    seen.patch_helper(self.client, side, &change).await?;
                }
                Request::RefreshHelper(side) => {
                    let helper = seen.helpers.of(side).as_ref();
                    if let Some(change) = helper.and_then(|helper| objects.refresh(helper)) {
                        seen.patch_helper(self.client, side, &change).await?;
                    }
                }
                Request::CopyEndpoints(side) => self.copy(subject, &seen, side).await?,
                Request::DeleteHelper(side) => {
                    if let Some(helper) = seen.helpers.of_mut(side).take() {
                        delete_service(self.client, &helper).await?;
                    }
                }
            }
            crash_point::reach(write.name(), Edge::Changed, None).await;
        }
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(())
    }

    async fn copy(&self, subject: &Subject, seen: &Seen, side: Side) -> Result<(), WriteError> {
        let Some(helper) = seen.helpers.of(side) else {
            return Ok(());
        };
        for change in endpoints::copies(&seen.slices, helper, seen.of_helpers.of(side)) {
            match change {
                Copy::Write(slice) => write_slice(self.client, &slice).await?,
                Copy::Delete(name) => delete_slice(self.client, &subject.namespace, &name).await?,
            }
        }
        Ok(())
    }
}

impl Seen {
    /// Patches a helper as it was read; the next patch is of what it is then.
    async fn patch_helper(&mut self, client: &Client, side: Side, change: &Value) -> Result<(), WriteError> {
        let helper = self.helpers.of_mut(side);
        if let Some(read) = helper.take() {
            *helper = Some(patch_service(client, &read, change).await?);
        }
        Ok(())
    }
}
