//! One Service and its helpers in the API, changed write by write. A write fails when a field on which it
//! depends has changed since it was read: no other writer is overwritten, and the next pass starts from the present state.

use crash_point::Edge;
use engine::field_patch::FieldPatch;
use kube::Client;
use serde_json::Value;
use service_cidr::endpoints::{self, Copy};
use service_cidr::exchange::{Role, Step, Write};
use service_cidr::objects::{BridgeFacts, Objects, Request, basis, basis_with_helpers, own};

use super::super::objects::{
    create_service, delete_service, delete_slice, get_service, patch_service, patch_service_status,
    write_slice,
};
use super::super::observed::{Seen, Subject};

/// Number of retries of a write after conflicts with the owner of the Service.
const CONFLICTS: usize = 5;

/// A finished write, for the index of Services.
#[derive(Clone, Copy, Debug)]
pub enum Written<'write> {
    /// The Service is stored with this content.
    Stored(&'write Value),
    /// This Service, as it was read, is deleted.
    Deleted(&'write Value),
}

/// Writes one Service after the other.
pub struct Exchange<'pass> {
    /// The client for the writes.
    pub client: &'pass Client,
    /// Receives every write to a Service.
    pub on_write: &'pass (dyn Fn(Written<'_>) + Sync),
    /// The domain of the cluster: `cluster.local`.
    pub domain: &'pass str,
    /// The settings of bridges.
    pub ground: &'pass BridgeFacts,
}

impl Exchange<'_> {
    /// Runs a step, write by write.
    ///
    /// # Errors
    ///
    /// An object of the exchange changed since it was read, or the API server refuses a write or does not answer. Earlier writes
    /// of the step stay.
    pub async fn make(&self, subject: &Subject, mut seen: Seen, step: Step) -> Result<(), WriteError> {
        crash_point::reach(step.name(), Edge::Announced, None).await;
        // An edit by the owner between the read and the first write may be meant for the helpers, too: they get it first. After
        // the first write, without answering helpers, or with a restless owner, the exchange continues with the latest edit.
        let mut goes_on =
            subject.is_restless || matches!(step, Step::Move | Step::MoveBack | Step::MoveAlone);
        for write in step.writes(subject.goal) {
            let objects = Objects {
                domain: self.domain,
                service: &seen.service,
                addresses: &subject.addresses,
                spare: &subject.spare,
                ground: self.ground,
            };
            let Some(request) = objects.request(write) else {
                // `objects::own` is Away only when the saved spec exists.
                return Ok(());
            };
            match request {
                Request::Create(role, helper) => {
                    let made = create_service(self.client, &subject.namespace, &helper).await?;
                    (self.on_write)(Written::Stored(&made));
                    seen.helpers.insert(role, made);
                }
                Request::PatchService(change) => {
                    let basis = if goes_on {
                        basis(&seen.service)
                    } else {
                        basis_with_helpers(&seen.service)
                    };
                    let patch = FieldPatch::new(&seen.service, &basis, &change);
                    seen.service = match patch_service(self.client, &seen.service, &patch).await {
                        Err(error) if error.is_conflict() && goes_on => {
                            self.patch_newest(subject, &seen, write).await?.ok_or(error)?
                        }
                        patched => patched?,
                    };
                    (self.on_write)(Written::Stored(&seen.service));
                }
                Request::PatchHelper(side, change) => {
                    self.patch(&mut seen, Role::Address(side), &change).await?;
                }
                Request::Answer(part) => {
                    let role = Role::Bridge(part);
                    if let Some(bridge) = seen.helpers.get_mut(&role)
                        && let Some(change) = objects.answer(part, bridge)
                    {
                        *bridge = patch_service_status(self.client, bridge, &change).await?;
                        (self.on_write)(Written::Stored(bridge));
                    }
                }
                Request::RefreshHelper(role) => {
                    let helper = seen.helpers.get(&role);
                    if let Some(change) = helper.and_then(|helper| objects.refresh(role, helper)) {
                        self.patch(&mut seen, role, &change).await?;
                    }
                }
                Request::CopyEndpoints(role) => self.copy(subject, &seen, role).await?,
                Request::DeleteHelper(role) => {
                    if let Some(helper) = seen.helpers.remove(&role) {
                        delete_service(self.client, &helper).await?;
                        (self.on_write)(Written::Deleted(&helper));
                    }
                }
            }
            goes_on = true;
            crash_point::reach(write.name(), Edge::Changed, None).await;
        }
        crash_point::reach(step.name(), Edge::Changed, None).await;
        Ok(())
    }

    /// Repeats a write on the present Service, if it has its address still. `None` when it has not, or after too many conflicts.
    async fn patch_newest(
        &self,
        subject: &Subject,
        seen: &Seen,
        write: Write,
    ) -> Result<Option<Value>, WriteError> {
        for _ in 0..CONFLICTS {
            let service = get_service(self.client, &subject.namespace, &subject.name).await?;
            let is_where_it_was = |service: &Value| {
                service["metadata"]["uid"] == seen.service["metadata"]["uid"]
                    && own(service, &subject.addresses) == own(&seen.service, &subject.addresses)
            };
            let Some(service) = service.filter(is_where_it_was) else {
                return Ok(None);
            };
            let objects = Objects {
                domain: self.domain,
                service: &service,
                addresses: &subject.addresses,
                spare: &subject.spare,
                ground: self.ground,
            };
            let Some(Request::PatchService(change)) = objects.request(write) else {
                return Ok(None);
            };
            let patch = FieldPatch::new(&service, &basis(&service), &change);
            match patch_service(self.client, &service, &patch).await {
                Err(error) if error.is_conflict() => {}
                patched => return patched.map(Some),
            }
        }
        Ok(None)
    }

    async fn copy(&self, subject: &Subject, seen: &Seen, role: Role) -> Result<(), WriteError> {
        let Some(helper) = seen.helpers.get(&role) else {
            return Ok(());
        };
        let copies = seen.copies.get(&role).map_or(&[][..], Vec::as_slice);
        for change in endpoints::copies(&seen.slices, helper, copies) {
            match change {
                Copy::Write(slice) => write_slice(self.client, &slice).await?,
                Copy::Delete(name) => delete_slice(self.client, &subject.namespace, &name).await?,
            }
        }
        Ok(())
    }

    /// Patches a helper, unless it has changed since it was read, and keeps the result for the next patch.
    async fn patch(&self, seen: &mut Seen, role: Role, change: &Value) -> Result<(), WriteError> {
        if let Some(helper) = seen.helpers.get_mut(&role) {
            let patch = FieldPatch::new(helper, &basis(helper), change);
            *helper = patch_service(self.client, helper, &patch).await?;
            (self.on_write)(Written::Stored(helper));
        }
        Ok(())
    }
}
use crate::failure::Failure as _;
use crate::write::WriteError;
