//! Objects that v3 has to have before it is opened.

use std::collections::BTreeSet;

use super::controller_objects::ControllerObjects;
use super::sources::Source;

/// Objects that v3 has to have before it is opened: those that existed at the first observation after the start of the
/// controllers. The controllers also write newer objects, but constantly created objects must not delay the migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// ID of the conversion.
    conversion: Option<String>,
    /// UIDs of objects that were missing in v3 at the last observation; `None` before the first.
    remaining: Option<BTreeSet<String>>,
}

impl Awaited {
    /// Starts again when the conversion is another one.
    pub fn begin(&mut self, conversion: Option<&str>) {
        if self.conversion.as_deref() != conversion {
            *self = Self {
                conversion: conversion.map(str::to_owned),
                remaining: None,
            };
        }
    }

    /// The objects among these that are still awaited. `system` are system namespaces.
    pub fn remaining_of<'sources>(
        &self,
        sources: &'sources [Source],
        system: &[&str],
    ) -> Vec<&'sources Source> {
        let is_remaining = |uid: &String| self.remaining.as_ref().is_none_or(|uids| uids.contains(uid));
        sources
            .iter()
            .filter(|source| is_remaining(&source.uid) && source.is_needed(system))
            .collect()
    }

    /// Remembers the awaited objects that are missing in v3.
    pub fn remember(&mut self, awaited: &[&Source], missing: &ControllerObjects) {
        let is_missing = awaited.iter().filter(|source| missing.contains(&source.origin));
        self.remaining = Some(is_missing.map(|source| source.uid.clone()).collect());
    }
}
