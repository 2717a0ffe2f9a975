//! Tiers of policies, in Calico's order: administrators, Kubernetes, baseline, and last the profile of the namespace, which
//! allows everything.

use crate::admin::{Action, AdminPolicy, Content, Tier};
use crate::certainty::Match;
use crate::cluster::{Cluster, Owner};
use crate::flow::Flow;
use crate::name::ObjectName;
use crate::pod::Pod;
use crate::rules::{Policy, Rules};
use crate::verdict::{AllowReason, Direction, RefuseReason, UnknownReason, Verdict};

use super::allowed;
use super::matching::{Party, matches};

/// The verdict of the policies on a connection of a pod in one direction. `peer` is the other side.
pub(crate) fn judge(
    cluster: &Cluster,
    flow: &Flow,
    pod: &Pod,
    direction: Direction,
    peer: &Party<'_>,
) -> Verdict {
    let own = Party::of(&Owner::Pod(pod), flow.destination);
    let side = Side {
        cluster,
        flow,
        pod,
        direction,
        peer,
        destination: if direction == Direction::Ingress {
            &own
        } else {
            peer
        },
    };
    side.opaque()
        .or_else(|| side.tier(Tier::Admin))
        .or_else(|| side.kubernetes())
        .or_else(|| side.tier(Tier::Baseline))
        .unwrap_or_else(|| allowed(AllowReason::NotIsolated))
}

/// One side of a connection, with what is judged.
struct Side<'a> {
    cluster: &'a Cluster,
    flow: &'a Flow,
    pod: &'a Pod,
    direction: Direction,
    peer: &'a Party<'a>,
    destination: &'a Party<'a>,
}

impl<'a> Side<'a> {
    fn admin_policies(&self) -> impl Iterator<Item = &'a AdminPolicy> {
        let version = self.cluster.settings().version;
        let policies = self.cluster.admin_policies().iter();
        policies.filter(move |policy| policy.is_read_by(version))
    }

    fn selects(&self, policy: &AdminPolicy) -> Match {
        let namespace = self.cluster.namespace(&self.pod.namespace);
        policy.selects(self.pod, namespace, self.direction)
    }

    /// Policies that are not evaluated: Calico's own may come before or after all others.
    fn opaque(&self) -> Option<Verdict> {
        let is_opaque = |policy: &&AdminPolicy| matches!(policy.content, Content::Opaque(_));
        let selects = |policy: &&AdminPolicy| self.selects(policy) != Match::No;
        let objects: Vec<ObjectName> = self
            .admin_policies()
            .filter(is_opaque)
            .filter(selects)
            .map(|policy| policy.object.clone())
            .collect();
        (!objects.is_empty()).then_some(Verdict::Unknown {
            why: UnknownReason::CalicoPolicy,
            objects,
        })
    }

    /// The first rule of a tier that matches; `None` if the next tier decides.
    fn tier(&self, tier: Tier) -> Option<Verdict> {
        for policy in self.admin_policies() {
            let Content::Rules(rules) = &policy.content else {
                continue;
            };
            if rules.tier != tier {
                continue;
            }
            let selects = self.selects(policy);
            for given in rules.rules(self.direction) {
                // The rules of the cluster have no namespace of their own.
                let is_match = || {
                    let (peer, destination) = (self.peer, self.destination);
                    matches(self.cluster, &given.rule, "", self.flow, peer, destination)
                };
                match (selects.and(is_match), given.action) {
                    (Match::No, _) => {}
                    (Match::Yes, Action::Pass) => return None,
                    (Match::Yes, Action::Allow) => return Some(allowed(AllowReason::AdminRule)),
                    (Match::Yes, Action::Deny) => {
                        return Some(Verdict::Refused {
                            direction: self.direction,
                            policies: vec![policy.object.clone()],
                            why: RefuseReason::AdminRule,
                        });
                    }
                    (Match::Unknown(why), _) => {
                        return Some(Verdict::Unknown {
                            why,
                            objects: vec![policy.object.clone()],
                        });
                    }
                }
            }
        }
        None
    }

    /// The policies of Kubernetes: a union, without order. `None` if none of them isolates the pod.
    fn kubernetes(&self) -> Option<Verdict> {
        let mut isolating = Vec::new();
        // Policies that may isolate, and policies that may allow.
        let (mut may_isolate, mut may_allow) = (Doubts::default(), Doubts::default());
        for policy in self.cluster.policies_of(&self.pod.namespace) {
            let Some(rules) = policy.rules(self.direction) else {
                continue;
            };
            let selects = policy.selector.matches(&self.pod.labels);
            if selects == Match::No {
                continue;
            }
            match (selects, self.any(policy, rules)) {
                (Match::Yes, Match::Yes) => return Some(allowed(AllowReason::Rule)),
                (Match::Unknown(why), matched) => {
                    may_isolate.add(why, policy);
                    if matched != Match::No {
                        may_allow.add(why, policy);
                    }
                }
                (_, Match::Unknown(why)) => {
                    isolating.push(policy.object());
                    may_allow.add(why, policy);
                }
                (_, Match::No | Match::Yes) => isolating.push(policy.object()),
            }
        }
        if isolating.is_empty() {
            return may_isolate.verdict();
        }
        may_allow.verdict().or(Some(Verdict::Refused {
            direction: self.direction,
            policies: isolating,
            why: RefuseReason::NoRuleMatches,
        }))
    }

    fn any(&self, policy: &Policy, rules: &Rules) -> Match {
        let rules = match rules {
            Rules::Listed(rules) => rules,
            Rules::Unreadable(why) => return Match::Unknown(*why),
        };
        Match::any(rules.iter().map(|rule| {
            let (peer, destination) = (self.peer, self.destination);
            matches(
                self.cluster,
                rule,
                &policy.namespace,
                self.flow,
                peer,
                destination,
            )
        }))
    }
}

/// Policies with an effect that is not known, and the first reason.
#[derive(Default)]
struct Doubts(Option<(UnknownReason, Vec<ObjectName>)>);

impl Doubts {
    fn add(&mut self, why: UnknownReason, policy: &Policy) {
        let (_, objects) = self.0.get_or_insert_with(|| (why, Vec::new()));
        objects.push(policy.object());
    }

    fn verdict(self) -> Option<Verdict> {
        self.0.map(|(why, objects)| Verdict::Unknown { why, objects })
    }
}
