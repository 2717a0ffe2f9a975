//! `PodDisruptionBudget`s of pods that have to leave. A tenant may create thousands of budgets and pods in one namespace, so
//! budgets and pods are not compared each with each, and no list of pairs is built.

use std::collections::{BTreeMap, HashMap};

use super::pods::verdict_for_blocked_pod;
use super::{Check, Finding, Report, Verdict};
use crate::drain::{Budget, Pod, Selector};
use crate::words::{LISTED, names};

/// A pod with this many budgets is never evicted: further budgets of the pod do not matter.
const TWO_BUDGETS: usize = 2;

/// Budgets that allow no disruption, now or ever, and pods that cannot be evicted because they have two budgets. They refuse the
/// migration, unless the user has set what happens `meanwhile`.
pub fn check(
    name: impl Into<&'static str>,
    leaving: &[&Pod],
    budgets: &[Budget],
    meanwhile: Option<&'static str>,
) -> Vec<Check> {
    let mut report = Report::new(name);
    let mut namespaces: BTreeMap<&str, Namespace<'_>> = BTreeMap::new();
    for pod in leaving.iter().filter(|pod| !pod.mirror) {
        namespaces.entry(&pod.namespace).or_default().add(pod);
    }
    let mut guarding = 0;
    for budget in budgets {
        if budget.selector.as_ref().is_some_and(Selector::is_too_long)
            && namespaces.contains_key(budget.namespace.as_str())
        {
            too_long(budget, &mut report);
        }
        let namespace = namespaces.get_mut(budget.namespace.as_str());
        let guarded = namespace.map_or_else(Vec::new, |namespace| namespace.guarded(budget));
        guarding += usize::from(!guarded.is_empty());
        if !guarded.is_empty() && budget.disruptions_allowed <= 0 {
            blocked(budget, &guarded, meanwhile, &mut report);
        }
    }
    let guarded = namespaces.values().flat_map(|namespace| &namespace.pods);
    for found in guarded.filter(|found| found.has_too_many()) {
        let found_budgets = names(&found.owners);
        let (verdict, fix) = verdict_for_blocked_pod(
            meanwhile,
            Verdict::Fail,
            "the API server evicts no pod with two or more PodDisruptionBudgets: correct their selectors",
        );
        report.add(
            verdict,
            "Pod",
            found.pod.key(),
            Finding::new(
                "",
                format!("selected by two or more PodDisruptionBudgets: {found_budgets}"),
                "at most one",
                fix,
            ),
        );
    }
    report.finish(
        "every PodDisruptionBudget",
        format!("{guarding} with pods that have to leave, each allows a disruption"),
    )
}

/// A pod, and budgets that select it: at most [`TWO_BUDGETS`].
struct Guarded<'facts> {
    pod: &'facts Pod,
    owners: Vec<&'facts str>,
}

impl Guarded<'_> {
    fn has_too_many(&self) -> bool {
        self.owners.len() >= TWO_BUDGETS
    }
}

/// A group of pods of a namespace.
#[derive(Default)]
struct Group {
    /// Their places in the list of pods.
    places: Vec<usize>,
    /// The number of pods with less than two budgets so far.
    open: usize,
}

impl Group {
    fn add(&mut self, place: usize) {
        self.places.push(place);
        self.open += 1;
    }
}

/// The pods of a namespace that have to leave.
#[derive(Default)]
struct Namespace<'facts> {
    pods: Vec<Guarded<'facts>>,
    all: Group,
    none: Group,
    /// The pods with a label of this key and value.
    by_label: HashMap<(&'facts str, &'facts str), Group>,
}

impl<'facts> Namespace<'facts> {
    fn add(&mut self, pod: &'facts Pod) {
        let place = self.pods.len();
        self.pods.push(Guarded {
            pod,
            owners: Vec::new(),
        });
        self.all.add(place);
        for (key, value) in pod.labels.iter() {
            self.by_label.entry((key, value)).or_default().add(place);
        }
    }

