//! The API server's own record of requests, as counts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::size::Kind;
use super::{coordinator, hollow};

/// The used fields of one line of the log.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
    #[serde(default)]
    response_status: Status,
    #[serde(default)]
    request_object: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

/// The coordinator's requests to the API server in some time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Number by verb and resource, such as `patch nodes`.
    pub by_kind: BTreeMap<String, u64>,
    /// Requests that change objects, refused or not; without the coordinator's own Lease, Events and evictions.
    pub writes: u64,
    /// Evictions, refused or not: at least one for each pod that leaves.
    pub evictions: u64,
    /// Refused requests, by code.
    pub refused: BTreeMap<u16, u64>,
    /// Seconds from an agent's report to the coordinator's write that answers it. From flannel to Calico: from a new
    /// phase to the next write to that node's objects. In the other kinds agents report facts, and one step waits for
    /// the facts of all nodes: from the newest report to the next write other than a question to agents.
    #[serde(skip)]
    pub answers: Vec<f64>,
}

/// Reads the coordinator's requests from one moment to another.
pub fn read(log: &Path, kind: Kind, from: Timestamp, to: Timestamp) -> Result<Requests> {
    let file = std::fs::File::open(log).with_context(|| format!("open {}", log.display()))?;
    let mut count = Count::of(kind);
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("read {}", log.display()))?;
        // The last line may not be complete yet.
        let Ok(event) = serde_json::from_str::<Event>(&line) else {
            continue;
        };
        if (from..to).contains(&event.request_received_timestamp) {
            count.add(&event);
        }
    }
    Ok(count.requests)
}

struct Count {
    requests: Requests,
    unanswered: Unanswered,
}

/// Agents' reports that the coordinator has not answered yet.
enum Unanswered {
    /// By node: the time at which its agent reported another phase of the host.
    Phases(BTreeMap<String, Timestamp>),
    /// Time of the last new report of any agent.
    Facts(Option<Timestamp>),
}

impl Unanswered {
    /// Start of the wait for the write of this object; the write has now happened.
    fn take(&mut self, object: &ObjectRef) -> Option<Timestamp> {
        let of_node = ["nodes", "nodemigrations"].contains(&object.resource.as_str());
        match self {
            Self::Phases(nodes) if of_node => nodes.remove(&object.name),
            Self::Facts(newest) if object.resource != "nodemigrations" && object.subresource != "status" => {
                newest.take()
            }
            Self::Phases(_) | Self::Facts(_) => None,
        }
    }
}

impl Count {
    fn of(kind: Kind) -> Self {
        Self {
            requests: Requests::default(),
            unanswered: match kind {
                Kind::FlannelToCalico => Unanswered::Phases(BTreeMap::new()),
                Kind::PodCidr | Kind::ServiceCidr => Unanswered::Facts(None),
            },
        }
    }

    fn add(&mut self, event: &Event) {
        // A watch is counted at its start, every other request at its end.
        let counted = if event.verb == "watch" {
            "ResponseStarted"
        } else {
            "ResponseComplete"
        };
        if event.stage != counted {
            return;
        }
        match event.user.username.as_str() {
            coordinator::USER => self.add_request(event),
            hollow::USER => self.add_report(event),
            _ => {}
        }
    }

    fn add_request(&mut self, event: &Event) {
        let ObjectRef {
            resource,
            subresource,
            name: _,
        } = &event.object_ref;
        let what = match (resource.is_empty(), subresource.is_empty()) {
            (true, _) => "other paths".to_owned(),
            (false, true) => resource.clone(),
            (false, false) => format!("{resource}/{subresource}"),
        };
        *self
            .requests
            .by_kind
            .entry(format!("{} {what}", event.verb))
            .or_default() += 1;
        if event.response_status.code >= 400 {
            *self
                .requests
                .refused
                .entry(event.response_status.code)
                .or_default() += 1;
        }
        let writes =
            ["create", "update", "patch", "delete", "deletecollection"].contains(&event.verb.as_str());
        let apart = ["selfsubjectaccessreviews", "leases", "events"].contains(&resource.as_str());
        if !writes || apart {
            return;
        }
        if let Some(since) = self.unanswered.take(&event.object_ref)
            && event.request_received_timestamp >= since
        {
            let answered = event.stage_timestamp.duration_since(since).as_secs_f64();
            self.requests.answers.push(answered);
        }
        if subresource == "eviction" {
            self.requests.evictions += 1;
        } else {
            self.requests.writes += 1;
        }
    }

