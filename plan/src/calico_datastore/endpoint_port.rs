//! Named ports of endpoints.

use serde::Serialize;

use super::decode::{Decode, Fields, Mismatch};
use super::json::Json;
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
            protocol: self.protocol.in_v3(),
            ..self.clone()
        }
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
