//! The release of the source ranges, once every Service has its target address.

use std::collections::HashSet;
use std::net::IpAddr;

use engine::decision::WaitReason;

use super::next::{Next, run, wait, waits};
use super::view::View;
use crate::covers::contains;
use crate::range_name::{cover_name, is_ours};
use crate::ranges::{DEFAULT, ServiceCidr, deleted_together_with, joined};
use crate::step::{Missing, Stage, Step};

/// Releases the source ranges, once every Service has its target address.
pub(super) fn release_source(view: &View<'_>) -> Option<Next> {
    close_source(view)
        .or_else(|| replace_uses(view))
        .or_else(|| view.soak.clone().map(|found| wait(Stage::Soak, found)))
        .or_else(|| cover_kept(view))
        .or_else(|| restore_default(view))
}

/// Until no object of the cluster and no pod contains a source address.
pub(super) fn replace_uses(view: &View<'_>) -> Option<Next> {
    let follow_up = view.follow_up.clone();
    let follow_up = follow_up.map(|found| wait(Stage::FollowUp, found));
    follow_up.or_else(|| {
        view.pods_with_old_addresses.clone().map(|missing| match missing {
            Missing::Evict(pods) => run(Stage::Restart, Step::Evict(pods)),
            Missing::Answer(found) => wait(Stage::Restart, found),
        })
    })
}

/// Until no Service can get a source address.
fn close_source(view: &View<'_>) -> Option<Next> {
    let source = view.source();
    let is_open = |range: &&ServiceCidr| range.is_open(&source, view.kept);
    // The default one first: two overlapping ones are never deleted together.
    let found = view.default_range().filter(is_open);
    let found = found.or_else(|| view.ranges.iter().find(is_open))?;
    if found.name == DEFAULT
        && let Some(wait) = &view.api_servers
    {
        // An API server with the old flag would create it again.
        return Some(self::wait(Stage::ControlPlane, wait.clone()));
    }
    Some(delete(Stage::Close, found, view))
}

/// Until load balancers can keep their addresses without the source range.
fn cover_kept(view: &View<'_>) -> Option<Next> {
    if view.is_default_there() {
        return None;
    }
    let ranges = view.ranges.iter();
    let ready = ranges.filter(|range| range.ready && !range.terminating);
    let ready: HashSet<&str> = ready.map(|range| range.name.as_str()).collect();
    let mut wanted = view.kept.covers().iter();
    let missing = wanted.find(|cover| !ready.contains(cover_name(cover).as_str()))?;
    let name = cover_name(missing);
    Some(match view.range(&name) {
        None => run(Stage::Default, Step::CreateRange(name, vec![*missing])),
        Some(_) => wait(
            Stage::Default,
            waits(
                WaitReason::ServiceRanges,
                format!("ServiceCIDR {name} is not Ready yet"),
            ),
        ),
    })
}

/// Until the default range is the target range, and the only one that assigns addresses.
fn restore_default(view: &View<'_>) -> Option<Next> {
    if !view.is_default_there() {
        let wanted = view.settings.defaults();
        let words = match view.default_range() {
            None => "is deleted; an API server creates it again within seconds".to_owned(),
            Some(range) if range.terminating => {
                "is being deleted, which completes once no address needs it".to_owned()
            }
            Some(range) => format!(
                "has {}: an API server with another flag has created it",
                joined(&range.ranges)
            ),
        };
        let message = format!(
            "ServiceCIDR {DEFAULT} {words}. Needed: {}",
            joined(wanted.of(view.goal))
        );
        return Some(wait(Stage::Default, waits(WaitReason::ServiceRanges, message)));
    }
    // A range with the address of a load balancer is removed together with that address.
    let holds_one = |range: &&ServiceCidr| {
        let held = |address: &IpAddr| range.ranges.iter().any(|range| contains(range, address));
        view.kept.addresses().iter().any(held)
    };
    let ours = |range: &&ServiceCidr| is_ours(&range.name);
    let mut mine = view.ranges.iter().filter(ours);
    if let Some(open) = mine.clone().find(|range| !range.terminating) {
        return Some(delete(Stage::Default, open, view));
    }
    let going = mine.find(|range| !holds_one(range))?;
    let message = format!(
        "ServiceCIDR {} is being deleted, which completes once no address needs it",
        going.name
    );
    Some(wait(Stage::Default, waits(WaitReason::ServiceRanges, message)))
}

fn delete(stage: Stage, range: &ServiceCidr, view: &View<'_>) -> Next {
    match deleted_together_with(range, view.ranges, view.addresses) {
        None => run(stage, Step::DeleteRange(range.name.clone())),
        Some(other) => {
            let message = format!(
                "ServiceCIDR {} is being deleted and overlaps {}: if both were deleted together, no range would contain their \
                 addresses",
                other.name, range.name
            );
            wait(stage, waits(WaitReason::ServiceRanges, message))
        }
    }
}