    fn add_report(&mut self, event: &Event) {
        let is_report =
            event.object_ref.resource == "nodemigrations" && event.object_ref.subresource == "status";
        if !is_report || event.response_status.code >= 400 {
            return;
        }
        let at = event.stage_timestamp;
        let status = &event.request_object["status"];
        let has = |field: &str| status.get(field).is_some();
        match &mut self.unanswered {
            Unanswered::Phases(nodes) if status["flannelToCalico"].get("phase").is_some() => {
                nodes.insert(event.object_ref.name.clone(), at);
            }
            Unanswered::Facts(newest) if has("serviceCidr") || has("podCidr") => *newest = Some(at),
            Unanswered::Phases(_) | Unanswered::Facts(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    fn line(
        user: &str,
        verb: &str,
        resource: &str,
        subresource: &str,
        at: u32,
        body: &serde_json::Value,
    ) -> String {
        let time = |milliseconds: u32| format!("2026-11-25T10:00:{at:02}.{milliseconds:03}Z");
        json!({
            "stage": if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" },
            "verb": verb, "user": {"username": user},
            "objectRef": {"resource": resource, "subresource": subresource, "name": "a"},
            "requestReceivedTimestamp": time(0), "stageTimestamp": time(500),
            "responseStatus": {"code": if subresource == "eviction" { 429 } else { 200 }}, "requestObject": body,
        })
        .to_string()
    }

    #[test]
    fn each_request_is_counted_once_and_each_answer_is_timed() {
        let none = json!(null);
        let phase = json!({"status": {"flannelToCalico": {"phase": "Held"}}});
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for line in [
            line(coordinator::USER, "watch", "pods", "", 1, &none),
            line(coordinator::USER, "patch", "nodes", "", 2, &none),
            line(hollow::USER, "patch", "nodemigrations", "status", 3, &phase),
            line(
                hollow::USER,
                "patch",
                "nodemigrations",
                "status",
                4,
                &json!({"status": {"message": "x"}}),
            ),
            line(coordinator::USER, "create", "pods", "eviction", 4, &none),
            line(coordinator::USER, "patch", "nodemigrations", "", 5, &none),
            line(coordinator::USER, "patch", "nodemigrations", "", 6, &none),
            line(coordinator::USER, "update", "leases", "", 6, &none),
            line("other", "patch", "nodes", "", 6, &none),
            line(coordinator::USER, "patch", "nodes", "", 50, &none),
            "{\"stage\": \"Respon".to_owned(),
        ] {
            writeln!(file, "{line}").unwrap();
        }
        let at = |second: u32| format!("2026-11-25T10:00:{second:02}Z").parse().unwrap();
        let requests = read(file.path(), Kind::FlannelToCalico, at(0), at(40)).unwrap();
        assert_eq!(requests.by_kind["watch pods"], 1);
        assert_eq!(requests.by_kind["patch nodes"], 1);
        assert_eq!(requests.by_kind["create pods/eviction"], 1);
        assert_eq!(requests.writes, 3, "the Lease is not among them: {requests:?}");
        assert_eq!(requests.evictions, 1);
        assert_eq!(requests.refused, [(429, 1)].into());
        // The report was written at 3.5 s, and the answer at 5.5 s.
        assert_eq!(requests.answers, [2.0]);
    }

    #[test]
    fn the_next_step_answers_facts_and_the_next_question_does_not() {
        let facts = json!({"status": {"serviceCidr": {"missingPorts": {}}}});
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let report = |at| line(hollow::USER, "patch", "nodemigrations", "status", at, &facts);
        let asks = |resource, at| line(coordinator::USER, "patch", resource, "", at, &json!(null));
        for line in [
            report(1),
            report(3),
            asks("nodemigrations", 4),
            asks("services", 6),
            asks("services", 7),
        ] {
            writeln!(file, "{line}").unwrap();
        }
        let at = |second: u32| format!("2026-11-25T10:00:{second:02}Z").parse().unwrap();
        let requests = read(file.path(), Kind::ServiceCidr, at(0), at(40)).unwrap();
        // The newest report was written at 3.5 s, and the first step at 6.5 s.
        assert_eq!(requests.answers, [3.0]);
    }
}
