//! Converts the settings of Felix: v2 has one value for each, v3 one object for all nodes and one for each single node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::conversion::Conversion;
use super::difference::Difference;
use super::felix_settings::{Form, SETTINGS, Setting};
use super::go_number::number;
use super::go_values::{boolean, equal_fold, integer, lower, unsigned};
use super::key::{ObjectKind, V2Key};
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::v2::Tree;
use super::{cluster_information, go_duration, names};

/// Setting with the address of a host's tunnel: a field of the Node in v3.
pub const TUNNEL_ADDRESS: &str = "IpInIpTunnelAddr";
/// Level in v3 for every level that v3 does not have.
const INFO: &str = "Info";
/// Values of settings that v3 validates. Felix of v2 accepts them in any case, so their case is corrected; other values are
/// copied unchanged.
const CHECKED: [(&str, &[&str], &str); 4] = [
    (
        "DefaultEndpointToHostAction",
        &["Drop", "Accept", "Return"],
        "Drop, Accept or Return",
    ),
    (
        "IptablesFilterAllowAction",
        &["Accept", "Return"],
        "Accept or Return",
    ),
    (
        "IptablesMangleAllowAction",
        &["Accept", "Return"],
        "Accept or Return",
    ),
    ("IptablesBackend", &["Legacy", "NFT"], "Legacy or NFT"),
];

/// A value with its path and its name in reports.
struct Found<'tree> {
    key: V2Key,
    path: &'tree str,
    text: &'tree str,
}

/// Converts the settings for all nodes.
pub fn of_all(tree: &Tree, conversion: &mut Conversion) {
    let values = tree
        .matching("/calico/v1/config/**")
        .into_iter()
        .map(|entry| {
            let found = Found {
                key: V2Key::Setting(entry.parts[0].to_owned()),
                path: entry.path,
                text: entry.value,
            };
            (entry.parts[0], found)
        })
        .collect();
    convert("default", &values, &cluster_information::SETTINGS, conversion);
}

/// Converts the settings of single nodes. Hosts that become one node share an object.
pub fn of_nodes(tree: &Tree, conversion: &mut Conversion) {
    let mut nodes: BTreeMap<String, BTreeMap<&str, Found<'_>>> = BTreeMap::new();
    let mut hosts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in tree.matching("/calico/v1/host/*/config/**") {
        let (host, name) = (entry.parts[0], entry.parts[1]);
        let node = names::node(host);
        let found = Found {
            key: V2Key::HostSetting(node.clone(), name.to_owned()),
            path: entry.path,
            text: entry.value,
        };
        hosts.entry(node.clone()).or_default().insert(host.to_owned());
        // Of the values of several hosts, the last is used.
        nodes.entry(node).or_default().insert(name, found);
    }
    for (node, values) in nodes {
        convert(&format!("node.{node}"), &values, &[TUNNEL_ADDRESS], conversion);
    }
    for (node, hosts) in hosts.into_iter().filter(|(_, hosts)| hosts.len() > 1) {
        let hosts = hosts.into_iter().collect();
        conversion.notes.push(Note::MergedHosts { node, hosts });
    }
}

/// Writes one object with these values. `others` are settings of other objects.
fn convert(name: &str, values: &BTreeMap<&str, Found<'_>>, others: &[&str], conversion: &mut Conversion) {
    let mut spec = Map::new();
    let mut is_set = false;
    for setting in &SETTINGS {
        let Some(found) = values.get(setting.v2) else {
            continue;
        };
        match value(setting, found.text) {
            Ok(value) => {
                is_set = true;
                spec.extend(value.map(|value| (setting.v3.to_owned(), value)));
                conversion.notes.extend(notes(setting, found));
            }
            Err(cause) => conversion.fail(found.key.clone(), found.path, cause),
        }
    }
    for (name, found) in values {
        let is_known = SETTINGS.iter().any(|setting| setting.v2 == *name) || others.contains(name);
        if !is_known {
            let like = SETTINGS.iter().find(|setting| equal_fold(setting.v2, name));
            conversion.notes.push(Note::UnknownSetting {
                key: found.key.clone(),
                like: like.map(|setting| setting.v2),
            });
        }
    }
    if is_set {
        conversion.write(&Resource::of_settings(ObjectKind::FelixConfiguration, name, spec));
    }
}