    /// The first pods that this budget selects, up to one more than are listed. Records the budget for these pods.
    fn guarded(&mut self, budget: &'facts Budget) -> Vec<String> {
        let mut guarded = Vec::new();
        let Some(selector) = &budget.selector else {
            return guarded;
        };
        let mut selected = Vec::new();
        let group = self.smallest(selector);
        let mut open = group.open;
        for place in &group.places {
            // The remaining pods add no information.
            if open == 0 && guarded.len() > LISTED {
                break;
            }
            let found = &self.pods[*place];
            if guarded.len() > LISTED && found.has_too_many() || !selector.matches(&found.pod.labels) {
                continue;
            }
            if guarded.len() <= LISTED {
                guarded.push(found.pod.key());
            }
            if !found.has_too_many() {
                selected.push(*place);
                open -= usize::from(found.owners.len() + 1 == TWO_BUDGETS);
            }
        }
        for place in selected {
            self.record(place, &budget.name);
        }
        guarded
    }

    fn record(&mut self, place: usize, budget: &'facts str) {
        let found = &mut self.pods[place];
        found.owners.push(budget);
        if !found.has_too_many() {
            return;
        }
        self.all.open -= 1;
        for (key, value) in found.pod.labels.iter() {
            if let Some(group) = self.by_label.get_mut(&(&**key, &**value)) {
                group.open -= 1;
            }
        }
    }

    /// The smallest group that contains all pods that the selector selects.
    fn smallest<'group>(&'group self, selector: &'group Selector) -> &'group Group {
        let of_labels = selector.match_labels.iter();
        let of_labels = of_labels.map(|(key, value)| self.by_label.get(&(key.as_str(), value.as_str())));
        let smallest = of_labels
            .map(|group| group.unwrap_or(&self.none))
            .min_by_key(|group| group.places.len());
        smallest.unwrap_or(&self.all)
    }
}

/// A budget whose selector is too long: the selected pods are not known before an eviction is refused.
fn too_long(budget: &Budget, report: &mut Report) {
    report.warn(
        "PodDisruptionBudget",
        format!("{}/{}", budget.namespace, budget.name),
        Finding::new(
            "spec.selector",
            "longer than 16 KiB",
            "a selector that can be compared with pods",
            "the budget is checked only when pods are evicted: shorten the selector, or check the budget with kubectl",
        ),
    );
}

