//! Label selectors, as Calico evaluates them after it has translated them into its own language.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::labels::Labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::certainty::Match;
use crate::verdict::UnknownReason;

/// Labels that Calico adds to each pod, and the prefixes of those that a pod inherits from its namespace and its service account
/// (`libcalico-go/lib/backend/k8s/conversion`). A selector that names one means something else than in Kubernetes.
const ADDED: [&str; 3] = [
    "projectcalico.org/namespace",
    "projectcalico.org/orchestrator",
    "projectcalico.org/serviceaccount",
];
const INHERITED: [&str; 2] = ["pcns.", "pcsa."];

/// The label with its own name that Calico adds to each namespace.
const NAME_OF_NAMESPACE: &str = "projectcalico.org/name";

/// The longest selector that is kept, in bytes, as in `engine::drain`: an object may have 1.5 MiB.
const LONGEST: usize = 16 * 1024;

/// A label selector. The empty one selects everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector(Terms);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Terms {
    /// All of them must hold.
    All(Box<[Term]>),
    /// What Calico makes of it is not known.
    Unreadable(UnknownReason),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    key: Arc<str>,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Test {
    In(Box<[Arc<str>]>),
    NotIn(Box<[Arc<str>]>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// The selector that selects everything.
    pub fn everything() -> Self {
        Self(Terms::All(Box::default()))
    }

    /// A selector that cannot be evaluated.
    pub fn unreadable(why: UnknownReason) -> Self {
        Self(Terms::Unreadable(why))
    }

    /// Reads a selector of pods. A field that is missing selects everything.
    pub fn of_pods(selector: Option<&LabelSelector>) -> Self {
        let read = selector.map_or_else(Self::everything, Self::read);
        let is_own =
            |key: &str| ADDED.contains(&key) || INHERITED.iter().any(|prefix| key.starts_with(prefix));
        if read.keys().any(is_own) {
            return Self::unreadable(UnknownReason::UnreadableSelector);
        }
        read
    }

    /// Reads a selector of namespaces.
    pub fn of_namespaces(selector: &LabelSelector) -> Self {
        Self::read(selector)
    }

    fn read(selector: &LabelSelector) -> Self {
        let mut terms = Vec::new();
        let mut bytes = 0;
        for (key, value) in selector.match_labels.iter().flatten() {
            bytes += key.len() + value.len();
            terms.push(Term::read(key, "In", std::slice::from_ref(value)));
        }
        for requirement in selector.match_expressions.iter().flatten() {
            let values = requirement.values.as_deref().unwrap_or_default();
            bytes += requirement.key.len() + values.iter().map(|value| value.len() + 1).sum::<usize>();
            terms.push(Term::read(&requirement.key, &requirement.operator, values));
        }
        if bytes > LONGEST {
            return Self::unreadable(UnknownReason::PolicyTooLarge);
        }
        let terms: Option<Box<[Term]>> = terms.into_iter().collect();
        terms.map_or_else(
            || Self::unreadable(UnknownReason::UnreadableSelector),
            |terms| Self(Terms::All(terms)),
        )
    }

    /// Whether an object with these labels is selected.
    pub(crate) fn matches(&self, labels: &Labels) -> Match {
        self.test(&|key| labels.get(key))
    }

    /// Whether the namespace with this name and these labels is selected.
    pub(crate) fn matches_namespace(&self, name: &str, labels: &Labels) -> Match {
        self.test(&|key| {
            if key == NAME_OF_NAMESPACE {
                Some(name)
            } else {
                labels.get(key)
            }
        })
    }

    fn test<'labels>(&self, value: &dyn Fn(&str) -> Option<&'labels str>) -> Match {
        match &self.0 {
            Terms::All(terms) => terms.iter().all(|term| term.holds(value(&term.key))).into(),
            Terms::Unreadable(why) => Match::Unknown(*why),
        }
    }

    /// The keys that the selector names.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let terms = match &self.0 {
            Terms::All(terms) => &terms[..],
            Terms::Unreadable(_) => &[],
        };
        terms.iter().map(|term| &*term.key)
    }

    /// Shares names with other selectors.
    pub(crate) fn share(&mut self, names: &mut BTreeSet<Arc<str>>) {
        if let Terms::All(terms) = &mut self.0 {
            for term in terms {
                share(&mut term.key, names);
                if let Test::In(values) | Test::NotIn(values) = &mut term.test {
                    values.iter_mut().for_each(|value| share(value, names));
                }
            }
        }
    }
}

/// Replaces a text by an equal one that other objects have.
pub(crate) fn share(text: &mut Arc<str>, names: &mut BTreeSet<Arc<str>>) {
    if let Some(known) = names.get(text) {
        *text = Arc::clone(known);
    } else {
        names.insert(Arc::clone(text));
    }
}

