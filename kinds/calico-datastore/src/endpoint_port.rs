//! Converts named ports of endpoints.

use serde::Serialize;

use super::decode::{Decode, Fields};
use super::json::Json;
use super::key::V2Key;
use super::mismatch::Mismatch;
use super::note::Note;
use super::protocol::Protocol;

/// A port that rules can refer to by name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EndpointPort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

impl EndpointPort {
    /// The port with its protocol in the form of v3.
    pub fn in_v3(&self) -> Self {
        Self {
            protocol: self.protocol.of_port_in_v3(),
            ..self.clone()
        }
    }

    /// The note on a protocol that is written as a name, where Calico's own tool copies the number.
    pub fn note(&self, key: &V2Key) -> Option<Note> {
        let is_number =
            matches!(self.protocol, Protocol::Number(_)) && self.in_v3().protocol != self.protocol;
        is_number.then(|| Note::PortNumber {
            key: key.clone(),
            port: self.name.clone(),
        })
    }
}

impl Decode for EndpointPort {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            name: fields.get("name")?,
            protocol: fields.get("protocol")?,
            port: fields.get("port")?,
        })
    }
}