fn blocked(budget: &Budget, guarded: &[String], meanwhile: Option<&'static str>, report: &mut Report) {
    let of_pods = match guarded.get(..LISTED) {
        Some(first) if guarded.len() > LISTED => format!("selects {} and others", names(first)),
        Some(_) | None => format!("selects {}", names(guarded)),
    };
    let key = format!("{}/{}", budget.namespace, budget.name);
    let (verdict, found, fix) = if budget.expected_pods == 0 {
        (
            Verdict::Unknown,
            format!("0 disruptions allowed, 0 pods expected; {of_pods}"),
            "its controller has not counted the pods yet, or cannot: see `kubectl describe pdb`",
        )
    } else if budget.desired_healthy >= budget.expected_pods {
        (
            Verdict::Fail,
            format!(
                "0 disruptions allowed, {} of {} pods must stay healthy; {of_pods}",
                budget.desired_healthy, budget.expected_pods
            ),
            "the budget can never allow a disruption: allow one, or add a replica, for the time of the migration",
        )
    } else {
        (
            Verdict::Fail,
            format!(
                "0 disruptions allowed now, {} of {} pods healthy, {} needed; {of_pods}",
                budget.current_healthy, budget.expected_pods, budget.desired_healthy
            ),
            "no pod of the budget is evicted before more of its pods are healthy: find out why they are not",
        )
    };
    let (verdict, fix) = verdict_for_blocked_pod(meanwhile, verdict, fix);
    let finding = Finding::new("", found, "at least 1 disruption allowed", fix);
    report.add(verdict, "PodDisruptionBudget", key, finding);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of pods and budgets that a tenant creates in one namespace.
    const MANY: usize = 5000;

    fn pods(labels: impl Fn(usize) -> Vec<(&'static str, String)>) -> Vec<Pod> {
        let pod = |number| Pod {
            namespace: "shop".to_owned(),
            name: format!("web-{number:04}"),
            labels: labels(number).into_iter().collect(),
            ..Pod::default()
        };
        (0..MANY).map(pod).collect()
    }

    fn budgets(allowed: i32, selector: impl Fn(usize) -> Selector) -> Vec<Budget> {
        let budget = |number| Budget {
            namespace: "shop".to_owned(),
            name: format!("budget-{number:04}"),
            selector: Some(selector(number)),
            disruptions_allowed: allowed,
            expected_pods: 1,
            ..Budget::default()
        };
        (0..MANY).map(budget).collect()
    }

    fn of_label(key: &str, value: String) -> Selector {
        Selector {
            match_labels: BTreeMap::from([(key.to_owned(), value)]),
            ..Selector::default()
        }
    }

    fn judge(pods: &[Pod], budgets: &[Budget]) -> Vec<Check> {
        let leaving: Vec<&Pod> = pods.iter().collect();
        check("DisruptionBudgets", &leaving, budgets, None)
    }

    #[test]
    fn each_pod_may_have_its_own_budget() {
        let pods = pods(|number| vec![("app", "web".to_owned()), ("id", number.to_string())]);
        let of_each = |number: usize| {
            let mut selector = of_label("id", number.to_string());
            selector.match_labels.insert("app".to_owned(), "web".to_owned());
            selector
        };
        let found = judge(&pods, &budgets(1, of_each));
        let expected = "5000 with pods that have to leave, each allows a disruption";
        assert_eq!((found.len(), found[0].found.as_str()), (1, expected));
        let found = judge(&pods, &budgets(0, of_each));
        assert_eq!(found.len(), 11);
        assert_eq!(found[0].object, "PodDisruptionBudget shop/budget-0000");
        assert!(found[0].found.ends_with("selects shop/web-0000"), "{found:?}");
    }

    /// All forms of a selector that selects every pod.
    #[test]
    fn every_budget_may_select_every_pod() {
        let pods = pods(|_| vec![("app", "web".to_owned())]);
        let term = |key: &str, operator: &str| Selector {
            match_expressions: vec![(key.to_owned(), operator.to_owned(), Vec::new())],
            ..Selector::default()
        };
        let selectors: [&dyn Fn(usize) -> Selector; 4] = [
            &|_| Selector::default(),
            &|_| of_label("app", "web".to_owned()),
            &|_| term("app", "Exists"),
            &|number| term(&number.to_string(), "DoesNotExist"),
        ];
        for selector in selectors {
            let found = judge(&pods, &budgets(0, selector));
            assert_eq!(found.len(), 2, "one line for all objects of a finding");
            let all: Vec<Check> = found.iter().flat_map(Check::in_full).cloned().collect();
            let of_pods = all.iter().filter(|check| check.object.starts_with("Pod"));
            assert!(
                of_pods
                    .clone()
                    .any(|check| check.object.contains("shop/web-4999"))
            );
            let first = found
                .iter()
                .find(|check| check.found.starts_with("selected"))
                .unwrap();
            assert_eq!(
                first.found,
                "selected by two or more PodDisruptionBudgets: budget-0000, budget-0001"
            );
            let blocked = all
                .iter()
                .find(|check| check.found.contains("; selects "))
                .unwrap();
            assert!(blocked.found.ends_with("shop/web-0009 and others"), "{blocked:?}");
        }
    }

    #[test]
    fn a_selector_that_is_too_long_is_named() {
        let pods = pods(|_| vec![("app", "web".to_owned())]);
        let terms =
            (0..10_000).map(|number| (format!("key-{number}"), "DoesNotExist".to_owned(), Vec::new()));
        let selector = Selector {
            match_expressions: terms.collect(),
            ..Selector::default()
        };
        let kept = selector.limited();
        assert!(kept.is_too_long() && !kept.matches(&pods[0].labels));
        let short = of_label("app", "web".to_owned());
        assert_eq!(short.clone().limited(), short);
        let budget = Budget {
            selector: Some(kept),
            ..budgets(0, |_| Selector::default())[0].clone()
        };
        let found = judge(&pods, &[budget]);
        assert_eq!(
            (found.len(), found[0].verdict, found[0].object.as_str()),
            (
                1,
                Verdict::Warn,
                "PodDisruptionBudget shop/budget-0000: spec.selector"
            )
        );
    }

    #[test]
    fn a_budget_that_selects_no_pod_passes() {
        let pods = pods(|_| vec![("app", "web".to_owned())]);
        let none = |number: usize| of_label("app", number.to_string());
        let found = judge(&pods, &budgets(0, none));
        assert_eq!(
            found[0].found,
            "0 with pods that have to leave, each allows a disruption"
        );
        let without = Budget {
            namespace: "shop".to_owned(),
            ..Budget::default()
        };
        assert_eq!(judge(&pods, &[without])[0].verdict, Verdict::Pass);
    }
}