impl Term {
    /// One requirement; `None` if Calico's language cannot express it. Calico quotes values without escaping them, and an empty
    /// list of values becomes a list with the empty value.
    fn read(key: &str, operator: &str, values: &[String]) -> Option<Self> {
        let listed = || -> Option<Box<[Arc<str>]>> {
            let is_readable = !values.is_empty() && !values.iter().any(|value| value.contains('\''));
            is_readable.then(|| values.iter().map(|value| Arc::from(value.as_str())).collect())
        };
        let test = match operator {
            "In" => Test::In(listed()?),
            "NotIn" => Test::NotIn(listed()?),
            "Exists" => Test::Exists,
            "DoesNotExist" => Test::DoesNotExist,
            _ => return None,
        };
        let is_letter =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '/');
        let is_key = !key.is_empty() && key.chars().all(is_letter);
        is_key.then(|| Self {
            key: Arc::from(key),
            test,
        })
    }

    fn holds(&self, value: Option<&str>) -> bool {
        let is_among =
            |values: &[Arc<str>]| value.is_some_and(|value| values.iter().any(|known| **known == *value));
        match &self.test {
            Test::In(values) => is_among(values),
            Test::NotIn(values) => !is_among(values),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const UNREADABLE: Match = Match::Unknown(UnknownReason::UnreadableSelector);

    fn read(selector: Value) -> LabelSelector {
        serde_json::from_value(selector).unwrap()
    }

    #[rstest]
    #[case::empty(json!({}), Match::Yes)]
    #[case::equal(json!({"matchLabels": {"app": "web"}}), Match::Yes)]
    #[case::other_value(json!({"matchLabels": {"app": "db"}}), Match::No)]
    #[case::both(json!({"matchLabels": {"app": "web", "tier": "x"}}), Match::No)]
    #[case::among(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}), Match::Yes)]
    #[case::not_among(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), Match::No)]
    #[case::not_in_matches_absence(
        json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}),
        Match::Yes
    )]
    #[case::in_needs_the_key(json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["x"]}]}), Match::No)]
    #[case::exists(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), Match::Yes)]
    #[case::absent(json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), Match::Yes)]
    #[case::quote(json!({"matchLabels": {"app": "it's"}}), UNREADABLE)]
    #[case::odd_key(json!({"matchLabels": {"a b": "x"}}), UNREADABLE)]
    #[case::no_values(json!({"matchExpressions": [{"key": "app", "operator": "In"}]}), UNREADABLE)]
    #[case::operator(json!({"matchExpressions": [{"key": "app", "operator": "Near", "values": ["x"]}]}), UNREADABLE)]
    #[case::label_of_calico(json!({"matchLabels": {"projectcalico.org/namespace": "shop"}}), UNREADABLE)]
    #[case::inherited(json!({"matchExpressions": [{"key": "pcns.team", "operator": "DoesNotExist"}]}), UNREADABLE)]
    fn pods_are_selected_by_labels(#[case] selector: Value, #[case] expected: Match) {
        let labels = Labels::from([("app", "web")]);
        assert_eq!(
            Selector::of_pods(Some(&read(selector))).matches(&labels),
            expected
        );
    }

    #[test]
    fn a_missing_selector_of_pods_selects_every_pod() {
        assert_eq!(Selector::of_pods(None).matches(&Labels::default()), Match::Yes);
    }

    #[test]
    fn namespaces_have_the_label_that_calico_adds() {
        let selector =
            Selector::of_namespaces(&read(json!({"matchLabels": {"projectcalico.org/name": "crm"}})));
        assert_eq!(selector.matches_namespace("crm", &Labels::default()), Match::Yes);
        assert_eq!(selector.matches_namespace("shop", &Labels::default()), Match::No);
    }

    #[test]
    fn a_selector_that_is_too_long_is_not_kept() {
        let long = "x".repeat(LONGEST);
        let selector = Selector::of_pods(Some(&read(json!({"matchLabels": {"app": long}}))));
        let expected = Match::Unknown(UnknownReason::PolicyTooLarge);
        assert_eq!(selector.matches(&Labels::default()), expected);
    }

    #[test]
    fn equal_names_are_shared() {
        let mut names = BTreeSet::new();
        let selector = read(json!({"matchLabels": {"app": "web"}}));
        let mut both = [
            Selector::of_pods(Some(&selector)),
            Selector::of_pods(Some(&selector)),
        ];
        for selector in &mut both {
            selector.share(&mut names);
        }
        let [Selector(Terms::All(one)), Selector(Terms::All(other))] = both else {
            panic!("both are readable");
        };
        assert!(Arc::ptr_eq(&one[0].key, &other[0].key));
    }
}
