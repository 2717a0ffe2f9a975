//! Compares verdicts of the preview with what happened.

use std::collections::BTreeMap;

use policy::{Cluster, Connection, UnknownReason, Verdict, forecast};
use serde::Serialize;
use traffic::ask::Answer;

use super::trial::{Class, Trial};

/// What the preview says of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preview {
    /// It is let through, for this reason.
    Allowed(&'static str),
    /// It is dropped: the direction, the reason, the policies.
    Refused(String),
    /// The facts do not decide.
    Unknown(&'static str),
}

/// What Felix did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The server answered.
    Allowed,
    /// Nothing came back.
    Refused,
    /// Something else happened, which no policy explains.
    Failed(String),
}

/// The result of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agreement {
    /// Preview and Felix agree.
    Agree,
    /// They do not.
    Differ,
    /// The preview does not decide.
    Unknown,
    /// Nothing was measured.
    Failed,
}

/// Counts of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// All of them.
    pub connections: usize,
    /// Those that the preview allows.
    pub preview_allowed: usize,
    /// Those that the preview refuses.
    pub preview_refused: usize,
    /// Those that Felix allowed.
    pub felix_allowed: usize,
    /// Those that Felix refused.
    pub felix_refused: usize,
    /// Preview and Felix agree.
    pub agree: usize,
    /// Preview and Felix differ.
    pub differ: usize,
    /// The preview does not decide; Felix did.
    pub unknown: usize,
    /// Neither an answer nor silence was measured.
    pub failed: usize,
}

/// A connection of which preview and Felix differ, or that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// The round.
    pub round: String,
    /// The client.
    pub client: String,
    /// The server.
    pub server: String,
    /// The address and port that were asked.
    pub asked: String,
    /// The class.
    pub class: Class,
    /// What the preview says, with its reason.
    pub preview: String,
    /// What Felix did.
    pub felix: String,
}

impl Preview {
    /// The verdict on a connection that goes to one of these servers. If the verdicts differ, the server decides.
    pub fn of(cluster: &Cluster, planned: &[Connection]) -> Self {
        let mut verdicts = planned.iter().map(|one| Self::from(forecast(cluster, one)));
        let Some(first) = verdicts.next() else {
            return Self::Unknown("NoServer");
        };
        let same = |other: &Self| std::mem::discriminant(other) == std::mem::discriminant(&first);
        if verdicts.all(|other| same(&other)) {
            first
        } else {
            Self::Unknown("OneOfSeveralServers")
        }
    }

    /// The verdict in words.
    pub fn words(&self) -> String {
        match self {
            Self::Allowed(why) => format!("allowed ({why})"),
            Self::Refused(why) => format!("refused ({why})"),
            Self::Unknown(why) => format!("unknown ({why})"),
        }
    }
}

impl From<Verdict> for Preview {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allowed { why } => Self::Allowed(why.as_str()),
            Verdict::Refused {
                direction,
                policies,
                why,
            } => {
                let mut words = vec![direction.as_str().to_owned(), why.as_str().to_owned()];
                words.extend(policies.iter().map(ToString::to_string));
                Self::Refused(words.join(", "))
            }
            Verdict::Unknown { why, .. } => Self::Unknown(UnknownReason::as_str(why)),
        }
    }
}

impl Measured {
    /// What an answer says. A wrong name is an answer of another pod.
    pub fn of(answer: &Answer, name: Option<&str>) -> Self {
        match answer {
            Answer::Answered(found) => match name {
                Some(name) if name != found => {
                    Self::Failed(format!("the answer is from {found:?}, needed {name:?}"))
                }
                _ => Self::Allowed,
            },
            Answer::Silent => Self::Refused,
            Answer::Failed(why) => Self::Failed(why.clone()),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Allowed => "allowed".to_owned(),
            Self::Refused => "refused".to_owned(),
            Self::Failed(why) => format!("not measured: {why}"),
        }
    }
}

/// The result of a connection.
pub fn agreement(preview: &Preview, measured: &Measured) -> Agreement {
    match (preview, measured) {
        (_, Measured::Failed(_)) => Agreement::Failed,
        (Preview::Unknown(_), _) => Agreement::Unknown,
        (Preview::Allowed(_), Measured::Allowed) | (Preview::Refused(_), Measured::Refused) => {
            Agreement::Agree
        }
        (Preview::Allowed(_), Measured::Refused) | (Preview::Refused(_), Measured::Allowed) => {
            Agreement::Differ
        }
    }
}

impl Counts {
    /// Adds a connection.
    pub fn add(&mut self, preview: &Preview, measured: &Measured) {
        self.connections += 1;
        match preview {
            Preview::Allowed(_) => self.preview_allowed += 1,
            Preview::Refused(_) => self.preview_refused += 1,
            Preview::Unknown(_) => {}
        }
        match measured {
            Measured::Allowed => self.felix_allowed += 1,
            Measured::Refused => self.felix_refused += 1,
            Measured::Failed(_) => {}
        }
        match agreement(preview, measured) {
            Agreement::Agree => self.agree += 1,
            Agreement::Differ => self.differ += 1,
            Agreement::Unknown => self.unknown += 1,
            Agreement::Failed => self.failed += 1,
        }
    }
}

/// The line of a connection.
pub fn line(round: &str, trial: &Trial, preview: &Preview, measured: &Measured) -> Line {
    Line {
        round: round.to_owned(),
        client: trial.client.clone(),
        server: trial.server.clone(),
        asked: trial.question.server.to_string(),
        class: trial.class,
        preview: preview.words(),
        felix: measured.words(),
    }
}

/// Counts by a key, in the order of the keys.
pub type Table<Key> = BTreeMap<Key, Counts>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_an_unknown_verdict_and_a_failure_are_counted_apart() {
        let (allowed, refused) = (Preview::Allowed("Rule"), Preview::Refused("Ingress".to_owned()));
        let unknown = Preview::Unknown("UnreadableSelector");
        let failed = Measured::Failed("connection refused".to_owned());
        let mut counts = Counts::default();
        for (preview, measured) in [
            (&allowed, &Measured::Allowed),
            (&refused, &Measured::Refused),
            (&allowed, &Measured::Refused),
            (&refused, &Measured::Allowed),
            (&unknown, &Measured::Allowed),
            (&allowed, &failed),
        ] {
            counts.add(preview, measured);
        }
        let expected = Counts {
            connections: 6,
            preview_allowed: 3,
            preview_refused: 2,
            felix_allowed: 3,
            felix_refused: 2,
            agree: 2,
            differ: 2,
            unknown: 1,
            failed: 1,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn an_answer_of_another_pod_is_no_verdict() {
        let answered = |name: &str| Answer::Answered(name.to_owned());
        assert_eq!(
            Measured::of(&answered("shop/db-0"), Some("shop/db-0")),
            Measured::Allowed
        );
        assert_eq!(Measured::of(&answered(""), None), Measured::Allowed);
        assert_eq!(
            Measured::of(&Answer::Silent, Some("shop/db-0")),
            Measured::Refused
        );
        assert!(matches!(
            Measured::of(&answered("shop/db-1"), Some("shop/db-0")),
            Measured::Failed(why) if why.contains("shop/db-1")
        ));
    }
}
