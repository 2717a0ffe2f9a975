//! The plan: every action on every object.

use engine::document::{Action, Document};

use crate::LABEL;
use crate::api::Settings;

/// The actions of the migration.
pub fn document(settings: &Settings) -> Document {
    let object = format!("ConfigMap {}", settings.config_map.value);
    Document {
        finish: vec![Action::new("label", object, format!("{LABEL}=true"))],
        ..Document::default()
    }
}