/// The value in v3; `None` for a value that is omitted.
fn value(setting: &Setting, text: &str) -> Result<Option<Value>, Cause> {
    let needed = |needed: &'static str, difference: Option<Difference>| Cause::Value {
        found: text.to_owned(),
        needed,
        difference,
    };
    Ok(match setting.form {
        Form::Boolean => Some(json!(boolean(text).ok_or_else(|| needed("true or false", None))?)),
        Form::Integer => Some(json!(
            integer(text).ok_or_else(|| needed("an integer like 1440", None))?
        )),
        Form::Mask => {
            let mask = mask(text)
                .ok_or_else(|| needed("a number of 32 bits, like 4278190080 or 0xff000000", None))?;
            Some(json!(mask))
        }
        Form::Text => (!text.is_empty()).then(|| json!(spelled(setting, text).unwrap_or(text))),
        Form::TextOrEmpty => Some(json!(text)),
        Form::Level => Some(level(text))
            .filter(|level| !level.is_empty())
            .map(|level| json!(level)),
        Form::Seconds | Form::Milliseconds => {
            let (unit, what) = if setting.form == Form::Seconds {
                (
                    go_duration::SECOND,
                    "a number of seconds, without a unit, like 12.5",
                )
            } else {
                (
                    go_duration::MILLISECOND,
                    "a number of milliseconds, without a unit, like 50",
                )
            };
            let time = number(text).ok_or_else(|| needed(what, Some(Difference::DurationOnce)))?;
            let time = go_duration::nanoseconds(time, unit).ok_or_else(|| {
                needed(
                    "a number for a duration of at most 292 years",
                    Some(Difference::DurationRange),
                )
            })?;
            Some(json!(go_duration::text(time)))
        }
        Form::Failsafe => Some(failsafe(text).ok_or_else(|| {
            needed(
                "none, or ports from 0 to 65535 with commas between them, each with an optional tcp: or udp:",
                None,
            )
        })?),
        Form::Unknown => {
            return Err(Cause::Unconvertible {
                found: text.to_owned(),
            });
        }
    })
}

/// The form in v3 of a value of a validated setting: `Return` for `RETURN`, which every node of v2 writes.
fn spelled(setting: &Setting, text: &str) -> Option<&'static str> {
    let (_, allowed, _) = CHECKED.iter().find(|(name, ..)| *name == setting.v2)?;
    allowed.iter().copied().find(|one| equal_fold(one, text))
}

fn notes(setting: &Setting, found: &Found<'_>) -> Option<Note> {
    let (key, text) = (found.key.clone(), found.text);
    if let Some((_, _, needed)) = CHECKED.iter().find(|(name, ..)| *name == setting.v2) {
        if setting.v2 == "IptablesBackend" {
            return Some(Note::CrashingSetting { key });
        }
        let found = text.to_owned();
        return match spelled(setting, text) {
            Some(written) if written != text => Some(Note::FelixAction { key, found, written }),
            None if !text.is_empty() => Some(Note::RefusedLater { key, found, needed }),
            Some(_) | None => None,
        };
    }
    match setting.form {
        Form::Mask if unsigned(text, u32::MAX).is_none() => mask(text).map(|mask| Note::MarkMask {
            key,
            found: text.to_owned(),
            mask,
        }),
        Form::Level => silenced(key, text),
        Form::Seconds if setting.v2 == "XDPRefreshInterval" => Some(Note::XdpName { key }),
        _ => None,
    }
}

/// The note on a level that v3 does not have.
pub fn silenced(key: V2Key, text: &str) -> Option<Note> {
    (level(text) == INFO && !equal_fold(text, INFO)).then(|| Note::SilencedLog {
        key,
        found: text.to_owned(),
    })
}

/// The level in v3; unknown levels become `Info`, also `none`.
pub fn level(text: &str) -> &'static str {
    match lower(text).as_str() {
        "" => "",
        "debug" => "Debug",
        "warning" => "Warning",
        "error" => "Error",
        "fatal" | "panic" => "Fatal",
        _ => INFO,
    }
}

/// Parses a mask in decimal, or in hexadecimal after `0x`.
fn mask(text: &str) -> Option<u32> {
    let hexadecimal = || {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16).ok().filter(|_| is_number)
    };
    unsigned(text, u32::MAX).or_else(hexadecimal)
}

/// Parses a list of ports. For a list without a port, the default of v3 applies, as in Calico.
fn failsafe(text: &str) -> Option<Value> {
    if text == "none" {
        return Some(json!([]));
    }
    let ports: Option<Vec<Value>> = text
        .split(',')
        .map(|port| port.trim_matches(' '))
        .filter(|port| !port.is_empty())
        .map(|port| {
            let (protocol, port) = port.split_once(':').unwrap_or(("TCP", port));
            let protocol = protocol.to_uppercase();
            let port = integer(port).and_then(|port| u16::try_from(port).ok())?;
            ["TCP", "UDP"]
                .contains(&protocol.as_str())
                .then(|| json!({ "protocol": protocol, "port": port }))
        })
        .collect();
    ports.map(|ports| {
        if ports.is_empty() {
            Value::Null
        } else {
            json!(ports)
        }
    })
}

#[cfg(test)]
mod tests;
