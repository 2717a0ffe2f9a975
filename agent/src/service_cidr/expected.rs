//! The ports that kube-proxy has to know. The settings name the record that has them for all nodes; it is read once a digest.

use api::MigrationRecord;
use kube::{Api, Client};
use plan::service_cidr::host::{ExpectedPorts, ExpectedPortsIn};

use crate::report::chain;

/// The newest list of ports.
pub struct Expected {
    client: Client,
    /// By the name under which it was read.
    read: Option<(ExpectedPortsIn, ExpectedPorts)>,
    is_missing: bool,
}

impl Expected {
    /// Nothing has been read yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            read: None,
            is_missing: false,
        }
    }

    /// The ports that these settings name; none, where they name no record.
    ///
    /// # Errors
    /// Why they are not known: what was attempted on which record.
    pub async fn ports(&mut self, named: Option<&ExpectedPortsIn>) -> Result<ExpectedPorts, String> {
        self.is_missing = false;
        let Some(named) = named else {
            return Ok(ExpectedPorts::default());
        };
        if let Some((_, ports)) = self.read.as_ref().filter(|(of, _)| of == named) {
            return Ok(ports.clone());
        }
        let found = self.fetch(named).await;
        self.is_missing = found.is_err();
        self.read = found.as_ref().ok().map(|ports| (named.clone(), ports.clone()));
        found
    }

    /// Whether the newest settings name ports that are not known.
    pub fn is_missing(&self) -> bool {
        self.is_missing
    }

    async fn fetch(&self, named: &ExpectedPortsIn) -> Result<ExpectedPorts, String> {
        let ExpectedPortsIn { record, digest } = named;
        let api: Api<MigrationRecord> = Api::all(self.client.clone());
        let found = api
            .get_opt(record)
            .await
            .map_err(|error| format!("reading MigrationRecord {record}: {}", chain(&error)))?
            .ok_or_else(|| format!("MigrationRecord {record} is not there"))?;
        let ports = found.spec.expected_ports.unwrap_or_default();
        match ports.digest() {
            held if held == *digest => Ok(ports),
            held => Err(format!(
                "MigrationRecord {record} holds ports with digest {held}, needed {digest}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use plan::service_cidr::host::ServicePort;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    fn ports(number: u16) -> ExpectedPorts {
        ExpectedPorts {
            known: vec![ServicePort {
                address: "172.30.0.5".parse().unwrap(),
                protocol: "TCP".to_owned(),
                port: number,
            }],
            balanced: Vec::new(),
        }
    }

    fn named(number: u16) -> ExpectedPortsIn {
        ExpectedPortsIn {
            record: "m-1-expected-ports-0".to_owned(),
            digest: ports(number).digest(),
        }
    }

    /// What is read while the API server answers so, and how often it was asked.
    async fn reads(
        answers: Vec<(u16, Value)>,
        asked: &[Option<u16>],
    ) -> (Vec<Result<ExpectedPorts, String>>, usize) {
        let (service, mut calls) = mock::pair::<Request<Body>, Response<Body>>();
        let mut expected = Expected::new(Client::new(service, "default"));
        let server = tokio::spawn(async move {
            let mut count = 0;
            for (code, answer) in answers {
                let Some((request, respond)) = calls.next_request().await else {
                    break;
                };
                assert_eq!(
                    request.uri().path(),
                    "/apis/replumb.dev/v1alpha1/migrationrecords/m-1-expected-ports-0"
                );
                count += 1;
                let answer = Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()));
                respond.send_response(answer.unwrap());
            }
            count
        });
        let mut found = Vec::new();
        for number in asked {
            let name = number.map(named);
            let ports = expected.ports(name.as_ref()).await;
            assert_eq!(expected.is_missing(), ports.is_err());
            found.push(ports);
        }
        drop(expected);
        (found, server.await.unwrap())
    }

    fn record(number: u16) -> (u16, Value) {
        let spec =
            json!({ "migration": "m", "holds": "ExpectedPorts", "part": 0, "expectedPorts": ports(number) });
        let object = json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "MigrationRecord",
            "metadata": { "name": "m-1-expected-ports-0" }, "spec": spec,
        });
        (200, object)
    }

    fn refusal(code: u16, reason: &str) -> (u16, Value) {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
            "message": "no such thing",
        });
        (code, status)
    }

    #[tokio::test]
    async fn a_record_is_read_once_a_digest() {
        let asked = [None, Some(80), Some(80), Some(81), None];
        let (found, count) = reads(vec![record(80), record(81)], &asked).await;
        let none = ExpectedPorts::default();
        let all: Vec<ExpectedPorts> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(all, [none.clone(), ports(80), ports(80), ports(81), none]);
        assert_eq!(count, 2);
    }

    #[tokio::test]
    async fn nothing_is_answered_by_a_record_that_holds_something_else() {
        let answers = vec![
            record(81),
            refusal(404, "NotFound"),
            refusal(403, "Forbidden"),
            record(80),
        ];
        let (found, count) = reads(answers, &[Some(80); 4]).await;
        let words = ["needed", "is not there", "reading MigrationRecord m-1"];
        for (found, words) in found.iter().zip(words) {
            assert!(found.as_ref().unwrap_err().contains(words), "{found:?}");
        }
        assert_eq!(found[3], Ok(ports(80)));
        assert_eq!(count, 4);
    }
}
