//! Converts protocols and ports of rules and endpoints, each a number or a name.

use std::fmt;

use serde::{Serialize, Serializer};

use super::decode::Decode;
use super::go_values::{equal_fold, unsigned};
use super::json::Json;
use super::mismatch::Mismatch;

/// Names in v3; v2 writes them in lower case.
const NAMES: [&str; 6] = ["UDP", "TCP", "ICMP", "ICMPv6", "SCTP", "UDPLite"];
/// The protocols that have ports, by number and name.
const WITH_PORTS: [(u8, &str); 3] = [(6, "TCP"), (17, "UDP"), (132, "SCTP")];

/// A protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A number.
    Number(u8),
    /// A name.
    Name(String),
}

impl Protocol {
    /// The form in v3. An unknown name stays; validation refuses it.
    pub fn in_v3(&self) -> Self {
        match self {
            Self::Number(number) => Self::Number(*number),
            Self::Name(name) => {
                let known = NAMES.into_iter().find(|known| equal_fold(known, name));
                Self::Name(known.unwrap_or(name).to_owned())
            }
        }
    }

    /// The form in v3 for the port of an endpoint: a name, if the protocol has ports.
    pub fn of_port_in_v3(&self) -> Self {
        let named = WITH_PORTS
            .into_iter()
            .find(|(number, _)| *self == Self::Number(*number));
        named.map_or_else(|| self.in_v3(), |(_, name)| Self::Name(name.to_owned()))
    }

    /// Whether the protocol has this name.
    pub fn is(&self, name: &str) -> bool {
        matches!(self, Self::Name(own) if own == name)
    }

    /// Whether v3 accepts the protocol: a number other than 0, or a known name.
    pub fn is_known(&self) -> bool {
        match self {
            Self::Number(number) => *number > 0,
            Self::Name(name) => NAMES.contains(&name.as_str()),
        }
    }

    /// Whether the protocol has ports.
    pub fn has_ports(&self) -> bool {
        match self {
            Self::Number(number) => WITH_PORTS.iter().any(|(with_ports, _)| with_ports == number),
            Self::Name(name) => ["TCP", "UDP", "SCTP", "tcp", "udp", "sctp"].contains(&name.as_str()),
        }
    }
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Name(name) => write!(formatter, "{name:?}"),
        }
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u8(*number),
            Self::Name(name) => serializer.serialize_str(name),
        }
    }
}

impl Decode for Protocol {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let mismatch = || Mismatch::new(json, "a name or a number from 0 to 255");
        match json {
            // A quoted number is a number.
            Json::Text(text) => Ok(unsigned(text, u8::MAX.into())
                .and_then(|number| u8::try_from(number).ok())
                .map_or_else(|| Self::Name(text.clone()), Self::Number)),
            Json::Integer(number) => u8::try_from(*number).map(Self::Number).map_err(|_| mismatch()),
            Json::Null => Ok(Self::default()),
            Json::Boolean(_) | Json::Fraction(_) | Json::List(_) | Json::Object(_) => Err(mismatch()),
        }
    }
}

/// Ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// First and last port, both included.
    Range(u16, u16),
    /// Ports of endpoints with this name.
    Named(String),
}

impl Port {
    fn parse(text: &str) -> Option<Self> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number =
            |text: &str| unsigned(text, u16::MAX.into()).and_then(|number| u16::try_from(number).ok());
        if digits(text) {
            return number(text).map(|port| Self::Range(port, port));
        }
        if let Some((first, last)) = text.split_once(':')
            && digits(first)
            && digits(last)
        {
            let (first, last) = (number(first)?, number(last)?);
            return (first <= last).then_some(Self::Range(first, last));
        }
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        ((1..=128).contains(&text.len()) && text.bytes().all(letters)).then(|| Self::Named(text.to_owned()))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(first, last) if first == last => write!(formatter, "{first}"),
            Self::Range(first, last) => write!(formatter, "{first}:{last}"),
            Self::Named(name) => formatter.write_str(name),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Range(first, last) if first == last => serializer.serialize_u16(*first),
            Self::Range(..) | Self::Named(_) => serializer.collect_str(self),
        }
    }
}

impl Decode for Port {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let mismatch = || {
            Mismatch::new(
                json,
                "a port from 0 to 65535, a range like \"4567:4570\" or a name",
            )
        };
        match json {
            Json::Text(text) => Self::parse(text).ok_or_else(mismatch),
            Json::Integer(number) => u16::try_from(*number)
                .map(|port| Self::Range(port, port))
                .map_err(|_| mismatch()),
            Json::Null => Ok(Self::Range(0, 0)),
            Json::Boolean(_) | Json::Fraction(_) | Json::List(_) | Json::Object(_) => Err(mismatch()),
        }
    }
}

#[cfg(test)]
mod tests;
