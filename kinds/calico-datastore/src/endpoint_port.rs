//! Named ports of endpoints.

use serde::Serialize;

use super::decode::{Decode, Fields, Mismatch};
use super::json::Json;
use super::key::V2Key;
use super::note::Note;
use super::protocol::Protocol;

/// A port that rules may name.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EndpointPort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

impl EndpointPort {
    /// With its protocol as v3 writes it.
    pub fn in_v3(&self) -> Self {
        Self {
            protocol: self.protocol.of_port_in_v3(),
            ..self.clone()
        }
    }

    /// What to know when its protocol is written in another way than by Calico's own tool, which copies numbers.
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
